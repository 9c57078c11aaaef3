"""Lone calls: quick calls that arrive one by one run on the event loop's thread. A slow call delays no other call."""

import asyncio
import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import serving
from server_process import http_on, served
from serving import PATIENCE, ledger, wait_until

from toolpack_server.engine import pace
from toolpack_server.engine.pace import QUICK_RUNS
from toolpack_server.engine.threads import LONE_JOBS_MIN
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.rpc.caller import Caller

ENOUGH = QUICK_RUNS + LONE_JOBS_MIN + 2


class Lone:
    """A bench with a toolpack. Its only function calls `act` and returns the id of its thread."""

    def __init__(self, **settings):
        pack = Toolpack("lone", ledger.LedgerEnvironment, [ledger.add])
        self.act = lambda: None

        @pack.function
        def ident() -> int:
            """Return the id of the thread."""
            self.act()
            return threading.get_ident()

        self.bench = serving.Bench(Catalog({"lone": pack}), **settings)
        self.session = self.bench.create("lone")
        self.other = self.bench.create("lone")
        for _ in range(ENOUGH):
            self.bench.result(self.session, "ident")
            self.bench.result(self.other, "add", amount=1)

    def runs_on_the_loop(self):
        """Return whether a call runs on the loop's thread. On a busy machine, another thread may take over the loop."""
        return self.loop_thread() == self.bench.result(self.session, "ident") == self.loop_thread()

    def loop_thread(self):
        async def ident():
            return threading.get_ident()

        return self.bench._run(ident())


@pytest.fixture
def lone(request, monkeypatch):
    # On a busy machine, too, a function counts as quick until a test says otherwise.
    monkeypatch.setattr(pace, "QUICK_SECONDS", PATIENCE)
    monkeypatch.setattr(pace, "SLOW_LOOKS", None)
    lone_bench = Lone(**getattr(request, "param", {}))
    yield lone_bench
    lone_bench.bench.close()


def test_lone_quick_calls_run_on_the_event_loops_thread(lone):
    wait_until(lone.runs_on_the_loop, "a lone call")
    wait_until(lone.runs_on_the_loop, "another")


def test_calls_that_come_together_run_on_other_threads(lone):
    with lone.bench.paused():
        calls = [lone.bench.later_call(session, "ident") for session in (lone.session, lone.other)]
    assert lone.loop_thread() not in [call.result(PATIENCE)["result"] for call in calls]


def test_a_quick_function_that_waits_delays_no_others(lone):
    started, gate = threading.Event(), threading.Event()
    lone.act = lambda: (started.set(), gate.wait(PATIENCE))
    slow_call = lone.bench.later_call(lone.session, "ident")
    assert started.wait(PATIENCE)
    total = lone.bench.result(lone.other, "add", amount=1)
    assert [lone.bench.result(lone.other, "add", amount=1) for _ in range(ENOUGH)] == [
        total + number for number in range(1, ENOUGH + 1)
    ]
    assert not slow_call.done()
    gate.set()
    at = slow_call.result(PATIENCE)["result"]
    assert at != lone.loop_thread()
    lone.act = lambda: None
    wait_until(lone.runs_on_the_loop, "a lone call")


@pytest.mark.parametrize("lone", [{"timeout_seconds": 0.2}], indirect=True)
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_lone_call_is_abandoned_at_its_deadline(lone, stubborn):
    gate = threading.Event()

    def act():
        while not gate.is_set():
            with contextlib.suppress(BaseException) if stubborn else contextlib.nullcontext():
                time.sleep(0.001)

    lone.act = act
    envelope = lone.bench.call(lone.session, "ident")
    assert envelope["error"].startswith("TimeoutError: `ident` took longer than 0.2 s")
    lone.act = lambda: None
    gate.set()
    assert lone.bench.call(lone.other, "add", amount=1)["error"] is None
    wait_until(lambda: lone.bench.sessions.queues.threads.stuck_threads() == 0, "the end of the function")


