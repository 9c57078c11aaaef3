"""Fairness: the work of one session or one owner delays no other session or owner."""

import asyncio
import threading

import pytest
import serving
from hypothesis import given
from hypothesis import strategies as st
from serving import PATIENCE, RpcError, ledger, wait_until

from toolpack_server.base.errors import DeadlineError
from toolpack_server.base.settings import Settings
from toolpack_server.engine import jobs, pace, queues, threads
from toolpack_server.engine.lanes import Backlog, Lane, Lanes
from toolpack_server.engine.pace import QUICK_RUNS, SLOW_LOOKS, TRIALS, Pace
from toolpack_server.sessions import manager

SEVERAL = {"ann": "12345678", "bob": "87654321"}


@pytest.fixture
def gate():
    """Return a gate that holds functions until it is opened, at the latest at the end of the test."""
    event = ledger.gates["fairness"] = threading.Event()
    yield event
    event.set()


def hold(bench, owner=""):
    """Call a function that waits for the gate, in a new session."""
    session = bench.create(owner=owner)
    return bench.later("run_function", owner=owner, session_id=session, function="add_and_hold", kwargs=HOLD)


def known_to_wait(bench):
    """Wait until the function is known to wait for the gate.

    Until then, some of its calls may also run on the reserve of threads, see `lanes.RESERVE`.
    """
    wait_until(lambda: bench.sessions.queues.threads._pace.waits("add_and_hold"), "the watcher to see it")


HOLD = {"name": "fairness"}


def test_waiting_functions_delay_no_other_call(gate, monkeypatch):
    monkeypatch.setattr(threads, "TICK_SECONDS", 3600)  # the watcher is off
    bench = serving.Bench()
    quick = bench.create()
    waiting = [hold(bench) for _ in range(TRIALS)]
    assert [bench.result(quick, "add", amount=1) for _ in range(3)] == [1, 2, 3]
    assert not any(call.done() for call in waiting)
    gate.set()
    assert all(call.result(PATIENCE)["error"] is None for call in waiting)
    bench.close()


def test_many_functions_that_wait_run_at_the_same_time(gate):
    bench = serving.Bench()
    runs = ledger.runs.count("add_and_hold")
    waiting = [hold(bench) for _ in range(40)]
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 40, "all of them")
    gate.set()
    assert all(call.result(PATIENCE)["error"] is None for call in waiting)
    bench.close()


def test_functions_that_compute_run_two_at_a_time(gate, monkeypatch):
    monkeypatch.setattr(threads, "TICK_SECONDS", 3600)  # no watcher sees it compute
    bench = serving.Bench()
    bench.sessions.queues.threads._pace._kinds["add_and_hold"].waits = False
    runs = ledger.runs.count("add_and_hold")
    computing = [hold(bench) for _ in range(5)]
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 2, "two of them")
    wait_until(lambda: bench.sessions.load()[0] == 3, "the others to wait")
    assert ledger.runs.count("add_and_hold") == runs + 2
    gate.set()
    assert all(call.result(PATIENCE)["error"] is None for call in computing)
    bench.close()


def test_an_owner_over_its_thread_share_delays_only_itself(gate, monkeypatch):
    monkeypatch.setattr(pace, "QUICK_SECONDS", 3600)  # so that quick functions stay quick on a busy machine
    clock = serving.Clock(monkeypatch, queues)
    bench = serving.Bench(max_threads=4, tokens=SEVERAL, queue_timeout_seconds=3, timeout_seconds=600)
    quick = bench.create(owner="ann")
    for _ in range(QUICK_RUNS + 1):
        bench.rpc("run_function", owner="ann", session_id=quick, function="add", kwargs={"amount": 1})
    runs = ledger.runs.count("add_and_hold")
    waiting = [hold(bench, "ann") for _ in range(2)]
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 2, "its share")
    known_to_wait(bench)
    excess = [hold(bench, "ann") for _ in range(3)]

    other = hold(bench, "bob")
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 3, "the other name's call")
    envelope = bench.rpc("run_function", owner="ann", session_id=quick, function="add", kwargs={"amount": 1})
    assert envelope["error"] is None  # a function known to be quick needs no separate thread
    assert bench._run(bench.sessions.ping_store()) == (True, "")

    clock.move(600)
    for call in excess:
        with pytest.raises(RpcError) as refused:
            call.result(PATIENCE)
        assert refused.value.code == -32006
        assert "waited 3 s for a thread; nothing was changed" in refused.value.message
    assert ledger.runs.count("add_and_hold") == runs + 3
    gate.set()
    assert all(call.result(PATIENCE)["error"] is None for call in [*waiting, other])
    bench.close()


