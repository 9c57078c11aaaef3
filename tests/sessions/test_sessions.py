"""Sessions: creation, lists, forks, resets, closing, expiry, owners, and the rights of a session's agent."""

import base64
import contextlib
import json
import re
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Annotated
from unittest import mock

import jsonpatch
import pytest
import serving
from serving import Bench, ledger, open_store, refused, wait_until

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.base.errors import MissingBlobError, OverloadedError, VersionNotRetainedError
from toolpack_server.packs.catalog import Catalog
from toolpack_server.sessions import manager
from toolpack_server.sessions.views import json_patch
from toolpack_server.snapshots.pickling import thaw


def moment(text):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", text)
    return datetime.fromisoformat(text)


def test_a_new_session_returns_all_its_members(stored_bench, clock):
    session = stored_bench.rpc("create_session", toolpacks=["ledger"], labels={"run": "é"}, ttl_seconds=60)
    assert re.fullmatch(r"[0-9a-f]{32,}", session["session_id"])
    key = re.fullmatch(r"/agents/([0-9a-f]{32,})", session["agent_path"])[1]
    assert key != session["session_id"]
    assert {name: session[name] for name in ("toolpacks", "version", "labels")} == {
        "toolpacks": ["ledger"],
        "version": 0,
        "labels": {"run": "é"},
    }
    assert None not in session.values()
    assert "parent" not in session
    assert session["mcp_path"] == f"/mcp/{key}"
    assert session["toolpack_versions"] == {}
    assert len(session) == 9
    assert moment(session["created_at"]) == datetime.fromtimestamp(clock.time(), UTC)
    assert moment(session["expires_at"]) - moment(session["created_at"]) == timedelta(seconds=60)
    clock.move(10)
    fetched = stored_bench.rpc("get_session", session_id=session["session_id"])
    assert moment(fetched.pop("expires_at")) - moment(session.pop("expires_at")) == timedelta(seconds=10)
    assert fetched == session


def test_the_times_of_a_new_session_are_consistent(bench):
    session = bench.rpc("create_session", toolpacks=["ledger"], ttl_seconds=60)
    (fork,) = bench.rpc("fork_session", session_id=session["session_id"], ttl_seconds=120)
    for session_created, seconds in ((session, 60), (fork, 120)):
        lives = moment(session_created["expires_at"]) - moment(session_created["created_at"])
        assert lives == pytest.approx(
            timedelta(seconds=seconds), abs=timedelta(milliseconds=1)
        )  # the server rounds these times


@pytest.mark.usefixtures("clock")
def test_a_default_session_has_default_packs_and_lives_a_day(bench):
    session = bench.rpc("create_session")
    assert session["toolpacks"] == ["ledger", "nasty", "halves"]
    assert moment(session["expires_at"]) - moment(session["created_at"]) == timedelta(days=1)


def test_no_two_sessions_have_the_same_id(bench):
    ids = {bench.create() for _ in range(100)}
    assert len(ids) == 100


def test_a_session_without_toolpacks_has_no_functions(bench):
    session_id = bench.rpc("create_session", toolpacks=[])["session_id"]
    assert bench.rpc("list_functions", session_id=session_id) == {"result": [], "error": None}
    assert bench.rpc("get_environment", session_id=session_id) == {}
    assert bench.call(session_id, "add", amount=1)["error"].startswith("ToolNotFoundError: ")


def test_unknown_toolpacks_and_unrelated_options_are_refused(bench):
    assert "'nope'" in refused(-32602, bench.create, "nope").data["detail"]
    assert "'vault'" in refused(-32602, bench.create, "ledger", options={"vault": {}}).data["detail"]
    assert "'vault'" in refused(-32602, bench.create, "ledger", environment={"vault": {}}).data["detail"]
    refused(-32602, bench.create, "vault", options={"vault": {}}, environment={"vault": {"vault": {"gold": 1}}})


@serving.in_both
def test_options_reach_the_factory_validated(stored_bench):
    session_id = stored_bench.create("vault", options={"vault": {"gold": "7", "owners": ["Ann"]}})
    vault = stored_bench.rpc("get_environment", session_id=session_id, pointer="/vault/vault")
    assert vault == {"gold": 7, "log": ["Ann", "hidden"]}
    assert stored_bench.result(session_id, "read_seal") == "new"
    huge = stored_bench.create("vault", options={"vault": {"gold": 2**80}})
    assert stored_bench.rpc("get_environment", session_id=huge, pointer="/vault/vault/gold") == 2**80


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vault": {"gold": "x"}}, "gold"),
        ({"vault": {"secret": "x"}}, "secret"),
        ({"vault": {"silver": 1}}, "silver"),
        ({"vault": {"gold": -1}}, "there is no less than nothing"),
        ({"ledger": {"a": 1}}, "accepts no options"),
    ],
)
@serving.in_both
def test_bad_options_are_refused_with_the_reason(bench, options, says):
    error = refused(-32602, bench.create, *options, options=options)
    assert says in error.data["detail"]
    assert "/" not in error.data["detail"]


