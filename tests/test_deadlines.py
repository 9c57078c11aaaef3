"""Past its deadline a call is answered and has changed nothing; what its thread still does reaches nobody."""

import sys
import threading
import time

import pytest
import serving
from serving import PATIENCE, RpcError, ledger, wait_until


def gate(name):
    made = ledger.gates[name] = threading.Event()
    return made


def entries(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id, pointer="/ledger/ledger/entries")


def goes_on(bench, session_id):
    assert entries(bench, session_id) == [7]
    assert bench.version(session_id) == 1
    assert bench.result(session_id, "add", amount=1) == 8


@pytest.mark.parametrize("function", ["add_and_spin", "add_and_swallow"])
def test_a_loop_is_answered_at_its_deadline_and_its_late_writes_reach_nothing(stored_bench, function):
    name = f"{function} {id(stored_bench)}"
    session_id = stored_bench.create()
    stored_bench.result(session_id, "add", amount=7)
    opened = gate(name)
    envelope = stored_bench.call(session_id, function, name=name)
    assert envelope == {
        "result": "",
        "error": f"TimeoutError: `{function}` took longer than 0.3 s and was given up; nothing has changed.",
    }
    goes_on(stored_bench, session_id)
    opened.set()
    wait_until(lambda: stored_bench.sessions.queues.threads.stuck_threads() == 0, "the end of the thread")
    assert entries(stored_bench, session_id) == [7, 1]
    assert stored_bench.result(session_id, "total") == 8
    if function == "add_and_swallow":
        assert name in ledger.late  # it has gone on to its end, and that was to no avail


def test_a_python_loop_is_ended(bench):
    session_id = bench.create()
    gate("for ever")
    assert bench.call(session_id, "add_and_spin", name="for ever")["error"].startswith("TimeoutError: ")
    wait_until(lambda: bench.sessions.queues.threads.stuck_threads() == 0, "the end of the loop")
    assert "for ever" not in ledger.late


def test_beside_a_function_that_computes_others_get_the_interpreter_sooner(bench):
    usual = sys.getswitchinterval()
    gate("computes")
    ended = bench.later_call(bench.create(), "add_and_spin", name="computes")
    wait_until(lambda: sys.getswitchinterval() < usual, "thin slices")
    assert ended.result(PATIENCE)["error"].startswith("TimeoutError: ")
    wait_until(lambda: sys.getswitchinterval() == usual, "the end of the loop")


def test_a_function_that_waits_in_c_is_answered_and_its_thread_counts_as_stuck():
    bench = serving.Bench(timeout_seconds=0.2)
    session_id = bench.create()
    bench.result(session_id, "add", amount=7)
    opened = gate("in C")
    envelope = bench.call(session_id, "add_and_hold", name="in C")
    assert envelope["error"].startswith("TimeoutError: `add_and_hold` took longer than 0.2 s")
    goes_on(bench, session_id)
    assert bench.sessions.queues.threads.stuck_threads() == 1
    opened.set()
    wait_until(lambda: bench.sessions.queues.threads.stuck_threads() == 0, "the end of the thread")
    assert entries(bench, session_id) == [7, 1]
    bench.close()


def test_behind_a_deadline_that_its_caller_shortened_a_session_waits_for_the_old_thread(bench):
    session_id = bench.create()
    bench.result(session_id, "add", amount=7)
    opened = gate("shortened")
    envelope = bench.call(session_id, "add_and_hold", {"timeout_seconds": 0.05}, name="shortened")
    assert envelope["error"].startswith("TimeoutError: `add_and_hold` took longer than 0.05 s")
    runs = len(ledger.runs)
    behind = [bench.later_call(session_id, "add", amount=1) for _ in range(6)]
    assert entries(bench, session_id) == [7]
    assert bench.sessions.queues.threads.stuck_threads() == 0  # whoever calls can't bring that about
    assert len(ledger.runs) == runs
    opened.set()
    assert [call.result(PATIENCE)["result"] for call in behind] == [8, 9, 10, 11, 12, 13]


