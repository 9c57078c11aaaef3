"""Sessions: made, listed, forked, reset, closed, expired; whose they are, and what an agent may do with its own."""

import base64
import re
import time
from datetime import UTC, datetime, timedelta

import jsonpatch
import pytest
import serving
from serving import Bench, RpcError, wait_until

from server import TaskEnvironment, Toolpack
from server.packs.catalog import Catalog
from server.snapshots.pickling import thaw


def refused(code, call, /, *args, **kwargs):
    with pytest.raises(RpcError) as error:
        call(*args, **kwargs)
    assert error.value.code == code
    return error.value


def moment(text):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", text)
    return datetime.fromisoformat(text)


def test_a_new_session_tells_all_about_itself(stored_bench):
    before = datetime.now(UTC) - timedelta(seconds=1)
    session = stored_bench.rpc("create_session", toolpacks=["ledger"], labels={"run": "é"}, ttl_seconds=60)
    assert re.fullmatch(r"[0-9a-f]{32,}", session["session_id"])
    key = re.fullmatch(r"/agents/([0-9a-f]{32,})", session["agent_path"])[1]
    assert key != session["session_id"]
    assert {name: session[name] for name in ("toolpacks", "version", "labels", "parent")} == {
        "toolpacks": ["ledger"],
        "version": 0,
        "labels": {"run": "é"},
        "parent": None,
    }
    assert len(session) == 8
    assert before <= moment(session["created_at"]) <= datetime.now(UTC) + timedelta(seconds=1)
    assert moment(session["expires_at"]) - moment(session["created_at"]) == pytest.approx(
        timedelta(seconds=60), abs=timedelta(milliseconds=5)
    )
    got = stored_bench.rpc("get_session", session_id=session["session_id"])
    assert got | {"expires_at": 0} == session | {"expires_at": 0}


def test_by_default_a_session_has_all_packs_that_are_not_opt_in_and_lives_a_day(bench):
    session = bench.rpc("create_session")
    assert session["toolpacks"] == ["ledger", "nasty", "halves"]
    assert timedelta(hours=23, minutes=59) < moment(session["expires_at"]) - datetime.now(UTC) <= timedelta(days=1)


def test_ids_are_not_made_twice(bench):
    ids = {bench.create() for _ in range(100)}
    assert len(ids) == 100


def test_a_session_without_toolpacks_has_no_functions(bench):
    session_id = bench.rpc("create_session", toolpacks=[])["session_id"]
    assert bench.rpc("list_functions", session_id=session_id) == {"result": [], "error": None}
    assert bench.rpc("get_environment", session_id=session_id) == {}
    assert bench.call(session_id, "add", amount=1)["error"].startswith("ToolNotFoundError: ")


def test_unknown_toolpacks_and_what_does_not_belong_to_the_session_are_refused(bench):
    assert "'nope'" in refused(-32602, bench.create, "nope").data["detail"]
    assert "'vault'" in refused(-32602, bench.create, "ledger", options={"vault": {}}).data["detail"]
    assert "'vault'" in refused(-32602, bench.create, "ledger", environment={"vault": {}}).data["detail"]
    refused(-32602, bench.create, "vault", options={"vault": {}}, environment={"vault": {"vault": {"gold": 1}}})


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
        ({"ledger": {"a": 1}}, "takes no options"),
    ],
)
def test_bad_options_are_refused_with_what_is_wrong(bench, options, says):
    error = refused(-32602, bench.create, *options, options=options)
    assert says in error.data["detail"]
    assert "/" not in error.data["detail"]


def test_an_environment_is_built_through_its_validators(stored_bench):
    given = {"ledger": {"ledger": {"entries": ["1", 2**70]}}}
    session_id = stored_bench.create("ledger", environment=given)
    assert stored_bench.result(session_id, "add", amount=1) == 2**70 + 2
    assert refused(-32602, stored_bench.create, "ledger", environment={"ledger": {"ledger": 1}}).data["detail"]
    assert refused(-32602, stored_bench.create, "ledger", environment={"ledger": None}).data["detail"]
    stored_bench.rpc("reset_session", session_id=session_id)
    assert stored_bench.result(session_id, "total") == 2**70 + 1


