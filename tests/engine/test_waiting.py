"""Calls of async functions wait on a shared event loop, without threads, and have the guarantees of all calls."""

import asyncio
import gc
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import serving
from serving import PATIENCE, Bench, Clock, wait_until

from toolpack_server.engine import jobs, pace, queues, threads, waiting
from toolpack_server.functions import coroutines, shared_loop
from toolpack_server.functions.steps import Awaiting
from toolpack_server.packs.loading import load_catalog

SEVERAL = {"ann": "12345678", "bob": "87654321"}

CATALOG = load_catalog((serving.PACKS,), ("pauses",))
pauses = sys.modules["toolpacks.pauses"]
ERRORS = [*pauses._ERRORS]


@pytest.fixture
def gate(request):
    name = request.node.name
    pauses.gates[name] = threading.Event()
    yield name
    pauses.gates[name].set()


@pytest.fixture
def bench(gate, monkeypatch):
    """Return a server. Its async functions share event loops, even if they are quick."""
    monkeypatch.setattr(pace.Pace, "is_quick", lambda _, kind: kind == "note")
    pauses.seen.clear()
    with Bench(CATALOG) as bench:
        yield bench
        pauses.gates[gate].set()


def waits(bench):
    return bench.sessions.queues.threads.waiting_calls()[0]


def shares(bench, function):
    return not bench.sessions.queues.threads._pace.is_blamed(f"pauses.{function}")


def lines_of(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id, pointer="/pauses/done")


@pytest.fixture
def no_verdict(monkeypatch):
    """Never count a function as computing or blocking, which a garbage collection or a busy machine can look like."""
    monkeypatch.setattr(waiting, "COMPUTED_SECONDS", PATIENCE)
    monkeypatch.setattr(waiting, "BLOCKED_LOOKS", 10**9)


@pytest.mark.usefixtures("no_verdict")
def test_many_waiting_calls_take_no_threads(bench, gate):
    sessions = [bench.create("pauses") for _ in range(300)]
    before = threading.active_count()
    calls = [bench.later_call(session, "wait", gate=gate) for session in sessions]
    wait_until(lambda: waits(bench) == 300, "all of them")
    assert threading.active_count() - before < 10
    assert bench.sessions.queues.threads.waiting_calls()[1] >= 300 * 16 * 1024
    assert bench.result(bench.create("pauses"), "note", value=1) == ["1"]
    pauses.gates[gate].set()
    assert [call.result(PATIENCE)["result"] for call in calls] == [["before", "after"]] * 300
    assert bench.sessions.queues.threads.waiting_calls() == (0, 0)
    assert {bench.version(session) for session in sessions} == {1}


@pytest.mark.parametrize("how", ["block", pytest.param("compute", marks=pytest.mark.heavy), "never"])
def test_a_blocked_loop_fails_no_call_of_other_sessions(bench, gate, how, monkeypatch):
    """One call blocks on its first step. Some calls on the same loop already wait then, and some haven't begun."""
    monkeypatch.setattr(waiting, "INTERRUPTIONS", 4)
    calls = [bench.later_call(bench.create("pauses"), "keep", how="wait", gate=gate) for _ in range(20)]
    wait_until(lambda: pauses.seen.count("waits") == 20, "those that wait")
    bad = bench.later_call(bench.create("pauses"), "keep", {"timeout_seconds": 0.1}, how=how, gate=gate)
    wait_until(lambda: f"{how} keeps" in pauses.seen, "the step")
    later = [bench.later_call(bench.create("pauses"), "keep", how="wait", gate=gate) for _ in range(100)]
    wait_until(lambda: pauses.seen.count("waits") > 20, "a function that runs in a thread")
    assert bad.result(PATIENCE)["error"].startswith("TimeoutError")
    if how == "never":
        for call in calls:
            with pytest.raises(serving.RpcError) as refused:
                call.result(PATIENCE)
            assert (refused.value.code, refused.value.message) == (-32006, queues.HELD_UP)
    pauses.gates[gate].set()
    assert [call.result(PATIENCE)["result"] for call in later] == [["wait"]] * 100
    if how != "never":
        assert [call.result(PATIENCE)["result"] for call in calls] == [["wait"]] * 20
    wait_until(lambda: waits(bench) == 0, "the end of all")
    assert not shares(bench, "keep")


