"""A cancelled call changes nothing, leaves no record, and frees its call_id. A committed call stays."""

import threading

import pytest
from serving import PATIENCE, ledger, wait_until

from toolpack_server.base.settings import Settings
from toolpack_server.engine import lanes
from toolpack_server.engine.lanes import Backlog, Lanes
from toolpack_server.engine.pace import Pace


def gate(name):
    event = ledger.gates[name] = threading.Event()
    return event


def cancel(bench, session_id, call):
    assert call.cancel()
    bench.rpc("get_session", session_id=session_id)  # wait for a turn of the event loop


def trace(bench, session_id):
    return bench.rpc("get_trace", session_id=session_id)


def started(bench, name):
    wait_until(lambda: bench.service.metrics.running.names(0), name)


@pytest.mark.parametrize("function", ["add_and_spin", "add_and_swallow", "add_and_hold"])
def test_a_running_call_is_abandoned_as_at_a_deadline(stored_bench, function):
    session_id, name = stored_bench.create(), f"cancel {function} {id(stored_bench)}"
    opened = gate(name)
    running = stored_bench.later_call(session_id, function, {"call_id": "c"}, name=name)
    started(stored_bench, "the function")
    cancel(stored_bench, session_id, running)
    # The call_id is free, and the session continues, although the function may still run.
    assert stored_bench.call(session_id, "add", {"call_id": "c"}, amount=5)["result"] == 5
    opened.set()
    assert stored_bench.version(session_id) == 1
    assert [record["function"] for record in trace(stored_bench, session_id)] == ["add"]


def test_two_abandoned_functions_block_only_their_session(bench):
    session_id, other = bench.create(), bench.create()
    for name in ("left 1", "left 2"):
        gate(name)
        running = bench.later_call(session_id, "add_and_hold", name=name)
        # Wait until the function waits where it can't be interrupted. Otherwise it would be ended, not abandoned.
        wait_until(lambda: ledger.gates[name]._cond._waiters, "the function at its gate")  # noqa: B023
        cancel(bench, session_id, running)
    behind = bench.later_call(session_id, "add", amount=1)
    assert bench.result(other, "add", amount=1) == 1
    assert (behind.done(), bench.sessions.load()[0]) == (False, 1)
    ledger.gates["left 2"].set()
    assert behind.result(PATIENCE)["result"] == 1
    assert bench.result(session_id, "add", amount=1) == 2
    ledger.gates["left 1"].set()
    wait_until(lambda: not bench.sessions.queues._queues, "the end of the function")
    assert bench.sessions.queues.threads.stuck_threads() == 0


def test_an_abandoned_function_counts_in_its_owners_share(make_bench, monkeypatch):
    monkeypatch.setattr(lanes, "RESERVE", 0)
    bench = make_bench(max_threads=2, tokens={"ann": "12345678", "bob": "87654321"})
    opened = gate("shared")
    session_id = bench.create(owner="ann")
    call = {"session_id": session_id, "function": "add_and_hold", "kwargs": {"name": "shared"}, "timeout_seconds": 0.01}
    assert bench.rpc("run_function", owner="ann", **call)["error"].startswith("TimeoutError")
    others = {}
    for owner in ("ann", "bob"):
        another = bench.create(owner=owner)
        others[owner] = bench.later("run_function", owner=owner, session_id=another, function="total")
    assert others["bob"].result(PATIENCE)["result"] == 0
    assert (others["ann"].done(), bench.sessions.load()[0]) == (False, 1)
    opened.set()
    assert others["ann"].result(PATIENCE)["result"] == 0


class Given:
    """The attributes of a job that lanes use."""

    lane, kind, owner, arrived = "functions", "add", "ann", 0.0


def test_a_call_abandoned_before_it_got_a_slot_counts(monkeypatch):
    monkeypatch.setattr(lanes, "RESERVE", 0)
    lanes_of_one = Lanes(Settings(max_threads=1), Pace(), Backlog())
    quick, next_one = Given(), Given()
    assert lanes_of_one.leave_behind(quick) == []
    assert not lanes_of_one.enter(next_one)
    assert lanes_of_one.leave(quick) == [next_one]


def test_a_waiting_call_leaves_its_queue_at_once(bench):
    session_id = bench.create()
    opened = gate("in front")
    first = bench.later_call(session_id, "add_and_hold", name="in front")
    started(bench, "the function")
    behind = [bench.later_call(session_id, "add", amount=1) for _ in range(3)]
    wait_until(lambda: bench.sessions.load()[0] == 3, "the queue")
    behind[1].cancel()
    wait_until(lambda: bench.sessions.load()[0] == 2, "its end")
    opened.set()
    assert [call.result(PATIENCE)["error"] for call in (first, behind[0], behind[2])] == [None] * 3
    assert len(trace(bench, session_id)) == 3


def test_a_call_is_cancelled_before_it_is_admitted(bench):
    session_id = bench.create()
    with bench.paused():
        call = bench.later_call(session_id, "add", amount=1)
        call.cancel()
    assert bench.result(session_id, "total") == 0
    assert [record["function"] for record in trace(bench, session_id)] == ["total"]


def test_a_call_cancelled_while_its_session_loads_never_runs(bench):
    """Cancel the call while its session's state is being loaded."""
    session_id = bench.create()
    bench.sessions.queues.cache.pop(session_id)  # so that the call reads the session from the store
    loads, goes_on = threading.Event(), threading.Event()
    load = bench.store.get

    def slow_load(arguments):
        loads.set()
        assert goes_on.wait(PATIENCE)
        return load(arguments)

    bench.store.get = slow_load
    runs = len(ledger.runs)
    call = bench.later_call(session_id, "add", amount=1)
    assert loads.wait(PATIENCE)
    bench.store.get = load
    cancel(bench, session_id, call)
    goes_on.set()
    assert bench.result(session_id, "total") == 0
    assert ledger.runs[runs:] == ["total"]
    assert len(trace(bench, session_id)) == 1


def test_a_committed_call_stays_after_cancelling(bench):
    session_id = bench.create()
    assert bench.result(session_id, "add", amount=1) == 1
    commits, goes_on = threading.Event(), threading.Event()
    commit = bench.store.commit

    def slow_commit(arguments):
        result = commit(arguments)
        commits.set()
        assert goes_on.wait(PATIENCE)
        return result

    bench.store.commit = slow_commit
    call = bench.later_call(session_id, "add", {"call_id": "c"}, amount=1)
    assert commits.wait(PATIENCE)
    call.cancel()
    bench.store.commit = commit
    goes_on.set()
    assert bench.call(session_id, "add", {"call_id": "c"}, amount=1)["result"] == 2
    assert bench.version(session_id) == 2


def test_repeated_cancelling_loses_no_thread_and_keeps_order(make_bench):
    bench = make_bench(max_threads=2)
    session_id = bench.create()
    for number in range(40):
        gate(f"again {number}").set()
        calls = [bench.later_call(session_id, "add", amount=1) for _ in range(3)]
        calls.insert(1, bench.later_call(session_id, "add_and_hold", name=f"again {number}"))
        calls[number % 4].cancel()
        for call in calls:
            if not call.cancelled():
                call.result(PATIENCE)
    total = bench.result(session_id, "total")
    *calls, _ = [record["function"] for record in bench.rpc("get_trace", session_id=session_id, limit=1000)]
    assert total == sum({"add": 1, "add_and_hold": 3}[function] for function in calls)
    assert bench.version(session_id) == len(calls)
    assert bench.sessions.load()[0] == 0
