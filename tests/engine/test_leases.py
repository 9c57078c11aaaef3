"""Leases of sessions: a live worker keeps or releases its leases, and a dead worker loses them to other workers."""

import contextlib
import threading

import pytest
import redis_server
import serving
from serving import RpcError, ledger, open_store, wait_until

from toolpack_server.base.errors import OverloadedError
from toolpack_server.engine import leases, queues
from toolpack_server.engine.leases import DEAD_SECONDS, HEARTBEAT_SECONDS, Leases
from toolpack_server.engine.state import SessionState
from toolpack_server.stores.base import Head, Lease, StoredSession
from toolpack_server.testing.store_contract.model import SharedMemory

OTHER = "another worker"


@pytest.fixture
def store():
    """Return a store in memory that behaves like one shared by several processes."""
    return SharedMemory()


@pytest.fixture
def bench(store):
    with serving.Bench(store=store) as bench:
        yield bench


@pytest.fixture
def second(store):
    """Return another worker on the same store."""
    with serving.Bench(store=store) as bench:
        yield bench


def claim(store, session_id, *dead):
    return store.claim([session_id], OTHER, dead)[0]


def is_free(store, session_id):
    """Return whether another worker can get the lease. If so, release it again."""
    claimed = claim(store, session_id)
    if isinstance(claimed, Head):
        store.release(session_id, OTHER, claimed.epoch)
    return isinstance(claimed, Head)


def hold(bench, session_id, name, **params):
    """Send a call that runs until its gate is opened, and wait until it runs."""
    gate = ledger.gates[name] = threading.Event()
    before = ledger.runs.count("add_and_hold")
    call = bench.later_call(session_id, "add_and_hold", params, name=name)
    wait_until(lambda: ledger.runs.count("add_and_hold") > before, "the call")
    return gate, call


# Releasing leases


@pytest.mark.parametrize("function", ["add", "total", "no such function"])
def test_the_lease_is_released_with_the_last_commit(bench, store, function):
    session_id = bench.create()
    bench.call(session_id, function, **({"amount": 1} if function == "add" else {}))
    assert isinstance(claim(store, session_id), Head)


def test_a_lease_without_a_commit_is_released_soon(bench, store):
    session_id = bench.create()
    with pytest.raises(RpcError):
        bench.call(session_id, "add", {"expected_version": 7}, amount=1)
    wait_until(lambda: is_free(store, session_id), "the end of the lease")


def test_a_running_call_keeps_its_lease(bench, store):
    session_id = bench.create()
    gate, call = hold(bench, session_id, "keeps")
    assert isinstance(claim(store, session_id), Lease)
    gate.set()
    assert call.result(serving.PATIENCE)["result"] == 2 + 1
    assert isinstance(claim(store, session_id), Head)


def test_a_stopping_worker_releases_leases_and_stops_committing(bench, store):
    session_id = bench.create()
    bench.result(session_id, "add", amount=1)
    gate, _ = hold(bench, session_id, "stopped with")
    bench.sessions.queues.stop()
    assert is_free(store, session_id)
    late = len(ledger.late)
    gate.set()
    wait_until(lambda: "stopped with" in ledger.late[late:], "the end of the function")
    assert store.get(session_id)[1].version == 1


def test_calls_of_a_stopped_worker_move_to_another(bench, second):
    session_id = bench.create()
    gate, _ = hold(bench, session_id, "left to the second")
    bench.sessions.queues.stop()
    assert second.result(session_id, "add", amount=5) == 5
    gate.set()
    assert second.result(session_id, "total") == 5


@pytest.mark.parametrize("error", [OverloadedError("out of reach"), RuntimeError("broken")])
def test_the_lease_of_a_failed_commit_is_released_soon(bench, store, error):
    session_id = bench.create()
    commit = store.commit

    def fail(_batch):
        store.commit = commit
        raise error

    store.commit = fail
    with pytest.raises(RpcError):
        bench.call(session_id, "add", amount=1)
    wait_until(lambda: is_free(store, session_id), "the end of the lease")
    assert bench.result(session_id, "add", amount=1) == 1


def test_a_lease_is_released_if_the_answer_to_its_claim_is_lost(bench, store):
    session_id = bench.create()
    real, lost_answers = store.claim, []

    def lose(session_ids, holder, dead=()):
        claimed = real(session_ids, holder, dead)
        if holder != OTHER and not lost_answers:
            lost_answers.append(claimed)
            raise OverloadedError("The answer was lost.")
        return claimed

    store.claim = lose
    with pytest.raises(RpcError):
        bench.call(session_id, "add", amount=1)
    assert isinstance(lost_answers[0][0], Head)
    wait_until(lambda: is_free(store, session_id), "the end of the lease")
    assert bench.result(session_id, "add", amount=1) == 1


