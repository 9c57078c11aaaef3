"""A store that has lost its newest data, as after a failover: no commit builds on the lost state."""

import contextlib
import os
import sqlite3
import threading

import pytest
import redis
import serving
from serving import Bench, RpcError, ledger, refused, wait_until


class Sqlite:
    """An SQLite store that can be set back to an earlier content, with SQLite's own backup."""

    def __init__(self, folder):
        self.url = f"sqlite:///{folder}/sessions.db"
        self._path = folder / "sessions.db"
        self._saved = sqlite3.connect(":memory:", check_same_thread=False)

    def _copy(self, reverse):
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            source, target = (self._saved, database) if reverse else (database, self._saved)
            source.backup(target)

    def save(self):
        self._copy(reverse=False)

    def set_back(self):
        self._copy(reverse=True)

    def close(self):
        self._saved.close()


class Redis:
    """A Redis that can be set back to an earlier content."""

    def __init__(self, url):
        self.url = url
        self._client = redis.Redis.from_url(url)
        self._client.flushall()
        self._saved = {}

    def save(self):
        self._saved = {key: self._client.dump(key) for key in self._client.scan_iter()}

    def set_back(self):
        with self._client.pipeline() as together:
            together.flushall()
            for key, content in self._saved.items():
                together.restore(key, 0, content)
            together.execute()

    def close(self):
        self._client.close()


@pytest.fixture(params=["sqlite", "redis"])
def rewindable(request, tmp_path):
    new_store = Redis(request.getfixturevalue("redis_url")) if request.param == "redis" else Sqlite(tmp_path)
    with contextlib.closing(new_store):
        yield new_store


@contextlib.contextmanager
def workers(url, count=2):
    with contextlib.ExitStack() as stack:
        benches = []
        for _ in range(count):
            store = serving.open_store(url, exclusive=False)
            stack.callback(store.close)
            bench = Bench(store=store)
            stack.callback(bench.close)
            benches.append(bench)
        yield benches


def trace_of(bench, session_id):
    return [record["result"] for record in bench.rpc("get_trace", session_id=session_id, limit=1000)]


def test_no_worker_commits_on_a_world_that_is_gone(rewindable):
    with workers(rewindable.url) as (a, b):
        session_id = a.create()
        assert a.result(session_id, "add", amount=1) == 1
        wait_until(lambda: b.result(session_id, "total") == 1, "the lease")
        rewindable.save()
        gate = ledger.gates["lost"] = threading.Event()
        before = ledger.runs.count("add_and_hold")
        lost_call = a.later_call(session_id, "add", amount=10)
        running = a.later_call(session_id, "add_and_hold", name="lost")
        assert lost_call.result(serving.PATIENCE)["result"] == 11
        wait_until(lambda: ledger.runs.count("add_and_hold") > before, "the call that knows the lost state")
        rewindable.set_back()
        assert b.result(session_id, "add", amount=100) == 101
        gate.set()
        with pytest.raises(RpcError, match="-32006"):
            running.result(serving.PATIENCE)
        assert a.result(session_id, "total") == 101
        assert b.result(session_id, "add", amount=1000) == 1101
        assert trace_of(a, session_id) == [1, 1, 101, 101, 1101]


def test_a_lease_whose_release_was_lost_is_given_back(rewindable):
    with workers(rewindable.url) as (a, b):
        session_id = a.create()
        gate = ledger.gates["lease"] = threading.Event()
        before = len(ledger.runs)
        running = a.later_call(session_id, "add_and_hold", name="lease")
        wait_until(lambda: len(ledger.runs) > before, "the call, which holds the lease")
        rewindable.save()
        gate.set()
        assert running.result(serving.PATIENCE)["error"] is None
        rewindable.set_back()
        assert b.result(session_id, "add", amount=1) == 1