@serving.in_both
def test_an_environment_is_built_through_its_validators(stored_bench):
    environment = {"ledger": {"ledger": {"entries": ["1", 2**70]}}}
    session_id = stored_bench.create("ledger", environment=environment)
    assert stored_bench.result(session_id, "add", amount=1) == 2**70 + 2
    assert refused(-32602, stored_bench.create, "ledger", environment={"ledger": {"ledger": 1}}).data["detail"]
    refusal = refused(-32602, stored_bench.create, "ledger", environment={"ledger": None})
    assert refusal.data["detail"] == "The environment of toolpack 'ledger' is invalid: Input should be an object."
    stored_bench.rpc("reset_session", session_id=session_id)
    assert stored_bench.result(session_id, "total") == 2**70 + 1


@serving.in_both
def test_a_read_environment_can_be_passed_to_a_new_session(bench):
    environment = bench.rpc("get_environment", session_id=bench.create("nasty"))
    restored = bench.rpc("get_environment", session_id=bench.create("nasty", environment=environment))
    assert restored["nasty"]["wireName"] == "plain"
    assert restored["nasty"]["numbers"] == environment["nasty"]["numbers"]


def test_sessions_are_listed_by_id_and_labels_in_pages(stored_bench):
    odd = {'a.b"c': "x'y", "parity": "odd"}
    ids = sorted(stored_bench.create(labels=odd if i % 2 else {"parity": "even"}) for i in range(7))
    summaries = stored_bench.rpc("list_sessions")
    assert [session["session_id"] for session in summaries] == ids
    assert summaries[0] | {"expires_at": 0} == stored_bench.rpc("get_session", session_id=ids[0]) | {"expires_at": 0}
    assert len(stored_bench.rpc("list_sessions", labels=odd)) == 3
    assert stored_bench.rpc("list_sessions", labels={"parity": "odd", "more": ""}) == []
    first = stored_bench.rpc("list_sessions", limit=3)
    remaining = stored_bench.rpc("list_sessions", after=first[-1]["session_id"])
    assert [session["session_id"] for session in first + remaining] == ids


def test_sessions_are_listed_newest_first_and_by_parent_in_pages(stored_bench, clock):
    bench = stored_bench
    ids = []
    for _ in range(5):
        ids.append(bench.create("ledger"))
        clock.move(1)
    forks = [fork["session_id"] for fork in bench.rpc("fork_session", session_id=ids[1], count=5)]

    def listed_ids(**params):
        return [session["session_id"] for session in bench.rpc("list_sessions", **params)]

    newest = [*reversed(forks), *reversed(ids)]
    assert listed_ids(order="-created") == newest
    assert listed_ids(order="-created", limit=3) == newest[:3]
    assert listed_ids(order="-created", limit=3, after=newest[2]) == newest[3:6]
    assert listed_ids(parent=ids[1]) == listed_ids(parent=ids[1], order="id") == sorted(forks)
    assert listed_ids(parent=ids[1], order="-created", after=newest[1]) == newest[2:5]
    assert listed_ids(parent=ids[0]) == listed_ids(parent="never was") == listed_ids(parent=ids[1], owner="bob") == []
    bench.rpc("close_session", session_id=ids[1])
    assert listed_ids(parent=ids[1], after=min(forks)) == sorted(forks)[1:]
    bench.rpc("close_session", session_id=newest[2])
    error = refused(-32602, listed_ids, order="-created", after=newest[2])
    assert error.data["detail"] == (
        f"after: no session has the id '{newest[2]}'; it may have been closed. List the newest sessions again."
    )
    assert "order" in refused(-32602, listed_ids, order="created").data["detail"]


def test_sessions_can_be_compared_with_each_other(stored_bench):
    bench = stored_bench
    first = bench.create()
    bench.call(first, "add", amount=1)
    (fork,) = bench.rpc("fork_session", session_id=first)
    second = fork["session_id"]
    bench.call(second, "add", amount=2)
    patch = [{"op": "add", "path": "/ledger/ledger/entries/1", "value": 2}]
    assert bench.rpc("diff_environment", session_id=first, to_session_id=second) == patch
    assert bench.rpc("diff_environment", session_id=first, to_session_id=second, to_version=0) == []
    full_diff = bench.rpc("diff_environment", session_id=first, from_version=0, to_session_id=second)
    assert jsonpatch.apply_patch(bench.rpc("get_environment", session_id=first, version=0), full_diff) == bench.rpc(
        "get_environment", session_id=second
    )
    refused(-32001, bench.rpc, "diff_environment", session_id=first, to_session_id="never was")
    foreign = bench.create(owner="bob")
    refused(-32001, bench.rpc, "diff_environment", session_id=first, to_session_id=foreign)


