"""A session lives for its TTL after its last call. A long call or a jump of the clock doesn't shorten its life."""

import threading
from datetime import datetime, timedelta

import pytest
import serving
from serving import RpcError, ledger, open_store, wait_until

from toolpack_server.base.errors import OverloadedError
from toolpack_server.sessions import manager
from toolpack_server.testing.store_contract.model import SharedMemory

DAY = 86_400.0


def test_a_session_expires_its_ttl_after_it_was_created(stored_bench):
    for number in range(20):
        ttl = 60 + number / 7
        created = stored_bench.rpc("create_session", toolpacks=["ledger"], ttl_seconds=ttl)
        (fork,) = stored_bench.rpc("fork_session", session_id=created["session_id"], ttl_seconds=ttl)
        (heir,) = stored_bench.rpc("fork_session", session_id=created["session_id"])
        for session in (created, fork, heir):
            lives = datetime.fromisoformat(session["expires_at"]) - datetime.fromisoformat(session["created_at"])
            assert abs(lives - timedelta(seconds=ttl)) <= timedelta(milliseconds=1)
        whole_session = stored_bench.rpc("create_session", toolpacks=["ledger"], ttl_seconds=60)
        assert whole_session["created_at"][-8:] == whole_session["expires_at"][-8:]
        assert whole_session in stored_bench.rpc("list_sessions", limit=1000)


def test_a_call_that_runs_longer_than_the_ttl_keeps_its_session(stored_bench, pass_time):
    session_id = stored_bench.create(ttl_seconds=10)
    gate = ledger.gates["long"] = threading.Event()
    runs = ledger.runs.count("add_and_hold")
    running = stored_bench.later_call(session_id, "add_and_hold", name="long")
    wait_until(lambda: ledger.runs.count("add_and_hold") > runs, "the call")
    pass_time(stored_bench, 20)
    gate.set()
    assert running.result(serving.PATIENCE)["error"] is None
    assert stored_bench.version(session_id) == 1
    pass_time(stored_bench, 15)
    assert stored_bench.rpc("list_sessions") == []


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", pytest.param("postgres", marks=pytest.mark.heavy)])
def test_no_other_worker_ends_a_session_while_its_call_runs(kind, store_url):
    if kind == "memory":
        stores = [SharedMemory()] * 2
    else:
        url = store_url(kind)
        stores = [open_store(url, exclusive=False) for _ in range(2)]
    first_store, second_store = stores
    with serving.Bench(store=first_store) as first, serving.Bench(store=second_store) as second:
        session_id = first.create(ttl_seconds=5)
        for bench in (first, second):
            assert bench.result(session_id, "total") == 0
        # The call isn't recorded, so this worker relies on the expiry time in its cache.
        serving.refused(-32005, first.call, session_id, "add", {"expected_version": 7}, amount=1)
        assert second.result(session_id, "total") == 0
        gate = ledger.gates["held"] = threading.Event()
        runs = ledger.runs.count("add_and_hold")
        running = first.later_call(session_id, "add_and_hold", name="held")
        wait_until(lambda: ledger.runs.count("add_and_hold") > runs, "the call")
        deleted = second_store.delete_expired(second_store.count_time().now + 3600, 10)
        assert list(deleted) == []
        gate.set()
        assert running.result(serving.PATIENCE)["error"] is None
        wait_until(lambda: second_store.delete_expired(second_store.count_time().now + 3600, 10), "the end")


def test_a_clock_set_back_ends_no_session_with_a_running_call(stored_bench, clock, pass_time):
    session_id = stored_bench.create(ttl_seconds=5)
    gate = ledger.gates["back"] = threading.Event()
    runs = ledger.runs.count("add_and_hold")
    running = stored_bench.later_call(session_id, "add_and_hold", name="back")
    wait_until(lambda: ledger.runs.count("add_and_hold") > runs, "the call")
    clock.jump(-3600)
    pass_time(stored_bench, 100)
    clock.jump(3600)
    pass_time(stored_bench, 100)
    gate.set()
    assert running.result(serving.PATIENCE)["error"] is None
    pass_time(stored_bench, 4)
    assert len(stored_bench.rpc("list_sessions")) == 1
    pass_time(stored_bench, 2)
    assert stored_bench.rpc("list_sessions") == []