def test_a_worker_keeps_its_own_lease_for_running_calls(store):
    store.create([session := new_session()], {}, {})
    leases = Leases(store)
    claimed = []
    real = store.claim

    def lose(session_ids, *arguments):
        claimed.append(session_ids)
        real(session_ids, *arguments)
        raise OverloadedError("The answer was lost.")

    store.claim = lose
    states = [SessionState(*store.get(session.id)) for _ in range(2)]
    with pytest.raises(OverloadedError):
        leases.acquire(states[:1])
    assert not states[0].leased
    store.claim = lambda *arguments: claimed.append(arguments[0]) or real(*arguments)
    leases.keep_up(lambda _: True)  # a call waits there and will take the lease
    assert len(claimed) == 1
    leases.acquire(states[1:])
    assert states[1].leased
    leases.keep_up(lambda _: False)
    assert len(claimed) == 2
    assert store.get(session.id)[1].epoch == states[1].epoch
    assert not is_free(store, session.id)
    leases.release(states[1])
    leases.keep_up(lambda _: False)
    assert is_free(store, session.id)


def test_a_session_that_became_busy_keeps_its_lease(store):
    store.create([session := new_session()], {}, {})
    leases = Leases(store)
    leases.acquire([SessionState(*store.get(session.id))])
    store.ask(session.id, leases.holder)
    looks = iter([False, True])
    leases.keep_up(lambda _: next(looks))
    assert not is_free(store, session.id)
    leases.keep_up(lambda _: False)
    assert is_free(store, session.id)


def test_releases_during_a_release_are_sent_next(store):
    store.create([session := new_session()], {}, {})
    leases = Leases(store)
    first, later = (SessionState(*store.get(session.id)) for _ in range(2))
    leases.acquire([first])
    leases.release(first)
    release = store.release

    def meanwhile(*lease):
        store.release = release
        release(*lease)
        leases.acquire([later])
        leases.release(later)

    store.release = meanwhile
    leases.keep_up(lambda _: False)
    assert not is_free(store, session.id)
    leases.keep_up(lambda _: False)
    assert is_free(store, session.id)


def test_a_late_release_keeps_a_newer_lease_of_the_same_epoch(store):
    store.create([session := new_session()], {}, {})
    leases = Leases(store)
    refused, later = (SessionState(*store.get(session.id)) for _ in range(2))
    leases.acquire([refused])
    refused.invalid = "The commit was refused."
    leases.release(refused)
    store._leases[session.id] = 0, None  # as before the lease was granted
    release = store.release

    def meanwhile(*lease):
        store.release = release
        leases.acquire([later])
        release(*lease)

    store.release = meanwhile
    leases.keep_up(lambda _: False)
    assert later.leased
    assert later.epoch == refused.epoch
    assert store._leases[session.id] == (later.epoch, later.holder)


# Two workers


def test_each_worker_continues_from_the_others_commits(bench, second):
    session_id = bench.create()
    assert bench.result(session_id, "add", amount=1) == 1
    assert second.result(session_id, "add", amount=10) == 11
    assert bench.result(session_id, "add", amount=100) == 111
    assert second.result(session_id, "total") == 111
    assert bench.call(session_id, "add", {"call_id": "once"}, amount=1)["result"] == 112
    assert second.call(session_id, "add", {"call_id": "once"}, amount=1)["result"] == 112


def test_a_call_waits_for_the_other_workers_call(bench, second):
    session_id = bench.create()
    gate, first = hold(bench, session_id, "first of two")
    waiting = second.later_call(session_id, "add", amount=1)
    wait_until(lambda: second.sessions.load()[0] == 1, "the second worker's wait")
    assert not waiting.done()
    gate.set()
    assert first.result(serving.PATIENCE)["result"] == 3
    assert waiting.result(serving.PATIENCE)["result"] == 4


def test_a_paused_worker_cannot_commit_to_lost_sessions(bench, store, second):
    session_id = bench.create()
    gate, call = hold(bench, session_id, "paused", call_id="paused")
    lease = claim(store, session_id)
    grant = claim(store, session_id, lease)
    assert isinstance(grant, Head)
    store.release(session_id, OTHER, grant.epoch)
    assert second.result(session_id, "add", amount=7) == 7
    gate.set()
    with pytest.raises(RpcError) as refused:
        call.result(serving.PATIENCE)
    assert refused.value.code == -32006
    assert "taken over the session; nothing was changed" in refused.value.message
    assert bench.result(session_id, "total") == 7
    ledger.gates["paused"].set()
    assert bench.call(session_id, "add_and_hold", {"call_id": "paused"}, name="paused")["result"] == 10