def test_deadlines_hold_while_another_call_blocks_the_loop(bench, gate):
    session_ids = [bench.create("pauses") for _ in range(10)]
    calls = [
        bench.later_call(session_id, "keep", {"timeout_seconds": 0.5}, how="nap", gate=gate)
        for session_id in session_ids
    ]
    wait_until(lambda: pauses.seen.count("naps") == 10, "those that wait")
    bad = bench.later_call(bench.create("pauses"), "keep", how="block", gate=gate)
    wait_until(lambda: "block keeps" in pauses.seen, "the step")
    (loop,) = bench.sessions.queues.threads._waiting._loops.values()
    wait_until(lambda: loop.blocked_seconds > 0.6, "their deadlines")
    pauses.gates[gate].set()
    assert [call.result(PATIENCE)["error"] for call in [*calls, bad]] == [None] * 11


def test_a_function_is_blamed_after_several_short_blocks(bench):
    calls = [bench.later_call(bench.create("pauses"), "nap") for _ in range(300)]
    assert [call.result(PATIENCE)["result"] for call in calls] == ["here"] * 300
    assert not shares(bench, "nap")


def test_a_quick_async_function_runs_on_a_shared_loop():
    with Bench(CATALOG) as bench:
        session_id, threads_ = bench.create("pauses"), bench.sessions.queues.threads
        wait_until(lambda: bench.result(session_id, "at_once") and threads_._pace.is_quick("at_once"), "the verdict")
        assert shares(bench, "at_once")


def test_async_calls_of_a_session_keep_their_order(bench, gate):
    session_id = bench.create("pauses")
    first = bench.later_call(session_id, "wait", gate=gate)
    wait_until(lambda: waits(bench) == 1, "the wait")
    second = bench.later_call(session_id, "note", value="second")
    wait_until(lambda: bench.sessions.load()[0] == 1, "the queue")
    pauses.gates[gate].set()
    assert first.result(PATIENCE)["result"] == ["before", "after"]
    assert second.result(PATIENCE)["result"] == ["before", "after", "second"]


@pytest.mark.parametrize("how", ["wait", "swallow", "leave", "block", "compute"])
def test_an_overdue_async_call_changes_nothing(bench, gate, how, monkeypatch):
    usual = waiting.BLOCKED_LOOKS
    monkeypatch.setattr(waiting, "BLOCKED_LOOKS", 10**9)  # a loop that is blocked for long is interrupted
    clock = Clock(monkeypatch, jobs, threads, waiting)
    session_id = bench.create("pauses")
    call = bench.later_call(session_id, "hang", how=how, gate=gate)
    wait_until(lambda: f"{how} hangs" in pauses.seen, "the function")
    clock.move(0.4)
    envelope = call.result(PATIENCE)
    assert envelope["error"] == "TimeoutError: `hang` took longer than 0.3 s and was given up; nothing has changed."
    assert bench.result(session_id, "note", value="next") == ["next"]
    if how != "wait":
        assert bench.sessions.queues.threads.stuck_threads() == 1
    monkeypatch.setattr(waiting, "BLOCKED_LOOKS", usual)
    if how == "block":  # until the watcher has seen it for long enough
        wait_until(lambda: not shares(bench, "hang"), "the verdict")
    if how != "compute":
        pauses.gates[gate].set()
    wait_until(lambda: f"{how} ended" in pauses.seen, "the end of the coroutine")
    wait_until(lambda: waits(bench) == 0, "the end of the call")
    assert bench.sessions.queues.threads.stuck_threads() == 0
    assert lines_of(bench, session_id) == ["next"]
    pauses.gates[gate].set()
    if how in ("block", "compute"):
        assert not shares(bench, "hang")
        assert bench.call(session_id, "hang", how="wait", gate=gate)["error"] is None


class Held:
    """Stand-in for a job, with the attributes that `waiting` uses."""

    context, call, coroutine_time, deadline, stuck_from, held_up = None, None, 0.0, 0.0, 0.0, False

    def __init__(self, coroutine):
        self.awaiting = Awaiting("pauses.held", coroutine)

    def is_over(self, _now):
        return True


def test_an_unending_call_is_cancelled_again_every_second():
    cancelled, settled = [], []

    async def hold():
        while len(cancelled) < 3:
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                cancelled.append(1)

    job, own = Held(hold()), waiting.Waiting(settled.append, pace.Pace())
    own.begin(job)
    wait_until(lambda: job.call.tasks, "its beginning")
    now = time.monotonic()
    assert own.take_over(now, look_for_cancelled=False) == [job]
    for times in (1, 2, 3):
        wait_until(lambda times=times: len(cancelled) == times, "its cancellation")
        now += waiting.AGAIN_SECONDS
        assert own.take_over(now, look_for_cancelled=False) == []
    wait_until(lambda: settled == [job], "its end")
    assert not own.take(job)
    assert len(own) == 0
    own.take_all()


