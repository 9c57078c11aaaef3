"""Processes stop without losing calls, are replaced when they die or hang, and never outlive their supervisor."""

import asyncio
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import server_process
import serving
import uvicorn
from redis_server import free_port
from serving import wait_until

from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.base.settings import Settings
from toolpack_server.observability.suspects import MAX_SUSPECTS, Suspects
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.inventory import Inventory
from toolpack_server.processes import draining, pipe, supervisor, worker
from toolpack_server.processes.child import Child
from toolpack_server.processes.cpu_time import CpuTime
from toolpack_server.processes.draining import DrainingServer
from toolpack_server.processes.listen import listen
from toolpack_server.processes.pipe import SERVING, STARTING, UNFIT, SupervisorPipe
from toolpack_server.processes.supervisor import (
    HANG_SECONDS,
    LOADING_SECONDS,
    LOOK_SECONDS,
    MAX_PAUSE_SECONDS,
    Supervisor,
)
from toolpack_server.processes.worker import OUTDATED, START_FAILED
from toolpack_server.web.app import create_app

PACK = '''
"""A pack whose function takes as long as a file is missing."""

import time
from pathlib import Path

from toolpack_server import Toolpack

toolpack = Toolpack("waiting")


@toolpack.function(timeout_seconds=600)
def wait_for(path: str) -> str:
    """Wait for a file.

    :param path: Its path.
    """
    Path(path + ".begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return "seen"
'''


# Stopping


class Idle:
    """Stand-in for the queues of a server. They are busy until the test sets `idle` or the server stops them."""

    def __init__(self):
        self.idle, self.stopped, self.stuck = False, False, 0

    def is_idle(self):
        return self.idle or self.stopped

    def stop(self):
        self.stopped = True


@pytest.fixture
def clock(monkeypatch):
    return serving.Clock(monkeypatch, draining)


@pytest.fixture
def server(clock):
    sessions = Idle()
    messages = []
    manager = SimpleNamespace(queues=sessions, begin_draining=lambda: messages.append(True))
    service = SimpleNamespace(settings=Settings(drain_seconds=8), sessions=manager)
    service.is_unfit = lambda: sessions.stuck > service.settings.max_stuck_threads
    gateway = SimpleNamespace(ready=True, answering=0, service=service, connections=SimpleNamespace(closing=False))
    draining = DrainingServer(lambda: None, gateway, SupervisorPipe())
    draining.servers = []
    draining.gateway, draining.sessions, draining.clock, draining.told = gateway, sessions, clock, messages

    async def tick(_self, _counter):
        return draining.should_exit

    # uvicorn's own tick updates headers and counts requests, which this test doesn't have.
    draining.tick = lambda: _run(DrainingServer.on_tick(draining, 0))
    uvicorn_tick, uvicorn.Server.on_tick = uvicorn.Server.on_tick, tick
    yield draining
    uvicorn.Server.on_tick = uvicorn_tick


def _run(coroutine):
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def test_at_sigterm_a_worker_logs_it_and_waits_for_calls(server, clock):
    assert not server.tick()
    assert not server.told
    server.handle_exit(signal.SIGTERM, None)
    assert server.told == [True]  # requests that wait for an event end now
    assert not server.gateway.ready
    clock.move(7.9)
    assert not server.tick()
    server.sessions.idle = True
    assert server.tick()


def test_calls_that_outlast_the_drain_are_abandoned(server, clock):
    server.handle_exit(signal.SIGTERM, None)
    clock.move(8.1)
    assert server.tick()


def test_a_second_ctrl_c_ends_a_worker_at_once(server, clock):
    server.handle_exit(signal.SIGINT, None)
    clock.move(0.1)
    assert not server.tick()
    server.handle_exit(signal.SIGINT, None)
    clock.move(0.1)
    assert server.tick()


def test_a_second_sigterm_changes_nothing(server, clock):
    server.handle_exit(signal.SIGTERM, None)
    for _ in range(3):
        clock.move(2.5)
        server.handle_exit(signal.SIGTERM, None)
        assert not server.tick()
    clock.move(1)
    assert server.tick()


