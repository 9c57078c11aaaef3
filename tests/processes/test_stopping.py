"""A stop of the server or a worker's replacement: every request is answered, and no connection is lost."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis_server
import server_process
import serving
from serving import wait_until

from toolpack_server.base.settings import Settings
from toolpack_server.engine.lanes import RESERVE_PER_KIND
from toolpack_server.processes.draining import LINGER_SECONDS
from toolpack_server.processes.supervisor import STOP_SECONDS
from toolpack_server.web.bodies import NOT_READY

pytestmark = pytest.mark.heavy  # these tests start, stop and kill servers

PORT_SECONDS = 10  # time that container engines wait before they kill
KINDS = {"memory": ("--store", "memory:"), "one worker": (), "two workers": ("--workers", "2")}
MEANWHILE = {"jsonrpc": "2.0", "id": 1, "method": "list_functions"}


@contextlib.contextmanager
def served(folder, *arguments, **settings):
    variables = {f"TOOLPACK_{name.upper()}": str(value) for name, value in settings.items()}
    with server_process.served(folder, "--packs", "waiting", *arguments, **variables) as server:
        yield server


class Client:
    """A client that sends requests on a kept connection, or each on a new connection."""

    def __init__(self, server):
        self.address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        self._connection = None
        self._since = 0.0
        self.dawdled = False  # on a busy machine the server closes the connection, because it counts as idle

    def connect(self):
        if self._connection is None:
            self._since = time.monotonic()
            self._connection = http.client.HTTPConnection(*self.address, timeout=serving.PATIENCE)
            self._connection.connect()

    def send(self, body, *, keep=False):
        """Return the status, whether the server closes the connection, and the JSON of an answer."""
        self.connect()
        headers = {"Content-Type": "application/json"} | ({} if keep else {"Connection": "close"})
        try:
            try:
                self._connection.request("POST", "/rpc", json.dumps(body), headers)
            finally:
                self.dawdled = time.monotonic() - self._since > LINGER_SECONDS / 2
            response = self._connection.getresponse()
            closes = response.getheader("Connection") == "close"
            assert response.getheader("Content-Type") == "application/json"
            answer = response.status, closes, json.loads(response.read())
            self._since = time.monotonic()
        except BaseException:
            self.close()
            raise
        if closes or not keep:
            self.close()
        return answer

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def request(session, function, **kwargs):
    params = {"session_id": session, "function": function, "kwargs": kwargs}
    return {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params}


def children(pid):
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def run(pool, server, folder, function, session=None, **kwargs):
    """Send a call, and return when its function runs."""
    started = folder / f"started {time.monotonic()}"
    session = session or server.rpc("create_session")["session_id"]
    answer = pool.submit(Client(server).send, request(session, function, started=str(started), **kwargs))
    wait_until(started.exists, "the function's start")
    return answer


def waiting(server):
    return "toolpack_waiting_calls 4.0" in server.http.get("/metrics").text


@pytest.mark.parametrize(
    ("kind", "signals"),
    [
        *((kind, [signal.SIGTERM]) for kind in KINDS),
        # With more workers, the supervisor notifies each of them in the same way.
        *(
            (kind, signals)
            for kind in ("memory", "one worker")
            for signals in ([signal.SIGHUP], [signal.SIGINT, signal.SIGINT])
        ),
    ],
)
def test_running_and_waiting_calls_at_the_end_are_answered(tmp_path, kind, signals):
    drain_seconds = 3600 if len(signals) > 1 else 0.3
    with served(tmp_path, *KINDS[kind], drain_seconds=drain_seconds) as server, ThreadPoolExecutor(8) as pool:
        run_on, waited = [], []
        for function in ("wait_in_c", "wait_in_asyncio"):
            session = server.rpc("create_session")["session_id"]
            run_on.append(run(pool, server, tmp_path, function, session))
            waited += [pool.submit(Client(server).send, request(session, "answer")) for _ in range(2)]
        wait_until(lambda: waiting(server), "four calls that wait")
        ended = pool.submit(server.process.wait, serving.PATIENCE)
        for number in signals:
            # A terminal that is closed sends SIGHUP to the whole group.
            (os.killpg if number == signal.SIGHUP else os.kill)(server.process.pid, number)
            wait_until(lambda: server.process.poll() is not None or is_refusing(server), "the end of readiness")
        for answer in run_on + waited:
            status, closes, body = answer.result()
            assert (status, closes) == (200, True)
            # When one worker has released the session, the other worker may still run a call that waited for the lease.
            ran = kind == "two workers" and answer in waited and "result" in body
            assert ran or body["error"]["code"] == -32006
        assert ended.result() == 0
        log = (tmp_path / "server.log").read_text()
        assert "Traceback" not in log
        assert "ERROR" not in log


@pytest.mark.parametrize("where", ["&-", "/dev/full"])
def test_without_standard_error_the_server_works(tmp_path, monkeypatch, where):
    command = server_process.command
    shell = ["sh", "-c", f'trap "" HUP; exec "$@" 2>{where}', "sh"]
    monkeypatch.setattr(server_process, "command", lambda *arguments: [*shell, *command(*arguments)])
    with server_process.served(tmp_path, PYTHONUNBUFFERED="") as server:
        before = None
        for _ in range(2):
            session = server.rpc("create_session")["session_id"]
            assert server.call(session, "add", amount=1)["error"] is None
            assert len(server.rpc("fork_session", session_id=session)) == 1
            assert server.rpc("reset_session", session_id=session, version=0)["version"] == 2
            (worker,) = children(server.process.pid)
            server.process.send_signal(signal.SIGHUP)  # SIGHUP is ignored, as under `nohup`
            if before is None:
                os.kill(worker, signal.SIGKILL)
                wait_until(lambda last=worker: {*children(server.process.pid)} - {last}, "another worker")
                wait_until(lambda: server_process._is_ready(server), "readiness")
            before = worker
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is Linux's")
@pytest.mark.parametrize("flags", [[], ["--store", "memory:"]], ids=["sqlite", "memory"])
def test_without_standard_output_the_server_works(tmp_path, flags):
    port = str(redis_server.free_port())
    words = ["serve", "--port", port, "--data-dir", str(tmp_path), "--packs", "bank", *flags]
    with Path("/dev/full").open("w") as full, (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            server_process.command(*words), env=server_process.environment(), stdout=full, stderr=log
        )
    server = server_process.Served(process, "", f"http://127.0.0.1:{port}")
    try:
        with contextlib.closing(server.http):
            wait_until(lambda: process.poll() is not None or server_process._is_ready(server), "readiness")
        process.terminate()
        assert process.wait(serving.PATIENCE) == 0
    finally:
        process.kill()
    log = (tmp_path / "server.log").read_text()
    assert "Traceback" not in log
    assert "it was sent SIGTERM" in log


def is_refusing(server):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return Client(server).send(MEANWHILE)[0] == 503
    return True


def keep_sending(server, keep, answers, lost_requests):
    """Send requests one after the other until the port is closed. Append to the lists of answers and lost requests."""
    client = Client(server)
    while True:
        try:
            client.connect()
        except OSError:
            return
        try:
            answers.append(client.send(MEANWHILE, keep=keep))
        except (OSError, http.client.HTTPException) as error:
            if not client.dawdled:
                lost_requests.append(repr(error))


@pytest.mark.parametrize("kind", KINDS)
def test_requests_during_a_drain_are_refused_and_none_is_lost(tmp_path, kind):
    gate = tmp_path / "gate"
    with served(tmp_path, *KINDS[kind]) as server, ThreadPoolExecutor(16) as pool:
        running = run(pool, server, tmp_path, "wait_for_file", path=str(gate))
        answers, lost_requests = [], []
        senders = [pool.submit(keep_sending, server, bool(number % 2), answers, lost_requests) for number in range(6)]
        wait_until(lambda: len(answers) > 100, "requests before the stop")
        server.process.terminate()
        wait_until(lambda: sum(status == 503 for status, _, _ in answers) > 500, "requests during the drain")
        gate.touch()
        assert running.result()[2]["result"] == {"result": "done", "error": None}
        assert server.process.wait(serving.PATIENCE) == 0
        for sender in senders:
            sender.result()
    assert {status for status, _, _ in answers} == {200, 503}
    assert all(closes and body["error"]["code"] == -32000 for status, closes, body in answers if status == 503)
    # The kernel may have completed a handshake at the very moment the port was closed.
    assert len(lost_requests) <= 1, lost_requests


@pytest.mark.parametrize("kind", KINDS)
def test_idle_connections_and_stuck_threads_do_not_delay_the_end(tmp_path, kind):
    with served(tmp_path, *KINDS[kind], drain_seconds=3600) as server, contextlib.ExitStack() as stack:
        session = server.rpc("create_session")["session_id"]
        assert server.call(session, "hang")["error"].startswith("TimeoutError")
        for _ in range(4):
            client = Client(server)
            client.connect()
            stack.callback(client.close)
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0


def test_an_incomplete_request_at_the_end_is_answered(tmp_path):
    with served(tmp_path, "--store", "memory:", drain_seconds=0) as server, contextlib.ExitStack() as stack:
        created = server.rpc("create_session")
        paths = ["/rpc", created["agent_path"], created["mcp_path"], "/mcp/stranger"]
        clients = []
        for path in paths:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))))
            client.settimeout(serving.PATIENCE)
            headers = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            client.sendall(f"{headers}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 100")  # the server waits for the body
            clients.append(client)
        server.process.terminate()
        for client in clients:
            answer = stack.enter_context(client.makefile("rb")).read()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503")
            assert json.loads(body)["error"]["message"] == NOT_READY
        assert server.process.wait(serving.PATIENCE) == 0
        assert "Traceback" not in (tmp_path / "server.log").read_text()


def test_a_default_stop_ends_before_container_engines_kill():
    assert Settings().drain_seconds + STOP_SECONDS < PORT_SECONDS


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unfit_worker_is_replaced_without_refusals(tmp_path, workers):
    gate = tmp_path / "gate"
    with (
        served(tmp_path, "--workers", str(workers)) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        sessions = [server.rpc("create_session")["session_id"] for _ in range(6)]
        running = run(pool, server, tmp_path, "wait_for_file", path=str(gate))
        before = children(server.process.pid)
        finished = threading.Event()
        answers = []

        def keep_calling(number):
            client = Client(server)
            while not finished.is_set():
                try:
                    answer = client.send(request(sessions[number], "answer"), keep=bool(number % 2))
                except (OSError, http.client.HTTPException):
                    if not client.dawdled:
                        raise
                else:
                    if answer[0] == 200 or not client.dawdled:
                        answers.append(answer)
            client.close()

        callers = [pool.submit(keep_calling, number) for number in range(2, 6)]
        try:
            for _ in range(
                1 + Settings().max_stuck_threads
            ):  # each in its own session, because a session has at most two abandoned functions
                server.call(server.rpc("create_session")["session_id"], "hang")
            log = tmp_path / "server.log"
            wait_until(lambda: "it is being replaced" in log.read_text(), "the replacement")
            gate.touch()
            assert running.result()[2]["result"] == {"result": "done", "error": None}
            wait_until(lambda: len(children(server.process.pid) - before) == 1, "the new worker")
            wait_until(lambda: len(children(server.process.pid)) == workers, "the end of the old worker")
            answer_count = len(answers)
            wait_until(lambda: len(answers) > answer_count + 100, "answers of the workers that are left")
        finally:
            finished.set()
        for caller in callers:
            caller.result()
        assert {status for status, _, _ in answers} == {200}
        assert all(body.get("result") == {"result": "here", "error": None} for _, _, body in answers)


def test_in_memory_no_worker_is_replaced_which_is_logged_once(tmp_path):
    with served(tmp_path, "--store", "memory:") as server:
        for _ in range(3 + Settings().max_stuck_threads):
            session = server.rpc("create_session")["session_id"]
            assert server.call(session, "hang")["error"].startswith("TimeoutError")
        warned = "no supervisor that could replace it"
        wait_until(lambda: warned in (tmp_path / "server.log").read_text(), "the warning")
        assert server.call(server.rpc("create_session")["session_id"], "answer")["result"] == "here"
        assert server.http.get("/readyz").status_code == 200
        assert (tmp_path / "server.log").read_text().count(warned) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_forked_by_a_function_frees_the_port(tmp_path, kind):
    gate = tmp_path / "gate"
    with served(tmp_path, *KINDS[kind]) as server:
        client = Client(server)
        session = server.rpc("create_session")["session_id"]
        answer = client.send(request(session, "fork", path=str(gate)), keep=True)
        pid = answer[2]["result"]["result"]
        assert client.send(request(session, "answer"), keep=True)[2]["result"]["result"] == "here"
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0
        os.kill(pid, 0)  # the process is still alive
        socket.create_server(client.address).close()
        assert client._connection.sock.recv(1) == b""  # closed, though the forked process has inherited the port
        client.close()
        gate.touch()


def test_readiness_while_functions_take_all_threads(tmp_path):
    gate = tmp_path / "gate"
    with served(tmp_path) as server, ThreadPoolExecutor(300) as pool:
        first = server.rpc("create_session")["session_id"]
        sessions = [fork["session_id"] for fork in server.rpc("fork_session", session_id=first, count=300)]
        kwargs = {"path": str(gate)}
        calls = [
            pool.submit(
                Client(server).send, request(session, "wait_for_file", started=str(tmp_path / session), **kwargs)
            )
            for session in sessions
        ]
        share = Settings().max_threads

        def started_count():
            return sum((tmp_path / session_id).exists() for session_id in sessions)

        wait_until(lambda: started_count() >= share, "as many as may run")
        assert server.http.get("/readyz").status_code == 200
        assert started_count() <= share + RESERVE_PER_KIND  # at first some ran in reserved slots
        gate.touch()
        assert all(call.result()[2]["result"] == {"result": "done", "error": None} for call in calls)