def test_an_agents_calls_count_for_the_sessions_owner(gate):
    bench = serving.Bench(max_threads=1)
    runs = ledger.runs.count("add_and_hold")
    waiting = []
    for _ in range(2):
        key = bench.rpc("create_session", owner="ann", toolpacks=["ledger"])["agent_path"].rpartition("/")[2]
        waiting.append(bench.later("run_function", agent_key=key, function="add_and_hold", kwargs=HOLD))
        known_to_wait(bench)
    wait_until(lambda: bench.service.sessions.load()[0] == 1, "the second to wait")
    wait_until(lambda: ledger.runs.count("add_and_hold") > runs, "the first to run")
    assert ledger.runs.count("add_and_hold") == runs + 1
    gate.set()
    assert all(call.result(PATIENCE)["error"] is None for call in waiting)
    bench.close()


def test_a_call_refused_for_lack_of_threads_frees_its_session(gate):
    bench = serving.Bench(max_threads=1, queue_timeout_seconds=0.5)
    waiting, late = hold(bench), bench.create()
    known_to_wait(bench)
    with pytest.raises(RpcError):
        bench.call(late, "add_and_hold", **HOLD)
    gate.set()
    assert waiting.result(PATIENCE)["error"] is None
    assert bench.result(late, "add", amount=1) == 1
    bench.close()


def test_a_completing_call_checks_its_deadline(gate, monkeypatch):
    monkeypatch.setattr(threads.Threads, "_look_at", lambda *_: None)  # as if the whole process had stood still
    clock = serving.Clock(monkeypatch, jobs, threads)
    bench = serving.Bench(timeout_seconds=0.2)
    session = bench.create()
    runs = ledger.runs.count("add_and_hold")
    call = bench.later_call(session, "add_and_hold", **HOLD)
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 1, "the function")
    clock.move(0.3)
    gate.set()
    assert call.result(PATIENCE)["error"].startswith("TimeoutError: `add_and_hold` took longer than 0.2 s")
    assert bench.version(session) == 0
    assert bench.result(session, "total") == 0
    bench.close()


def test_calls_at_a_stop_are_refused_and_not_committed(gate):
    bench = serving.Bench()
    session = bench.create()
    runs = ledger.runs.count("add_and_hold")
    calls = [bench.later_call(session, "add_and_hold", **HOLD), bench.later_call(session, "add", amount=1)]
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 1, "the first")
    bench._loop.call_soon_threadsafe(bench.sessions.queues.stop)
    for call in calls:
        with pytest.raises(RpcError) as refused:
            call.result(PATIENCE)
        assert refused.value.code == -32006
        assert refused.value.data["retry_after_seconds"] > 0
    gate.set()
    wait_until(lambda: "fairness" in ledger.late, "the end of the function")
    assert bench.store.get(session)[1].index == -1
    bench.close()


def test_a_quick_function_never_waits_behind_waiting_ones(gate):
    """A quick function may stop counting as quick, because the machine paused or the watcher saw its call for long."""
    bench = serving.Bench(max_threads=2)
    quick = bench.create()
    waiting = [hold(bench) for _ in range(2)]
    known_to_wait(bench)
    waiting += [hold(bench) for _ in range(20)]
    wait_until(lambda: bench.sessions.load()[0] == 20, "the others to wait")
    pace = bench.sessions.queues.threads._pace
    for number in range(1, 10):
        assert bench.result(quick, "add", amount=1) == number
        if pace.is_quick("add"):
            pace.record_look("add", SLOW_LOOKS, 0.0)
            assert not pace.is_quick("add")
    assert not any(call.done() for call in waiting)
    gate.set()
    assert all(call.result(PATIENCE)["error"] is None for call in waiting)
    bench.close()