def test_a_worker_waits_for_an_answer_being_sent(server):
    server.gateway.answering = 1
    server.sessions.idle = True
    server.handle_exit(signal.SIGTERM, None)
    assert not server.tick()
    server.gateway.answering = 0
    assert server.tick()


def test_an_unfit_worker_serves_until_it_is_retired(server):
    server.sessions.stuck = server.gateway.service.settings.max_stuck_threads
    assert not server.tick()
    assert not server._pipe.unfit
    server.sessions.stuck += 1
    server.sessions.idle = True
    assert not server.tick()
    assert server._pipe.unfit
    assert server.gateway.ready
    server._pipe.retired = True
    assert not server.tick()
    server.clock.move(draining.LINGER_SECONDS + 0.1)
    assert server.tick()
    assert server.gateway.ready


class Connection:
    """A connection that has received nothing yet."""

    cycle = upgraded = None


def test_a_retired_worker_waits_a_bounded_time_for_connections(server, clock):
    server.server_state.connections.add(Connection())
    server.sessions.idle = server._pipe.retired = True
    server.gateway.service.settings = Settings(workers=2, drain_seconds=8)
    assert not server.tick()
    clock.move(7.9)
    assert not server.tick()
    clock.move(0.2)
    assert server.tick()


def test_a_retired_worker_waits_for_a_new_connection(server, clock):
    server.sessions.idle = server._pipe.retired = True
    server.gateway.service.settings = Settings(workers=2, drain_seconds=8)
    assert not server.tick()
    server.server_state.connections.add(Connection())  # the event loop reports the connection later
    clock.move(draining.LINGER_SECONDS + 0.1)
    assert not server.tick()
    server.server_state.connections.clear()
    assert server.tick()


def test_a_retired_worker_that_blocks_the_store_waits_less(server, clock):
    server.server_state.connections.add(Connection())
    server.sessions.idle = server._pipe.retired = True
    assert not server.tick()
    clock.move(draining.LINGER_SECONDS + 0.1)
    assert server.tick()


def test_a_worker_that_ended_is_no_longer_watched(server):
    server.tick()
    assert server._pipe._turned is not None
    server.handle_exit(signal.SIGTERM, None)
    server.sessions.idle = True
    server.tick()
    assert server._pipe._turned is None


def test_new_requests_during_a_drain_get_503(make_bench):
    bench = make_bench()
    app = create_app(bench.service)
    app.state.gateway.ready = True

    async def ask(method, path):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            body = {"json": {"jsonrpc": "2.0", "id": 1, "method": "list_sessions"}} if method == "POST" else {}
            return (await http.request(method, path, **body)).status_code

    paths = [("POST", "/rpc"), ("POST", "/agents/x"), ("GET", "/openrpc.json"), ("GET", "/metrics"), ("GET", "/readyz")]
    assert [bench._run(ask(*path)) for path in paths] == [200] * 5
    app.state.gateway.ready = False
    assert [bench._run(ask(*path)) for path in paths] == [503] * 5
    assert bench._run(ask("GET", "/healthz")) == 200


# A whole process


