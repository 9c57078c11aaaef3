"""Lanes, the pace of functions, and the driver of the event loop, each without a server.

The other tests in this folder run a server. Interruptions and leases have separate files.
"""

import asyncio
import gc
import os
import signal
import threading
import weakref

import pytest
import serving
from serving import PATIENCE, wait_until

from toolpack_server.engine import pool_thread
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.lanes import RESERVE, RESERVE_PER_KIND, Backlog, Lane
from toolpack_server.engine.loop_driver import LoopDriver
from toolpack_server.engine.pace import QUICK_RUNS, QUICK_SECONDS, SLOW_LOOKS, SLOW_RUNS, TRIALS, Pace
from toolpack_server.engine.pool_thread import PoolThread

# Lanes


class Submitted:
    """The attributes of a job that lanes use."""

    def __init__(self, owner, kind="", arrived=0.0):
        self.owner, self.kind, self.arrived = owner, kind, arrived


def test_owners_take_turns_and_none_takes_more_than_its_share():
    lane = Lane(2, 1, backlog := Backlog())
    ann, bob, eve = ([Submitted(name) for _ in range(3)] for name in ("ann", "bob", "eve"))
    assert lane.enter(ann[0])
    assert not lane.enter(ann[1])  # Ann would have more than her share
    assert lane.enter(bob[0])
    assert [lane.enter(job) for job in (ann[2], eve[0], bob[1], eve[1])] == [False] * 4
    assert backlog.total == 5
    assert lane.leave(ann[0]) == [ann[1]]
    assert lane.leave(ann[1]) == [eve[0]]
    assert lane.leave(bob[0]) == [bob[1]]
    assert lane.leave(eve[0]) == [ann[2]]
    assert lane.leave(bob[1]) == [eve[1]]
    assert backlog.total == 0
    assert lane.leave(bob[1]) == []  # the job has left already


def test_a_running_job_takes_a_slot_even_beyond_the_limit():
    lane = Lane(1, 1, Backlog())
    first, second, third = Submitted("ann"), Submitted("ann"), Submitted("ann")
    assert lane.enter(first)
    lane.occupy(second)
    assert not lane.enter(third)
    assert lane.leave(first) == []
    assert lane.leave(second) == [third]


def test_overdue_jobs_leave_the_lane():
    lane = Lane(1, 1, backlog := Backlog())
    jobs = [Submitted("ann", arrived=float(second)) for second in range(4)]
    assert [lane.enter(job) for job in jobs] == [True, False, False, False]
    assert lane.expire(2.5) == jobs[1:3]
    assert backlog.total == 1
    assert lane.leave(jobs[0]) == [jobs[3]]


def test_jobs_of_a_kind_are_released_together():
    lane = Lane(1, 1, Backlog())
    jobs = [Submitted("ann", "f"), Submitted("ann", "f"), Submitted("bob", "g"), Submitted("eve", "f")]
    assert [lane.enter(job) for job in jobs] == [True, False, False, False]
    assert lane.release("f") == [jobs[1], jobs[3]]
    assert lane.leave(jobs[0]) == [jobs[2]]


def test_kinds_of_an_owner_take_turns():
    lane = Lane(1, 1, backlog := Backlog())
    first, *many = (Submitted("ann", "sleep") for _ in range(4))
    assert lane.enter(first)
    few = [Submitted("ann", "look") for _ in range(2)]
    assert [lane.enter(job) for job in [*many, *few]] == [False] * 5
    order = [first]
    for _ in range(5):
        order += lane.leave(order[-1])
    assert order == [first, many[0], few[0], many[1], few[1], many[2]]
    assert backlog.total == 0


