"""Data of a newer version of the server: the server refuses it with a sentence that names the remedy, unchanged."""

import base64
import contextlib

import pytest
from command_line import run
from serving import refused
from test_stored import DATABASES, KINDS

from toolpack_server.features.replay.seed_hook import SeedCreationHook
from toolpack_server.snapshots import seal
from toolpack_server.wiring.installed import load_features


def make_newer(kind, database):
    if kind == "sqlite":
        database.load("PRAGMA user_version = 2;")
    elif kind == "redis":
        database.client.set("toolpack:schema", "2")
    else:
        database.ask("UPDATE toolpack.format SET number = 2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_a_newer_number_is_refused_and_not_changed(kind, store_url, make_bench, tmp_path):
    url = store_url(kind)
    database = DATABASES[kind](url)
    with contextlib.closing(make_bench(store=url)) as bench:
        bench.call(bench.create("ledger"), "add", amount=1)
    make_newer(kind, database)
    before = database.dumped()
    key = "" if kind == "sqlite" else "a key for this test alone"
    variables = {"TOOLPACK_SECRET_KEY": key} if key else {}
    flags = ["--packs", "bank", "--port", "0", "--data-dir", tmp_path / "data", "--store", url]
    for workers in (1, 2):
        ended = run("serve", *flags, "--workers", workers, **variables)
        assert ended.returncode == 1
        assert ended.stdout == ""
        (sentence,) = ended.stderr.splitlines()
        assert "has schema 2, but this toolpack-server needs schema 1: run the version that wrote it" in sentence
    assert database.dumped() == before


def test_a_snapshot_of_a_newer_number_is_refused_and_not_changed(store_url, make_bench, monkeypatch):
    url = store_url("sqlite")
    database = DATABASES["sqlite"](url)
    monkeypatch.setattr(seal, "_HEADER", b"toolpack-snapshot-2")
    with contextlib.closing(make_bench(store=url)) as bench:
        session_id = bench.create("ledger")
        bench.call(session_id, "add", amount=1)
    monkeypatch.undo()
    before = database.dumped()
    bench = make_bench(store=url)
    for method, params in [("get_environment", {}), ("run_function", {"function": "add", "kwargs": {"amount": 1}})]:
        error = refused(-32012, bench.rpc, method, session_id=session_id, **params)
        assert error.message == (
            "The stored state has the format toolpack-snapshot-2, but this server reads toolpack-snapshot-1: use a "
            "server of the version that wrote it."
        )
    assert [each for each in database.dumped().splitlines() if "snapshot" in each] == [
        each for each in before.splitlines() if "snapshot" in each
    ]


def test_a_bundle_of_a_newer_number_is_refused(bench):
    bundle = bench.rpc("export_bundle", session_id=bench.create("ledger"))["bundle"]
    newer = base64.b64decode(bundle).replace(b"toolpack-bundle-1", b"toolpack-bundle-12", 1)
    for mode in ("exact", "replay"):
        error = refused(-32602, bench.rpc, "import_bundle", bundle=base64.b64encode(newer).decode(), mode=mode)
        assert error.data["detail"] == (
            "The bundle has the format toolpack-bundle-12, but this server reads toolpack-bundle-1: import it on a "
            "server of the version that made it, or a newer one."
        )
    assert len(bench.rpc("list_sessions")) == 1


@pytest.fixture
def newer(store_url, make_bench, monkeypatch):
    """Return a server whose store has a session of a newer version, the session, and its bundle."""
    url = store_url("sqlite")
    monkeypatch.setattr(SeedCreationHook, "concerns", lambda *_: True)
    monkeypatch.setattr(SeedCreationHook, "details", lambda *_: {"weather": "rain"})
    monkeypatch.setattr(SeedCreationHook, "option_names", frozenset({"weather"}))
    with contextlib.closing(make_bench(store=url)) as bench:
        session = bench.rpc("create_session", toolpacks=["ledger"])
        bench.call(session["session_id"], "add", amount=1)
        bundle = bench.rpc("export_bundle", session_id=session["session_id"])["bundle"]
    monkeypatch.undo()
    return make_bench(store=url), session, bundle


def test_a_session_with_unknown_newer_data_is_refused(newer):
    bench, session, bundle = newer
    session_id, key = session["session_id"], session["agent_path"].rpartition("/")[2]
    call = {"function": "add", "kwargs": {"amount": 1}}
    for params in [{"session_id": session_id}, {"agent_key": key}]:
        error = refused(-32012, bench.rpc, "run_function", **call, **params)
        assert error.message == (
            "The session has 'weather', which this server doesn't know: use the version of the server that created the "
            "session, or a newer one, with the same features."
        )
    for method in ("get_session", "get_environment", "fork_session", "reset_session", "replay_session"):
        refused(-32012, bench.rpc, method, session_id=session_id)
    for mode in ("exact", "replay"):
        detail = refused(-32602, bench.rpc, "import_bundle", bundle=bundle, mode=mode).data["detail"]
        assert "The bundle's session has data 'weather', which this server doesn't know" in detail
    assert [each["session_id"] for each in bench.rpc("list_sessions")] == [session_id]
    assert bench.rpc("close_session", session_id=session_id) == 1


def test_unknown_participants_get_no_extra_rights(store_url, make_bench):
    url = store_url("sqlite")
    with contextlib.closing(make_bench(store=url)) as bench:
        user = {"functions": ["total"]}
        session = bench.rpc("create_session", toolpacks=["ledger"], participants={"user": user})
    older = make_bench(store=url, features=[each for each in load_features() if each.name != "participants"])
    agent, user = (each["agent_path"].rpartition("/")[2] for each in session["participants"].values())
    assert "'participants'" in refused(-32012, older.rpc, "run_function", agent_key=agent, function="add").message
    refused(
        -32001, older.rpc, "run_function", agent_key=user, function="add"
    )  # the old server knows only the agent's address