def test_a_version_that_never_existed_is_not_called_gone(stored_bench):
    session_id = stored_bench.create()
    stored_bench.call(session_id, "add", amount=1)
    for method in ("get_environment", "fork_session", "reset_session"):
        error = refused(-32011, stored_bench.rpc, method, session_id=session_id, version=7)
        assert error.message == "There is no version 7: the session is at version 1."
        assert error.data == {"type": "VersionNotRetainedError", "oldest": 1}


def test_toolpacks_are_listed_with_their_schemas(bench):
    toolpacks = {each["name"]: each for each in bench.rpc("list_toolpacks")}
    assert [*toolpacks] == [*serving.CATALOG.toolpacks]
    of_ledger = toolpacks["ledger"]
    assert of_ledger["description"].startswith("A ledger with functions that succeed or fail")
    assert of_ledger["functions"] == [*serving.CATALOG.toolpacks["ledger"].functions]
    assert (of_ledger["opt_in"], of_ledger.get("options"), of_ledger["tasks"]) == (False, None, 0)
    assert "ledger" in of_ledger["environment"]["properties"]
    assert any("options" in each for each in toolpacks.values())
    assert any(each["opt_in"] for each in toolpacks.values())
    key = bench.rpc("create_session")["agent_path"].rpartition("/")[2]
    refused(-32601, bench.rpc, "list_toolpacks", agent_key=key)


def test_a_closed_session_is_gone(stored_bench):
    session = stored_bench.rpc("create_session", toolpacks=["ledger"])
    session_id, key = session["session_id"], session["agent_path"].removeprefix("/agents/")
    stored_bench.result(session_id, "add", amount=1)
    stored_bench.rpc("list_functions", agent_key=key)
    assert stored_bench.rpc("close_session", session_id=session_id) == 1
    unknown = vars(refused(-32001, stored_bench.rpc, "get_session", session_id="unknown"))
    for method in ("get_session", "get_environment", "diff_environment", "get_trace", "fork_session",
                   "reset_session", "close_session", "list_functions"):  # fmt: skip
        assert vars(refused(-32001, stored_bench.rpc, method, session_id=session_id)) == unknown
    assert vars(refused(-32001, stored_bench.call, session_id, "total")) == unknown
    assert vars(refused(-32001, stored_bench.rpc, "run_function", agent_key=key, function="total")) == unknown
    assert vars(refused(-32001, stored_bench.rpc, "list_functions", agent_key="unknown")) == unknown


def test_sessions_are_closed_by_their_labels(stored_bench):
    for i in range(5):
        stored_bench.create(labels={"run": "a" if i else "b", "all": "yes"})
    assert stored_bench.rpc("close_session", labels={"run": "a", "all": "no"}) == 0
    assert stored_bench.rpc("close_session", labels={"run": "a", "all": "yes"}) == 4
    assert [session["labels"]["run"] for session in stored_bench.rpc("list_sessions")] == ["b"]


USES = {
    "call": lambda bench, session_id: bench.result(session_id, "total"),
    "failing call": lambda bench, session_id: bench.call(session_id, "add_then", how="raise"),
    "read": lambda bench, session_id: bench.rpc("get_environment", session_id=session_id),
    "reset": lambda bench, session_id: bench.rpc("reset_session", session_id=session_id),
}


@pytest.mark.parametrize("use", USES)
def test_any_use_renews_a_session_and_an_unused_one_expires(stored_bench, clock, pass_time, use):
    session_id = stored_bench.create(ttl_seconds=100)
    for seconds in (99, 3, 99, 99):
        pass_time(stored_bench, seconds)
        USES[use](stored_bench, session_id)
    (summary,) = stored_bench.rpc("list_sessions")
    assert timedelta(0) <= moment(summary["expires_at"]) - datetime.fromtimestamp(clock.time(), UTC)
    pass_time(stored_bench, 99)  # the session lives for its TTL after the last use, or up to a twentieth longer
    assert stored_bench.store.get(session_id)[0].expires_at > clock.time()
    pass_time(stored_bench, 7)
    assert stored_bench.rpc("list_sessions") == []
    for method in ("get_session", "get_environment", "get_trace", "fork_session", "reset_session", "list_functions",
                   "close_session"):  # fmt: skip
        refused(-32001, stored_bench.rpc, method, session_id=session_id)
    refused(-32001, stored_bench.call, session_id, "total")
    refused(-32001, stored_bench.call, session_id, "add", {"call_id": "late"}, amount=1)