@pytest.fixture(autouse=True)
def ctrl_c():
    """Reset SIGINT. A program that runs the tests in the background may ignore it, and child processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Waiting:
    """A server with a call that runs until the test creates a file."""

    def __init__(self, folder, *flags, **settings):
        (folder / "packs").mkdir()
        (folder / "packs" / "waiting.py").write_text(PACK)
        self.file = folder / "file"
        self.port = free_port()
        self.log = (folder / "server.log").open("w")
        settings = {f"TOOLPACK_{name}": value for name, value in settings.items()}
        arguments = ["--port", str(self.port), "--data-dir", str(folder), "--pack-dir", str(folder / "packs"), *flags]
        self.process = subprocess.Popen(
            server_process.command("serve", *arguments),
            env=server_process.environment(**settings), stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        self.http = serving.http_client(f"http://127.0.0.1:{self.port}")
        wait_until(lambda: self.status("/readyz") == 200, "the start")
        self.answer = None

    def status(self, path):
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return None

    def rpc(self, http, method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return serving.result_of(http.post("/rpc", json=body).content)

    def begin(self):
        """Send the call, and return when its function runs."""
        session = self.rpc(self.http, "create_session")["session_id"]

        def call():
            with serving.http_client(self.http.base_url) as http:
                try:
                    self.answer = self.rpc(http, "run_function", session_id=session, function="wait_for",
                                           kwargs={"path": str(self.file)})  # fmt: skip
                except (httpx.TransportError, serving.RpcError, ValueError) as error:
                    self.answer = error

        self.caller = threading.Thread(target=call, daemon=True)
        self.caller.start()
        wait_until(self.file.with_name("file.begun").exists, "the call")

    def end(self):
        self.file.touch()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(serving.PATIENCE)
        self.http.close()
        self.log.close()


@pytest.fixture(params=["one process", "supervised"])
def waiting(request, tmp_path):
    flags = ["--store", "memory:"] if request.param == "one process" else []
    waiting_server = Waiting(tmp_path, *flags, DRAIN_SECONDS="600")
    yield waiting_server
    waiting_server.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopping_server_answers_running_calls_and_exits_0(waiting, number):
    waiting.begin()
    waiting.process.send_signal(number)
    wait_until(lambda: waiting.status("/readyz") == 503, "the word that it stops")
    assert waiting.process.poll() is None
    waiting.file.touch()
    waiting.caller.join(serving.PATIENCE)
    assert waiting.answer == {"result": "seen", "error": None}
    assert waiting.process.wait(serving.PATIENCE) == 0


@pytest.mark.parametrize("flags", [["--store", "memory:"], []], ids=["one process", "supervised"])
def test_a_server_in_shutdown_delay_serves_but_is_not_ready(tmp_path, flags):
    waiting = Waiting(tmp_path, *flags, SHUTDOWN_DELAY_SECONDS="600")
    try:
        session = waiting.rpc(waiting.http, "create_session")["session_id"]  # on a connection that stays open
        waiting.process.send_signal(signal.SIGTERM)
        with serving.http_client(waiting.http.base_url) as balancer:
            wait_until(lambda: balancer.get("/readyz").status_code == 503, "the word that it stops")
            assert balancer.get("/healthz").status_code == 200
        body = {"jsonrpc": "2.0", "id": 1, "method": "get_session", "params": {"session_id": session}}
        for _ in range(2):
            answer = waiting.http.post("/rpc", json=body)
            assert serving.result_of(answer.content)["session_id"] == session
            assert answer.headers["Connection"] == "close"  # so that its client connects to another server next
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.process.wait(serving.PATIENCE) == 0
    finally:
        waiting.end()


def test_two_ctrl_c_end_a_server_despite_running_calls(tmp_path):
    waiting = Waiting(tmp_path, "--store", "memory:", DRAIN_SECONDS="600")
    try:
        waiting.begin()
        waiting.process.send_signal(signal.SIGINT)
        wait_until(lambda: waiting.status("/readyz") == 503, "the word that it stops")
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.process.wait(serving.PATIENCE) == 0
    finally:
        waiting.end()


# The supervisor


class FakeWorker:
    """A worker process as the supervisor sees it."""

    def __init__(self):
        self.row, self.pid, self.pipe, self.exit_code = 0, 1, None, None
        self.silence = self.quiet = 0.0
        self.ending, self.failure = None, ""
        self.holder, self.announced, self.heard = f"holder {id(self)}", set(), []
        self.served = self.unfit = self.ended = False

    def is_alive(self):
        return self.exit_code is None

    def die(self, code):
        self.exit_code = code

    def watch(self, seconds):
        self.silence += seconds
        self.quiet += seconds

    def retire(self):
        self.ending = 0.0

    def send(self, message):
        self.heard.append(message)

    def end(self):
        self.ended = True
        self.exit_code = -9 if self.exit_code is None else self.exit_code


@pytest.fixture
def keeper(monkeypatch):
    """Return a supervisor with child processes that tests let die or fall silent."""
    clock = serving.Clock(monkeypatch, supervisor)
    monkeypatch.setattr(supervisor, "secret_key", lambda _settings: b"")
    monkeypatch.setattr(supervisor, "WorkerProcess", lambda *_: FakeWorker())
    new_supervisor = Supervisor(Settings(workers=2), serving.CATALOG.inventory(), None)
    new_supervisor.clock = clock
    new_supervisor._replace_workers()
    return new_supervisor


def watch(keeper, seconds):
    """Let time pass while the supervisor watches its workers."""
    for child in keeper._children:
        child.watch(seconds)
    keeper.clock.move(seconds)


def test_live_workers_are_left_alone(keeper):
    before = [*keeper._children]
    watch(keeper, 4.9)
    keeper._replace_workers()
    assert keeper._children == before


def test_a_worker_silent_for_5_seconds_is_replaced(keeper, caplog):
    assert HANG_SECONDS == 5.0
    silent, other = keeper._children
    silent.silence = silent.quiet = 5.1
    keeper._replace_workers()
    assert not silent.ended  # the worker may be importing a library, which can hold the GIL for long
    silent.served = True
    keeper._replace_workers()
    assert silent.ended
    assert not other.ended
    assert len(keeper._children) == 2
    assert "hung for 5 s and was killed" in caplog.text


def test_a_worker_silent_during_imports_is_killed_after_30_s(keeper):
    assert LOADING_SECONDS == 30.0
    silent = keeper._children[0]
    for silence in (29.9, 30.1):
        silent.silence = silence
        keeper._replace_workers()
        assert silent.ended is (silence > LOADING_SECONDS)


def test_a_starved_worker_gets_a_minute(keeper):
    starved = keeper._children[0]
    starved.served, starved.silence = True, 4.9
    for quiet in (59.0, 61.0):
        starved.quiet = quiet
        keeper._replace_workers()
        assert starved.ended is (quiet > 60)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system doesn't show the activity of processes")
def test_silence_counts_sleep_and_cpu_time():
    code = "import sys\nprint(flush=True)\n{}"
    for action, waits in (("sys.stdin.read()", True), ("while True: pass", False)):
        with subprocess.Popen(
            [sys.executable, "-c", code.format(action)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            process.stdout.readline()
            activity = CpuTime(process.pid)
            # This is far more than the time that has passed, so the supervisor must have read it from the process.
            if waits:
                wait_until(lambda: activity.counted(1000.0) == 1000.0, "its wait")  # noqa: B023
            else:
                wait_until(lambda: activity.counted(1000.0) > 0, "its work")  # noqa: B023
                assert activity.counted(1000.0) < 500
            process.kill()
    assert activity.counted(1000.0) == 1000.0  # the system shows no data of an ended process


def test_serving_workers_are_told_which_others_ended(keeper):
    dead, other = keeper._children
    other.served = True
    dead.die(-9)
    keeper._replace_workers()
    for _ in range(2):
        keeper._announce_ended_workers()
    assert other.heard == [pipe.ENDED + dead.holder.encode()]


def test_new_workers_are_told_which_workers_ended_before(keeper):
    dead = [*keeper._children]
    for child in dead:
        child.served = True
        child.die(-9)
    keeper._replace_workers()
    keeper._announce_ended_workers()
    one, two = keeper._children
    assert one.heard == []
    for child in (one, two):
        child.served = True
        keeper._announce_ended_workers()
        assert child.heard == [pipe.ENDED + ended.holder.encode() for ended in dead]


def test_a_supervisors_own_pause_makes_no_worker_silent(keeper, monkeypatch):
    monkeypatch.setattr(supervisor, "wait", lambda _pipes, _seconds: keeper.clock.move(3600))
    keeper._wait()
    assert {child.silence for child in keeper._children} == {LOOK_SECONDS}


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_worker_that_ended_is_replaced(keeper, code, caplog):
    ended, other = keeper._children
    ended.served = True
    ended.die(code)
    keeper._replace_workers()
    assert ended not in keeper._children
    assert other in keeper._children
    assert len(keeper._children) == 2
    assert f"Worker 1 exited with status {code}; starting a replacement." in caplog.text


def test_a_failed_start_ends_a_server_that_never_served(keeper):
    keeper._children[0].die(START_FAILED)
    keeper._served = True
    keeper._replace_workers()
    keeper._served = False
    keeper._children[0].die(START_FAILED)
    keeper._children[0].failure = "The store is on the moon."
    with pytest.raises(StartError, match="store is on the moon"):
        keeper._replace_workers()


def test_a_worker_with_other_packs_ends_a_server_without_others(keeper, caplog):
    first, second = keeper._children
    first.served = second.served = keeper._served = True
    first.die(OUTDATED)
    first.failure = "the toolpack 'shop' has other functions"
    keeper._replace_workers()
    assert "(the toolpack 'shop' has other functions); starting a replacement" in caplog.text
    second.served = False
    keeper._children[0].die(OUTDATED)
    keeper._children[0].failure = "the toolpack 'shop' has other functions"
    with pytest.raises(StartError, match="'shop' has other functions"):
        keeper._replace_workers()


def test_the_log_names_the_calls_of_an_ended_worker(keeper, caplog):
    running = keeper._metrics.running.of_row(0)
    slots = [running.begin("ledger", name, 1) for name in ("total", "add", "total", "gone")]
    running.end(slots[0])
    keeper._children[0].die(-9)
    keeper._replace_workers()
    assert (
        "Worker 1 exited with status -9 while running ledger.add, ledger.total; starting a replacement." in caplog.text
    )
    assert keeper._metrics.running.of_row(0).names(0) == []


def test_the_server_logs_once_that_all_workers_serve(keeper):
    messages = []
    keeper._serving = lambda: messages.append(keeper.clock.monotonic())
    first, second = keeper._children
    keeper._watch(0.1)
    first.served = True
    keeper._watch(0.1)
    assert not messages
    second.served = True
    keeper._watch(0.1)
    keeper._watch(0.1)
    assert len(messages) == 1


def test_the_server_serves_though_one_worker_takes_long(keeper):
    messages = []
    keeper._serving = lambda: messages.append(1)
    keeper._children[0].served = True
    for _ in range(60):
        keeper._watch(0.1)
    assert messages == [1]


def test_workers_that_end_at_once_restart_with_growing_delay(keeper):
    pauses = []
    for _ in range(12):
        keeper._children[-1].die(1)
        before = keeper.clock.monotonic()
        keeper._replace_workers()
        while len(keeper._children) < 2:
            keeper.clock.move(0.125)
            keeper._replace_workers()
        pauses.append(round(keeper.clock.monotonic() - before, 3))
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 1
    assert MAX_PAUSE_SECONDS <= pauses[-1] < MAX_PAUSE_SECONDS + 1


def test_workers_that_served_restart_without_delay(keeper):
    for _ in range(20):
        for child in keeper._children:
            child.served = True
            child.die(-9)
        keeper._replace_workers()
        assert len(keeper._children) == 2


def test_only_a_call_in_all_three_crashes_is_blocked(keeper):
    running = keeper._metrics.running
    suspects, guilty, beside, later = running.suspects, 1, 2, 3
    # A function can also end its process with these exit statuses.
    for times, other, status in [(1, beside, START_FAILED), (2, later, OUTDATED), (3, later, 0)]:
        for call in (guilty, other):
            running.begin("ledger", "add", call)
        keeper._children[0].served = True
        keeper._children[0].die(status)
        keeper._replace_workers()
        assert suspects.times(guilty) == times
    assert [suspects.times(call) for call in (beside, later)] == [1, 1]
    suspects.end(beside, alone=False, forget=True)
    assert [suspects.times(call) for call in (guilty, beside)] == [3, 0]


def test_a_planned_replacement_raises_no_suspicion(keeper):
    retired = keeper._children[0]
    keeper._metrics.running.of_row(retired.row).begin("ledger", "add", 1)
    retired.ending = Settings().drain_seconds + supervisor.STOP_SECONDS + 0.1
    keeper._replace_workers()
    assert retired.ended
    assert keeper._metrics.running.suspects.times(1) == 0


def test_varied_calls_are_blamed_despite_good_calls_between():
    suspects = Suspects()
    for times in (1, 2, 3):
        suspects.blame([1])
        assert suspects.times(1) == times
        alone = suspects.begin(1, 0)
        assert alone  # no other suspect runs beside it
        suspects.end(1, alone=alone, forget=False)
        assert not suspects.begin(1, 0)  # the call is cleared, so it needn't run alone
    # Being cleared once doesn't protect a call from later blame.
    suspects.blame([1, 2])
    assert [suspects.times(call) for call in (1, 2)] == [4, 1]


def test_new_suspects_evict_the_least_suspected():
    suspects = Suspects()
    for _ in range(3):
        suspects.blame([1])
    for call in range(2, 3 * MAX_SUSPECTS):
        suspects.blame([call])
    assert suspects.times(1) == 3
    assert [suspects.times(call) for call in (2, 3 * MAX_SUSPECTS - 2, 3 * MAX_SUSPECTS - 1)] == [0, 1, 1]


def test_an_unfit_worker_is_retired_when_another_serves(keeper):
    unfit, other = keeper._children
    unfit.served = unfit.unfit = other.served = True
    keeper._replace_workers()
    assert len(keeper._children) == 3
    assert unfit.ending is None
    keeper._children[2].served = True
    keeper._replace_workers()
    assert unfit.ending is not None
    assert other.ending is None
    unfit.die(0)
    keeper._replace_workers()
    assert keeper._children == [other, keeper._children[1]]


def test_replacements_never_outnumber_the_workers(keeper):
    for _ in range(5):
        for child in keeper._children:
            child.served = child.unfit = True
        keeper._replace_workers()
    assert len(keeper._children) == 4


def test_a_retired_worker_that_does_not_end_is_killed(keeper):
    child = keeper._children[0]
    child.ending = Settings().drain_seconds + supervisor.STOP_SECONDS + 0.1
    keeper._replace_workers()
    assert child.ended


# A worker's start and end


def run_forked(monkeypatch, run, supervisor_pid=None):
    """Run a function as a supervised worker in a forked process, and return its exit status."""
    monkeypatch.setattr(worker, "run_worker", run)
    monkeypatch.setattr(worker, "Service", lambda settings, *_, **__: SimpleNamespace(settings=settings))
    monkeypatch.setattr(worker, "catalog_of", lambda *_, **__: Catalog({}))
    pid = os.getpid() if supervisor_pid is None else supervisor_pid
    process = Child(lambda pipe: worker.supervised_worker(Settings(), Inventory({}), None, b"", None, pipe, pid))
    try:
        wait_until(lambda: not process.is_alive(), "the end of the worker")
        return process.exit_code
    finally:
        process.end()


def fail(error):
    def run(*_arguments):
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (lambda *_: None, 0),
        (fail(StartError("no")), START_FAILED),
        (fail(ValueError("no")), 1),
        (fail(SystemExit(0)), 1),
    ],
)
def test_a_workers_exit_status_shows_how_it_ended(monkeypatch, run, status):
    assert run_forked(monkeypatch, run) == status


def test_a_worker_whose_supervisor_has_died_already_ends_at_once(monkeypatch):
    assert run_forked(monkeypatch, lambda *_: None, supervisor_pid=1) == 1


def test_a_worker_leaves_ctrl_c_to_its_supervisor(monkeypatch):
    def run(*_arguments):
        os.kill(os.getpid(), signal.SIGINT)
        raise StartError("it lives")

    assert run_forked(monkeypatch, run) == START_FAILED


def test_a_worker_raises_its_limit_of_open_files(monkeypatch):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def see(_service):
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
        raise StartError if allowed else ValueError

    def run(*arguments):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
        real(*arguments)

    real = worker.run_worker
    monkeypatch.setattr(worker, "create_app", see)
    assert run_forked(monkeypatch, run) == START_FAILED


def test_connections_send_answers_without_delay():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()) as _,
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_in_use_is_named():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=f"Can't listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


# Draining


def leaving(bench, context):
    return asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), bench._loop)


def running_call(**settings):
    """Yield a server that does its regular work and runs a call."""
    bench = serving.Bench(**settings)
    context = bench.service.running()
    bench._run(context.__aenter__())
    session_id = bench.create()
    gate = serving.ledger.gates["draining"] = threading.Event()
    before = len(serving.ledger.runs)
    call = bench.later_call(session_id, "add_and_hold", name="draining")
    wait_until(lambda: len(serving.ledger.runs) > before, "the call")
    return bench, context, session_id, gate, call


def test_a_drain_waits_for_running_and_queued_calls():
    bench, context, session_id, gate, call = running_call(drain_seconds=600)
    behind = bench.later_call(session_id, "add", amount=1)
    end = leaving(bench, context)
    assert bench.result(bench.create(), "add", amount=1) == 1
    assert not end.done()
    gate.set()
    assert call.result(serving.PATIENCE)["result"] == 3
    assert behind.result(serving.PATIENCE)["result"] == 4
    end.result(serving.PATIENCE)
    bench.close()


def test_a_drain_ends_when_its_time_is_over():
    bench, context, session_id, gate, call = running_call(drain_seconds=0.01)
    leaving(bench, context).result(serving.PATIENCE)
    with pytest.raises(serving.RpcError) as refused:
        call.result(serving.PATIENCE)
    assert refused.value.code == -32006
    gate.set()
    assert bench.store.get(session_id)[1].version == 0
    bench.close()


# Heartbeats


def test_a_worker_ends_when_no_process_reads_its_heartbeats(monkeypatch):
    def run(*_arguments):
        ours, theirs = multiprocessing.Pipe()
        ours.close()
        SupervisorPipe(theirs)
        threading.Event().wait()

    assert run_forked(monkeypatch, run) == 1


class Pipe:
    """Stand-in for the supervisor's end of a pipe. It accepts a limited number of heartbeats."""

    def __init__(self):
        self.sent, self.messages = [], []
        self.turns = threading.Semaphore(0)

    def poll(self, _seconds):
        self.turns.acquire()
        return bool(self.messages)

    def recv_bytes(self):
        return self.messages.pop()

    def send_bytes(self, message):
        self.sent.append(message)


