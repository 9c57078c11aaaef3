"""A session lives for its TTL after its last call: no shorter because a call is long or a clock jumps."""

import threading
import time
from datetime import datetime, timedelta

import pytest
import serving
from serving import RpcError, ledger, wait_until

from server.sessions import manager

DAY = 86_400.0


class Clock:
    """A wall clock that a test sets; it runs on by itself."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.01)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_session_expires_its_ttl_after_it_was_created(stored_bench):
    for number in range(20):
        ttl = 60 + number / 7
        created = stored_bench.rpc("create_session", toolpacks=["ledger"], ttl_seconds=ttl)
        (fork,) = stored_bench.rpc("fork_session", session_id=created["session_id"], ttl_seconds=ttl)
        for session in (created, fork):
            lives = datetime.fromisoformat(session["expires_at"]) - datetime.fromisoformat(session["created_at"])
            assert abs(lives - timedelta(seconds=ttl)) <= timedelta(milliseconds=1)
        whole = stored_bench.rpc("create_session", toolpacks=["ledger"], ttl_seconds=60)
        assert whole["created_at"][-8:] == whole["expires_at"][-8:]
        assert whole in stored_bench.rpc("list_sessions", limit=1000)


def test_a_call_that_runs_longer_than_the_ttl_keeps_its_session(stored_bench):
    session_id = stored_bench.create(ttl_seconds=0.2)
    gate = ledger.gates["long"] = threading.Event()
    with stored_bench.sweeping() as look:
        running = stored_bench.later_call(session_id, "add_and_hold", name="long")
        try:
            look(2)
        finally:
            gate.set()
        assert running.result(serving.PATIENCE)["error"] is None
        assert stored_bench.version(session_id) == 1
        wait_until(lambda: stored_bench.rpc("list_sessions") == [], "the end of the session")


def test_a_reset_keeps_its_session_alive_too(stored_bench):
    session_id = stored_bench.create(ttl_seconds=0.2)
    stored_bench.result(session_id, "add", amount=1)
    stored_bench.rpc("reset_session", session_id=session_id)
    session, _ = stored_bench.store.get(session_id)
    assert session.expires_at < time.time() + 1  # what kept it alive while it ran is taken back


@pytest.mark.parametrize("jump", [30 * DAY, -30 * DAY])
def test_a_clock_that_jumps_ends_no_session(stored_bench, clock, jump):
    used, unused = stored_bench.create(ttl_seconds=2), stored_bench.create(ttl_seconds=2)
    with stored_bench.sweeping() as look:
        look(1)
        clock.ahead += jump
        assert stored_bench.result(used, "add", amount=1) == 1
        assert stored_bench.version(used) == 1
        look(2)
        assert stored_bench.result(used, "add", amount=1) == 2
        # The time that has really passed counts: sessions end, not early and not a month late.
        wait_until(lambda: stored_bench.rpc("list_sessions") == [], "the end of both sessions")
    with pytest.raises(RpcError, match="-32001"):
        stored_bench.version(unused)


def test_the_time_in_which_no_server_ran_does_not_count(tmp_path, clock):
    url = f"sqlite:///{tmp_path}/sessions.db"
    for _ in range(2):
        bench = serving.Bench(store=url)
        try:
            with bench.sweeping() as look:
                if not clock.ahead:
                    session_id = bench.create(ttl_seconds=60)
                look(1)
                assert bench.result(session_id, "total") == 0
        finally:
            bench.close()
        clock.ahead += DAY