def test_a_process_that_stood_still_blames_no_function(gate, monkeypatch):
    monkeypatch.setattr(threads.Threads, "_watch", lambda _: None)
    bench = serving.Bench()
    session = bench.create()
    for _ in range(2 * QUICK_RUNS):
        bench.result(session, "add", amount=1)
    own = bench.sessions.queues.threads
    runs = ledger.runs.count("add_and_hold")
    for _ in range(QUICK_RUNS):
        own._pace.record_run("add_and_hold", 0.0, 0.0)
    call = hold(bench)
    wait_until(lambda: ledger.runs.count("add_and_hold") == runs + 1, "the function")
    with own.lock:
        (thread,) = [thread for thread in own._threads if thread.job is not None]
        thread.since -= 3600
        for _ in range(SLOW_LOOKS):  # the first looks decide nothing yet
            own._look_at([thread])
            assert own._pace.is_quick("add_and_hold")
    gate.set()
    assert call.result(PATIENCE)["error"] is None
    assert own._pace.is_quick("add_and_hold")
    bench.close()


@pytest.mark.parametrize(("names", "expected"), [(["ann", "bob"], 4), (["ann"], 8)])
def test_one_of_several_owners_has_half_of_the_executors(names, expected):
    tokens = {name: f"a token of {name}" for name in names}
    pace = Pace()
    pace.record_look("wait", SLOW_LOOKS, 0.0)  # so that it is known to wait
    lanes = Lanes(Settings(tokens=tokens), pace, Backlog(), capacity=8)
    assert sum(lanes.enter(_job("wait", "ann")) for _ in range(20)) == expected
    assert sum(lanes.enter(_job("wait", "bob")) for _ in range(20)) == 8 - expected


def _job(kind, owner):
    job = Numbered(0, owner)
    job.kind, job.lane = kind, "functions"
    return job


# Heavy work


def compute(bench, name, work):
    return asyncio.run_coroutine_threadsafe(bench.sessions.compute(work, name, "test"), bench._loop)


def evaluate(bench, name, work):
    return asyncio.run_coroutine_threadsafe(bench.sessions.run_authors(work, name, "test"), bench._loop)


@pytest.mark.parametrize(("start", "maximum"), [(compute, 2), (evaluate, 4)])
def test_heavy_work_is_limited_and_one_owner_has_half(bench, gate, start, maximum):
    starts, ended, at_once, lock = [], [], [], threading.Lock()

    def work(name):
        def run():
            with lock:
                starts.append(name)
                at_once.append(len(starts) - len(ended))
            gate.wait(PATIENCE)
            with lock:
                ended.append(name)
            return name

        return run

    half, names = maximum // 2, ["ann"] * 5 + ["bob"] * 4
    with bench.paused():
        works = [start(bench, name, work(name)) for name in names]
    wait_until(lambda: len(starts) == maximum, "as many as there are places")
    assert sorted(starts) == ["ann"] * half + ["bob"] * half
    wait_until(lambda: bench.sessions.load()[0] == len(names) - maximum, "the others to wait")
    session = bench.create()
    assert bench.result(session, "add", amount=1) == 1  # no other call waits
    gate.set()
    assert [future.result(PATIENCE) for future in works] == names
    assert max(at_once) == maximum


def test_one_owners_evaluators_block_no_other_owner(gate, monkeypatch):
    monkeypatch.setattr(manager, "HEAVY_BYTES", 0)
    bench = serving.Bench()
    session = bench.create(owner="ann")
    running = [evaluate(bench, "ann", lambda: gate.wait(PATIENCE)) for _ in range(4)]
    wait_until(lambda: bench.sessions.load()[0] == 2, "half of them to wait")
    assert bench.rpc("get_environment", owner="ann", session_id=session)
    assert bench.create(owner="bob", environment={"ledger": {"ledger": {"entries": [7]}}})
    gate.set()
    assert all(future.result(PATIENCE) for future in running)
    bench.close()


class Numbered:
    """A stand-in for a job, with a number and an owner."""

    kind = "test"

    def __init__(self, number, owner):
        self.number, self.owner, self.arrived = number, owner, number