def test_the_clock_stops_while_a_call_waits_for_a_thread():
    settled = []
    job, own = Held(asyncio.sleep(0)), waiting.Waiting(settled.append, pace.Pace())
    job.deadline = before = time.monotonic() + PATIENCE
    own.begin(job)
    wait_until(lambda: settled, "its end")
    job.coroutine_time -= 5
    assert own.take(job)
    assert job.deadline >= before + 5
    own.take_all()


def test_a_blocking_function_delays_no_other_function(bench, gate, caplog):
    blocked = bench.later_call(bench.create("pauses"), "hang", {"timeout_seconds": 0.2}, how="block", gate=gate)
    wait_until(lambda: not shares(bench, "hang"), "the verdict")
    assert bench.result(bench.create("pauses"), "pause") == "here"
    assert blocked.result(PATIENCE)["error"].startswith("TimeoutError")
    sentence = "The async function pauses.hang has blocked without awaiting: its calls run in threads from now on."
    assert caplog.messages.count(sentence) == 1


def test_a_cancelled_call_leaves_no_record(bench, gate):
    session_id = bench.create("pauses")
    call = bench.later_call(session_id, "wait", gate=gate)
    wait_until(lambda: waits(bench) == 1, "the wait")
    call.cancel()
    wait_until(lambda: waits(bench) == 0, "its end")
    assert bench.rpc("get_trace", session_id=session_id) == []
    assert bench.result(session_id, "note", value="next") == ["next"]


def test_leftover_tasks_end_before_the_world_is_stored(bench):
    session_id = bench.create("pauses")
    bench.result(session_id, "leave")
    lines = lines_of(bench, session_id)
    assert lines in (["returned", "soon", "cancelled"], ["returned", "soon", "timer", "cancelled"])
    assert pauses.seen[0].cancelled()
    bench.result(session_id, "pause")
    assert lines_of(bench, session_id) == lines


def test_a_self_scheduling_callback_ends_with_its_call(bench):
    session_id = bench.create("pauses")
    for _ in range(2):  # the second call runs the loop once more
        bench.result(session_id, "spin")
    first = pauses.seen[0]
    count = len(first)
    assert count > 1
    bench.result(session_id, "spin")
    assert len(first) == count


def test_waiting_calls_do_not_see_each_other(bench, gate):
    other = bench.later_call(bench.create("pauses"), "wait", gate=gate)
    wait_until(lambda: waits(bench) == 1, "the other one")
    session_id = bench.create("pauses")
    for value in "ab":
        assert bench.result(session_id, "look", value=value) == ["", "28", "0"]
    assert not other.done()


METHODS = ["stop", "close", "set_task_factory", "set_exception_handler", "set_default_executor"]
METHODS += ["shutdown_asyncgens", "shutdown_default_executor"]


@pytest.mark.parametrize("method", METHODS)
def test_a_function_cannot_stop_or_change_the_loop(bench, method):
    session_id = bench.create("pauses")
    assert bench.call(session_id, "touch_loop", method=method)["error"] == f"RuntimeError: {coroutines.REFUSED}"
    assert bench.result(session_id, "pause") == "here"


@pytest.mark.parametrize("method", METHODS)
def test_a_function_cannot_change_its_threads_loop(method):
    with ThreadPoolExecutor(1) as thread:
        touched = thread.submit(lambda: coroutines.run_coroutine(pauses.touch_loop(method)))
        with pytest.raises(RuntimeError, match=re.escape(coroutines.REFUSED)):
            touched.result()
        assert thread.submit(coroutines.run_coroutine, asyncio.sleep(0.001, "slept")).result() == "slept"
        assert thread.submit(coroutines.run_coroutine, asyncio.to_thread(str, 1)).result() == "1"
        thread.submit(coroutines.close_loop).result()


def test_a_function_that_uses_threads_later_runs_in_a_thread(bench):
    session_id = bench.create("pauses")
    assert bench.result(session_id, "hand_over") == ["in a thread"]
    wait_until(lambda: not shares(bench, "hand_over"), "the verdict")
    assert bench.result(session_id, "hand_over") == ["in a thread"] * 2


@pytest.mark.parametrize("how", ERRORS)
def test_an_exception_gives_the_same_envelope_as_in_a_thread(bench, how):
    session_id = bench.create("pauses")
    assert waits(bench) == 0
    shared = bench.call(session_id, "fail", how=how)
    bench.sessions.queues.threads._pace.blame("pauses.fail")
    assert bench.call(session_id, "fail", how=how) == shared
    assert shared["error"].startswith(how)
    assert bench.result(session_id, "pause") == "here"  # the loop continues