def test_kinds_not_known_to_wait_have_a_limited_reserve():
    lane = Lane(1, 1, Backlog())
    waiting_kinds = {"sleep"}
    lane.keep_reserve(RESERVE, lambda kind: kind not in waiting_kinds)
    first, second = Submitted("ann", "sleep"), Submitted("ann", "sleep")
    assert lane.enter(first)
    assert not lane.enter(second)
    new = [Submitted("ann", "new") for _ in range(RESERVE_PER_KIND + 1)]
    assert [lane.enter(job) for job in new] == [True] * RESERVE_PER_KIND + [False]
    others = [Submitted("bob", str(number)) for number in range(RESERVE)]
    assert [lane.enter(job) for job in others].count(True) == RESERVE - RESERVE_PER_KIND
    assert lane.enter(new[0])  # the job is inside
    assert lane.leave(new[0]) == [new[-1]]  # another job of the same kind, though a third job has waited longer
    waiting_kinds.add("new")
    started = lane.leave_reserve(new[1])  # the job turns out to be a waiting one, and takes a slot of its owner
    assert started == [others[-RESERVE_PER_KIND]]
    assert lane.leave_reserve(new[1]) == []
    assert lane.leave(first) == []
    assert lane.leave(new[1]) == [second]


def test_jobs_that_leave_the_reserve_take_no_others_slot():
    lane, waiting_kinds = Lane(6, 3, Backlog()), set()
    lane.keep_reserve(2, lambda kind: kind not in waiting_kinds)
    hers = [Submitted("ann", "sleep") for _ in range(8)]
    assert [lane.enter(job) for job in hers] == [True] * 5 + [False] * 3
    waiting_kinds.add("sleep")
    assert [lane.leave_reserve(job) for job in hers] == [[]] * 8
    his = [Submitted("bob", "sleep") for _ in range(4)]
    assert [lane.enter(job) for job in his] == [True] * 3 + [False]
    assert [lane.leave(job) for job in hers[:3]] == [[], [], [hers[5]]]  # Ann's other jobs exceeded her share
    assert lane.leave(his[0]) == [his[3]]


def test_an_abandoned_job_blocks_only_its_owner():
    lane = Lane(1, 1, Backlog())
    stuck, hers, his = Submitted("ann"), Submitted("ann"), Submitted("bob")
    assert [lane.enter(job) for job in (stuck, hers, his)] == [True, False, False]
    assert lane.leave_behind(stuck) == [his]
    assert lane.leave_behind(stuck) == []  # the owner has no other job
    assert lane.leave(his) == []
    assert lane.leave(stuck) == [hers]


# Pace


def quick(kind="f", runs=2 * QUICK_RUNS):
    pace = Pace()
    for _ in range(runs):
        pace.record_run(kind, QUICK_SECONDS / 2, 0.0)
    return pace


def test_a_kind_becomes_quick_slowly_and_slow_at_once():
    pace = Pace()
    for _ in range(QUICK_RUNS):
        assert not pace.is_quick("f")
        pace.record_run("f", QUICK_SECONDS / 2, 0.0)
    assert pace.is_quick("f")
    pace.record_run("f", QUICK_SECONDS * 2, QUICK_SECONDS * 2)
    assert not pace.is_quick("f")


def test_a_kind_that_was_quick_for_long_survives_one_slow_run():
    pace = quick()
    pace.record_run("f", QUICK_SECONDS * 2, QUICK_SECONDS * 2)
    assert pace.is_quick("f")
    pace.record_run("f", QUICK_SECONDS * 2, QUICK_SECONDS * 2)
    assert not pace.is_quick("f")


def test_a_paused_process_makes_no_kind_slow():
    pace = quick(runs=QUICK_RUNS)
    for _ in range(10):
        for _ in range(SLOW_RUNS - 1):
            pace.record_run("f", 60.0, 0.0)
        assert pace.is_quick("f")
        pace.record_run("f", QUICK_SECONDS / 2, 0.0)
    for _ in range(SLOW_RUNS):
        pace.record_run("f", 60.0, 0.0)
    assert not pace.is_quick("f")


def test_a_quick_kind_is_retried_before_it_counts_as_waiting():
    pace = quick()
    for _ in range(SLOW_RUNS - 1):
        for looks in range(100):
            assert not pace.record_look("f", looks, 0.0)
        assert not pace.is_quick("f")
        pace.record_run("f", 1.0, 0.0)
    assert not any(pace.record_look("f", looks, 0.0) for looks in range(SLOW_LOOKS))
    assert pace.record_look("f", SLOW_LOOKS, 0.0)
    for _ in range(QUICK_RUNS):
        assert pace.waits("f")
        pace.record_run("f", QUICK_SECONDS / 2, 0.0)
    assert not pace.waits("f")


