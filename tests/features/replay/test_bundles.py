"""Bundles: they copy a session exactly to another server, and a damaged or forged bundle changes nothing."""

import base64
import json
import lzma
import random
from functools import partial
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, PrivateAttr
from serving import KEY, Bench, refused

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.base.errors import MissingBlobError
from toolpack_server.features.replay.bundle_format import FORMAT
from toolpack_server.packs.catalog import Catalog
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.seal import KeyedHash

START = FORMAT.encode() + b"\n"


class Entry(BaseModel):
    text: str
    _seen: int = PrivateAttr(default=0)


class Notes(TaskEnvironment):
    entries: list[Entry] = []  # noqa: RUF012 - pydantic copies it
    favourite: Entry | None = None
    tags: set[str] = set()  # noqa: RUF012
    title: str = "none"


def build(title: str = "untitled") -> Notes:
    """Begin a book of notes.

    :param title: Its title.
    """
    return Notes(title=title)


def catalog_of(environment=build, name="notes"):
    toolpack = Toolpack(name, environment)

    @toolpack.function
    def write(
        entries: Annotated[list[Any], Depends("entries")], tags: Annotated[set[str], Depends("tags")], text: str
    ) -> int:
        """Write a note.

        :param text: The text of the note.
        """
        entries.append(Entry(text=text))
        entries[-1]._seen = len(entries)
        tags.add(text)
        return len(entries)

    @toolpack.function
    def like(environment: Annotated[Any, Depends(lambda environment: environment)]) -> None:
        """Like the last note."""
        environment.favourite = environment.entries[-1]

    @toolpack.function(read_only=True)
    def read(entries: Annotated[list[Any], Depends("entries")]) -> list[str]:
        """Read all notes."""
        return [entry.text for entry in entries]

    return Catalog({name: toolpack})


CATALOG = catalog_of()


@pytest.fixture
def make(make_bench):
    return partial(make_bench, CATALOG)


def busy(bench, owner=""):
    own = {"owner": owner}
    session_id = bench.create("notes", labels={"run": "1"}, options={"notes": {"title": "mine"}}, **own)
    bench.call(session_id, "write", {"call_id": "first", **own}, text="one")
    bench.call(session_id, "read", own)
    bench.call(session_id, "like", own)
    bench.call(session_id, "none", {"call_id": "failed", **own})
    bench.call(session_id, "write", own, text=5)
    bench.rpc("reset_session", session_id=session_id, version=1, call_id="back", **own)
    bench.call(session_id, "write", own, text="two")
    bench.call(session_id, "like", own)
    return session_id


def export(bench, session_id, **params):
    exported = bench.rpc("export_bundle", session_id=session_id, **params)
    assert exported["format"] == FORMAT
    bundle = base64.b64decode(exported["bundle"], validate=True)
    assert exported["size"] == len(bundle)
    return bundle


def import_lines(bench, bundle, **params):
    return bench.rpc("import_bundle", bundle=base64.b64encode(bundle).decode(), **params)


def lines_of(bundle):
    return [json.loads(line) for line in lzma.decompress(bundle.split(b"\n", 2)[2]).splitlines()]


