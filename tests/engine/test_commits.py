"""A call is acknowledged when its commit is in the store. State that was built on a failed commit is discarded."""

import threading

import pytest
import serving
from serving import RpcError, ledger, open_store, wait_until

from toolpack_server.base.errors import OverloadedError
from toolpack_server.engine import commits, queues, session_clock

UNKNOWN = "It is unknown whether the call was stored"
FAILURES = {
    "refused": (False, "Another worker has taken over the session; nothing was changed."),
    "store out of reach": (OverloadedError("The store can't be reached."), "The store can't be reached."),
    "outcome unknown": (RuntimeError("the answer was lost"), UNKNOWN),
}


class FailingStore:
    """A store in memory that can fail at its next commit.

    Attributes:
        fails: The failure of the next commit. False refuses the commit, an exception is raised, and None is no failure.
        before: A function that is called before each commit.
    """

    def __init__(self):
        self._store = open_store("memory:")
        self.fails = None
        self.before = lambda _: None
        self.batches = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def commit(self, batch):
        self.before(batch)
        self.batches.append(batch)
        fails, self.fails = self.fails, None
        if fails is False:
            return [False] * len(batch)
        if fails is not None:
            raise fails
        return self._store.commit(batch)


@pytest.fixture
def store():
    return FailingStore()


@pytest.fixture
def bench(store):
    with serving.Bench(store=store) as bench:
        yield bench


def is_overloaded(call):
    with pytest.raises(RpcError) as refused:
        call.result(serving.PATIENCE)
    assert (refused.value.code, refused.value.data["type"]) == (-32006, "OverloadedError")
    return refused.value.message


def entries(bench, session_id):
    return bench.rpc("get_environment", session_id=session_id, pointer="/ledger/ledger/entries")


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_commit_is_not_acknowledged(bench, store, failure):
    session_id = bench.create()
    bench.result(session_id, "add", amount=1)
    store.fails, message = FAILURES[failure]
    assert is_overloaded(bench.later_call(session_id, "add", {"call_id": "lost"}, amount=10)).startswith(message)
    assert entries(bench, session_id) == [1]
    assert bench.version(session_id) == 1
    assert bench.result(session_id, "total") == 1
    assert bench.call(session_id, "add", {"call_id": "lost"}, amount=10)["result"] == 11
    assert [record["version"] for record in bench.rpc("get_trace", session_id=session_id)] == [1, 1, 2]


@pytest.mark.parametrize("failure", FAILURES)
def test_calls_built_on_a_failed_commit_are_void(bench, store, failure):
    """The first call's commit fails after the second call has begun with the state of the first."""
    session_id = bench.create()
    bench.result(session_id, "add", amount=1)
    gate = ledger.gates["built on"] = threading.Event()
    before = ledger.runs.count("add_and_hold")
    store.before = lambda _: wait_until(lambda: ledger.runs.count("add_and_hold") > before, "the second call")
    store.fails, message = FAILURES[failure]
    with bench.paused():
        first = bench.later_call(session_id, "add", amount=10)
        second = bench.later_call(session_id, "add_and_hold", name="built on")
        third = bench.later_call(session_id, "add", amount=100)
    assert is_overloaded(first).startswith(message)
    store.before = lambda _: None
    gate.set()
    assert is_overloaded(second).startswith(message)
    # The third call had not begun, so it starts from the stored state.
    assert third.result(serving.PATIENCE)["result"] == 101
    assert entries(bench, session_id) == [1, 100]
    assert [record["index"] for record in bench.rpc("get_trace", session_id=session_id)] == [0, 1]


