"""The Redis store beyond the contract: lost answers, pauses, and unusable servers."""

import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import redis
import redis_server
import serving
from serving import open_store

from toolpack_server.base.errors import (
    OverloadedError,
    SettingsError,
)
from toolpack_server.stores.base import Head
from toolpack_server.testing.store_contract.samples import change, record_id, session, use_and_delete


def test_deleted_sessions_leave_no_keys_in_redis(redis_url):
    store = open_store(redis_server.emptied(redis_url))
    use_and_delete(store)
    assert sorted(store._redis._client.keys("*")) == [b"toolpack:schema"]
    store.close()


def test_commit_is_applied_once_despite_cut_connections(redis_url):
    url = redis_server.emptied(redis_url)
    store, killer = open_store(url), open_store(url)
    stored = session()
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    finished, may_cut = threading.Event(), threading.Semaphore(0)

    def cut():
        while may_cut.acquire() and not finished.is_set():
            killer._redis._client.client_kill_filter(_type="normal", skipme=True)
            time.sleep(random.random() / 200)

    cutting = threading.Thread(target=cut)
    cutting.start()
    kept_all = []
    try:
        for index in range(200):
            may_cut.release(3)  # At most three cuts per commit, so that it succeeds in time on a slow machine too.
            kept_all.append(store.commit([change(stored, index, f"b{index}", call_id=f"c{index}")]))
    finally:
        finished.set()
        may_cut.release()
        cutting.join()
    assert kept_all == [[True]] * 200
    assert store.get(stored.id)[1] == Head(199, 200, {"bank": "b199"}, 0, record_id(stored, 199))
    store.delete([stored.id])
    assert store._redis._client.keys("*blob:*") == []
    store.close()
    killer.close()


DAMAGED_FACTS = [
    *(b"", b"\xff", b"[]", b"{}\n[]\n{}", b"[1,2,3,4]\n[1,2,3,4]\n1", b'["a","","c",""]\n[{},null,0,null]\n{}'),
    *(b'["a","","c",""]\n[[],1.0,0.0,[]]\n', b'[["a"],["b"],{},null]\n[{},1,1,1]\n', b'["a","","c",""]'),
]


@pytest.mark.parametrize("damage", [*DAMAGED_FACTS, *({each: b"x"} for each in ("version", "epoch", "recorded"))])
def test_damaged_session_hides_no_other_and_can_be_deleted(redis_url, damage):
    with serving.Bench(store=redis_server.emptied(redis_url)) as bench, redis.Redis.from_url(redis_url) as client:
        damaged, undamaged = bench.create(), bench.create(labels={"run": "1"})
        bench.sessions.queues.cache.pop(damaged)
        if isinstance(damage, bytes):
            client.hset("toolpack:sessions", damaged, damage)
        else:
            client.hset(f"toolpack:head:{damaged}", mapping=damage)
        for query in ({}, {"labels": {"run": "1"}}, {"order": "-created"}):
            assert [each["session_id"] for each in bench.rpc("list_sessions", **query)] == [undamaged]
        for method in ("get_session", "get_trace", "get_environment", "fork_session", "reset_session"):
            params = {"version": 0} if method == "reset_session" else {}
            with pytest.raises(serving.RpcError) as refused:
                bench.rpc(method, session_id=damaged, **params)
            assert refused.value.code in {-32001, -32012}
        if isinstance(damage, bytes):
            assert bench.store.delete([damaged]) == [damaged]
            assert bench.store.count("") == bench.store.count() == 1
        assert bench.result(undamaged, "add", amount=1) == 1


def test_heartbeats_of_a_dead_worker_expire(redis_url):
    redis = pytest.importorskip("redis")
    with (
        contextlib.closing(open_store(redis_server.emptied(redis_url))) as store,
        redis.Redis.from_url(redis_url) as client,
    ):
        store.heartbeat("w1")
        (beat,) = client.keys("*beat*")
        for beats in (1, 2):
            # later than another worker takes its leases, but not never
            assert 3600 < client.ttl(beat) <= 86_400
            assert client.get(beat) == b"%d" % beats
            client.expire(beat, 100)
            store.heartbeat("w1")


def test_paused_redis_is_waited_for_until_a_timeout(tmp_path, monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.redis.connection")
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
    with redis_server.start(tmp_path) as (url, process):
        store = open_store(url)
        stored = session()
        store.create([stored], {"bank": "b"}, {"b": b"x"})
        os.kill(process, signal.SIGSTOP)
        wake = threading.Timer(0.4, os.kill, (process, signal.SIGCONT))
        wake.start()
        assert store.commit([change(stored, 0, "b0", call_id="c")]) == [True]
        wake.join()
        assert store.get(stored.id)[1] == Head(0, 1, {"bank": "b0"}, 0, record_id(stored, 0))
        with monkeypatch.context() as impatient:
            impatient.setattr(connection, "GIVE_UP_SECONDS", 0.3)
            os.kill(process, signal.SIGSTOP)
            with pytest.raises(OverloadedError, match="can't be reached"):
                store.commit([change(stored, 1, "b1")])
            with pytest.raises(OverloadedError):
                store.ping()
            os.kill(process, signal.SIGCONT)
        # The outcome of the commit that timed out is unknown. A repetition stores it once.
        assert store.commit([change(stored, 1, "b1")]) == [True]
        assert store.get(stored.id)[1].index == 1
        store._redis._client.config_set("maxmemory", "1")
        with pytest.raises(OverloadedError, match="store is full"):
            store.commit([change(stored, 2, "b2")])
        store._redis._client.config_set("maxmemory", "0")
        store._redis._client.script_flush()
        assert store.commit([change(stored, 2, "b2")]) == [True]
        store.close()
    with pytest.raises(SettingsError, match="can't be used"):
        open_store(url)


class FakeRedis:
    """A fake Redis client with the commands of a start, whose next commands can fail.

    Attributes:
        failures: The exceptions that the next commands raise.
        command_count: The number of commands.
    """

    def __init__(self, **info):
        self._info = {"redis_version": "7.2.0", **info}
        self.failures, self.command_count = [], 0

    connection_pool = SimpleNamespace(connection_class=dict, connection_kwargs={})

    def info(self, _section=None):
        return self._info

    def execute_command(self, *words):
        self.command_count += 1
        if self.failures:
            raise self.failures.pop()
        return {"GET": b"1", "MGET": [None, None]}.get(words[0], b"OK")

    def close(self):
        pass


def open_on(monkeypatch, client):
    redis = pytest.importorskip("redis")
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_arguments, **_more: client)
    return open_store("redis://somewhere/0")