def create_bundle(lines, key=KEY):
    """Return a bundle with these lines, sealed with this key."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return seal_bundle(lzma.compress(text), key)


def seal_bundle(compressed, key=KEY):
    return START + KeyedHash(key, "bundle").of(compressed).encode() + b"\n" + compressed


def state_of(bench):
    """Return all sessions and records in the store of a bench."""
    sessions = bench.rpc("list_sessions", limit=1000)
    return [(each, bench.rpc("get_trace", session_id=each["session_id"])) for each in sessions]


@pytest.mark.parametrize("target", ["memory", "sqlite", "redis"])
def test_imported_session_equals_the_exported_one(make, target, store_url):
    source, destination = make(), make(store=store_url(target))
    session_id = busy(source)
    session = import_lines(destination, export(source, session_id))
    new = session["session_id"]
    original = source.rpc("get_session", session_id=session_id)
    changed = {"session_id", "agent_path", "mcp_path", "created_at", "expires_at"}
    assert {**session, **dict.fromkeys(changed)} == {**original, **dict.fromkeys(changed)}
    assert session["session_id"] != session_id
    assert session["agent_path"] != original["agent_path"]
    assert destination.rpc("get_session", session_id=new)["version"] == original["version"]
    assert destination.rpc("get_trace", session_id=new) == source.rpc("get_trace", session_id=session_id)
    for version in range(original["version"] + 1):
        assert difference(source.world(session_id, version), destination.world(new, version)) is None
    # Its repeated calls are answered from the records.
    assert destination.call(new, "write", {"call_id": "first"}, text="one") == {"result": 1, "error": None}
    assert destination.call(new, "none", {"call_id": "failed"})["error"].startswith("ToolNotFoundError")
    refused(-32009, destination.call, new, "write", {"call_id": "first"}, text="other")
    assert destination.rpc("reset_session", session_id=new, version=1, call_id="back")["version"] == 3
    assert len(destination.rpc("get_trace", session_id=new)) == 8
    # It continues, also at its agent's path.
    agent = session["agent_path"].removeprefix("/agents/")
    assert destination.rpc("run_function", agent_key=agent, function="read")["result"] == ["one", "two"]
    assert destination.result(new, "write", text="three") == 3
    assert destination.version(new) == original["version"] + 1
    assert destination.rpc("reset_session", session_id=new, version=2)["version"] == original["version"] + 2
    assert destination.rpc("replay_session", session_id=new)["complete"] is True
    assert destination.rpc("fork_session", session_id=new, version=0)[0]["version"] == 0
    assert export(destination, new)


def test_imported_session_survives_a_restart(make, tmp_path):
    source, destination = make(), make(f"sqlite:///{tmp_path}/s.db")
    session_id = busy(source)
    new = import_lines(destination, export(source, session_id))["session_id"]
    destination.store.close()
    later = make(f"sqlite:///{tmp_path}/s.db")
    assert difference(source.world(session_id, 5), later.world(new, 5)) is None
    assert later.result(new, "read") == ["one", "two"]


def test_bundle_contains_no_key_or_owner(make):
    bench = make()
    session_id = busy(bench, owner="ann-the-owner")
    session = bench.rpc("get_session", session_id=session_id, owner="ann-the-owner")
    bundle = base64.b64decode(bench.rpc("export_bundle", session_id=session_id, owner="ann-the-owner")["bundle"])
    text = lzma.decompress(bundle.split(b"\n", 2)[2])
    for secret in (session_id, session["agent_path"].removeprefix("/agents/"), "ann-the-owner", KEY.decode()):
        assert secret.encode() not in text
        assert secret.encode() not in bundle
    head = lines_of(bundle)[0]["head"]
    assert head["toolpacks"] == ["notes"]
    assert head["options"] == {"notes": {"title": "mine"}}
    assert (head["version"], head["records"], head["fork"], head["labels"]) == (5, 8, False, {"run": "1"})


def test_ends_has_only_the_first_and_last_version(make):
    source, destination = make(), make()
    session_id = busy(source)
    ends = export(source, session_id, versions="ends")
    assert len(ends) < len(export(source, session_id))
    new = import_lines(destination, ends)["session_id"]
    for version in (0, 5):
        assert difference(source.world(session_id, version), destination.world(new, version)) is None
    for version in (1, 4, 6):
        assert refused(-32011, destination.rpc, "get_environment", session_id=new, version=version).data["oldest"] == 5
    assert destination.rpc("get_trace", session_id=new) == source.rpc("get_trace", session_id=session_id)
    fresh = source.create("notes")
    assert import_lines(destination, export(source, fresh, versions="ends"))["version"] == 0


def test_deleted_versions_are_not_exported(make):
    source, destination = make(keep_versions=2), make()
    session_id = source.create("notes")
    for number in range(70):  # old versions are deleted every 64 commits
        source.call(session_id, "write", text=f"note {number}")
    new = import_lines(destination, export(source, session_id))["session_id"]
    oldest = refused(-32011, source.rpc, "get_environment", session_id=session_id, version=1).data["oldest"]
    assert refused(-32011, destination.rpc, "get_environment", session_id=new, version=1).data["oldest"] == oldest > 1
    for version in (0, oldest, 70):
        assert difference(source.world(session_id, version), destination.world(new, version)) is None


def test_labels_ttl_and_owner_are_those_of_the_importer(make):
    source, destination = make(), make(max_sessions=1)
    bundle = export(source, busy(source))
    session = import_lines(destination, bundle, labels={"a": "b"}, ttl_seconds=60, owner="bob")
    assert session["labels"] == {"a": "b"}
    assert session.get("parent") is None
    refused(-32001, destination.rpc, "get_session", session_id=session["session_id"], owner="ann")
    refused(-32007, import_lines, destination, bundle, owner="bob")
    assert import_lines(destination, bundle, owner="ann")["labels"] == {"run": "1"}
    assert import_lines(destination, bundle, owner="kim", labels={})["labels"] == {}
    refused(-32001, source.rpc, "export_bundle", session_id="0" * 48)
    refused(-32602, import_lines, destination, bundle, owner="eve", mode="other")


def test_bundle_of_another_key_is_rejected(make, monkeypatch):
    source = make()
    bundle = export(source, busy(source))
    stranger = make(key=b"another key, of another server!!")
    refused(-32012, import_lines, stranger, bundle)
    assert state_of(stranger) == []
    monkeypatch.setenv("TOOLPACK_REPLAY_BUNDLE_KEY", "a key that two servers share")
    destination = make()
    monkeypatch.setenv("TOOLPACK_REPLAY_BUNDLE_KEY", "\ufeffa key that two servers share \n")  # as some editors save it
    other = make(key=b"another key, of another server!!")
    bundle = export(destination, busy(destination))
    assert import_lines(other, bundle)["version"] == 5
    refused(-32012, import_lines, source, bundle)


def test_changed_classes_allow_only_a_replay(make, make_bench):
    source = make()
    bundle = export(source, busy(source))

    class More(Notes):
        more: int = 1

    def build_more(title: str = "untitled") -> More:
        """Begin.

        :param title: Its title.
        """
        return More(title=title)

    other = make_bench(catalog_of(build_more))
    refused(-32008, import_lines, other, bundle)
    refused(-32602, import_lines, make_bench(catalog_of(name="another")), bundle)
    assert state_of(other) == []
    replayed = import_lines(other, bundle, mode="replay")
    assert replayed["complete"] is True
    assert other.rpc("get_environment", session_id=replayed["session"]["session_id"])["notes"]["more"] == 1


def test_replay_of_a_bundle_needs_no_key(make):
    source, destination = make(), make(key=b"another key, of another server!!")
    session_id = busy(source)
    bundle = export(source, session_id)
    forged = bundle.replace(bundle.split(b"\n")[1], b"0" * 64)
    for each_bundle in (bundle, forged):
        replayed = import_lines(destination, each_bundle, mode="replay", labels={"x": "y"})
        assert (replayed["replayed"], replayed["complete"], replayed.get("diverged")) == (8, True, None)
        new = replayed["session"]["session_id"]
        assert replayed["session"]["labels"] == {"x": "y"}
        assert difference(source.world(session_id, 5), destination.world(new, 5)) is None
    lines = lines_of(bundle)
    next(line for line in lines if "record" in line)["record"][0]["result"] = 2
    replay = import_lines(destination, create_bundle(lines), mode="replay")
    assert replay.get("diverged") == {"index": 0, "what": "result", "recorded": "2", "replayed": "1"}


def test_fork_is_imported_exactly_but_its_bundle_is_not_replayed(make):
    source, destination = make(), make()
    fork = source.rpc("fork_session", session_id=busy(source))[0]["session_id"]
    source.call(fork, "write", text="more")
    bundle = export(source, fork)
    refused(-32602, import_lines, destination, bundle, mode="replay")
    new = import_lines(destination, bundle)["session_id"]
    assert difference(source.world(fork, 1), destination.world(new, 1)) is None
    assert destination.rpc("replay_session", session_id=new)["complete"]
    exported_again = export(destination, new)
    refused(-32602, import_lines, destination, exported_again, mode="replay")
    assert import_lines(destination, exported_again)["version"] == 1


def test_custom_environment_is_imported_too(make):
    source, destination = make(), make()
    session_id = source.create("notes", environment={"notes": {"title": "given"}})
    source.call(session_id, "write", text="one")
    bundle = export(source, session_id)
    for mode in ("exact", "replay"):
        session = import_lines(destination, bundle, mode=mode)
        session = session.get("session", session)
        assert difference(source.world(session_id, 1), destination.world(session["session_id"], 1)) is None


def test_bundles_have_size_limits(make):
    small = make(max_body_bytes=6000)
    session_id = small.create("notes")
    small.call(session_id, "write", text="".join(random.Random(1).choices("abcdefghij", k=4000)))
    for number in range(60):
        small.call(session_id, "write", text=f"{number} {random.Random(number).random()}")
    refused(-32007, small.rpc, "export_bundle", session_id=session_id)
    source, destination = make(), make(max_session_bytes=30_000)
    session_id = source.create("notes")
    for _ in range(20):
        source.call(session_id, "write", text="x" * 1000)
    bundle = export(source, session_id)
    assert len(bundle) < 10_000
    refused(-32007, import_lines, destination, bundle)
    assert state_of(destination) == []


# Repeated requests


@pytest.mark.parametrize("target", ["memory", "sqlite", "redis"])
def test_repeated_import_stores_nothing(make, target, store_url):
    source, destination = make(), make(store=store_url(target))
    bundle = export(source, busy(source))
    session = import_lines(destination, bundle, call_id="one")
    stored = destination.store.stored_bytes("")
    assert import_lines(destination, bundle, call_id="one") == session
    destination.call(session["session_id"], "write", text="more")
    assert import_lines(destination, bundle, call_id="one")["version"] == session["version"] == 5
    refused(-32009, import_lines, destination, bundle, call_id="one", labels={"a": "b"})
    refused(-32009, import_lines, destination, bundle, call_id="one", mode="replay")
    refused(-32009, import_lines, destination, export(source, busy(source)), call_id="one")
    refused(-32009, destination.rpc, "create_session", toolpacks=["notes"], call_id="one")
    assert [each["session_id"] for each in destination.rpc("list_sessions")] == [session["session_id"]]
    assert destination.store.stored_bytes("") >= stored
    assert import_lines(destination, bundle, call_id="one", owner="bob")["session_id"] != session["session_id"]
    destination.rpc("close_session", session_id=session["session_id"])
    assert import_lines(destination, bundle, call_id="one")["version"] == 5


def test_repeated_replay_import_runs_nothing_again(make):
    source, destination = make(), make()
    bundle = export(source, busy(source))
    first = import_lines(destination, bundle, mode="replay", call_id="one")
    new = first["session"]["session_id"]
    destination.call(new, "write", text="more")
    trace = destination.rpc("get_trace", session_id=new)
    assert import_lines(destination, bundle, mode="replay", call_id="one") | {"session": 0} == first | {"session": 0}
    assert destination.rpc("get_trace", session_id=new) == trace
    assert len(destination.rpc("list_sessions")) == 1


# Changes during the export


def test_versions_deleted_during_an_export_are_not_exported(make):
    bench, destination = make(keep_versions=3), make()
    session_id = bench.create("notes")
    for number in range(70):  # old versions are deleted every 64 commits
        bench.call(session_id, "write", text=f"note {number}")
    for name in ("parts_at", "blobs"):
        real_read, calls = getattr(bench.store, name), []

        def read_late(*arguments, real_read=real_read, calls=calls):
            if not calls:  # before the first read, new commits delete all that the export is about to read
                calls.append(1)
                for number in range(70):
                    bench.call(session_id, "write", text=f"later {number}")
            return real_read(*arguments)

        setattr(bench.store, name, read_late)
        bundle = export(bench, session_id)
        assert calls
        setattr(bench.store, name, real_read)
        new = import_lines(destination, bundle)
        assert difference(bench.world(session_id, 0), destination.world(new["session_id"], 0)) is None
        newest = bench.version(session_id)
        assert new["version"] in {newest, newest - 70}


def test_export_of_a_busy_session_is_rejected_with_a_retry(make):
    bench = make(keep_versions=0)
    session_id = bench.create("notes")
    bench.call(session_id, "write", text="first")
    real_read = bench.store.parts_at

    def read_late(*arguments):
        for number in range(65):
            bench.call(session_id, "write", text=f"later {number}")
        return real_read(*arguments)

    bench.store.parts_at = read_late
    refused(-32006, bench.rpc, "export_bundle", session_id=session_id, versions="ends")


def test_missing_blob_is_reported_as_damage(make):
    bench = make()
    session_id = busy(bench)
    real_read = bench.store.blobs
    missing = bench.store.get(session_id)[1].parts

    def read_without_one(ids):
        for blob in {*ids} & {*missing.values()}:
            raise MissingBlobError(blob)
        return real_read(ids)

    bench.store.blobs = read_without_one
    refused(-32012, bench.rpc, "export_bundle", session_id=session_id)


@pytest.mark.parametrize(("meanwhile", "code"), [(None, -32012), ("write", -32006), ("close", -32001)])
def test_missing_records_are_detected(make, meanwhile, code):
    bench = make()
    session_id = busy(bench)
    real_read = bench.store.records

    def half(session, after, *arguments):
        if after >= 0 or meanwhile == "close":
            if meanwhile == "write":
                bench.call(session_id, "write", text="more")
            if meanwhile == "close":
                bench.rpc("close_session", session_id=session_id)
            return []
        return real_read(session, after, *arguments)[:3]

    bench.store.records = half
    refused(code, bench.rpc, "export_bundle", session_id=session_id)


# Hostile bundles


@pytest.fixture(scope="module")
def server():
    with Bench(CATALOG, max_body_bytes=2**16, max_json_values=20_000) as bench:
        bench.create("notes")
        yield bench


@pytest.fixture(scope="module")
def bundle():
    with Bench(CATALOG) as bench:
        return export(bench, busy(bench))


def changes_nothing(server, bundle, *codes, mode="exact"):
    before = state_of(server)
    text = bundle if isinstance(bundle, str) else base64.b64encode(bundle).decode()
    reply = json.loads(
        server.answer(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "import_bundle",
                                  "params": {"bundle": text, "mode": mode}}))
    )  # fmt: skip
    assert reply["error"]["code"] in codes, reply
    assert state_of(server) == before
    return reply["error"]


@given(st.data())
def test_flipped_bit_is_detected(server, bundle, data):
    position = data.draw(st.integers(0, len(bundle) - 1))
    damaged = bytearray(bundle)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    changes_nothing(server, bytes(damaged), -32012, -32602)


@given(st.data())
def test_shortened_or_extended_bundle_is_detected(server, bundle, data):
    cut = bundle[: data.draw(st.integers(0, len(bundle) - 1))]
    changes_nothing(server, cut, -32012, -32602)
    changes_nothing(server, bundle + data.draw(st.binary(min_size=1, max_size=9)), -32012)


@given(st.binary(max_size=200), st.sampled_from(["exact", "replay"]))
def test_file_that_is_no_bundle_is_rejected(server, garbage, mode):
    for forged in (garbage, START + garbage, START + b"0" * 64 + b"\n" + garbage, seal_bundle(garbage)):
        changes_nothing(server, forged, -32602, -32012, mode=mode)
    for forged in (garbage, garbage + b"\n"):
        changes_nothing(server, seal_bundle(lzma.compress(forged)), -32602, mode=mode)


@pytest.mark.parametrize("text", ["", "é", "AAAA=AAA", "****", "A", "QQ==QQ=="])
def test_invalid_base64_is_rejected(server, text):
    changes_nothing(server, text, -32602)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def locations_in(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from locations_in(item, (*path, key))


@given(st.data(), st.sampled_from(["exact", "replay"]))
def test_malformed_bundle_with_a_valid_key_is_rejected(server, bundle, data, mode):
    lines = lines_of(bundle)
    path = data.draw(st.sampled_from([path for path in locations_in(lines) if path]))
    target: Any = lines
    for step in path[:-1]:
        target = target[step]
    action = data.draw(st.sampled_from(["replace", "remove", "repeat"]))
    if action == "replace":
        target[path[-1]] = data.draw(json_values)
    elif action == "remove":
        del target[path[-1]]
    elif isinstance(target, list):
        target.insert(path[-1], target[path[-1]])
    text = base64.b64encode(create_bundle(lines)).decode()
    request = {"jsonrpc": "2.0", "id": 1, "method": "import_bundle", "params": {"bundle": text, "mode": mode}}
    before = state_of(server)
    reply = json.loads(server.answer(json.dumps(request)))
    if "error" in reply:
        assert reply["error"]["code"] in {-32602, -32008, -32012, -32007}, reply
        assert state_of(server) == before
        return
    session = reply["result"].get("session", reply["result"])
    # The accepted session is complete: it can be read, and it continues.
    params = {"session_id": session["session_id"]}
    server.rpc("get_trace", **params)
    server.rpc("get_environment", **params)
    server.rpc("run_function", function="read", **params)
    server.rpc("close_session", **params)


@pytest.mark.parametrize("state", [False, 7, []], ids=str)
@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_digest_that_is_no_text_is_rejected(server, bundle, mode, state):
    lines = lines_of(bundle)
    record = next(line["record"][0] for line in lines if "record" in line)
    record["state"] = state
    changes_nothing(server, create_bundle(lines), -32602, mode=mode)


@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_compression_bomb_is_not_unpacked(server, mode):
    head = lines_of(export(server, server.rpc("list_sessions")[0]["session_id"]))[0]
    bomb = json.dumps(head).encode() + b"\n" + b" " * 2**27
    packed = lzma.compress(bomb, preset=1)
    assert len(packed) < 2**15
    assert changes_nothing(server, seal_bundle(packed), -32007, mode=mode)["data"]["type"] == "TooLargeError"


@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_large_dictionary_is_not_allocated(server, bundle, mode):
    text = lzma.decompress(bundle.split(b"\n", 2)[2])
    greedy = lzma.compress(text, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}])
    changes_nothing(server, seal_bundle(greedy), -32602, mode=mode)


@pytest.mark.parametrize("part", ["notes", "other", "notes/entries", "../notes"])
def test_snapshots_are_read_before_anything_is_stored(server, bundle, part):
    lines = lines_of(bundle)
    for line in lines:
        if "blob" in line:
            line["blob"][2] = "not a snapshot"
            line["blob"][1] = part
    changes_nothing(server, create_bundle(lines), -32012, -32602)


def kind_of(lines, name):
    return [line[name] for line in lines if name in line]


def another_version(lines):
    lines[0]["head"]["version"] += 1


def another_record(lines):
    lines[0]["head"]["records"] += 1


def a_hole(lines):
    del lines[next(index for index, line in enumerate(lines) if "version" in line and line["version"][0] == 2)]


def a_part_of_another(lines):
    (_, parts), *_ = kind_of(lines, "version")
    parts["notes/entries"] = parts.pop("notes")


def no_environment(lines):
    kind_of(lines, "version")[0][1].clear()


def a_call_id_twice(lines):
    for record, _ in kind_of(lines, "record")[:2]:
        record["call_id"] = "one"


def a_blob_twice(lines):
    lines.insert(1, {"blob": kind_of(lines, "blob")[0]})


def two_heads(lines):
    lines.append(lines[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (another_version, "The bundle has other versions or records than its head says."),
        (another_record, "The bundle has other versions or records than its head says."),
        (a_hole, "Version 3 of the bundle is out of order or lacks a blob."),
        (a_part_of_another, "Version 0 of the bundle is out of order or lacks a blob."),
        (no_environment, "The bundle lacks the environment of a toolpack."),
        (a_call_id_twice, "Record 1 of the bundle is out of order, or its call_id is used twice."),
        (a_blob_twice, "Blob 0 of the bundle occurs twice, or belongs to no toolpack."),
        (two_heads, "The bundle has two heads."),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_inconsistent_bundle_is_rejected_even_with_a_valid_key(server, bundle, change, says):
    lines = lines_of(bundle)
    change(lines)
    assert changes_nothing(server, create_bundle(lines), -32602)["data"]["detail"] == says


def test_deep_and_wide_lines_of_strangers_are_rejected(server, bundle):
    lines = lines_of(bundle)
    record = next(line["record"][0] for line in lines if "record" in line)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    for value in (deep, [0] * 20_500):
        record["kwargs"] = {"text": value}
        changes_nothing(server, create_bundle(lines), -32602, mode="replay")