@pytest.mark.parametrize("use", USES)
def test_an_expired_session_not_yet_deleted_can_be_used(stored_bench, clock, pass_time, use):
    session_id = stored_bench.create(ttl_seconds=100)
    pass_time(stored_bench, 50)
    clock.move(56)
    assert stored_bench.store.get(session_id)[0].expires_at <= clock.time()
    assert len(stored_bench.rpc("list_sessions")) == 1
    USES[use](stored_bench, session_id)
    pass_time(stored_bench, 99)
    assert len(stored_bench.rpc("list_sessions")) == 1
    clock.move(7)
    assert stored_bench.rpc("close_session", session_id=session_id) == 1


def test_a_page_of_sessions_is_full_though_some_have_expired(stored_bench, pass_time):
    ids = sorted((stored_bench.create(ttl_seconds=10 + 90 * (number % 2)), number % 2) for number in range(20))
    pass_time(stored_bench, 11)
    alive = [session_id for session_id, lives in ids if lives]
    pages, after = [], ""
    while page := stored_bench.rpc("list_sessions", limit=3, after=after):
        pages.append([session["session_id"] for session in page])
        after = pages[-1][-1]
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert list(chain.from_iterable(pages)) == alive


def test_a_version_trimmed_while_it_is_read_is_gone(bench):
    session_id = bench.create()
    for amount in (1, 2, 3):
        bench.result(session_id, "add", amount=amount)
    store = bench.store
    for name, method in (
        ("create", "fork_session"),
        ("blobs", "fork_session"),
        ("blobs", "get_environment"),
        ("blobs", "reset_session"),
    ):
        missing = mock.Mock(side_effect=MissingBlobError("gone"))
        parts_at = mock.Mock(side_effect=[store.parts_at(session_id, 1), VersionNotRetainedError(1, 2, 3)])
        with mock.patch.object(store, name, missing), mock.patch.object(store, "parts_at", parts_at):
            error = refused(-32011, bench.rpc, method, session_id=session_id, version=1)
        assert error.data == {"type": "VersionNotRetainedError", "oldest": 2}
        with mock.patch.object(store, name, missing):  # the version is listed, but missing in the store
            error = refused(-32012, bench.rpc, method, session_id=session_id, version=1)
        assert error.data == {"type": "StateDamagedError"}
    assert bench.result(session_id, "total") == 6


def test_a_snapshot_that_is_missing_is_damage_and_not_a_fault(tmp_path):
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/sessions.db")) as store:
        first = Bench(store=store)
        session_id = first.create()
        first.close()
        second = Bench(store=store)
        blobs = store.blobs

        def raise_missing(_ids):
            raise MissingBlobError("gone")

        store.blobs = raise_missing
        damaged = refused(-32012, second.call, session_id, "add", amount=1)
        assert "restore it, or reset the session" in damaged.message
        store.blobs = blobs
        assert second.result(session_id, "add", amount=1) == 1
        second.close()


def test_a_record_has_the_start_time_of_its_call(bench, clock):
    session_id = bench.create()
    clock.move(3)
    bench.result(session_id, "add", amount=1)
    clock.move(4)
    bench.rpc("reset_session", session_id=session_id)
    times = [moment(record["started_at"]) for record in bench.rpc("get_trace", session_id=session_id)]
    assert times == [datetime.fromtimestamp(clock.time() - ago, UTC) for ago in (4, 0)]


def test_a_session_renewed_elsewhere_is_alive_here(tmp_path, pass_time):
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(open_store(f"sqlite:///{tmp_path}/shared.db", exclusive=False)))
        one, other = (Bench(store=store) for _ in range(2))
        stack.callback(one.close)
        stack.callback(other.close)
        session_id = one.create(ttl_seconds=100)
        for worker in (one, other, one, other):
            assert worker.result(session_id, "total") == 0
            pass_time(one, 90)
        other.rpc("get_session", session_id=session_id)
        pass_time(one, 90)
        assert one.result(session_id, "total") == 0
        pass_time(one, 106)
        refused(-32001, other.call, session_id, "total")
        refused(-32001, one.call, session_id, "total")


@serving.in_both
def test_a_session_closed_during_a_call_is_gone_for_it(stored_bench):
    session_id = stored_bench.create()
    gate = serving.gate("closed")
    before = len(ledger.runs)
    call = stored_bench.later_call(session_id, "add_and_hold", name="closed")
    behind = stored_bench.later_call(session_id, "total")
    wait_until(lambda: len(ledger.runs) > before, "the call")
    assert stored_bench.rpc("close_session", session_id=session_id) == 1
    gate.set()
    for each in (call, behind):
        refused(-32001, each.result, serving.PATIENCE)


@contextlib.contextmanager
def running(bench):
    """Run the regular work of a server, which stops at the end of the block."""
    context = bench.service.running()
    bench._run(context.__aenter__())
    try:
        yield
    finally:
        bench._run(context.__aexit__(None, None, None))