def test_sync_and_async_calls_can_be_nested(bench):
    session_id = bench.create("pauses")
    inner = {"$call": {"function": "echo", "args": {"value": {"$call": {"function": "note", "args": {"value": "x"}}}}}}
    assert bench.result(session_id, "echo", value=inner) == ["x"]
    assert bench.result(session_id, "note", value=inner) == ["x", "x", "['x', 'x']"]


def test_waiting_calls_are_limited_and_owners_take_turns(gate, monkeypatch):
    clock = serving.Clock(monkeypatch, queues)
    with Bench(CATALOG, async_bytes=2**15, tokens=SEVERAL, queue_timeout_seconds=1) as bench:
        bench.sessions.queues.threads._pace.record_handover("wait", "pauses.wait", 2**15)
        sessions = {owner: [bench.create("pauses", owner=owner) for _ in range(2)] for owner in ("ann", "bob")}

        def start(owner, number):
            call = {"session_id": sessions[owner][number], "function": "wait", "kwargs": {"gate": gate}}
            return bench.later("run_function", owner=owner, **call)

        first = start("ann", 0)
        wait_until(lambda: waits(bench) == 1, "the first")
        late, other = start("ann", 1), start("bob", 0)
        wait_until(lambda: waits(bench) == 2, "the other owner's")
        clock.move(600)
        with pytest.raises(serving.RpcError) as refused:
            late.result(PATIENCE)
        assert refused.value.code == -32006
        assert "waited 1 s for room among the waiting calls" in refused.value.message
        pauses.gates[gate].set()
        assert first.result(PATIENCE)["error"] is other.result(PATIENCE)["error"] is None


def test_calls_waiting_at_a_stop_are_not_committed(bench, gate):
    session_id = bench.create("pauses")
    call = bench.later_call(session_id, "wait", gate=gate)
    wait_until(lambda: waits(bench) == 1, "the wait")
    assert not bench.sessions.queues.is_idle()
    bench._loop.call_soon_threadsafe(bench.sessions.queues.stop)
    with pytest.raises(serving.RpcError) as refused:
        call.result(PATIENCE)
    assert refused.value.code == -32006
    assert bench.store.get(session_id)[1].index == -1


def test_a_loop_runs_only_while_calls_wait_on_it(bench, monkeypatch):
    monkeypatch.setattr(shared_loop, "IDLE_SECONDS", 0.05)
    session_id = bench.create("pauses")
    for _ in range(3):
        assert bench.result(session_id, "pause") == "here"
        loop = bench.sessions.queues.threads._waiting._loops["pauses.pause"]
        wait_until(lambda loop=loop: loop.thread is None, "the end of the thread")
        assert not loop.is_running()


def test_a_function_is_not_blamed_while_its_loop_is_idle(bench):
    session_id = bench.create("pauses")
    assert bench.result(session_id, "pause") == "here"
    loop = bench.sessions.queues.threads._waiting._loops["pauses.pause"]
    wait_until(lambda: not loop.is_running(), "the end of the turn")
    assert loop.thread is not None
    assert [loop.look()[0] for _ in range(3)] == [0, 0, 0]


def test_a_function_is_not_blamed_for_collections_of_garbage():
    async def compute():
        for _ in range(6):
            until = time.thread_time() + waiting.COMPUTED_SECONDS / 4
            while time.thread_time() < until:
                pass
            gc.collect()

    loop = shared_loop.SharedLoop()
    gc.collect()
    gc.freeze()  # so that collections take no time
    try:
        call = shared_loop.SharedCall(compute(), lambda _: None)
        loop.begin(call)
        used = [0.0]
        while call.result is None:
            used.append(loop.look()[1])
    finally:
        gc.unfreeze()
        loop.end()
    assert 0 < max(used) < waiting.COMPUTED_SECONDS


def test_a_forked_process_runs_no_other_call(tmp_path):
    marks = tmp_path / "marks"

    async def fork():
        return os.fork()

    async def mark():
        with marks.open("a") as file:
            file.write("marked\n")

    async def begin_both():  # so that both calls take their step in the same turn of the loop
        for call in calls:
            loop.begin(call)

    loop = shared_loop.SharedLoop()
    calls = [shared_loop.SharedCall(coroutine, lambda _: None) for coroutine in (fork(), mark())]
    loop.begin(shared_loop.SharedCall(begin_both(), lambda _: None))
    try:
        wait_until(lambda: all(call.result for call in calls), "the end of both")
        os.waitpid(calls[0].result.returned, 0)
    finally:
        loop.end()
    assert marks.read_text() == "marked\n"