def test_an_environment_that_was_told_can_be_given(bench):
    told = bench.rpc("get_environment", session_id=bench.create("nasty"))
    again = bench.rpc("get_environment", session_id=bench.create("nasty", environment=told))
    assert again["nasty"]["wireName"] == "plain"
    assert again["nasty"]["numbers"] == told["nasty"]["numbers"]


def test_sessions_are_listed_by_id_and_labels_in_pages(stored_bench):
    odd = {'a.b"c': "x'y", "parity": "odd"}
    ids = sorted(stored_bench.create(labels=odd if i % 2 else {"parity": "even"}) for i in range(7))
    listed = stored_bench.rpc("list_sessions")
    assert [session["session_id"] for session in listed] == ids
    assert listed[0] | {"expires_at": 0} == stored_bench.rpc("get_session", session_id=ids[0]) | {"expires_at": 0}
    assert len(stored_bench.rpc("list_sessions", labels=odd)) == 3
    assert stored_bench.rpc("list_sessions", labels={"parity": "odd", "more": ""}) == []
    first = stored_bench.rpc("list_sessions", limit=3)
    rest = stored_bench.rpc("list_sessions", after=first[-1]["session_id"])
    assert [session["session_id"] for session in first + rest] == ids


def test_a_closed_session_is_gone(stored_bench):
    session = stored_bench.rpc("create_session", toolpacks=["ledger"])
    session_id, key = session["session_id"], session["agent_path"].removeprefix("/agents/")
    stored_bench.result(session_id, "add", amount=1)
    stored_bench.rpc("list_functions", agent_key=key)
    assert stored_bench.rpc("close_session", session_id=session_id) is True
    unknown = vars(refused(-32001, stored_bench.rpc, "get_session", session_id="unknown"))
    for method in ("get_session", "get_environment", "diff_environment", "get_trace", "fork_session", "export_session",
                   "reset_session", "close_session", "list_functions"):  # fmt: skip
        assert vars(refused(-32001, stored_bench.rpc, method, session_id=session_id)) == unknown
    assert vars(refused(-32001, stored_bench.call, session_id, "total")) == unknown
    assert vars(refused(-32001, stored_bench.rpc, "run_function", agent_key=key, function="total")) == unknown
    assert vars(refused(-32001, stored_bench.rpc, "list_functions", agent_key="unknown")) == unknown


def test_sessions_are_closed_by_their_labels(stored_bench):
    for i in range(5):
        stored_bench.create(labels={"run": "a" if i else "b", "all": "yes"})
    assert stored_bench.rpc("close_sessions", labels={"run": "a", "all": "no"}) == 0
    assert stored_bench.rpc("close_sessions", labels={"run": "a", "all": "yes"}) == 4
    assert [session["labels"]["run"] for session in stored_bench.rpc("list_sessions")] == ["b"]


def test_an_expired_session_is_gone_and_a_call_renews_it(stored_bench):
    session_id = stored_bench.create(ttl_seconds=0.5)
    with stored_bench.sweeping():
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            stored_bench.result(session_id, "total")
        told = moment(stored_bench.rpc("get_session", session_id=session_id)["expires_at"])
        assert timedelta(0) < told - datetime.now(UTC) <= timedelta(seconds=0.5)
        wait_until(lambda: stored_bench.rpc("list_sessions") == [])
    refused(-32001, stored_bench.rpc, "get_session", session_id=session_id)
    refused(-32001, stored_bench.call, session_id, "total")