def test_expired_sessions_are_deleted_with_all_their_data(stored_bench, clock, monkeypatch):
    monkeypatch.setattr(manager, "SWEEP_BATCH", 2)
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 3600)
    short = [stored_bench.create(ttl_seconds=10) for _ in range(5)]
    long = stored_bench.create(ttl_seconds=100)
    for session_id in (*short, long):
        stored_bench.result(session_id, "add", amount=1)
    clock.move(11)
    with running(stored_bench):
        # one sweep deletes all, although there are many
        wait_until(lambda: stored_bench.store.count() == 1, "the end of the expired sessions")
        wait_until(lambda: len(stored_bench.sessions.queues.cache) == 1, "the end of their cache entries")
        assert stored_bench.store.records(short[0], -1, 10) == []
        assert stored_bench.result(long, "add", amount=1) == 2


def test_the_sweep_of_expired_sessions_survives_errors(bench, clock, monkeypatch, caplog):
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.001)
    assert bench.create(ttl_seconds=10)
    delete_expired, failures = bench.store.delete_expired, [OverloadedError("out of reach"), OSError("broken")]

    def fail_first(now, limit, busy):
        if failures:
            raise failures.pop()
        return delete_expired(now, limit, busy)

    bench.store.delete_expired = fail_first
    with running(bench):
        wait_until(lambda: not failures, "two looks")
        clock.move(11)
        wait_until(lambda: bench.store.count() == 0, "the end of the session")
    assert "broken" in caplog.text


def test_listing_sessions_renews_none(stored_bench, clock, pass_time):
    session_id = stored_bench.create(ttl_seconds=100)
    pass_time(stored_bench, 50)
    (summary,) = stored_bench.rpc("list_sessions")
    assert moment(summary["expires_at"]) == datetime.fromtimestamp(clock.time() + 50, UTC)
    pass_time(stored_bench, 56)
    refused(-32001, stored_bench.rpc, "get_session", session_id=session_id)


def test_however_many_sessions_carry_the_labels_all_are_closed(stored_bench, monkeypatch):
    monkeypatch.setattr(manager, "SWEEP_BATCH", 2)
    for _ in range(5):
        stored_bench.create(labels={"run": "a"})
    assert stored_bench.rpc("close_session", labels={"run": "a"}) == 5
    assert stored_bench.rpc("list_sessions") == []


@serving.in_both
def test_forks_start_from_any_version_and_go_their_own_way(stored_bench):
    parent = stored_bench.rpc("create_session", toolpacks=["ledger"], labels={"run": "a"}, ttl_seconds=1000)
    session_id = parent["session_id"]
    for amount in (1, 10, 100):
        stored_bench.result(session_id, "add", amount=amount)
    newest, first, second = stored_bench.rpc("fork_session", session_id=session_id) + stored_bench.rpc(
        "fork_session", session_id=session_id, version=1, count=2, labels={}, ttl_seconds=5
    )
    assert (newest["version"], newest["labels"], newest.get("parent")) == (
        0,
        {"run": "a"},
        {"session_id": session_id, "version": 3},
    )
    assert moment(newest["expires_at"]) - moment(newest["created_at"]) > timedelta(seconds=900)
    assert (first["labels"], first["parent"]["version"], first["toolpacks"]) == ({}, 1, ["ledger"])
    assert moment(first["expires_at"]) - moment(first["created_at"]) < timedelta(seconds=6)
    assert len({parent["agent_path"], newest["agent_path"], first["agent_path"], second["agent_path"]}) == 4
    assert stored_bench.rpc("get_trace", session_id=newest["session_id"]) == []
    sums = [stored_bench.result(fork["session_id"], "add", amount=1000) for fork in (newest, first, second)]
    assert sums == [1111, 1001, 1001]
    assert stored_bench.result(session_id, "total") == 111
    stored_bench.rpc("close_session", session_id=session_id)
    assert stored_bench.result(newest["session_id"], "total") == 1111
    reset = stored_bench.rpc("reset_session", session_id=newest["session_id"])
    assert reset["version"] == 2
    assert stored_bench.result(newest["session_id"], "total") == 111


@serving.in_both
def test_a_reset_is_a_new_version_with_the_old_content(stored_bench):
    session_id = stored_bench.create()
    stored_bench.result(session_id, "add", amount=1)
    stored_bench.result(session_id, "add", amount=10)
    assert stored_bench.rpc("reset_session", session_id=session_id, version=1)["version"] == 3
    assert stored_bench.result(session_id, "add", amount=100) == 101
    assert stored_bench.rpc("reset_session", session_id=session_id)["version"] == 5
    assert stored_bench.result(session_id, "total") == 0
    records = stored_bench.rpc("get_trace", session_id=session_id)
    assert [(r["index"], r["kind"], r["version"], r.get("to_version")) for r in records] == [
        (0, "call", 1, None),
        (1, "call", 2, None),
        (2, "reset", 3, 1),
        (3, "call", 4, None),
        (4, "reset", 5, 0),
        (5, "call", 5, None),
    ]
    assert set(records[2]) == {"index", "kind", "to_version", "version", "started_at", "duration_ms"}
    moment(records[2]["started_at"])


