"""Order of calls: those on one session run one at a time, as they arrive. Sessions never wait for each other."""

from collections import Counter
from itertools import chain

import pytest
import serving
from serving import RpcError, ledger, open_store, wait_until

from toolpack_server.base.errors import OverloadedError

pytestmark = serving.IN_BOTH


def test_calls_on_one_session_run_in_order_of_arrival(stored_bench):
    session_id = stored_bench.create()
    calls = [stored_bench.later_call(session_id, "add", amount=10**i) for i in range(100)]
    results = [call.result(serving.PATIENCE)["result"] for call in calls]
    assert results == [int("1" * (i + 1)) for i in range(100)]
    trace = stored_bench.rpc("get_trace", session_id=session_id, limit=1000)
    assert [record["kwargs"]["amount"] for record in trace] == [10**i for i in range(100)]
    assert [record["version"] for record in trace] == list(range(1, 101))


def test_a_slow_call_delays_only_its_own_session(stored_bench):
    slow, other = stored_bench.create(), stored_bench.create()
    gate = serving.gate("slow")
    holding = stored_bench.later_call(slow, "add_and_hold", name="slow")
    queued = stored_bench.later_call(slow, "add", amount=1)
    assert [stored_bench.result(other, "add", amount=1) for _ in range(50)] == list(range(1, 51))
    assert stored_bench.rpc("get_session", session_id=slow)["version"] == 0
    assert not holding.done()
    assert not queued.done()
    gate.set()
    assert holding.result(serving.PATIENCE)["result"] == 3
    assert queued.result(serving.PATIENCE)["result"] == 4


@pytest.mark.parametrize("fails", [False, True])
def test_the_leases_of_concurrent_calls_are_acquired_together(tmp_path, fails):
    store = open_store(f"sqlite:///{tmp_path}/shared.db", exclusive=False)
    bench = serving.Bench(store=store)
    *ours, theirs = [bench.create(owner=owner) for owner in ("ann", "ann", "ann", "bob")]
    for session_id in ours:
        bench.call(session_id, "add", {"owner": "ann"}, amount=1)
    bench.call(theirs, "add", {"owner": "bob"}, amount=1)
    claim, claims = store.claim, []

    def claim_and_count(session_ids, *arguments):
        claims.append(session_ids)
        if fails and len(session_ids) > 1:
            raise OverloadedError("The store can't be used.")
        return claim(session_ids, *arguments)

    store.claim = claim_and_count
    with bench.paused():
        calls = [bench.later("run_function", owner="ann", session_id=each, function="total") for each in ours]
        refused = bench.later("run_function", owner="ann", session_id=theirs, function="total")
    assert [call.result(serving.PATIENCE)["result"] for call in calls] == [1, 1, 1]
    with pytest.raises(RpcError, match="No session has this id"):
        refused.result(serving.PATIENCE)
    together = max(claims, key=len)
    assert len(together) > 1
    assert Counter(chain.from_iterable(claims)) == {each: 1 + (fails and each in together) for each in ours}
    bench.close()
    store.close()


def test_a_reset_is_ordered_among_the_calls(stored_bench):
    session_id = stored_bench.create()
    first = stored_bench.later_call(session_id, "add", amount=1)
    reset = stored_bench.later("reset_session", session_id=session_id)
    second = stored_bench.later_call(session_id, "add", amount=10)
    assert [first.result(serving.PATIENCE)["result"], second.result(serving.PATIENCE)["result"]] == [1, 10]
    assert reset.result(serving.PATIENCE)["version"] >= 2
    kinds = [(r["kind"], r["version"]) for r in stored_bench.rpc("get_trace", session_id=session_id)]
    assert kinds == [("call", 1), ("reset", 2), ("call", 3)]


def test_a_reset_starts_after_the_commits_of_the_calls_before_it(stored_bench):
    session_id = stored_bench.create()
    with stored_bench.paused():
        calls = [stored_bench.later_call(session_id, "add", amount=1) for _ in range(2)]
        reset = stored_bench.later("reset_session", session_id=session_id, version=1)  # this version doesn't exist yet
        behind = stored_bench.later_call(session_id, "add", amount=10)
    assert [call.result(serving.PATIENCE)["result"] for call in calls] == [1, 2]
    assert reset.result(serving.PATIENCE)["version"] in {3, 4}
    assert behind.result(serving.PATIENCE)["result"] == 11


def test_another_owners_call_skips_a_busy_sessions_queue(make_bench):
    bench = make_bench(max_waiting_per_session=1)
    session_id = bench.create(owner="ann")
    gate = serving.gate("busy")
    before = len(ledger.runs)
    holding = bench.later_call(session_id, "add_and_hold", {"owner": "ann"}, name="busy")
    wait_until(lambda: len(ledger.runs) > before, "the call")
    for waiting in (0, 1):
        with pytest.raises(RpcError) as unknown:
            bench.call(session_id, "add", {"owner": "bob"}, amount=1)
        assert unknown.value.code == -32001
        assert bench.sessions.load()[0] == waiting
        if not waiting:
            behind = bench.later_call(session_id, "add", {"owner": "ann"}, amount=1)
            wait_until(lambda: bench.sessions.load()[0] == 1, "the next call")
    gate.set()
    assert holding.result(serving.PATIENCE)["result"] == 3
    assert behind.result(serving.PATIENCE)["result"] == 4


def test_a_call_that_waited_too_long_can_be_retried(make_bench):
    bench = make_bench(queue_timeout_seconds=0.1)
    session_id = bench.create()
    gate = serving.gate("queue")
    holding = bench.later_call(session_id, "add_and_hold", name="queue")
    with pytest.raises(RpcError) as overloaded:
        bench.call(session_id, "add", {"call_id": "again"}, amount=7)
    assert overloaded.value.code == -32006
    assert overloaded.value.data["type"] == "OverloadedError"
    assert overloaded.value.data["retry_after_seconds"] > 0
    gate.set()
    assert holding.result(serving.PATIENCE)["result"] == 3
    assert bench.call(session_id, "add", {"call_id": "again"}, amount=7)["result"] == 10


def test_a_call_over_the_queue_limit_is_refused_at_once(make_bench):
    bench = make_bench(max_waiting_per_session=3)
    session_id, other = bench.create(), bench.create()
    gate = serving.gate("waiting")
    before = len(ledger.runs)
    holding = bench.later_call(session_id, "add_and_hold", name="waiting")
    wait_until(lambda: len(ledger.runs) > before)
    waiting = [bench.later_call(session_id, "add", amount=1) for _ in range(3)]
    with pytest.raises(RpcError) as overloaded:
        bench.call(session_id, "add", amount=1)
    assert overloaded.value.code == -32006
    assert bench.result(other, "add", amount=1) == 1
    gate.set()
    assert holding.result(serving.PATIENCE)["result"] == 3
    assert [call.result(serving.PATIENCE)["result"] for call in waiting] == [4, 5, 6]
