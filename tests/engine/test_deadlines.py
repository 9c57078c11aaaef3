"""A call past its deadline is answered and has changed nothing. Later work of its thread has no effect."""

import sys
import threading
import time
from typing import Annotated

import pytest
import serving
from serving import PATIENCE, RpcError, in_both, ledger, wait_until

from toolpack_server import Depends, Task, Toolpack
from toolpack_server.engine import jobs, lanes, threads
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.threads import TICK_SECONDS
from toolpack_server.packs.catalog import Catalog


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock of deadlines until the test moves it."""
    return serving.Clock(monkeypatch, jobs, threads)


def gate(name):
    return serving.gate(name)


def begin(bench, session_id, name, **params):
    """Call a function that holds until a gate is opened, and return when it runs."""
    before = ledger.runs.count("add_and_hold")
    call = bench.later_call(session_id, "add_and_hold", params, name=name)
    wait_until(lambda: ledger.runs.count("add_and_hold") > before, "the function")
    return call


def entries(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id, pointer="/ledger/ledger/entries")


def goes_on(bench, session_id):
    assert entries(bench, session_id) == [7]
    assert bench.version(session_id) == 1
    assert bench.result(session_id, "add", amount=1) == 8


@in_both
@pytest.mark.parametrize("function", ["add_and_spin", "add_and_swallow"])
def test_late_writes_of_an_overdue_loop_have_no_effect(stored_bench, function):
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
    if function == "add_and_swallow" and serving.isolation == "thread":
        assert name in ledger.late  # the loop ran to its end, without effect


def test_a_python_loop_is_ended(bench):
    session_id = bench.create()
    gate("for ever")
    assert bench.call(session_id, "add_and_spin", name="for ever")["error"].startswith("TimeoutError: ")
    wait_until(lambda: bench.sessions.queues.threads.stuck_threads() == 0, "the end of the loop")
    assert "for ever" not in ledger.late


def test_a_computing_function_shortens_the_switch_interval(bench):
    usual = sys.getswitchinterval()
    gate("computes")
    ended = bench.later_call(bench.create(), "add_and_spin", name="computes")
    wait_until(lambda: sys.getswitchinterval() < usual, "thin slices")
    assert ended.result(PATIENCE)["error"].startswith("TimeoutError: ")
    wait_until(lambda: sys.getswitchinterval() == usual, "the end of the loop")


def test_a_function_that_waits_in_c_leaves_a_stuck_thread(clock):
    bench = serving.Bench(timeout_seconds=0.2)
    session_id = bench.create()
    bench.result(session_id, "add", amount=7)
    opened = gate("in C")
    call = begin(bench, session_id, "in C")
    clock.move(0.3)
    assert call.result(PATIENCE)["error"].startswith("TimeoutError: `add_and_hold` took longer than 0.2 s")
    goes_on(bench, session_id)
    assert bench.sessions.queues.threads.stuck_threads() == 1
    opened.set()
    wait_until(lambda: bench.sessions.queues.threads.stuck_threads() == 0, "the end of the thread")
    assert entries(bench, session_id) == [7, 1]
    bench.close()


def test_two_shortened_deadlines_block_only_their_session(bench):
    session_id = bench.create()
    opened = gate("shortened")
    for number in (1, 2):
        envelope = bench.call(session_id, "add_and_hold", {"timeout_seconds": 0.05}, name="shortened")
        assert envelope["error"].startswith("TimeoutError: `add_and_hold` took longer than 0.05 s")
        if number == 1:
            assert bench.result(session_id, "add", amount=7) == 7  # though the function still runs
    behind = [bench.later_call(session_id, "add", amount=1) for _ in range(6)]
    other = bench.create()
    assert [bench.result(other, "add", amount=1) for _ in range(20)] == [*range(1, 21)]  # enough time for six calls
    assert not any(call.done() for call in behind)
    assert entries(bench, session_id) == [7]
    assert bench.sessions.queues.threads.stuck_threads() == 0  # callers can't make threads count as stuck
    opened.set()
    assert [call.result(PATIENCE)["result"] for call in behind] == [8, 9, 10, 11, 12, 13]


@in_both
def test_an_async_function_has_the_same_deadline_and_is_ended(stored_bench):
    session_id = stored_bench.create()
    stored_bench.result(session_id, "add", amount=7)
    assert stored_bench.call(session_id, "add_and_await")["error"].startswith(
        "TimeoutError: `add_and_await` took longer"
    )
    goes_on(stored_bench, session_id)
    wait_until(lambda: stored_bench.sessions.queues.threads.stuck_threads() == 0, "the end of the coroutine")
    assert stored_bench.result(session_id, "add_later", amount=1) == 9


def test_other_sessions_are_served_while_a_function_computes():
    pack = Toolpack("spinner", ledger.LedgerEnvironment, [ledger.add])
    running, ended = threading.Event(), threading.Event()

    @pack.function
    def spin() -> bool:
        """Compute until the test stops it."""
        running.set()
        while not ended.is_set():
            pass
        return True

    bench = serving.Bench(Catalog({"spinner": pack}))
    slow, quiet = bench.create("spinner"), bench.create("spinner")
    call = bench.later_call(slow, "spin")
    assert running.wait(PATIENCE)
    assert [bench.result(quiet, "add", amount=1) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert not call.done()
    ended.set()
    assert call.result(PATIENCE)["result"] is True
    bench.close()


@in_both
def test_calls_behind_an_overdue_one_use_the_last_snapshot(bench):
    session_id = bench.create()
    gate("queue behind")
    first = bench.later_call(session_id, "add_and_spin", name="queue behind")
    behind = [bench.later_call(session_id, "add", amount=1) for _ in range(3)]
    assert first.result(serving.PATIENCE)["error"].startswith("TimeoutError: ")
    assert [call.result(serving.PATIENCE)["result"] for call in behind] == [1, 2, 3]


@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("get_session", "get"),
        ("get_environment", "blobs"),
        ("fork_session", "create"),
        ("get_trace", "records"),
        ("reset_session", "parts_at"),
    ],
)
def test_a_request_that_runs_no_function_has_a_deadline_too(bench, clock, method, step):
    hasty = serving.Bench(store=bench.store, timeout_seconds=0.1)
    session_id = bench.create()
    bench.result(session_id, "add", amount=7)
    real, reached, opened, finished = getattr(bench.store, step), *(threading.Event() for _ in range(3))

    def hold(*arguments):
        reached.set()
        opened.wait(PATIENCE)
        finished.set()
        return real(*arguments)

    setattr(bench.store, step, hold)
    request = hasty.later(method, session_id=session_id)
    assert reached.wait(PATIENCE)
    clock.move(0.2)
    with pytest.raises(RpcError) as late:
        request.result(PATIENCE)
    assert (late.value.code, late.value.data["type"]) == (-32010, "DeadlineError")
    assert "took longer than 0.1 s" in late.value.message
    setattr(bench.store, step, real)
    goes_on(bench, session_id)
    opened.set()
    assert finished.wait(PATIENCE)
    wait_until(lambda: hasty.sessions.queues.threads.stuck_threads() == 0, "the end of the thread")
    assert entries(bench, session_id) == [7, 1]
    hasty.close()


class Held:
    """A bench with a maximum number of threads besides the event loop's, and a store that blocks reads of sessions."""

    def __init__(self, bench, monkeypatch, threads, **settings):
        self.sessions = [bench.create() for _ in range(5)]
        threads -= lanes.HEAVY_READS + lanes.AUTHORS + 2 * lanes.RESERVE
        monkeypatch.setattr(lanes, "SPARE_THREADS", threads)
        self.bench = serving.Bench(store=bench.store, max_threads=1, **settings)
        self.gate, self.looking = threading.Event(), []
        self._get, self.bench.store.get = self.bench.store.get, self._held

    def _held(self, session_id):
        self.looking.append(session_id)
        self.gate.wait(PATIENCE)
        return self._get(session_id)

    def look(self):
        """Request all sessions at the same time."""
        with self.bench.paused():
            return [self.bench.later("get_session", session_id=session_id) for session_id in self.sessions]