def test_redis_with_another_schema_version_is_rejected(tmp_path):
    with redis_server.start(tmp_path) as (url, _), contextlib.closing(open_store(url)) as store:
        store._redis._client.set("toolpack:schema", "99")
        with pytest.raises(SettingsError, match="has schema 99, but this toolpack-server needs schema 1"):
            open_store(url)


ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


def test_redis_with_appendfsync_always_loses_nothing_on_a_kill(tmp_path):
    acknowledged = []
    with redis_server.start(tmp_path, *ALWAYS) as (url, process), serving.Bench(store=url) as bench:
        session_id = bench.create()

        def calls():
            with contextlib.suppress(serving.RpcError):
                while len(acknowledged) < 900:
                    acknowledged.append(bench.result(session_id, "add", amount=1))

        client = threading.Thread(target=calls)
        client.start()
        serving.wait_until(lambda: len(acknowledged) > 20, "some calls")
        os.kill(process, signal.SIGKILL)
        client.join(serving.PATIENCE)
    with redis_server.start(tmp_path, *ALWAYS) as (url, _), serving.Bench(store=url) as bench:
        results = [record["result"] for record in bench.rpc("get_trace", session_id=session_id, limit=1000)]
        assert results[: len(acknowledged)] == acknowledged
        assert len(results) <= len(acknowledged) + 1  # The answer of the last call was lost.
        assert bench.result(session_id, "add", amount=1) == len(results) + 1


@pytest.mark.parametrize("how", ["folder", "snapshot"])
def test_copy_of_redis_data_can_be_restored(tmp_path, how):
    redis = pytest.importorskip("redis")
    (tmp_path / "first").mkdir()
    with redis_server.start(tmp_path / "first", *ALWAYS) as (url, _), serving.Bench(store=url) as bench:
        session_id = bench.create()
        bench.result(session_id, "add", amount=1)
        if how == "folder":
            shutil.copytree(tmp_path / "first", tmp_path / "copy")
        else:  # as `redis-cli --rdb` does
            with redis.Redis.from_url(url) as client:
                client.save()
            (tmp_path / "copy").mkdir()
            shutil.copy(tmp_path / "first" / "dump.rdb", tmp_path / "copy")
        bench.result(session_id, "add", amount=1)
    options = ALWAYS if how == "folder" else ()
    with redis_server.start(tmp_path / "copy", *options) as (url, _), serving.Bench(store=url) as bench:
        assert bench.result(session_id, "add", amount=5) == 6


def test_unknown_url_option_is_rejected_before_any_request():
    with pytest.raises(SettingsError, match="URL is wrong: it has an option that redis-py doesn't know"):
        open_store("redis://127.0.0.1:1?colour=red")


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"redis_version": "6.0.16"}, "Redis 6.0.16 is too old: 6.2 or newer is needed."),
        ({"redis_version": "5.9"}, "Redis 5.9 is too old: 6.2 or newer is needed."),
        ({"cluster_enabled": 1}, "Redis Cluster isn't supported"),
    ],
)
def test_unsupported_redis_stops_the_start(monkeypatch, info, says):
    with pytest.raises(SettingsError, match=says):
        open_on(monkeypatch, FakeRedis(**info))


@pytest.mark.parametrize("url", ["redis://first,redis://second", "redis://first,", "rediss://:a,b@host"])
def test_redis_url_with_a_comma_is_rejected(url):
    with pytest.raises(SettingsError, match=r"the URL of one Redis.* no comma .*postgresql://") as caught:
        open_store(url)
    assert "a,b" not in str(caught.value)


@pytest.mark.parametrize("version", ["6.2.0", "6.10.1", "7.0", "10.0"])
def test_supported_redis_version_is_accepted(monkeypatch, version):
    open_on(monkeypatch, FakeRedis(redis_version=version)).ping()


def test_temporary_errors_are_retried_and_others_raised_at_once(monkeypatch):
    client = FakeRedis()
    store = open_on(monkeypatch, client)
    redis = pytest.importorskip("redis")
    client.failures = [redis.ConnectionError(), redis.TimeoutError(), redis.exceptions.ReadOnlyError()]
    store.ping()
    for error, says in (
        (redis.AuthenticationError("no password"), "The store can't be reached"),
        (redis.ResponseError("MISCONF"), "The store refuses to change anything now; nothing was changed"),
    ):
        client.failures, client.command_count = [error], 0
        with pytest.raises(OverloadedError, match=says):
            store.ping()
        assert client.command_count == 1


def test_missing_redis_py_is_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    for name in ("connection", "store"):
        monkeypatch.delitem(sys.modules, f"toolpack_server.features.stores.redis.{name}", raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'toolpack-server\[redis\]'"):
        open_store("redis://127.0.0.1:1/0")