def test_a_running_replay_keeps_its_session_alive(make_bench, monkeypatch):
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.01)
    bench = make_bench()
    session_id = bench.create(ttl_seconds=0.5)
    gate = ledger.gates["replayed"] = threading.Event()
    gate.set()
    bench.result(session_id, "add_and_hold", name="replayed")
    gate.clear()
    get, failures = bench.store.get, [OverloadedError("The store is away.")]

    def failing(ids):
        if failures:
            raise failures.pop()
        return get(ids)

    def wait_for_renewals(count):
        before = get(session_id)[0].expires_at
        wait_until(lambda: get(session_id)[0].expires_at > before + count * 0.5, "the renewals")

    with bench.sweeping():
        replay = bench.later("replay_session", session_id=session_id)
        wait_for_renewals(2)
        monkeypatch.setattr(bench.store, "get", failing)
        wait_until(lambda: not failures, "a renewal that fails")
        wait_for_renewals(2)
        assert not replay.done()
        gate.set()
        assert replay.result(serving.PATIENCE)["complete"] is True
        assert len(bench.rpc("get_trace", session_id=session_id)) == 1
        wait_until(lambda: get(session_id) is None, "the end of the session")


def test_a_repeated_replay_answers_as_the_first_time(stored_bench, clock):
    session_id = stored_bench.create(ttl_seconds=100)
    stored_bench.result(session_id, "add", amount=1)
    first = stored_bench.rpc("replay_session", session_id=session_id, call_id="again")
    clock.move(30)
    assert stored_bench.rpc("replay_session", session_id=session_id, call_id="again") == first


@pytest.mark.parametrize("jump", [3600, -3600, 50, -50])
@pytest.mark.parametrize("use", ["call", "read", "create"])
def test_a_brief_clock_error_ends_no_session(stored_bench, clock, pass_time, jump, use):
    session_id = stored_bench.create(ttl_seconds=100)
    pass_time(stored_bench, 50)
    clock.jump(jump)
    if use == "create":
        session_id = stored_bench.create(ttl_seconds=100)
    elif use == "call":
        stored_bench.result(session_id, "add", amount=1)
    else:
        stored_bench.version(session_id)
    clock.jump(-jump)
    pass_time(stored_bench, 99)
    assert session_id in [each["session_id"] for each in stored_bench.rpc("list_sessions")]
    pass_time(stored_bench, 7)
    assert stored_bench.rpc("list_sessions") == []


@pytest.mark.parametrize("kind", ["redis", pytest.param("postgres", marks=pytest.mark.heavy)])
def test_clocks_of_servers_that_share_a_store_may_differ(store_url, clock, kind):
    url = store_url(kind)
    with serving.Bench(store=url) as first:
        real = first.store.count_time().now
        clock.jump(-7200)  # first the second server's clock changes, then both
        with serving.Bench(store=url) as second:
            session_id = second.create(ttl_seconds=100)
            for bench in (first, second, first):
                clock.jump(3600)
                assert bench.result(session_id, "total") == 0
                with bench.sweeping() as look:
                    look(2)
            ends = second.store.get(session_id)[0].expires_at
            assert 100 <= ends - real < 100 * 1.05 + serving.PATIENCE


@pytest.mark.parametrize("jump", [30 * DAY, -30 * DAY])
def test_a_clock_that_jumps_ends_no_session(stored_bench, clock, pass_time, jump):
    used, unused = stored_bench.create(ttl_seconds=100), stored_bench.create(ttl_seconds=100)
    pass_time(stored_bench, 30)
    clock.jump(jump)
    assert stored_bench.result(used, "add", amount=1) == 1
    assert stored_bench.version(used) == 1
    pass_time(stored_bench, 60)
    assert stored_bench.result(used, "add", amount=1) == 2
    assert len(stored_bench.rpc("list_sessions")) == 2
    # Only time that has really passed counts: sessions end neither early nor a month late.
    pass_time(stored_bench, 150)
    assert stored_bench.rpc("list_sessions") == []
    with pytest.raises(RpcError, match="-32001"):
        stored_bench.version(unused)


def test_the_time_in_which_no_server_ran_does_not_count(tmp_path, clock, pass_time):
    url = f"sqlite:///{tmp_path}/sessions.db"
    session_id = None
    for _ in range(2):
        bench = serving.Bench(store=url)
        try:
            session_id = session_id or bench.create(ttl_seconds=60)
            pass_time(bench, 1)
            assert bench.result(session_id, "total") == 0
        finally:
            bench.close()
        clock.move(DAY)