@pytest.fixture
def blocked_bench(request, bench, monkeypatch, clock):
    del clock  # the clock stands still by now
    bench_with_held_store = Held(bench, monkeypatch, **request.param)
    yield bench_with_held_store
    bench_with_held_store.gate.set()
    bench_with_held_store.bench.close()


@pytest.mark.parametrize("blocked_bench", [{"threads": 1, "timeout_seconds": 0.2}], indirect=True)
def test_an_overdue_thread_is_replaced_at_the_thread_limit(blocked_bench, clock):
    looks = blocked_bench.look()
    for number in range(len(looks)):
        wait_until(lambda number=number: len(blocked_bench.looking) > number, "the next")
        clock.move(0.3)
    for late in looks:
        with pytest.raises(RpcError) as error:
            late.result(PATIENCE)
        assert error.value.data["type"] == "DeadlineError"
    assert blocked_bench.looking == blocked_bench.sessions  # each request begins after the previous one was abandoned
    blocked_bench.gate.set()
    assert [each.result(PATIENCE)["session_id"] for each in blocked_bench.look()] == blocked_bench.sessions


@pytest.mark.parametrize("blocked_bench", [{"threads": 3}], indirect=True)
def test_there_are_no_more_threads_than_allowed(blocked_bench):
    looks = blocked_bench.look()
    wait_until(lambda: len(blocked_bench.looking) == 3, "three at once")
    start = time.monotonic()
    wait_until(lambda: time.monotonic() > start + 20 * TICK_SECONDS, "many looks of the watcher")
    assert len(blocked_bench.looking) == 3
    blocked_bench.gate.set()
    assert [each.result(PATIENCE)["session_id"] for each in looks] == blocked_bench.sessions