@serving.in_both
def test_a_record_has_the_call_as_it_was(stored_bench):
    session_id = stored_bench.create()
    stored_bench.call(session_id, "add", {"call_id": "mine"}, amount=2)
    stored_bench.call(session_id, "add", amount="x")
    first, second = stored_bench.rpc("get_trace", session_id=session_id)
    assert list(first) == ["index", "kind", "call_id", "function", "kwargs", "result", "error",
                           "by", "version", "started_at", "duration_ms"]  # fmt: skip
    moment(first.pop("started_at"))
    assert 0 <= first.pop("duration_ms") < 10_000
    assert first == {
        "index": 0, "kind": "call", "call_id": "mine", "function": "add", "kwargs": {"amount": 2}, "result": 2,
        "error": None, "version": 1, "by": "client",
    }  # fmt: skip
    assert (second["result"], second["kwargs"], second["version"]) == ("", {"amount": "x"}, 1)
    assert "call_id" not in second
    assert second["error"].startswith("ValidationError: ")
    assert second.get("failure") == "arguments"
    assert [r["index"] for r in stored_bench.rpc("get_trace", session_id=session_id, after=0)] == [1]
    assert [r["index"] for r in stored_bench.rpc("get_trace", session_id=session_id, limit=1)] == [0]


def test_any_part_of_the_environment_of_any_version_can_be_read(stored_bench):
    session_id = stored_bench.create("ledger", "vault")
    for amount in (1, 10):
        stored_bench.result(session_id, "add", amount=amount)
    at = [stored_bench.rpc("get_environment", session_id=session_id, version=v) for v in range(3)]
    assert [world["ledger"]["ledger"]["entries"] for world in at] == [[], [1], [1, 10]]
    assert list(at[0]) == ["ledger", "vault"]
    assert stored_bench.rpc("get_environment", session_id=session_id) == at[2]
    pointed = {"": at[2], "/ledger/ledger/entries/1": 10, "/vault/vault": at[2]["vault"]["vault"]}
    for pointer, value in pointed.items():
        assert stored_bench.rpc("get_environment", session_id=session_id, pointer=pointer) == value
    for pointer in ("ledger", "/nothing", "/ledger/ledger/entries/-", "/ledger/ledger/entries/01", "/~2"):
        refused(-32602, stored_bench.rpc, "get_environment", session_id=session_id, pointer=pointer)
    later = refused(-32011, stored_bench.rpc, "get_environment", session_id=session_id, version=3)
    assert set(later.data) == {"type", "oldest"}


@pytest.mark.parametrize(
    ("before", "after"), [(1, True), (1, 1.0), (0, False), ([0, 1], [False, 1]), ({"a": 1}, {"a": 1.0})]
)
def test_a_diff_distinguishes_values_equal_in_python(bench, before, after):
    session_id = bench.create("ledger", environment={"ledger": {"ledger": {"anything": before}}})
    environment = bench.rpc("get_environment", session_id=session_id)
    other_id = bench.create("ledger", environment={"ledger": {"ledger": {"anything": after}}})
    other_environment = bench.rpc("get_environment", session_id=other_id)
    patched = jsonpatch.apply_patch(environment, json_patch(environment, other_environment))
    assert json.dumps(patched) == json.dumps(other_environment)


@pytest.mark.parametrize(
    "wrong", [[], [{"op": "remove", "path": "/none"}], [{"op": "add", "path": "/a/b/c", "value": 1}]]
)
def test_a_patch_that_does_not_fit_is_not_returned(monkeypatch, wrong):
    monkeypatch.setattr(jsonpatch, "make_patch", lambda *_: jsonpatch.JsonPatch(wrong))
    assert json_patch({"a": 1}, {"a": 2}) == [{"op": "replace", "path": "", "value": {"a": 2}}]


def test_a_difference_is_a_json_patch(stored_bench):
    session_id = stored_bench.create()
    for amount in (1, 10):
        stored_bench.result(session_id, "add", amount=amount)
    worlds = [stored_bench.rpc("get_environment", session_id=session_id, version=v) for v in range(3)]
    for before, after in [(0, 2), (2, 0), (1, 2), (1, 1)]:
        patch = stored_bench.rpc("diff_environment", session_id=session_id, from_version=before, to_version=after)
        assert jsonpatch.apply_patch(worlds[before], patch) == worlds[after]
        assert bool(patch) is (before != after)
    assert jsonpatch.apply_patch(worlds[0], stored_bench.rpc("diff_environment", session_id=session_id)) == worlds[2]
    full_diff = stored_bench.rpc("diff_environment", session_id=session_id)
    for limit in (0, 1, 100):
        summary = stored_bench.rpc("summarize_changes", session_id=session_id, limit=limit)
        assert summary == {"total": len(full_diff), "changes": full_diff[:limit]}