def test_forks_start_from_any_version_and_go_their_own_way(stored_bench):
    parent = stored_bench.rpc("create_session", toolpacks=["ledger"], labels={"run": "a"}, ttl_seconds=1000)
    session_id = parent["session_id"]
    for amount in (1, 10, 100):
        stored_bench.result(session_id, "add", amount=amount)
    now, one, two = stored_bench.rpc("fork_session", session_id=session_id) + stored_bench.rpc(
        "fork_session", session_id=session_id, version=1, count=2, labels={}, ttl_seconds=5
    )
    assert (now["version"], now["labels"], now["parent"]) == (0, {"run": "a"}, {"session_id": session_id, "version": 3})
    assert moment(now["expires_at"]) - moment(now["created_at"]) > timedelta(seconds=900)
    assert (one["labels"], one["parent"]["version"], one["toolpacks"]) == ({}, 1, ["ledger"])
    assert moment(one["expires_at"]) - moment(one["created_at"]) < timedelta(seconds=6)
    assert len({parent["agent_path"], now["agent_path"], one["agent_path"], two["agent_path"]}) == 4
    assert stored_bench.rpc("get_trace", session_id=now["session_id"]) == []
    sums = [stored_bench.result(fork["session_id"], "add", amount=1000) for fork in (now, one, two)]
    assert sums == [1111, 1001, 1001]
    assert stored_bench.result(session_id, "total") == 111
    stored_bench.rpc("close_session", session_id=session_id)
    assert stored_bench.result(now["session_id"], "total") == 1111
    reset = stored_bench.rpc("reset_session", session_id=now["session_id"])
    assert reset["version"] == 2
    assert stored_bench.result(now["session_id"], "total") == 111


def test_a_reset_is_a_new_version_with_the_content_of_the_old_one(stored_bench):
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


def test_a_record_tells_a_call_as_it_was(stored_bench):
    session_id = stored_bench.create()
    stored_bench.call(session_id, "add", {"call_id": "mine"}, amount=2)
    stored_bench.call(session_id, "add", amount="x")
    first, second = stored_bench.rpc("get_trace", session_id=session_id)
    assert list(first) == ["index", "kind", "call_id", "function", "kwargs", "result", "error", "version",
                           "started_at", "duration_ms"]  # fmt: skip
    moment(first.pop("started_at"))
    assert 0 <= first.pop("duration_ms") < 10_000
    assert first == {
        "index": 0, "kind": "call", "call_id": "mine", "function": "add", "kwargs": {"amount": 2}, "result": 2,
        "error": None, "version": 1,
    }  # fmt: skip
    assert (second["result"], second["kwargs"], second["call_id"], second["version"]) == ("", {"amount": "x"}, None, 1)
    assert second["error"].startswith("ValidationError: ")
    assert [r["index"] for r in stored_bench.rpc("get_trace", session_id=session_id, after=0)] == [1]
    assert [r["index"] for r in stored_bench.rpc("get_trace", session_id=session_id, limit=1)] == [0]


def test_the_environment_of_any_version_and_any_part_of_it(stored_bench):
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


def test_old_versions_go_but_the_first_stays_and_the_oldest_is_told(tmp_path):
    bench = Bench(store=f"sqlite:///{tmp_path / 'sessions.db'}", keep_versions=10)
    session_id = bench.create()
    for _ in range(70):
        bench.result(session_id, "add", amount=1)
    gone = refused(-32011, bench.rpc, "fork_session", session_id=session_id, version=5)
    oldest = gone.data["oldest"]
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
    bench.close()


def test_an_export_is_exact(bench):
    session_id = bench.create("nasty", "ledger")
    bench.result(session_id, "befriend", one="Ann", other="Bob")
    exported = bench.rpc("export_session", session_id=session_id)
    assert (exported["toolpacks"], exported["version"]) == (["nasty", "ledger"], 1)
    assert set(exported) == {"format", "toolpacks", "fingerprints", "version", "snapshot"}
    assert set(exported["fingerprints"]) == {"nasty", "ledger"}
    world = thaw(base64.b64decode(exported["snapshot"]), serving.CATALOG.classes)
    assert world["nasty"]._secret == ["Ann"]
    assert world["nasty"].boss is world["nasty"].people[0]


# An agent's address


def test_an_agent_lists_and_runs_functions_and_nothing_else(bench):
    session = bench.rpc("create_session", toolpacks=["ledger"])
    session_id, key = session["session_id"], session["agent_path"].removeprefix("/agents/")
    listed = bench.rpc("list_functions", agent_key=key)
    assert listed == bench.rpc("list_functions", session_id=session_id)
    assert bench.rpc("run_function", agent_key=key, function="add", kwargs={"amount": 4})["result"] == 4
    assert bench.result(session_id, "total") == 4
    for method in ("create_session", "get_session", "get_environment", "diff_environment", "get_trace", "fork_session",
                   "reset_session", "close_session", "close_sessions", "list_sessions", "export_session",
                   "rpc.discover", "no_such_method"):  # fmt: skip
        assert refused(-32601, bench.rpc, method, agent_key=key, session_id=session_id).message == "Method not found"
    for method in ("list_functions", "run_function"):
        error = refused(-32602, bench.rpc, method, agent_key=key, session_id=session_id, function="total")
        assert "session_id" in error.data["detail"]
    refused(-32001, bench.rpc, "list_functions", agent_key=session_id)