def test_a_thread_ended_by_an_error_is_replaced(bench, caplog, monkeypatch):
    session_id = bench.create()
    run = Job.run

    def fail(_job):
        monkeypatch.setattr(Job, "run", run)
        raise ZeroDivisionError

    monkeypatch.setattr(Job, "run", fail)
    bench.later("get_session", session_id=session_id)  # the request gets no answer
    assert [bench.result(session_id, "add", amount=1) for _ in range(3)] == [1, 2, 3]
    wait_until(lambda: "A thread for calls has ended" in caplog.text, "the log")


def test_a_worker_is_unfit_with_more_stuck_threads_than_allowed(clock):
    bench = serving.Bench(max_stuck_threads=2, timeout_seconds=0.05)
    opened = gate("stuck")
    session_id = bench.create()
    for stuck in (1, 2, 3):
        assert not bench.service.is_unfit()
        call = begin(bench, session_id, "stuck")
        clock.move(0.1)
        assert call.result(PATIENCE)["error"]
        assert bench.sessions.load()[1] == stuck
    assert bench.service.is_unfit()
    opened.set()
    wait_until(lambda: not bench.service.is_unfit(), "the end of the threads")
    bench.close()


def test_a_late_result_is_refused_before_the_deadline_is_noticed(make_bench, clock):
    pack = Toolpack("frozen", ledger.LedgerEnvironment, [ledger.total])

    @pack.function
    def stand_still(entries: Annotated[list[int], Depends(lambda environment: environment.ledger.entries)]) -> int:
        """Move the clock by an hour, as if the whole process had stood still, and then return."""
        entries.append(1)
        clock.move(3600)
        return 1

    bench = make_bench(Catalog({"frozen": pack}))
    session_id = bench.create("frozen")
    for _ in range(5):  # repeated, because the watcher may look at that moment and notice the deadline first
        assert bench.call(session_id, "stand_still")["error"].startswith("TimeoutError: `stand_still` took longer")
    assert bench.result(session_id, "total") == 0


@in_both
def test_a_call_can_only_shorten_its_deadline(bench):
    session_id = bench.create()
    gate("longer")
    longer = bench.call(session_id, "add_and_spin", {"timeout_seconds": 3600}, name="longer")
    assert "took longer than 0.3 s" in longer["error"]
    gate("shorter")
    shorter = bench.call(session_id, "add_and_spin", {"timeout_seconds": 0.05}, name="shorter")
    assert "took longer than 0.05 s" in shorter["error"]


@in_both
def test_a_functions_deadline_overrides_the_setting(bench):
    hasty = serving.Bench(store=bench.store, timeout_seconds=0.1)
    session_id = bench.create()
    opened = gate("default")
    assert "took longer than 0.1 s" in hasty.call(session_id, "add_and_hold", name="default")["error"]
    assert "took longer than 0.3 s" in hasty.call(session_id, "add_and_swallow", name="default")["error"]
    opened.set()
    hasty.close()


@pytest.fixture
def held_up(make_bench):
    """Yield a toolpack, a loader of tasks for it, a server, and two events.

    Code of the toolpack sets the second event when it begins to block, and blocks until the first is set.
    """
    opened, reached = threading.Event(), threading.Event()

    def hold_up():
        reached.set()
        opened.wait(PATIENCE)

    def factory(holds: int = 0) -> ledger.LedgerEnvironment:
        """Create a ledger.

        :param holds: Take too long, unless it is 0.
        """
        if holds:
            hold_up()
        return ledger.LedgerEnvironment()

    pack = Toolpack("slow", factory)

    @pack.function
    def hold() -> None:
        """Take too long."""
        hold_up()

    def many():
        hold_up()
        yield Task("later", "Wait.", solution=lambda _: hold_up())

    yield pack, many, make_bench(Catalog({"slow": pack}), timeout_seconds=0.1), opened, reached
    opened.set()


LATE = " took longer than 0.1 s and was given up; "