def test_heartbeats_stop_if_the_event_loop_is_blocked(monkeypatch):
    clock = serving.Clock(monkeypatch, pipe)
    taker = Pipe()
    turns = taker.turns

    def beat():
        before, waits = len(taker.sent), turns._value
        assert waits == 0
        turns.release()
        wait_until(lambda: turns._value == 0 and len(turns._cond._waiters) == 1, "the end of a beat")
        return taker.sent[before:]

    heartbeat = SupervisorPipe(taker)
    wait_until(lambda: len(turns._cond._waiters) == 1, "the first beat")
    assert taker.sent == [STARTING]
    assert beat() == [STARTING]
    heartbeat.turn()
    assert beat() == [SERVING]
    clock.move(1.9)
    assert beat() == [SERVING]
    clock.move(0.2)
    assert beat() == beat() == []
    heartbeat.turn()
    assert beat() == [SERVING]
    heartbeat.unfit = True
    assert beat() == [UNFIT]
    heartbeat.turn(last=True)
    clock.move(60)
    assert beat() == [STARTING]


def test_a_worker_sends_its_name_and_learns_who_ended():
    taker, ended = Pipe(), []
    SupervisorPipe(taker).introduce("one", ended.append)
    assert pipe.HOLDER + b"one" in taker.sent
    taker.messages.append(pipe.ENDED + b"another")
    taker.turns.release()
    wait_until(lambda: ended == ["another"], "the news")