def test_a_session_that_another_worker_has_closed_is_gone(bench, second):
    session_id = bench.create()
    bench.result(session_id, "add", amount=1)
    second.rpc("close_session", session_id=session_id)
    with pytest.raises(RpcError) as refusal:
        bench.call(session_id, "add", amount=1)
    assert refusal.value.code == -32001


def test_a_session_that_another_worker_closes_meanwhile_is_gone(bench, second):
    session_id = bench.create()
    gate, call = hold(bench, session_id, "closed meanwhile")
    second.rpc("close_session", session_id=session_id)
    gate.set()
    with pytest.raises(RpcError):
        call.result(serving.PATIENCE)


# A busy worker


def test_a_busy_worker_lets_others_have_their_turn(bench, store, monkeypatch):
    clock = serving.Clock(monkeypatch, queues)
    session_id = bench.create()
    looks = []
    keep_up = bench.sessions.queues.leases.keep_up
    bench.sessions.queues.leases.keep_up = lambda is_busy: (looks.append(1), keep_up(is_busy))
    first_gate, first = hold(bench, session_id, "first turn")
    second_gate = ledger.gates["second turn"] = threading.Event()
    second = bench.later_call(session_id, "add_and_hold", name="second turn")
    third = bench.later_call(session_id, "add", amount=1)
    wait_until(lambda: bench.sessions.load()[0] == 2, "the queue")
    runs = ledger.runs.count("add_and_hold")
    clock.move(queues.TURN_SECONDS * 1.5)
    first_gate.set()
    assert first.result(serving.PATIENCE)["result"] == 3
    # The worker must not take the lease again before other workers had time to ask for it.
    count = len(looks)
    wait_until(lambda: len(looks) > count + 2, "two looks of the worker at its queues")
    assert ledger.runs.count("add_and_hold") == runs
    grant = claim(store, session_id)
    assert isinstance(grant, Head)
    clock.move(queues.YIELD_SECONDS)
    wait_until(lambda: len(looks) > count + 4, "the worker's wait for its next turn")
    assert ledger.runs.count("add_and_hold") == runs
    store.release(session_id, OTHER, grant.epoch)

    def goes_on(condition):
        clock.move(queues.YIELD_SECONDS)
        return condition()

    wait_until(lambda: goes_on(lambda: ledger.runs.count("add_and_hold") > runs), "its next turn")
    second_gate.set()
    wait_until(lambda: goes_on(third.done), "the rest of its queue")
    assert second.result(serving.PATIENCE)["result"] == 6
    assert third.result(serving.PATIENCE)["result"] == 7


def test_a_worker_keeps_its_lease_during_its_turn(bench, store, monkeypatch):
    serving.Clock(monkeypatch, queues)
    session_id = bench.create()
    first_gate, first = hold(bench, session_id, "keeps first")
    second_gate = ledger.gates["keeps second"] = threading.Event()
    second = bench.later_call(session_id, "add_and_hold", name="keeps second")
    wait_until(lambda: bench.sessions.load()[0] == 1, "the queue")
    epoch = store.get(session_id)[1].epoch
    first_gate.set()
    assert first.result(serving.PATIENCE)["result"] == 3
    assert isinstance(claim(store, session_id), Lease)
    second_gate.set()
    assert second.result(serving.PATIENCE)["result"] == 6
    assert store.get(session_id)[1].epoch == epoch


# Dead workers


def new_session():
    return StoredSession("s", "key", "", b"", {}, 60, 0, 10**10)


class Watcher:
    """A worker that waits for the lease of another worker's session, and looks at the holder's heartbeat meanwhile."""

    def __init__(self, store, monkeypatch):
        bench = serving.Bench(store=store)
        self.session_id = bench.create()
        bench.close()
        self.clock = serving.Clock(monkeypatch, leases)
        self.store = store
        self.leases = Leases(store)
        assert isinstance(claim(store, self.session_id), Head)

    def looks(self):
        """Request the lease once, and return whether the store granted it."""
        state = SessionState(*self.store.get(self.session_id))
        self.leases.acquire([state])
        return state.leased

    def looks_until_taken(self, pause):
        looks = 0
        while not self.looks():
            self.clock.move(pause)
            looks += 1
            assert looks < 10_000
        return looks


@pytest.fixture
def watcher(store, monkeypatch):
    return Watcher(store, monkeypatch)


def test_a_lease_moves_after_5_seconds_without_heartbeats(watcher):
    assert DEAD_SECONDS == 5.0
    start = watcher.clock.monotonic()
    watcher.looks_until_taken(0.02)
    assert 5.0 < watcher.clock.monotonic() - start < 5.1


def test_a_waiting_call_continues_if_the_holder_is_unreachable(watcher, store):
    requests = []

    def fail(session_id, _holder):
        requests.append(session_id)
        raise OverloadedError("out of reach")

    store.ask = fail
    watcher.looks_until_taken(0.02)
    assert requests == [watcher.session_id] * 4