def test_a_missed_deadline_names_the_running_code(held_up, clock):
    pack, many, bench, opened, reached = held_up

    def message_of(method, /, **params):
        reached.clear()
        request = bench.later(method, **params)
        assert reached.wait(PATIENCE)
        clock.move(0.2)
        error = serving.refused(-32010, request.result, PATIENCE)
        assert error.data["type"] in {"DeadlineError", "TimeoutError"}
        opened.set()
        wait_until(lambda: not bench.sessions.queues.threads._stuck, "the end of the blocked code")
        opened.clear()
        return error.message

    session_id = bench.create("slow")
    hold = {"session_id": session_id, "function": "hold", "raise_on_error": True}
    assert message_of("run_function", **hold) == f"Toolpack 'slow': `hold`{LATE}nothing has changed."
    first, second = ({"toolpacks": ["slow"], "options": {"slow": {"holds": number}}} for number in (1, 2))
    created = f"The factory of toolpack 'slow'{LATE}a session may still be created"
    assert message_of("create_session", **first) == f"{created}."
    assert (
        message_of("create_session", **second, call_id="c") == f"{created}: send the request again, with its call_id."
    )
    pack.tasks(many)
    loader = f"The loader `held_up.<locals>.many` of toolpack 'slow'{LATE}nothing has changed."
    assert message_of("create_session", task="slow/later") == loader
    session_id = bench.rpc("create_session", task="slow/later")["session_id"]  # meanwhile the loader has ended
    assert (
        message_of("get_solution", session_id=session_id) == f"The solution of 'slow/later'{LATE}nothing has changed."
    )


@pytest.mark.parametrize(("method", "params"), [("run_function", {"function": "hold"}), ("list_functions", {})])
def test_a_missed_task_load_shows_an_agent_no_task_name(held_up, clock, method, params):
    pack, many, bench, opened, reached = held_up
    pack.tasks(many)
    opened.set()
    created = bench.rpc("create_session", task="slow/later")
    opened.clear()
    reached.clear()
    pack.task_list._loaded = None  # as after a restart
    request = bench.later(method, agent_key=created["agent_path"].rpartition("/")[2], **params)
    assert reached.wait(PATIENCE)
    clock.move(0.2)
    error = serving.refused(-32010, request.result, PATIENCE)
    assert error.message == "The request took longer than 0.1 s; nothing has changed."
    opened.set()
    wait_until(lambda: not bench.sessions.queues.threads._stuck, "the end of the loader")
    assert bench.call(created["session_id"], "hold")["error"] is None


@pytest.mark.parametrize(
    ("method", "params", "step", "expected"),
    [
        ("close_session", {}, "delete", "the session may still be closed."),
        ("close_session", {"labels": {"a": "b"}}, "list", "sessions may still be closed."),
        ("fork_session", {}, "create", "a session may still be created."),
        ("import_bundle", {"bundle": ""}, "create", "a session may still be created."),
        ("get_trace", {}, "records", "nothing has changed."),
    ],
)
def test_a_missed_store_deadline_mentions_no_call_id(bench, clock, method, params, step, expected):
    hasty = serving.Bench(store=bench.store, timeout_seconds=0.1)
    session_id = bench.create(labels={"a": "b"})
    if "bundle" in params:
        params = {"bundle": bench.rpc("export_bundle", session_id=session_id)["bundle"]}
    real, reached, opened = getattr(bench.store, step), threading.Event(), threading.Event()

    def hold(*arguments, **options):
        reached.set()
        opened.wait(PATIENCE)
        return real(*arguments, **options)

    setattr(bench.store, step, hold)
    request = hasty.later(method, **(params or {"session_id": session_id}))
    assert reached.wait(PATIENCE)
    clock.move(0.2)
    assert serving.refused(-32010, request.result, PATIENCE).message == f"The request{LATE}{expected}"
    opened.set()
    hasty.close()


@pytest.mark.parametrize("seconds", [0, -1, "1", True])
def test_a_deadline_is_a_positive_number(bench, seconds):
    with pytest.raises(RpcError) as refused:
        bench.call(bench.create(), "total", {"timeout_seconds": seconds})
    assert refused.value.code == -32602


@in_both
def test_a_missed_deadline_is_recorded_and_deduplicated(bench):
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


@in_both
def test_the_clock_starts_with_the_function_not_the_wait(bench, clock):
    session_id = bench.create()
    opened = gate("wait")
    holding = begin(bench, session_id, "wait")
    behind = bench.later_call(session_id, "add", {"timeout_seconds": 0.2}, amount=1)
    wait_until(lambda: bench.sessions.load()[0] == 1, "the call to wait")
    clock.move(1)
    opened.set()
    assert holding.result(serving.PATIENCE)["result"] == 3
    assert behind.result(serving.PATIENCE)["result"] == 4


def test_a_leftover_task_does_not_affect_later_calls(bench):
    session_id = bench.create()
    ledger.background.clear()
    bench.result(session_id, "leave_task_behind")
    assert [bench.result(session_id, "add_later", amount=1) for _ in range(3)] == [2, 3, 4]
    assert ledger.background.pop().cancelled()
    assert entries(bench, session_id) == [1, 1, 1, 1]