def before_reading(bench, session_id, monkeypatch, happens):
    """Call `happens` after a worker has read a session's head, and before it reads the newest snapshot."""
    blobs = bench.store.blobs
    newest = {*bench.store.get(session_id)[1].parts.values()} - {*bench.store.parts_at(session_id, 0).values()}

    def read_late(ids):
        if newest & {*ids}:
            monkeypatch.setattr(bench.store, "blobs", blobs)
            happens()
        return blobs(ids)

    monkeypatch.setattr(bench.store, "blobs", read_late)


READS = {
    "run_function": {"function": "add", "kwargs": {"amount": 1}},
    "get_environment": {},
    "diff_environment": {},
    "fork_session": {},
}


@pytest.mark.parametrize("method", READS)
def test_requests_on_a_session_closed_elsewhere_say_so(rewindable, monkeypatch, method):
    with workers(rewindable.url) as (a, b):
        session_id = b.create()
        b.result(session_id, "add", amount=1)
        wait_until(lambda: b.sessions.queues.is_idle() and not b.sessions.queues.leases._unreleased, "the release")

        def close():
            b.rpc("close_session", session_id=session_id)
            b.store.clean_up()  # as the next sweep does

        before_reading(a, session_id, monkeypatch, close)
        refused(-32001, a.rpc, method, session_id=session_id, **READS[method])


@pytest.mark.parametrize("method", READS)
def test_a_request_that_reads_older_data_can_be_retried(rewindable, monkeypatch, method):
    with workers(rewindable.url) as (a, b):
        session_id = b.create()
        b.result(session_id, "add", amount=1)
        rewindable.save()
        b.result(session_id, "add", amount=10)
        wait_until(lambda: b.sessions.queues.is_idle() and not b.sessions.queues.leases._unreleased, "the release")
        before_reading(a, session_id, monkeypatch, rewindable.set_back)
        error = refused(-32006, a.rpc, method, session_id=session_id, **READS[method])
        assert error.message.endswith(("Send it again.", "Send the request again."))
        a.rpc(method, session_id=session_id, **READS[method])
        assert a.result(session_id, "total") in {1, 2}


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("first", ["the call", "the look"])
def test_a_file_that_was_cut_short_acknowledges_nothing(tmp_path, share, exclusive, first):
    path = tmp_path / "sessions.db"
    store = serving.open_store(f"sqlite:///{path}", exclusive=exclusive)
    bench = Bench(store=store)

    def problem():
        return bench._run(bench.sessions.ping_store())[1]

    try:
        session_id = bench.create()
        bench.sessions.queues.cache.pop(session_id)  # so that the call reads the session from the file
        assert problem() == ""
        os.truncate(path, int(path.stat().st_size * share))
        if first == "the look":
            assert "restore a backup" in problem()
        with pytest.raises(RpcError, match="restore a backup") as error:
            bench.call(session_id, "add", amount=1)
        assert error.value.code in {-32006, -32012}  # the second error if a missing page is read
        assert "restore a backup" in problem()
    finally:
        bench.close()
        store.close()


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("how", ["deleted", "replaced", "without its log"])
def test_a_file_that_is_gone_acknowledges_nothing(tmp_path, how, exclusive):
    path = tmp_path / "sessions.db"
    store = serving.open_store(f"sqlite:///{path}", exclusive=exclusive)
    bench = Bench(store=store)
    try:
        session_id = bench.create()
        assert bench.result(session_id, "add", amount=1) == 1
        moved = path.with_name(path.name + "-wal") if how == "without its log" else path
        aside = moved.rename(tmp_path / "aside")
        if how == "replaced":
            path.write_bytes(aside.read_bytes())
        with pytest.raises(RpcError, match="deleted or replaced") as refused:
            bench.result(session_id, "add", amount=1)
        assert refused.value.code == -32006
        assert "restart the server" in bench._run(bench.sessions.ping_store())[1]
        aside.replace(moved)
        assert bench._run(bench.sessions.ping_store())[1] == ""
    finally:
        bench.close()
        store.close()
