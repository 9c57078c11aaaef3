"""A store that is full, damaged or changed by another worker: which operations still work, and how others fail."""

import contextlib
import os
import sqlite3
import subprocess
import threading
import time

import pytest
import redis_server
import serving
from serving import Bench, refused, wait_until

LARGE = "x" * 200_000


def trouble(bench):
    return bench._run(bench.sessions.ping_store())[1]


# A full disk


def fill(bench):
    """Store data until the store is full. Return the sessions, each with one large record."""
    sessions = []

    def store_more():
        while True:
            sessions.append(bench.create(labels={"run": "1"}))
            bench.call(sessions[-1], "unknown", text=LARGE)

    refused(-32006, store_more)
    return sessions


def check_full(bench, sessions, make_room):
    for session in sessions[:3]:
        assert bench.rpc("get_session", session_id=session)["version"] == 0
        assert bench.rpc("get_environment", session_id=session)
        assert len(bench.rpc("get_trace", session_id=session)) == 1
    assert len(bench.rpc("list_sessions", limit=1000)) >= len(sessions) - 1
    for session in sessions[:3]:
        bench.rpc("close_session", session_id=session)
        refused(-32001, bench.rpc, "get_session", session_id=session)
    make_room()
    assert trouble(bench) == ""
    assert bench.result(sessions[3], "add", amount=1) == 1
    assert bench.rpc("close_session", labels={"run": "1"}) >= len(sessions) - 4


@pytest.fixture
def small_disk(tmp_path):
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", tmp_path], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("only root can mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_can_be_read_emptied_and_used_again(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 30_000_000)
    bench = Bench(store=f"sqlite:///{small_disk}/sessions.db")
    try:
        sessions = fill(bench)
        assert "is full" in trouble(bench)
        check_full(bench, sessions, ballast.unlink)
    finally:
        bench.close()


@pytest.mark.heavy
def test_a_full_disk_goes_on_once_sessions_are_closed(small_disk):
    bench = Bench(store=f"sqlite:///{small_disk}/sessions.db")
    try:
        sessions = fill(bench)
        for session in sessions[:-2]:
            bench.rpc("close_session", session_id=session)
        bench.store.clean_up()  # as the next sweep does
        assert trouble(bench) == ""
        assert bench.result(sessions[-2], "add", amount=1) == 1
        assert (small_disk / "sessions.db.reserve").exists()
    finally:
        bench.close()


@pytest.mark.heavy
def test_a_full_disk_goes_on_where_no_checkpoint_came_in_time(small_disk, monkeypatch):
    monkeypatch.setattr("toolpack_server.features.stores.sqlite.checkpoints.Checkpoints.start_if_due", lambda *_: None)
    bench = Bench(store=f"sqlite:///{small_disk}/sessions.db")
    try:
        sessions = fill(bench)
        for session in sessions[:-2]:
            bench.rpc("close_session", session_id=session)
        with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(b"x" * 4096):
                pass
        bench.store.clean_up()
        assert bench.result(sessions[-2], "add", amount=1) == 1
    finally:
        bench.close()


def test_a_file_that_may_not_grow_can_be_read_and_emptied(tmp_path):
    bench = Bench(store=f"sqlite:///{tmp_path}/sessions.db")
    writer = bench.store._file._writer
    try:
        writer.execute("PRAGMA max_page_count = 2000")
        check_full(bench, fill(bench), lambda: writer.execute("PRAGMA max_page_count = 1000000"))
    finally:
        bench.close()


# A full Redis


@pytest.fixture
def small_redis(tmp_path):
    redis_client = pytest.importorskip("redis")
    with redis_server.start(tmp_path) as (url, _), redis_client.Redis.from_url(url) as client:
        yield url, client


def test_a_full_redis_can_be_read_and_emptied(small_redis):
    url, client = small_redis
    bench = Bench(store=url)
    try:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_000_000)
        sessions = fill(bench)
        assert "full" in trouble(bench)
        client.config_set("maxmemory", 1)
        assert "full" in refused(-32006, bench.call, sessions[0], "total").message
        assert bench.rpc("get_session", session_id=sessions[0])["version"] == 0
        assert len(bench.rpc("get_trace", session_id=sessions[0])) == 1
        again = Bench(store=url)  # a server can start, too
        again.rpc("close_session", session_id=sessions[0])
        again.close()
        again.store.close()
        for session in sessions[1:-2]:
            bench.rpc("close_session", session_id=session)
        for clock in (time.time(), time.time() + 10**7):  # a jump of the clock ends no session here either
            assert bench.store.delete_expired(bench.store.count_time(clock).now, 10) == []
        client.config_set("maxmemory", 0)
        assert trouble(bench) == ""
        assert bench.result(sessions[-2], "add", amount=1) == 1
        assert bench.rpc("close_session", labels={"run": "1"}) == 2
    finally:
        bench.close()


def test_a_full_redis_deletes_expired_sessions(small_redis):
    url, client = small_redis
    bench = Bench(store=url)
    try:
        sessions = [bench.create(ttl_seconds=0.1) for _ in range(3)]
        client.config_set("maxmemory", 1)
        with bench.sweeping():
            wait_until(lambda: bench.rpc("list_sessions") == [], "the end of the sessions")
        assert len(sessions) == 3
    finally:
        bench.close()


# Damage


@pytest.mark.parametrize("body", [b"\xff\xfe{}\nnull", b'{"index": 0', b'{"index":0}\nnull', b"[]", b"", b"{}\n{}\n{}"])
def test_a_damaged_record_is_reported_as_damaged(tmp_path, body):
    bench = Bench(store=f"sqlite:///{tmp_path}/sessions.db")
    try:
        session = bench.create()
        assert bench.call(session, "add", {"call_id": "c"}, amount=1)["error"] is None
        with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as database:
            database.execute("UPDATE records SET body = ?", (body,))
        error = refused(-32012, bench.call, session, "add", {"call_id": "c"}, amount=1)
        assert "Record 0 fails its keyed hash, because it was damaged" in error.message
        assert "restore a backup" in error.message
        assert "or close the session" in error.message
        assert refused(-32012, bench.rpc, "get_trace", session_id=session).message == error.message
        assert bench.result(session, "add", amount=1) == 2
    finally:
        bench.close()


@pytest.mark.parametrize("column", ["labels", "recipe"])
def test_a_damaged_row_is_reported_as_damaged(tmp_path, column):
    bench = Bench(store=f"sqlite:///{tmp_path}/sessions.db")
    try:
        session = bench.create()
        bench.sessions.queues.cache.pop(session)  # so that the call reads the session from the file
        with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as database:
            database.execute(
                "UPDATE sessions SET labels = x'7b'" if column == "labels" else "UPDATE recipes SET text = x'7b'"
            )
        refused(-32012, bench.rpc, "get_session", session_id=session)
        refused(-32012, bench.call, session, "total")
    finally:
        bench.close()


# Other workers


def test_a_session_that_another_worker_closed_does_not_exist(tmp_path):
    url = f"sqlite:///{tmp_path}/sessions.db"
    stores = [serving.open_store(url, exclusive=False) for _ in range(2)]
    a, b = (Bench(store=store) for store in stores)
    try:
        session = a.create()
        gate = serving.ledger.gates["closed"] = threading.Event()
        before = len(serving.ledger.runs)
        running = a.later_call(session, "add_and_hold", name="closed")
        wait_until(lambda: len(serving.ledger.runs) > before, "the call")
        b.rpc("close_session", session_id=session)
        gate.set()
        refused(-32001, running.result, serving.PATIENCE)
    finally:
        a.close()
        b.close()
        for store in stores:
            store.close()
