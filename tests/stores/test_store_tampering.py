"""Changes in a store without the server's key are detected, in a session, a record or a blob."""

import asyncio
import contextlib
import sqlite3

import pytest
from serving import Bench, open_store, refused, wait_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sessions.db"


@pytest.fixture
def tampered(path):
    """Return a function that changes the store of a stopped server, and then starts the server again."""
    benches = []

    def start(tamper=()):
        while benches:
            benches.pop().close()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            for statement, *parameters in tamper:
                assert database.execute(statement, parameters).rowcount > 0, "nothing was changed"
        benches.append(Bench(store=f"sqlite:///{path}"))
        return benches[-1]

    yield start
    while benches:
        benches.pop().close()


def test_a_recipe_that_was_changed_is_refused(tampered):
    session_id = tampered().create()
    key = agent_key(tampered(), session_id)
    bench = tampered([("UPDATE recipes SET text = replace(text, 'ledger', 'vault')",)])
    refused(-32012, bench.call, session_id, "total")
    refused(-32012, bench.rpc, "get_session", session_id=session_id)
    refused(-32012, bench.rpc, "get_environment", session_id=session_id)
    refused(-32012, bench.rpc, "reset_session", session_id=session_id)
    refused(-32012, bench.rpc, "list_functions", agent_key=key)
    refused(-32012, bench.rpc, "list_sessions")


def test_another_key_is_named_at_the_start_and_by_lists(path, caplog):
    url = f"sqlite:///{path}"
    with Bench(store=url) as bench:
        session_id = bench.create()
    with Bench(store=url, key=b"another key, or one that was lost") as bench:
        sweeping = asyncio.run_coroutine_threadsafe(bench.sessions.sweep(), bench._loop)
        wait_until(lambda: "1 of 1 stored sessions fail their keyed hash" in caplog.text)
        sweeping.cancel()
        for params in ({}, {"order": "-created"}):
            assert "start the server with that key" in refused(-32012, bench.rpc, "list_sessions", **params).message
        new = bench.create()
        assert [each["session_id"] for each in bench.rpc("list_sessions")] == [new]
        bench.rpc("close_session", session_id=session_id)
        bench.rpc("close_session", session_id=new)
        assert bench.rpc("list_sessions") == []


def agent_key(bench, session_id):
    return bench.rpc("get_session", session_id=session_id)["agent_path"].removeprefix("/agents/")


@pytest.mark.parametrize(
    "change",
    [
        "owner = 'eve'",
        'details = CAST(\'{"seed":"2"}\' AS BLOB)',
        'labels = CAST(\'{"run":"2"}\' AS BLOB)',
        "ttl_seconds = 1e9",
        "created_at = created_at - 1",
        "parent = '0123', parent_version = 0",
        "agent_key = CASE substr(agent_key, 1, 1) WHEN 'e' THEN 'd' ELSE 'e' END || substr(agent_key, 2)",
        "agent_key = '0123456789abcdef0123456789abcdef'",
    ],
)
def test_a_session_that_was_changed_is_refused(tampered, change):
    session_id = tampered().create(owner="ann", labels={"run": "1"})
    bench = tampered([(f"UPDATE sessions SET {change}",)])
    owner = "eve" if "eve" in change else "ann"
    refused(-32012, bench.call, session_id, "total", {"owner": owner})
    refused(-32012, bench.rpc, "get_session", session_id=session_id, owner=owner)
    refused(-32012, bench.rpc, "fork_session", session_id=session_id, owner=owner)
    refused(-32012, bench.rpc, "list_sessions", owner=owner)
    assert bench.rpc("close_session", session_id=session_id, owner=owner) == 1


def test_a_session_put_in_anothers_place_is_refused(tampered):
    bench = tampered()
    rich, poor = bench.create(), bench.create()
    key = agent_key(bench, poor)
    bench = tampered(
        [
            ("UPDATE sessions SET id = 'gone', agent_key = 'gone' WHERE id = ?", poor),
            ("UPDATE sessions SET id = ?, agent_key = ? WHERE id = ?", poor, key, rich),
        ]
    )
    refused(-32012, bench.call, poor, "total")
    refused(-32012, bench.rpc, "list_functions", agent_key=key)


def test_an_agents_path_opens_no_other_session(tampered):
    bench = tampered()
    mine, other = bench.create(), bench.create()
    key = agent_key(bench, mine)
    bench = tampered(
        [
            ("DELETE FROM sessions WHERE id = ?", mine),
            ("UPDATE sessions SET agent_key = ?, id = substr(id, 1, 32) WHERE id = ?", key, other),
        ]
    )
    refused(-32012, bench.rpc, "run_function", agent_key=key, function="total")