def test_old_versions_go_except_the_first_and_are_reported(tmp_path, make_bench):
    bench = make_bench(store=f"sqlite:///{tmp_path / 'sessions.db'}", keep_versions=10)
    session_id = bench.create()
    for _ in range(70):
        bench.result(session_id, "add", amount=1)
    refusal = refused(-32011, bench.rpc, "fork_session", session_id=session_id, version=5)
    oldest = refusal.data["oldest"]
    assert 5 < oldest <= 60
    assert bench.rpc("get_environment", session_id=session_id, version=0)["ledger"]["ledger"]["entries"] == []
    assert (
        len(bench.rpc("get_environment", session_id=session_id, version=oldest)["ledger"]["ledger"]["entries"])
        == oldest
    )
    assert (
        refused(-32011, bench.rpc, "reset_session", session_id=session_id, version=oldest - 1).data["oldest"] == oldest
    )
    assert len(bench.rpc("get_trace", session_id=session_id)) == 70


@serving.in_both
def test_an_export_is_exact(bench):
    session_id = bench.create("nasty", "ledger")
    bench.result(session_id, "befriend", one="Ann", other="Bob")
    exported = bench.rpc("get_environment", format="snapshot", session_id=session_id)
    assert (exported["toolpacks"], exported["version"]) == (["nasty", "ledger"], 1)
    assert set(exported) == {"format", "toolpacks", "fingerprints", "version", "snapshot", "contents"}
    assert set(exported["fingerprints"]) == {"nasty", "ledger"}
    world = thaw(base64.b64decode(exported["snapshot"]), serving.CATALOG.classes)
    assert world["nasty"]._secret == ["Ann"]
    assert world["nasty"].boss is world["nasty"].people[0]


# An agent's address


@serving.in_both
def test_an_agent_lists_and_runs_functions_and_nothing_else(bench):
    session = bench.rpc("create_session", toolpacks=["ledger"])
    session_id, key = session["session_id"], session["agent_path"].removeprefix("/agents/")
    functions = bench.rpc("list_functions", agent_key=key)
    assert functions == bench.rpc("list_functions", session_id=session_id)
    assert bench.rpc("run_function", agent_key=key, function="add", kwargs={"amount": 4})["result"] == 4
    assert bench.result(session_id, "total") == 4
    for method in ("create_session", "get_session", "get_environment", "diff_environment", "get_trace", "fork_session",
                   "reset_session", "close_session", "list_sessions",
                   "rpc.discover", "no_such_method"):  # fmt: skip
        assert refused(-32601, bench.rpc, method, agent_key=key, session_id=session_id).message == "Method not found"
    for method in ("list_functions", "run_function"):
        error = refused(-32602, bench.rpc, method, agent_key=key, session_id=session_id, function="total")
        assert "session_id" in error.data["detail"]
    refused(-32001, bench.rpc, "list_functions", agent_key=session_id)


# Owners


def test_other_owners_and_unknown_sessions_get_the_same_answer(stored_bench):
    session_id = stored_bench.rpc("create_session", owner="ann", toolpacks=["ledger"])["session_id"]
    stored_bench.rpc("run_function", owner="ann", session_id=session_id, function="total")
    unknown = vars(refused(-32001, stored_bench.rpc, "get_session", owner="bob", session_id="0" * 32))
    for method in ("get_session", "get_environment", "diff_environment", "get_trace", "fork_session", "reset_session",
                   "close_session", "list_functions"):  # fmt: skip
        assert vars(refused(-32001, stored_bench.rpc, method, owner="bob", session_id=session_id)) == unknown
    run = refused(-32001, stored_bench.rpc, "run_function", owner="bob", session_id=session_id, function="total")
    assert vars(run) == unknown
    assert stored_bench.rpc("list_sessions", owner="bob") == []
    stored_bench.rpc("create_session", owner="bob", toolpacks=["ledger"], labels={"run": "a"})
    stored_bench.rpc("create_session", owner="ann", toolpacks=["ledger"], labels={"run": "a"})
    assert stored_bench.rpc("close_session", owner="bob", labels={"run": "a"}) == 1
    assert len(stored_bench.rpc("list_sessions", owner="ann")) == 2


def test_a_fork_belongs_to_its_parents_owner(bench):
    session_id = bench.rpc("create_session", owner="ann", toolpacks=["ledger"])["session_id"]
    fork = bench.rpc("fork_session", owner="ann", session_id=session_id)[0]["session_id"]
    refused(-32001, bench.rpc, "get_session", owner="bob", session_id=fork)
    assert bench.rpc("get_session", owner="ann", session_id=fork)["session_id"] == fork