def test_the_lease_of_an_ended_worker_moves_at_once(watcher, store):
    other = Leases(store)
    assert not watcher.looks()
    other.holder_ended(OTHER)
    assert not watcher.looks()
    other.keep_up(lambda _: False)
    assert watcher.looks()


def test_an_unreachable_store_learns_later_who_ended(watcher, store):
    other = Leases(store)
    holder_ended = store.holder_ended

    def fail(_holder):
        raise OverloadedError("out of reach")

    store.holder_ended = fail
    other.holder_ended(OTHER)
    other.keep_up(lambda _: False)
    assert not watcher.looks()
    store.holder_ended = holder_ended
    other.keep_up(lambda _: False)
    assert watcher.looks()


def test_a_holder_with_heartbeats_keeps_its_lease(watcher):
    for _ in range(20):
        for _ in range(20):
            assert not watcher.looks()
            watcher.clock.move(0.2)
        watcher.store.heartbeat(OTHER)


def test_a_watchers_own_pause_makes_no_holder_dead(watcher):
    assert not watcher.looks()
    for _ in range(10):
        watcher.clock.move(3600)
        assert not watcher.looks()
    watcher.store.heartbeat(OTHER)
    assert not watcher.looks()
    watcher.clock.move(3600)
    assert not watcher.looks()


def test_a_pause_counts_only_as_one_look(watcher):
    assert watcher.looks_until_taken(60) > DEAD_SECONDS / leases.LOOK_SECONDS


def test_a_worker_sends_heartbeats_even_if_it_has_nothing_to_do(store, monkeypatch):
    clock = serving.Clock(monkeypatch, leases)
    beats = []
    store.heartbeat = lambda holder: beats.append(holder) or ()
    worker_leases = Leases(store)
    for _ in range(100):
        worker_leases.keep_up(lambda _: False)
        clock.move(HEARTBEAT_SECONDS / 10)
    assert 9 <= len(beats) <= 10
    assert len(set(beats)) == 1
    assert DEAD_SECONDS >= 4 * HEARTBEAT_SECONDS  # one lost heartbeat is no death


def test_a_failed_end_notice_is_logged_once_and_retried(store, caplog):
    leases = Leases(store)
    heartbeat = store.heartbeat

    def fail(_holder):
        raise OverloadedError("out of reach")

    store.heartbeat = fail
    for _ in range(3):
        leases.keep_up(lambda _: False)
    assert caplog.text.count("can't be told that this worker is alive") == 1
    store.heartbeat = heartbeat
    leases.keep_up(lambda _: False)
    assert list(store._heartbeats.values()) == [1]


def test_each_worker_has_its_own_name(store):
    assert len({Leases(store).holder for _ in range(50)}) == 50


def test_no_lease_is_requested_from_an_unshared_store(make_bench):
    store = open_store("memory:")
    store.claim = store.heartbeat = store.release = lambda *_: pytest.fail("no lease is needed")
    bench = make_bench(store=store)
    session_id = bench.create()
    assert bench.result(session_id, "add", amount=1) == 1
    assert store.get(session_id)[1].epoch == 0


# Rows that remain in the store


def test_an_ended_worker_leaves_no_lease_rows_in_a_file(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/sessions.db", exclusive=False)
    with contextlib.closing(store):
        ended, other = serving.Bench(store=store), serving.Bench(store=store)
        session_id = ended.create()
        wait_until(lambda: len(store._file.read("SELECT * FROM workers")) == 2, "the first heartbeats")
        gate, _ = hold(ended, session_id, "ends")
        store.ask(session_id, ended.sessions.queues.leases.holder)
        ended.sessions.queues.stop()
        assert store._file.read("SELECT holder FROM workers") == [(other.sessions.queues.leases.holder,)]
        assert store._file.read("SELECT * FROM asked") == []
        assert store._file.read("SELECT 1 FROM sessions WHERE holder IS NOT NULL") == []
        gate.set()
        for bench in (ended, other):
            bench.close()
        assert store._file.read("SELECT * FROM workers") == []


def test_lease_requests_in_redis_expire_soon(redis_url):
    client = pytest.importorskip("redis").Redis.from_url(redis_server.emptied(redis_url))
    with contextlib.closing(open_store(redis_url)) as store:
        store.heartbeat("lives")
        store.heartbeat("ends")
        for holder in ("lives", "ends", "is new"):
            store.ask("session", holder)
        store.holder_ended("ends")
        store.ask("session", "ends")
        ttls = {name: client.ttl(name) for name in client.keys("toolpack:asked:*")}
        assert ttls.keys() == {b"toolpack:asked:lives", b"toolpack:asked:is new"}
        assert all(0 < seconds <= 60 for seconds in ttls.values())
        assert store.heartbeat("lives") == {"session"}