def test_some_jobs_of_an_unknown_kind_may_run():
    pace = Pace()
    assert [pace.may_start("f") for _ in range(TRIALS + 1)] == [True] * TRIALS + [False]
    assert not pace.waits("f")
    assert pace.record_look("f", 2, 0.0)  # the job waits
    assert pace.may_start("f")
    assert pace.waits("f")
    assert not pace.record_look("f", 2, 0.009)  # the job computes
    assert not pace.may_start("f")
    assert pace.record_look("f", 200, 0.02)  # a moment of work after a long wait
    assert pace.may_start("f")


# The driver of the event loop


class Driven:
    """A driver with functions as jobs."""

    def __init__(self):
        self.threads = []
        self.driver = LoopDriver(self._start, self._run, None)

    def _start(self, work):
        thread = PoolThread(work, lambda _: None)
        self.threads.append(thread)
        thread.start()

    def _run(self, _thread, job):
        job()
        return []


def test_an_error_of_the_coroutine_is_raised():
    async def fail():
        raise LookupError("no")

    with pytest.raises(LookupError):
        Driven().driver.run(fail())


def test_an_exit_inside_the_loop_ends_the_loop():
    driven = Driven()

    async def leave():
        driven.driver.loop.call_soon(exit_now)
        await asyncio.sleep(PATIENCE)

    def exit_now():
        raise SystemExit(3)

    with pytest.raises(SystemExit, match="3"):
        driven.driver.run(leave())


def test_only_one_thread_runs_the_loop():
    """End jobs at the very moment at which another thread takes over, repeatedly."""
    driven = Driven()
    driver, inside = driven.driver, []

    async def work():
        loop = asyncio.get_running_loop()
        for _ in range(300):
            future = loop.create_future()
            driver.run_next(
                lambda future=future: (driver.look(float("inf"), 0), loop.call_soon_threadsafe(end, future))
            )
            await future

    def end(done):
        inside.append(threading.get_ident())
        done.set_result(None)

    driver.run(work())
    assert len(inside) == 300
    assert len(driven.threads) > 1


def test_signals_reach_the_main_thread_while_others_run_the_loop():
    driven, signals = Driven(), []

    came = asyncio.Event()

    async def wait():
        await asyncio.wait_for(came.wait(), PATIENCE)

    def handle(*_):
        signals.append(threading.current_thread())
        driven.driver.loop.call_soon_threadsafe(came.set)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        driven.driver.loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        driven.driver.run(wait())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signals == [threading.main_thread()]


# Threads


@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize(("function", "kwargs"), [("add", {"amount": 1}), ("total", {})])  # the second call is compared
def test_jobs_of_ended_calls_are_freed_without_gc(make_bench, function, kwargs, at_once, monkeypatch):
    bench, jobs = make_bench(verify_read_only=True), weakref.WeakSet()
    init = Job.__init__
    monkeypatch.setattr(Job, "__init__", lambda job: (init(job), jobs.add(job))[0])
    session_id = bench.create()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):  # until lone calls run on the event loop's thread
            calls = [bench.later_call(session_id, function, **kwargs) for _ in range(at_once)]
            assert all(call.result(PATIENCE)["error"] is None for call in calls)
        wait_until(lambda: not jobs, "the end of all jobs")
    finally:
        gc.enable()


def test_cpu_time_is_sampled_in_a_row_of_quick_jobs(monkeypatch):
    clock = serving.Clock(monkeypatch, pool_thread)
    samples = []
    clock.thread_time = lambda: samples.append(1) or float(len(samples))
    thread = PoolThread(lambda _: None, lambda _: None)
    for _ in range(20):
        clock.move(pool_thread.CLOCK_SECONDS / 8)
        thread.begin(None)
    assert len(samples) == 3
    clock.move(1)
    thread.begin(None)
    assert thread.used_processor() == 1.0