@pytest.mark.parametrize("function", ["add", "total"])
def test_a_repeat_of_a_pending_commit_fails_with_it(bench, store, function):
    session_id = bench.create()
    bench.result(session_id, "total")
    kwargs = {"amount": 1} if function == "add" else {}
    with bench.paused():
        calls = [bench.later_call(session_id, function, {"call_id": "same"}, **kwargs) for _ in range(2)]
        store.fails = False
    outcomes = []
    for call in calls:
        try:
            outcomes.append(call.result(serving.PATIENCE)["result"])
        except RpcError as refused:
            outcomes.append(refused.code)
    # Either the repeat was refused with the call, or it came later and ran for the first time. It is never acknowledged
    # without a record.
    assert outcomes[0] == -32006
    acknowledged = [outcome for outcome in outcomes if outcome != -32006]
    recorded = [record for record in bench.rpc("get_trace", session_id=session_id) if record.get("call_id") == "same"]
    assert len(recorded) == len(acknowledged)


def test_a_reset_whose_commit_fails_is_not_acknowledged(bench, store):
    session_id = bench.create()
    bench.result(session_id, "add", amount=1)
    store.fails = False
    is_overloaded(bench.later("reset_session", session_id=session_id))
    assert entries(bench, session_id) == [1]
    assert bench.result(session_id, "add", amount=1) == 2


def test_no_answer_goes_out_before_its_commit(bench, store):
    session_id = bench.create()
    gate, waits = threading.Event(), threading.Event()

    def hold(_commits):
        waits.set()
        assert gate.wait(serving.PATIENCE)

    store.before = hold
    call = bench.later_call(session_id, "add", amount=1)
    assert waits.wait(serving.PATIENCE)
    assert not call.done()
    assert store.get(session_id)[1].version == 0
    gate.set()
    assert call.result(serving.PATIENCE)["result"] == 1


def test_a_refused_commit_keeps_others_of_its_batch(bench, store):
    ours, theirs = bench.create(), bench.create()
    commit = store._store.commit
    store._store.commit = lambda batch: [one.session_id == theirs and commit([one])[0] for one in batch]
    with bench.paused():
        refused_call, accepted = bench.later_call(ours, "add", amount=1), bench.later_call(theirs, "add", amount=1)
    is_overloaded(refused_call)
    assert accepted.result(serving.PATIENCE)["result"] == 1
    assert [bench.version(ours), bench.version(theirs)] == [0, 1]


def test_a_record_is_cached_only_until_it_is_stored(bench):
    session_id = bench.create()
    for number in range(5):
        bench.call(session_id, "add", {"call_id": str(number)}, amount=1)
    bench.call(session_id, "add_then", {"call_id": "failed"}, how="raise")
    assert bench.sessions.queues.cache.get(session_id).uncommitted == {}
    assert bench.call(session_id, "add", {"call_id": "0"}, amount=1)["result"] == 1


def test_an_expiry_is_written_only_when_needed(bench, store, monkeypatch):
    clock = serving.Clock(monkeypatch, queues, session_clock)
    session_id = bench.create(ttl_seconds=100)
    store.batches.clear()
    for seconds in (0, 4.875, 0.25, 4.875, 0.25):
        clock.move(seconds)
        bench.result(session_id, "total")
    now = clock.time()
    expiries = [commit.expires_at for batch in store.batches for commit in batch]
    assert [None if at is None else round(at - now, 3) for at in expiries] == [None, None, -5.125 + 105, None, 105]


def test_history_is_trimmed_while_a_session_is_used(bench, store, monkeypatch):
    monkeypatch.setattr(commits, "TRIM_EVERY", 4)
    trimmed = []
    store._store.trim = lambda *arguments: trimmed.append(arguments)
    session_id = bench.create()
    for _ in range(9):
        bench.result(session_id, "add", amount=1)
    assert trimmed == [(session_id, bench.settings.keep_versions, bench.settings.keep_bytes)] * 2


def test_a_failed_trim_fails_no_call(bench, store, monkeypatch, caplog):
    monkeypatch.setattr(commits, "TRIM_EVERY", 1)

    def fail(*_arguments):
        raise OSError("no room")

    store._store.trim = fail
    session_id = bench.create()
    assert [bench.result(session_id, "add", amount=1) for _ in range(3)] == [1, 2, 3]
    assert "could not be trimmed" in caplog.text