def test_a_blob_put_in_the_place_of_another_is_refused(tampered):
    bench = tampered()
    rich, poor = bench.create(), bench.create()
    bench.result(rich, "add", amount=999_999)
    bench.result(poor, "add", amount=1)
    newest = "(SELECT blob FROM changes WHERE version = 1 AND session = (SELECT key FROM sessions WHERE id = ?))"
    bench = tampered(
        [(f"UPDATE blobs SET body = (SELECT body FROM blobs WHERE key = {newest}) WHERE key = {newest}", rich, poor)]
    )
    refused(-32012, bench.call, poor, "total")
    assert bench.result(rich, "total") == 999_999


def test_a_version_whose_snapshot_was_damaged_gets_no_forks(tampered):
    session_id = tampered().create()
    tampered().result(session_id, "add", amount=1)
    newest = "(SELECT blob FROM changes WHERE version = 1)"
    bench = tampered([(f"UPDATE blobs SET body = CAST(substr(body, 1, 99) || 'x' AS BLOB) WHERE key = {newest}",)])
    refused(-32012, bench.rpc, "fork_session", session_id=session_id)
    assert len(bench.rpc("list_sessions")) == 1
    bench.rpc("fork_session", session_id=session_id, version=0)


def test_a_blob_put_in_the_place_of_another_part_is_refused(tampered):
    bench = tampered()
    session_id = bench.create("halves")
    parts = bench.store.get(session_id)[1].parts
    one, other = sorted(parts)[:2]
    bench = tampered(
        [
            ("UPDATE changes SET blob = (SELECT key FROM blobs WHERE id = ?) WHERE part = ?", parts[one], other),
        ]
    )
    refused(-32012, bench.rpc, "get_environment", session_id=session_id)


CHANGED = "replace(body, '\"result\":1', '\"result\":2')"


@pytest.mark.parametrize(
    "tamper",
    [
        f"body = {CHANGED}",
        f"body = substr({CHANGED}, 1, length(body) - 65)",
        "body = CAST('{}' || char(10) || 'null' AS BLOB)",
        "body = x'ff0a6e756c6c'",
        "body = x''",
    ],
)
def test_a_record_that_was_changed_is_refused(tampered, tamper):
    bench = tampered()
    session_id = bench.create()
    bench.call(session_id, "add", {"call_id": "c"}, amount=1)
    bench = tampered([(f"UPDATE records SET {tamper}",)])
    damaged = refused(-32012, bench.rpc, "get_trace", session_id=session_id)
    assert "Record 0 fails its keyed hash" in damaged.message
    repeated = refused(-32012, bench.call, session_id, "add", {"call_id": "c"}, amount=1)
    assert repeated.message == damaged.message


def test_a_record_put_in_another_place_is_refused(tampered):
    bench = tampered()
    one, other = bench.create(), bench.create()
    for session_id in (one, other):
        for amount in (1, 2):
            bench.call(session_id, "add", {"call_id": f"c{amount}"}, amount=amount)
    moved = [("UPDATE records SET place = place + 10",), ("UPDATE records SET place = 11 - place",)]
    exchanged = [("UPDATE records SET session = -session",), ("UPDATE records SET session = 3 + session",)]
    bench = tampered(exchanged)
    refused(-32012, bench.rpc, "get_trace", session_id=one)
    refused(-32012, bench.call, other, "add", {"call_id": "c1"}, amount=1)
    bench = tampered([*exchanged, *moved])
    refused(-32012, bench.rpc, "get_trace", session_id=one)
    bench = tampered(moved)
    assert len(bench.rpc("get_trace", session_id=one)) == 2


def test_an_agent_path_that_leads_to_another_session_is_refused(make_bench, monkeypatch):
    with contextlib.closing(open_store("memory:")) as store:
        find, led = store.find_agent, {}
        monkeypatch.setattr(store, "find_agent", lambda key: led.get(key) or find(key))
        bench = make_bench(store=store)
        key = bench.rpc("create_session", toolpacks=["ledger"])["agent_path"].removeprefix("/agents/")
        led[key] = bench.create()
        error = refused(-32012, bench.rpc, "run_function", agent_key=key, function="total")
        assert "isn't the session for which this agent path was created" in error.message