@given(st.data())
def test_a_lane_keeps_the_order_within_a_share(data):
    total = data.draw(st.integers(1, 4), "total")
    per_share = data.draw(st.integers(1, total), "per share")
    lane, started, inside, waiting = Lane(total, per_share, backlog := Backlog()), [], [], []
    for number in range(30):
        if inside and data.draw(st.booleans(), "one leaves"):
            leaving = inside.pop(data.draw(st.integers(0, len(inside) - 1), "which"))
            for job in lane.leave(leaving):
                waiting.remove(job)
                inside.append(job)
                started.append(job)
        job = Numbered(number, data.draw(st.sampled_from("abc"), "owner"))
        if lane.enter(job):
            inside.append(job)
            started.append(job)
        else:
            waiting.append(job)
        assert len(inside) <= total
        assert backlog.total == len(waiting)
        for owner in "abc":
            has = sum(job.owner == owner for job in inside)
            assert has <= per_share
            # A waiting job has no free slot, so no later job can take one first.
            assert has == per_share or len(inside) == total or not any(job.owner == owner for job in waiting)
            order = [job.number for job in started if job.owner == owner]
            assert order == sorted(order)


def test_a_job_new_to_the_reserve_overtakes_none_of_its_kind():
    lane, may_use = Lane(1, 1, Backlog()), set()
    lane.keep_reserve(2, may_use.__contains__)
    inside, first, second = (Numbered(number, "ann") for number in range(3))
    assert lane.enter(inside)
    assert not lane.enter(first)
    may_use.add("test")
    assert not lane.enter(second)
    assert lane.leave(inside) == [first, second]


def test_a_call_that_left_the_reserve_takes_no_others_slot():
    lane = Lane(2, 1, Backlog())
    lane.keep_reserve(1, "test".__eq__)
    anns, bobs = [Numbered(number, "ann") for number in range(2)], [Numbered(number, "bob") for number in range(2)]
    for each in bobs:
        each.kind = "waits"
    assert [lane.enter(each) for each in anns] == [True, True]
    assert lane.leave_reserve(anns[1]) == []
    assert [lane.enter(each) for each in bobs] == [True, False]
    assert lane.leave(bobs[0]) == [bobs[1]]


def test_an_abandoned_call_frees_its_slot_only_once():
    lane = Lane(1, 1, Backlog())
    stuck, *others = (Numbered(number, owner) for number, owner in enumerate(["ann", "bob", "eve"]))
    assert lane.enter(stuck)
    assert lane.leave_behind(stuck) == []
    assert lane.enter(others[0])
    assert lane.leave(stuck) == []
    assert not lane.enter(others[1])


def test_overdue_heavy_work_counts_as_stuck_until_it_ends(gate):
    bench = serving.Bench(timeout_seconds=0.1)
    slow = compute(bench, "ann", lambda: gate.wait(PATIENCE))
    with pytest.raises(DeadlineError):
        slow.result(PATIENCE)
    assert bench.sessions.queues.threads.stuck_threads() == 1
    gate.set()
    wait_until(lambda: bench.sessions.queues.threads.stuck_threads() == 0, "its end")
    bench.close()


def test_only_a_large_environment_is_read_as_heavy_work(monkeypatch):
    computed = []
    plain = manager.SessionManager.compute

    async def record_kind(self, work, owner, kind, is_known):
        computed.append((owner, kind))
        return await plain(self, work, owner, kind, is_known)

    monkeypatch.setattr(manager.SessionManager, "compute", record_kind)
    monkeypatch.setattr(manager, "HEAVY_BYTES", 2000)
    bench = serving.Bench()
    session = bench.create(owner="ann")
    computed.clear()
    bench.rpc("get_environment", owner="ann", session_id=session)
    assert computed == []
    for _ in range(500):
        bench.rpc("run_function", owner="ann", session_id=session, function="add", kwargs={"amount": 10**9})
    for method, params in (
        ("get_environment", {}),
        ("diff_environment", {}),
        ("get_environment", {"format": "snapshot"}),
    ):
        bench.rpc(method, owner="ann", session_id=session, **params)
    assert computed == [("ann", "read")] * 3
    bench.close()


def test_an_unrun_call_does_not_rate_its_function():
    with serving.Bench() as bench:
        session = bench.create()
        for _ in range(3 * QUICK_RUNS):
            assert bench.call(session, "add", {"call_id": "once"}, amount=1)["result"] == 1
        assert not bench.sessions.queues.threads._pace.is_quick("add")
