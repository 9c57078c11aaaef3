"""Leftover work: threads and tasks that a function leaves running can't change the environment of a later call."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import serving
from serving import Bench, wait_until

from toolpack_server.functions.leftovers import Watch, leftover_threads
from toolpack_server.packs.loading import load_catalog
from toolpack_server.testing import Session

CATALOG = load_catalog((serving.PACKS,), ("stragglers",))
stragglers = sys.modules["toolpacks.stragglers"]

LEAVE = ["leave_thread", "leave_in_executor", "leave_to_thread", "leave_run_in_executor"]


@pytest.fixture
def bench():
    with Bench(CATALOG) as bench:
        yield bench
    stragglers.executor.shutdown(wait=False)
    stragglers.executor = ThreadPoolExecutor(1)


@pytest.fixture
def gate(request, bench):  # noqa: ARG001 - must be opened before the bench closes
    name = request.node.name
    stragglers.gates[name] = threading.Event()
    yield name
    stragglers.gates[name].set()


def open_gate(name):
    stragglers.gates[name].set()
    wait_until(lambda: name in stragglers.written)


@pytest.mark.parametrize("leave", LEAVE)
def test_leftover_works_changes_reach_no_later_call(bench, gate, leave):
    session_id = bench.create("stragglers")
    for line in ("one", "two"):  # at the second line the thread pool already has its thread
        bench.result(session_id, "write", line=line)
        bench.result(session_id, leave, gate=gate)
    open_gate(gate)
    wait_until(lambda: not leftover_threads())
    assert bench.result(session_id, "write", line="three") == ["one", "two", "three"]
    lines = bench.rpc("get_environment", session_id=session_id, pointer="/stragglers/notes/lines")
    assert lines == ["one", "two", "three"]


@pytest.mark.parametrize("leave", LEAVE)
def test_leftover_work_is_counted_until_it_ends(bench, gate, leave):
    wait_until(lambda: not leftover_threads())
    session_id = bench.create("stragglers")
    bench.result(session_id, leave, gate=gate)
    wait_until(lambda: leftover_threads() == 1)
    open_gate(gate)
    wait_until(lambda: leftover_threads() == 0)


def test_awaited_work_leaves_nothing_and_keeps_live_objects(bench):
    session_id = bench.create("stragglers")
    thawed = []
    decode = bench.sessions._context.codec.decode
    bench.sessions._context.codec.decode = lambda *arguments, **kind: (
        thawed.append(arguments[0]) or decode(*arguments, **kind)
    )
    assert [bench.result(session_id, "write_in_thread", line="x") for _ in range(5)][-1] == ["x"] * 5
    assert len(thawed) == 1


@pytest.mark.parametrize("begin", [Bench, lambda: Session(stragglers.toolpack)], ids=["bench", "session of a test"])
def test_a_server_started_meanwhile_is_not_a_leftover(begin):
    watch = Watch()
    server = begin()
    assert not watch.leaves_work(["a toolpack that nothing else uses"])
    server.close()
