"""A missed deadline at any line of a call: the answers of all other calls stay right.

A tracer stops the function's thread at one line of the server's code or of the function, until the watcher has
interrupted it. A call that isn't stopped finds the lines.
"""

import contextlib
import itertools
import sys
import threading
from pathlib import Path

import pytest
from serving import PACKS, RpcError, wait_until

import toolpack_server
from toolpack_server.engine import pace, threads
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.pool_thread import here
from toolpack_server.packs.loading import load_catalog

CODE = (str(Path(toolpack_server.__file__).parent), str(Path(__file__).parents[1] / "fixtures"))
SKIPPED = ("interruption.py", "uninterruptible.py", "pool_thread.py")  # their own tests stop them
SOME, FEW = 4, 12  # number of lines of a call to stop at, and of answers after each
ALL, MANY = sys.maxsize, 100
STORES = ["memory", "sqlite", *(pytest.param(store, marks=pytest.mark.heavy) for store in ("redis", "postgres"))]
OWNER = "ann"
SIZES = {"papers": "count", "stall": "rows"}  # the options that set the initial amount of data
NAMES = ("ledger", "papers", "stall")
CATALOG = load_catalog((PACKS,), NAMES)

CALLS = {
    "read files": ("papers", "read", {"path": "many/0.txt"}),
    "change files": ("papers", "write", {"path": "new.txt", "text": "new"}),
    "use a database by its path": ("stall", "by_path", {"sql": "DELETE FROM orders"}),
    "change a database": ("stall", "order_within", {"product": 1}),
}


class Stops:
    """Tracer of the threads that run calls. It stops a thread at one line."""

    def __init__(self):
        self.lines = []
        self.at = None
        self.hit = threading.Event()

    def trace(self, frame, event, _):
        if threading.current_thread().name != "calls" or not frame.f_code.co_filename.startswith(CODE):
            return None
        if event != "line":
            return self.trace
        if not self._is_inside(frame) or frame.f_code.co_filename.endswith(SKIPPED):
            return self.trace
        line = frame.f_code.co_filename, frame.f_lineno
        if self.at is None:
            self.lines.append(line)
        elif line == self.at and not self.hit.is_set():
            self.hit.set()
            self._job(frame).deadline = 0.0
            wait_until(lambda: here.block.interrupted, "the interruption")
        return self.trace

    @staticmethod
    def _job(frame):
        while not isinstance(frame.f_locals.get("self"), Job):
            frame = frame.f_back
        return frame.f_locals["self"]

    @staticmethod
    def _is_inside(frame):
        while frame is not None:
            if frame.f_code.co_filename.startswith(CODE[1]):
                return True
            frame = frame.f_back
        return False


def answers(bench, model, count):
    """Return a number of answers to another owner, each with the answer of a model of the sessions."""
    for number, (session_id, entries) in zip(range(count // 4), itertools.cycle(model.items()), strict=False):
        ask = {"owner": OWNER, "session_id": session_id}
        yield bench.rpc("get_session", **ask)["session_id"], session_id
        entries.append(number)
        yield bench.rpc("run_function", **ask, function="add", kwargs={"amount": number})["result"], sum(entries)
        yield bench.rpc("run_function", **ask, function="total", kwargs={})["result"], sum(entries)
        yield bench.rpc("get_environment", **ask)["ledger"]["ledger"]["entries"], entries


@pytest.fixture
def stops(monkeypatch):
    for module in (pace, threads):
        monkeypatch.setattr(module, "QUICK_SECONDS", -1.0)  # quick calls would run on the event loop's thread
    tracer = Stops()
    threading.settrace(tracer.trace)  # before any thread starts
    yield tracer
    threading.settrace(None)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("store", STORES)
def test_an_interruption_anywhere_leaves_all_answers_right(stops, make_bench, store_url, store, kind):
    stop_everywhere(stops, make_bench(CATALOG, store_url(store), packs=NAMES, cache_bytes=0), kind, SOME, FEW)


@pytest.mark.long
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("store", STORES)
def test_an_interruption_at_each_line_leaves_all_answers_right(stops, make_bench, store_url, store, kind):
    stop_everywhere(stops, make_bench(CATALOG, store_url(store), packs=NAMES, cache_bytes=0), kind, ALL, MANY)


def stop_everywhere(stops, bench, kind, count, after_each):
    toolpack, function, kwargs = CALLS[kind]
    sizes = itertools.count(1)

    def create():  # each with unique content, which no call has loaded before
        return bench.create(toolpack, options={toolpack: {SIZES[toolpack]: next(sizes)}})

    def call(session_id):
        return bench.rpc("run_function", session_id=session_id, function=function, kwargs=kwargs)["error"]

    model = {bench.create("ledger", owner=OWNER): [] for _ in range(3)}
    call(create())
    session_id = create()
    stops.lines.clear()
    call(session_id)
    lines = [*dict.fromkeys(stops.lines)]
    assert len(lines) > 30
    for line in lines[:: max(1, len(lines) // count)]:
        session_id = create()
        stops.hit.clear()
        stops.at = line
        error = None
        try:
            with contextlib.suppress(RpcError):
                error = call(session_id)
        finally:
            stops.at = None
        assert stops.hit.is_set(), line
        assert error is None or "longer than" in error, (line, error)
        assert all(answer == right for answer, right in answers(bench, model, after_each)), line
        assert call(session_id) is None, line
    assert all(answer == right for answer, right in answers(bench, model, MANY))