# Owners


def test_anothers_session_and_one_that_never_was_get_the_same_answer(stored_bench):
    session_id = stored_bench.rpc("create_session", owner="ann", toolpacks=["ledger"])["session_id"]
    stored_bench.rpc("run_function", owner="ann", session_id=session_id, function="total")
    unknown = vars(refused(-32001, stored_bench.rpc, "get_session", owner="bob", session_id="0" * 32))
    for method in ("get_session", "get_environment", "diff_environment", "get_trace", "fork_session", "reset_session",
                   "close_session", "export_session", "list_functions"):  # fmt: skip
        assert vars(refused(-32001, stored_bench.rpc, method, owner="bob", session_id=session_id)) == unknown
    run = refused(-32001, stored_bench.rpc, "run_function", owner="bob", session_id=session_id, function="total")
    assert vars(run) == unknown
    assert stored_bench.rpc("list_sessions", owner="bob") == []
    stored_bench.rpc("create_session", owner="bob", toolpacks=["ledger"], labels={"run": "a"})
    stored_bench.rpc("create_session", owner="ann", toolpacks=["ledger"], labels={"run": "a"})
    assert stored_bench.rpc("close_sessions", owner="bob", labels={"run": "a"}) == 1
    assert len(stored_bench.rpc("list_sessions", owner="ann")) == 2


def test_a_fork_belongs_to_its_parents_owner(bench):
    session_id = bench.rpc("create_session", owner="ann", toolpacks=["ledger"])["session_id"]
    fork = bench.rpc("fork_session", owner="ann", session_id=session_id)[0]["session_id"]
    refused(-32001, bench.rpc, "get_session", owner="bob", session_id=fork)
    assert bench.rpc("get_session", owner="ann", session_id=fork)["session_id"] == fork


# State and classes


def shop(**fields):
    """Get a catalog with one toolpack, whose environment has these fields; always under the same names."""
    annotations = {name: type(value) for name, value in fields.items()}
    names = {"__module__": __name__, "__qualname__": "Shop", "__annotations__": annotations}
    made = type("Shop", (TaskEnvironment,), names | fields)
    pack = Toolpack("shop", made)

    @pack.function
    def sell() -> int:
        """Sell one."""
        return 1

    return Catalog({"shop": pack})


def test_state_of_other_classes_is_refused_until_it_is_rebuilt(tmp_path):
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = Bench(shop(apples=3), store)
    session_id = first.create("shop")
    first.result(session_id, "sell")
    first.close()
    second = Bench(shop(apples=3, pears=5), store)
    changed = refused(-32008, second.rpc, "get_environment", session_id=session_id)
    assert changed.data["type"] == "ClassesChangedError"
    refused(-32008, second.rpc, "reset_session", session_id=session_id, version=1)
    assert second.version(session_id) == 1
    assert second.rpc("reset_session", session_id=session_id)["version"] == 2
    assert second.rpc("get_environment", session_id=session_id) == {"shop": {"apples": 3, "pears": 5}}
    second.close()
    third = Bench(serving.CATALOG, store)
    refused(-32008, third.call, session_id, "sell")
    refused(-32008, third.rpc, "list_functions", session_id=session_id)
    refused(-32008, third.rpc, "reset_session", session_id=session_id)
    third.close()


def test_state_sealed_with_another_key_is_refused(tmp_path):
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = Bench(store=store)
    session_id = first.create()
    first.result(session_id, "add", amount=1)
    first.close()
    second = Bench(store=store, key=b"another key of the same length!!")
    damaged = refused(-32012, second.call, session_id, "total")
    assert damaged.data == {"type": "StateDamagedError"}
    assert second.version(session_id) == 1
    second.close()
    third = Bench(store=store)
    assert third.result(session_id, "total") == 1
    third.close()