def test_an_async_function_has_the_same_deadline_and_is_ended(stored_bench):
    session_id = stored_bench.create()
    stored_bench.result(session_id, "add", amount=7)
    assert stored_bench.call(session_id, "add_and_await")["error"].startswith(
        "TimeoutError: `add_and_await` took longer"
    )
    goes_on(stored_bench, session_id)
    wait_until(lambda: stored_bench.sessions.queues.threads.stuck_threads() == 0, "the end of the coroutine")
    assert stored_bench.result(session_id, "add_later", amount=1) == 9


def test_other_sessions_are_served_all_the_while(bench):
    slow, quiet = bench.create(), bench.create()
    gate("noise")
    call = bench.later_call(slow, "add_and_spin", name="noise")
    done = 0
    while not call.done():
        bench.result(quiet, "add", amount=1)
        done += 1
    assert done > 3
    assert call.result()["error"].startswith("TimeoutError: ")


def test_calls_behind_the_overrunning_one_go_on_from_the_last_snapshot(bench):
    session_id = bench.create()
    gate("queue behind")
    first = bench.later_call(session_id, "add_and_spin", name="queue behind")
    behind = [bench.later_call(session_id, "add", amount=1) for _ in range(3)]
    assert first.result(serving.PATIENCE)["error"].startswith("TimeoutError: ")
    assert [call.result(serving.PATIENCE)["result"] for call in behind] == [1, 2, 3]


def test_a_call_can_only_shorten_its_deadline(bench):
    session_id = bench.create()
    gate("longer")
    longer = bench.call(session_id, "add_and_spin", {"timeout_seconds": 3600}, name="longer")
    assert "took longer than 0.3 s" in longer["error"]
    gate("shorter")
    shorter = bench.call(session_id, "add_and_spin", {"timeout_seconds": 0.05}, name="shorter")
    assert "took longer than 0.05 s" in shorter["error"]


def test_the_default_is_a_setting_which_a_functions_own_replaces():
    bench = serving.Bench(timeout_seconds=0.1)
    session_id = bench.create()
    opened = gate("default")
    assert "took longer than 0.1 s" in bench.call(session_id, "add_and_hold", name="default")["error"]
    assert "took longer than 0.3 s" in bench.call(session_id, "add_and_swallow", name="default")["error"]
    opened.set()
    bench.close()


@pytest.mark.parametrize("seconds", [0, -1, "1", True])
def test_a_deadline_is_a_positive_number(bench, seconds):
    with pytest.raises(RpcError) as refused:
        bench.call(bench.create(), "total", {"timeout_seconds": seconds})
    assert refused.value.code == -32602


def test_it_is_recorded_and_deduplicated_like_any_other_failure(bench):
    session_id = bench.create()
    gate("recorded")
    params = {"call_id": "slow", "raise_on_error": True}
    codes = []
    for _ in range(2):
        with pytest.raises(RpcError) as timeout:
            bench.call(session_id, "add_and_spin", params, name="recorded")
        codes.append((timeout.value.code, timeout.value.data["type"]))
    assert codes == [(-32010, "TimeoutError")] * 2
    (record,) = bench.rpc("get_trace", session_id=session_id)
    assert record["error"].startswith("TimeoutError: ")
    assert (record["version"], record["result"]) == (0, "")
    assert record["duration_ms"] >= 300


def test_the_clock_starts_with_the_function_not_with_the_wait(bench):
    session_id = bench.create()
    opened = gate("wait")
    holding = bench.later_call(session_id, "add_and_hold", name="wait")
    behind = bench.later_call(session_id, "add", {"timeout_seconds": 0.2}, amount=1)
    waited = time.monotonic() + 0.4
    wait_until(lambda: time.monotonic() > waited)
    opened.set()
    assert holding.result(serving.PATIENCE)["result"] == 3
    assert behind.result(serving.PATIENCE)["result"] == 4


def test_a_task_that_a_function_leaves_behind_does_nothing_to_later_calls(bench):
    session_id = bench.create()
    bench.result(session_id, "leave_task_behind")
    ledger.background.clear()
    for i in range(1, 4):
        assert bench.result(session_id, "add_later", amount=1) in {1 + i, 1001 + i}
    live = bench.result(session_id, "total")
    assert live == sum(entries(bench, session_id))
