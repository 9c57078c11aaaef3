"""Whoever writes to the store without the key changes nothing unnoticed: not a session, a record or a blob."""

import contextlib
import dataclasses
import sqlite3

import pytest
import serving
from serving import KEY, Bench, refused

from server.execution.parts import toolpack_of
from server.snapshots.seal import is_bound, seal, unseal
from server.stores import open_store
from server.stores.base import Commit, Record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sessions.db"


@pytest.fixture
def tampered(path):
    """Give a function that changes the store of a stopped server, and then starts the server again."""
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
        "agent_key = 'e' || substr(agent_key, 2, 46) || 'e'",
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
    assert bench.rpc("list_sessions", owner=owner) == []
    assert bench.rpc("close_session", session_id=session_id, owner=owner) is True


def test_a_session_put_in_another_s_place_is_refused(tampered):
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


def test_an_agent_s_path_opens_no_other_session(tampered):
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


# Sessions of version 0.1.0

OLD_RECORD = (
    b'{"index":0,"kind":"call","call_id":"c","function":"total","kwargs":{},"result":0,"error":null,"version":0,'
    b'"started_at":"2026-11-20T08:00:00.000Z","duration_ms":1.0}'
)


def as_stored_before(store, catalog):
    """Store a session as version 0.1.0 did: a short id, blobs bound to nothing, records without a hash."""
    bench = Bench(catalog, store=store)
    made, head = store.get(bench.create())
    old = dataclasses.replace(
        made, id="0" * 32, agent_key="1" * 32, options={"ledger": {}}, environment={}, labels={"old": "1"}
    )
    blobs = {}
    for part, blob_id in head.parts.items():
        fingerprint = catalog.fingerprints[toolpack_of(part)]
        payload = unseal(store.blobs([blob_id])[blob_id], fingerprint, KEY, f"{blob_id} {part}")
        blobs[f"old {part}"] = seal(payload, fingerprint, KEY)
    store.create([old], {part: f"old {part}" for part in head.parts}, blobs)
    assert store.commit([Commit(old.id, 0, Record(0, 0, "c", OLD_RECORD + b"\nnull"))]) == [True]
    return bench, old


@pytest.fixture
def old(path):
    store = open_store(f"sqlite:///{path}")
    bench, session = as_stored_before(store, serving.CATALOG)
    yield bench, session
    bench.close()
    store.close()


def test_a_session_of_version_0_1_0_goes_on(old):
    bench, session = old
    assert bench.call(session.id, "total", {"call_id": "c"}) == {"result": 0, "error": None}
    refused(-32009, bench.call, session.id, "add", {"call_id": "c"}, amount=1)
    assert bench.result(session.id, "add", amount=2) == 2
    assert bench.call(session.id, "add", {"call_id": "d"}, amount=3) == {"result": 5, "error": None}
    assert bench.call(session.id, "add", {"call_id": "d"}, amount=3) == {"result": 5, "error": None}
    assert [record["result"] for record in bench.rpc("get_trace", session_id=session.id)] == [0, 2, 5]
    fork = bench.rpc("fork_session", session_id=session.id, version=0)[0]
    assert bench.result(fork["session_id"], "add", amount=1) == 1
    assert bench.rpc("reset_session", session_id=session.id)["version"] == 3
    assert bench.rpc("run_function", agent_key=session.agent_key, function="total")["result"] == 0
    assert session.id in {each["session_id"] for each in bench.rpc("list_sessions")}


def test_all_kinds_of_records_of_version_0_1_0_are_read(old):
    bench, session = old
    bodies = {
        "failed": OLD_RECORD.replace(b'"call_id":"c"', b'"call_id":"failed"').replace(b"null", b'"ValueError: no"')
        + b'\n{"failure":"raised","errors":null}',
        None: b'{"index":0,"kind":"reset","to_version":0,"version":0,"started_at":"2026-11-20T08:00:00.000Z",'
        b'"duration_ms":0.0}\nnull',
    }
    for index, (call_id, body) in enumerate(bodies.items(), 1):
        placed = body.replace(b'"index":0', f'"index":{index}'.encode())
        last = bench.store.get(session.id)[1].last
        assert bench.store.commit([Commit(session.id, 0, Record(index, 0, call_id, placed), after=last)]) == [True]
    kinds = [(record["kind"], record.get("error")) for record in bench.rpc("get_trace", session_id=session.id)]
    assert kinds == [("call", None), ("call", "ValueError: no"), ("reset", None)]
    assert bench.call(session.id, "total", {"call_id": "failed"}) == {"result": "", "error": "ValueError: no"}


def test_what_version_0_1_0_has_stored_is_refused_in_sessions_of_today(old):
    bench, session = old
    head = bench.store.get(session.id)[1]
    blobs = bench.store.blobs([*head.parts.values()])
    assert not any(map(is_bound, blobs.values()))
    created, _ = bench.store.get(bench.create())
    identities = bench.sessions._context.identities
    today = dataclasses.replace(created, id="2" * 48)
    today = dataclasses.replace(today, agent_key=identities.agent_key(today))
    bench.store.create([today], head.parts, {})
    refused(-32012, bench.call, today.id, "total")
    record = bench.store.records(session.id, -1, 1)[0]
    assert bench.store.commit([Commit(created.id, 0, record)]) == [True]
    refused(-32012, bench.rpc, "get_trace", session_id=created.id)


@pytest.mark.parametrize(
    "body",
    [
        b'{"index":1,"kind":"call","function":"\xff',
        b'{"index":1,"kind":"call","function":"\xff"}\nnull',
        b'{"index":1,"kind":"call","version":0}\nnull',
        b"{}\nnull",
        b"[]\nnull",
        b"[]\n[]",
        b'"text"\n1',
        OLD_RECORD.replace(b'"index":0', b'"index":1') + b"\n[1]",
        OLD_RECORD + b"\nnull",  # of another place
    ],
)
def test_a_damaged_record_of_version_0_1_0_is_told(old, body):
    bench, session = old
    last = bench.store.get(session.id)[1].last
    assert bench.store.commit([Commit(session.id, 0, Record(1, 0, "d", body), after=last)]) == [True]
    refused(-32012, bench.rpc, "get_trace", session_id=session.id)
    refused(-32012, bench.call, session.id, "total", {"call_id": "d"})