# State and classes


def shop(**fields):
    """Return a catalog with one toolpack whose environment has these fields, always with the same names."""
    annotations = {name: type(value) for name, value in fields.items()}
    names = {"__module__": __name__, "__qualname__": "Shop", "__annotations__": annotations}
    shop_class = type("Shop", (TaskEnvironment,), names | fields)
    pack = Toolpack("shop", shop_class)

    @pack.function
    def sell() -> int:
        """Sell one."""
        return 1

    return Catalog({"shop": pack})


def test_memory_keeps_nothing_after_a_restart(make_bench):
    first = make_bench()
    session_id = first.create()
    first.close()
    refused(-32001, make_bench().rpc, "get_session", session_id=session_id)


@serving.in_both
def test_state_of_other_classes_is_refused_until_it_is_rebuilt(tmp_path, make_bench):
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = make_bench(shop(apples=3), store)
    session_id = first.create("shop")
    first.result(session_id, "sell")
    first.close()
    other = make_bench(serving.CATALOG, store)
    unaffected = other.create()
    other.close()
    both_catalogs = Catalog({**serving.CATALOG.toolpacks, **shop(apples=3, pears=5).toolpacks})
    second = make_bench(both_catalogs, store)
    assert second.result(unaffected, "add", amount=1) == 1
    changed = refused(-32008, second.rpc, "get_environment", session_id=session_id)
    assert changed.data["type"] == "ClassesChangedError"
    refused(-32008, second.rpc, "reset_session", session_id=session_id, version=1)
    assert second.version(session_id) == 1
    assert second.rpc("reset_session", session_id=session_id)["version"] == 2
    assert second.rpc("get_environment", session_id=session_id) == {"shop": {"apples": 3, "pears": 5}}
    second.close()
    third_server = make_bench(shop(apples=3), store)
    assert third_server.rpc("get_environment", session_id=session_id, version=1) == {"shop": {"apples": 3}}
    third_server.close()
    third = make_bench(serving.CATALOG, store)
    refused(-32008, third.call, session_id, "sell")
    refused(-32008, third.rpc, "list_functions", session_id=session_id)
    refused(-32008, third.rpc, "reset_session", session_id=session_id)


def shelves(**fields):
    """Return a catalog with one toolpack whose environment has one part per field, always with the same names."""
    names = {"__module__": __name__, "__qualname__": "Shelves", "__annotations__": dict.fromkeys(fields, list[int])}
    pack = Toolpack("shelves", type("Shelves", (TaskEnvironment,), names | fields))
    for field in fields:

        def put(shelf: list[int], number: int) -> list[int]:
            """Put a number on a shelf.

            :param number: The number.
            """
            shelf.append(number)
            return shelf

        put.__name__ = f"put_{field}"
        put.__annotations__["shelf"] = Annotated[list[int], Depends(field)]
        pack.function(put)
    return Catalog({"shelves": pack})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": [1], "b": [2]}, {"a": [1]}),
        ({"a": [1], "b": [2], "c": [3]}, {"a": [1], "b": [2]}),
        ({"a": [1]}, {"a": [1], "b": [2]}),
    ],
)
@serving.in_both
def test_a_world_in_parts_is_built_anew_with_other_parts(tmp_path, before, after, make_bench):
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = make_bench(shelves(**before), store)
    session_id = first.create("shelves")
    assert first.result(session_id, "put_a", number=5) == [1, 5]
    first.close()
    second = make_bench(shelves(**after), store)
    refused(-32008, second.call, session_id, "put_a", number=5)
    second.rpc("reset_session", session_id=session_id)
    assert second.rpc("get_environment", session_id=session_id) == {"shelves": after}
    for field, numbers in after.items():
        assert second.result(session_id, f"put_{field}", number=9) == [*numbers, 9]
    (fork,) = second.rpc("fork_session", session_id=session_id)
    assert second.result(fork["session_id"], "put_a", number=7) == [1, 9, 7]


def test_state_sealed_with_another_key_is_refused(tmp_path, make_bench):
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = make_bench(store=store)
    session_id = first.create()
    first.result(session_id, "add", amount=1)
    first.close()
    second = make_bench(store=store, key=b"another key of the same length!!")
    damaged = refused(-32012, second.call, session_id, "total")
    assert damaged.data == {"type": "StateDamagedError"}
    refused(-32012, second.version, session_id)
    closed = second.create()
    second.close()
    third = make_bench(store=store)
    assert third.rpc("close_session", session_id=closed) == 1
    third.close()
    third = make_bench(store=store)
    assert third.result(session_id, "total") == 1