def test_a_deadline_shorter_than_a_tick_leaves_the_loop_running(lone):
    lone.act = lambda: [None for _ in iter(int, 1)]
    for _ in range(3):
        envelope = lone.bench.call(lone.session, "ident", {"timeout_seconds": 0.001})
        assert envelope["error"].startswith("TimeoutError: `ident` took longer than 0.001 s")
    lone.act = lambda: None
    assert lone.bench.result(lone.other, "add", amount=1) == ENOUGH + 1


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_any_exception_fails_only_the_lone_call(lone, raised):
    def act():
        raise raised("out")

    lone.act = act
    assert lone.bench.call(lone.session, "ident")["error"] == f"{raised.__name__}: out"
    lone.act = lambda: None
    wait_until(lone.runs_on_the_loop, "a lone call")


def test_a_lone_call_may_run_its_own_event_loop(lone):
    ran = []
    lone.act = lambda: ran.append(asyncio.run(asyncio.sleep(0, "slept")))
    wait_until(lone.runs_on_the_loop, "a lone call")
    assert set(ran) == {"slept"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_by_a_lone_call_runs_no_loop(lone):
    children = []
    lone.act = lambda: children.append(os.fork())
    lone.bench.result(lone.session, "ident")
    lone.act = lambda: None
    assert os.waitpid(children[0], 0) == (children[0], 0)
    assert lone.bench.rpc("get_session", session_id=lone.session)["version"] == ENOUGH + 1


def test_a_slow_commit_does_not_block_the_loop(lone):
    started, gate = threading.Event(), threading.Event()
    real = lone.bench.store.commit

    def commit(commits):
        started.set()
        assert gate.wait(PATIENCE)
        return real(commits)

    lone.bench.store.commit = commit
    slow_call = lone.bench.later_call(lone.session, "ident")
    assert started.wait(PATIENCE)
    assert lone.loop_thread()
    late = lone.bench.later_call(lone.session, "ident")
    gate.set()
    assert [call.result(PATIENCE)["error"] for call in (slow_call, late)] == [None, None]
    lone.bench.store.commit = real
    trace = lone.bench.rpc("get_trace", session_id=lone.session)
    assert [record["index"] for record in trace] == [*range(len(trace))]


NAPS = """
import time
from pathlib import Path

from pydantic import BaseModel

from toolpack_server import Toolpack


class World(BaseModel):
    pass


TOOLPACK = Toolpack("naps", World)


@TOOLPACK.function
def nap(file: str) -> str:
    \"\"\"Sleep until a file is there.

    :param file: The file.
    \"\"\"
    while not Path(file).exists():
        time.sleep(0.01)
    return "woken"
"""


@pytest.mark.parametrize("protocol", ["httptools", "h11"])
def test_a_real_server_answers_others_while_a_lone_call_waits(tmp_path, protocol):
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "naps.py").write_text(NAPS)
    variables = http_on(protocol, tmp_path)
    with served(tmp_path, "--pack-dir", str(tmp_path / "packs"), "--packs", "naps", **variables) as server:
        session, woken = server.rpc("create_session")["session_id"], tmp_path / "woken"
        for _ in range(ENOUGH):
            assert server.call(session, "nap", file="/") == {"result": "woken", "error": None}
        with ThreadPoolExecutor(1) as pool:
            slow_call = pool.submit(server.call, session, "nap", file=str(woken))
            with serving.http_client(server.url) as other:
                for _ in range(20):
                    assert other.get("/healthz").status_code == 200
            assert not slow_call.done()
            woken.touch()
            assert slow_call.result() == {"result": "woken", "error": None}
        assert server.call(session, "nap", file="/") == {"result": "woken", "error": None}


def test_a_queued_lone_call_is_refused_at_a_stop(lone):
    ran = []
    lone.act = lambda: ran.append(1)
    body = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": {"session_id": lone.session}}
    body["params"]["function"] = "ident"

    async def sent_as_it_stops():
        answer = asyncio.ensure_future(lone.bench.service.rpc.answer(Caller(""), json.dumps(body).encode()))
        # in the same turn in which the call is admitted
        asyncio.get_running_loop().call_soon(lone.bench.sessions.queues.stop)
        return json.loads(await answer)

    assert lone.bench._run(sent_as_it_stops())["error"]["code"] == -32006
    assert not ran
