"""Forks refer to the records and blobs of their ancestors.

Their history stays exact after any fork, reset, close or expiry, and its length doesn't change the cost of a fork.
"""

import contextlib
import sqlite3
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Bench, open_store, refused

from toolpack_server.jsonio.strict import dumps
from toolpack_server.sessions.histories import RecordTree
from toolpack_server.stores.base import Record
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

KINDS = all_record_kinds(load_features())


def path(bench, session_id, **params):
    records = bench.rpc("get_trace", session_id=session_id, path=True, **{"limit": 1000, **params})
    return [(record["session_id"], record["index"]) for record in records]


def fork(bench, session_id, **params):
    return bench.rpc("fork_session", session_id=session_id, **params)[0]["session_id"]


def add(bench, session_id, times=1):
    for _ in range(times):
        bench.result(session_id, "add", amount=1)


def close(bench, session_id):
    bench.rpc("close_session", session_id=session_id)


def expire(bench, session_id):
    bench.store.renew(session_id, 1.0)
    assert list(bench.store.delete_expired(time.time(), 10)) == [session_id]


# Any history


class Model:
    """A model of the histories of all sessions, in plain lists."""

    def __init__(self):
        self.paths: dict[str, dict[int, list[tuple[str, int]]]] = {}
        self.versions: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        self.before: dict[str, list[list[tuple[str, int]]]] = {}  # the history before each record

    def begin(self, session_id, inherited):
        self.paths[session_id] = {0: list(inherited)}
        self.before[session_id] = []
        self.versions[session_id] = self.lengths[session_id] = 0

    def record(self, session_id, *, changes):
        version = self.versions[session_id]
        self.before[session_id].append(self.paths[session_id][version])
        history = [*self.paths[session_id][version], (session_id, self.lengths[session_id])]
        self.lengths[session_id] += 1
        self.versions[session_id] += changes
        self.paths[session_id][version + changes] = history

    def reset(self, session_id, version):
        self.before[session_id].append(self.paths[session_id][self.versions[session_id]])
        self.lengths[session_id] += 1
        self.versions[session_id] += 1
        self.paths[session_id][self.versions[session_id]] = self.paths[session_id][version]


STEPS = [*["add"] * 4, "total", "message", "reset", *["fork"] * 3, "fork before", "close", "expire"]


def play(draw, benches, steps):
    """Run random operations on sessions and forks, on any of several workers. Compare all histories with a model."""
    alive = [benches[0].create()]
    try:
        play_with(draw, benches, steps, alive)
    finally:
        for session_id in alive:
            close(benches[0], session_id)
    assert [bench.store.stored_bytes("") for bench in benches] == [0] * len(benches)


def play_with(draw, benches, steps, alive):
    caller, model, closed_ids = benches[0], Model(), []
    model.begin(alive[0], [])
    for _ in range(steps):
        if not alive:
            break
        session_id, any_of_them = draw(st.sampled_from(alive)), draw(st.sampled_from(benches))
        version = draw(st.integers(0, model.versions[session_id]))
        match draw(st.sampled_from(STEPS)):
            case "add":
                for _ in range(draw(st.integers(1, 5))):
                    add(caller, session_id)
                    model.record(session_id, changes=True)
            case "total":
                caller.result(session_id, "total")
                model.record(session_id, changes=False)
            case "message":
                caller.rpc("add_message", session_id=session_id, role="user", content="hello")
                model.record(session_id, changes=False)
            case "reset":
                caller.rpc("reset_session", session_id=session_id, version=version)
                model.reset(session_id, version)
            case "fork":
                alive.append(fork(any_of_them, session_id, version=version))
                model.begin(alive[-1], model.paths[session_id][version])
            case "fork before" if model.before[session_id]:
                index = draw(st.integers(0, len(model.before[session_id]) - 1))
                alive.append(fork(any_of_them, session_id, before=index))
                model.begin(alive[-1], model.before[session_id][index])
            case "close" | "expire" as end:
                (close if end == "close" else expire)(any_of_them, session_id)
                alive.remove(session_id)
                closed_ids.append(session_id)
    compare(draw, benches, model, alive, closed_ids)


def compare(draw, benches, model, alive, closed_ids):
    for bench in benches:
        assert sorted(each["session_id"] for each in bench.rpc("list_sessions", limit=100)) == sorted(alive)
        assert bench.store.count("") == len(alive)
    for session_id in closed_ids:
        refused(-32001, path, draw(st.sampled_from(benches)), session_id)
    for session_id in alive:
        expected = model.paths[session_id][model.versions[session_id]]
        after = draw(st.integers(-1, len(expected)))
        for bench in benches:
            assert path(bench, session_id) == expected
            assert path(bench, session_id, after=after, limit=3) == expected[after + 1 :][:3]


@given(st.data())
def test_the_history_of_every_fork_is_always_its_familys(data):
    bench = Bench()
    play(data.draw, [bench], data.draw(st.integers(1, 30)))
    bench.close()


@pytest.fixture(params=["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.heavy)])
def workers(request, store_url):
    """Return two workers on one store."""
    url = store_url(request.param)
    stores = [open_store(url, exclusive=False) for _ in range(2)]
    benches = [Bench(store=store) for store in stores]
    yield benches
    for bench, store in zip(benches, stores, strict=True):
        bench.close()
        store.close()


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_worker_and_any_store_keep_a_forks_history(workers, data):
    play(data.draw, workers, data.draw(st.integers(1, 20)))


@given(st.lists(st.sampled_from(["call", "call", "call", "answer", "reset"]), max_size=80), st.data())
def test_a_history_has_every_branch_as_of_any_record(kinds, data):
    history, version, last = RecordTree(KINDS), 0, data.draw(st.integers(0, len(kinds))) - 1
    paths: dict[int, list[int]] = {0: []}
    forked = dict(paths)
    for index, kind in enumerate(kinds):
        to_version = data.draw(st.integers(0, version))
        before = paths[to_version if kind == "reset" else version]
        version += kind == "reset" or data.draw(st.booleans())
        paths[version] = before if kind == "reset" else [*before, index]
        text = dumps({"index": index, "kind": kind, "to_version": to_version})
        history.add(Record(index, version, None, text), text)
        if index == last:
            forked = dict(paths)
    for version, expected in paths.items():
        assert [index for indices in history.path(version) for index in indices] == expected
        assert [*history.path(version)] == [*history.path(version)]
    for version, expected in forked.items():
        kept_indices = [index for index in expected if kinds[index] != "answer"]
        assert [index for indices in history.inherited(version, last) for index in indices] == kept_indices


def test_the_kind_of_a_record_comes_only_from_its_own_member():
    history = RecordTree(KINDS)
    lookalike = b'{"index":0,"kind":"call","function":"f","kwargs":{"kind":"reset"}}'
    reordered = b'{"kind":"reset","index":1,"to_version":0,"version":2}'
    history.add(Record(0, 1, None, lookalike), lookalike)
    history.add(Record(1, 2, None, reordered), reordered)
    assert ([*history.path(1)], [*history.path(2)]) == ([range(1)], [])


# Costs of a fork


class Counted:
    """Counter of a store's reads, and of the bytes of each read."""

    def __init__(self, bench):
        self.records = self.reads = 0
        for method in ("records", "records_at"):
            setattr(bench.store, method, self._counted(getattr(bench.store, method)))

    def _counted(self, real_read):
        def count_read(*arguments, **options):
            result = real_read(*arguments, **options)
            self.reads += 1
            self.records += sum(len(some) if isinstance(some, list) else 1 for some in result)
            return result

        return count_read


def test_a_fork_costs_the_same_after_10_and_500_records(stored_bench):
    bench = stored_bench
    session_id, sizes = bench.create(), []
    for record_count in (10, 490):
        add(bench, session_id, record_count)
        before = bench.store.stored_bytes("")
        count = Counted(bench)
        fork(bench, session_id)
        assert count.reads == 0
        sizes.append(bench.store.stored_bytes("") - before)
    assert sizes[1] <= sizes[0] + 10


def test_a_history_page_is_one_read_over_many_sessions(stored_bench):
    bench = stored_bench
    session_id, expected = bench.create(), []
    for _ in range(50):
        add(bench, session_id, 2)
        expected += [(session_id, 0), (session_id, 1)]
        child = fork(bench, session_id)
        close(bench, session_id)
        session_id = child
    assert path(bench, session_id) == expected
    count = Counted(bench)
    assert path(bench, session_id, after=10, limit=20) == expected[11:31]
    assert count.reads == 2  # one read for the page, and one to check for new records of the session itself
    assert count.records <= 20 + 2


def test_a_closed_sessions_records_after_its_fork_go_at_once(stored_bench):
    bench = stored_bench
    session_id = bench.create()
    before = bench.store.stored_bytes("")
    child = fork(bench, session_id)
    add(bench, session_id, 50)
    close(bench, session_id)
    assert bench.store.stored_bytes("") < before * 3
    assert path(bench, child) == []


# Concurrent changes


@pytest.mark.parametrize(("method", "version"), [("create", None), ("parts_at", 3)])
def test_a_session_that_is_closed_while_it_is_forked_has_no_fork(stored_bench, method, version):
    bench = stored_bench
    session_id = bench.create()
    add(bench, session_id, 9)
    step = getattr(bench.store, method)

    def closed_meanwhile(*arguments):
        bench.store.delete([session_id])
        return step(*arguments)

    setattr(bench.store, method, closed_meanwhile)
    refused(-32001, fork, bench, session_id, version=version)
    assert bench.store.count() == 0
    assert bench.store.stored_bytes("") == 0


def test_closing_a_fork_while_it_is_read_is_no_damage(stored_bench):
    bench = stored_bench
    session_id = bench.create()
    add(bench, session_id, 3)
    child = fork(bench, session_id)
    close(bench, session_id)
    step = bench.store.ancestor

    def closed_meanwhile(ancestor_id):
        bench.store.delete([child])
        return step(ancestor_id)

    bench.store.ancestor = closed_meanwhile
    refused(-32001, path, bench, child)


def test_a_call_id_lives_as_long_as_forks_of_its_session(stored_bench):
    bench = stored_bench
    session_id = bench.create(call_id="c")
    child = fork(bench, session_id, call_id="f")
    grandchild = fork(bench, child)
    assert bench.create(call_id="c") == session_id
    close(bench, session_id)
    close(bench, child)
    assert "is closed, but has forks" in refused(-32009, bench.create, call_id="c").message
    refused(-32001, fork, bench, session_id, call_id="f")
    close(bench, grandchild)
    assert bench.create(call_id="c") == session_id


def test_a_repeated_fork_is_the_same_after_its_parent_is_closed(bench):
    session_id = bench.create()
    child = fork(bench, session_id, call_id="f")
    close(bench, session_id)
    assert fork(bench, session_id, call_id="f") == child


# Damage


def families(bench):
    """Create two sessions of four records, and a fork of a fork of each. Close all others."""
    ids = []
    for amount in (1, 2):
        root = bench.create()
        for _ in range(4):
            bench.result(root, "add", amount=amount)
        child = fork(bench, root)
        bench.result(child, "add", amount=amount)
        ids.append((root, child, fork(bench, child)))
        close(bench, root)
        close(bench, child)
    return ids


OTHER_BODY = """
    SELECT body FROM records AS same WHERE same.place = records.place
        AND same.session = (SELECT key FROM kept WHERE id = :other)
"""


@pytest.mark.parametrize(
    "tamper",
    [
        "UPDATE sessions SET parent_last = -1 WHERE id = :fork",
        "UPDATE sessions SET parent_record = 'another' WHERE id = :fork",
        "UPDATE kept SET parent_last = 2 WHERE id = :child",
        "UPDATE kept SET parent = :other WHERE id = :child",
        "UPDATE kept SET id = id || 'x' WHERE id = :root",
        "DELETE FROM kept WHERE id = :child",
        "DELETE FROM records WHERE place = 2 AND session = (SELECT key FROM kept WHERE id = :root)",
        "DELETE FROM records WHERE place = 3 AND session = (SELECT key FROM kept WHERE id = :root)",
        "UPDATE records SET id = 'another' WHERE session = (SELECT key FROM kept WHERE id = :child)",
        "UPDATE records SET body = x'00' WHERE session = (SELECT key FROM kept WHERE id = :root)",
        f"UPDATE records SET body = ({OTHER_BODY}) WHERE session = (SELECT key FROM kept WHERE id = :root)",
    ],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_a_history_changed_in_the_store_is_refused(tmp_path, tamper, read_before):
    bench = Bench(store=f"sqlite:///{tmp_path}/sessions.db")
    (root, child, last), (other, *_) = families(bench)
    if read_before:
        path(bench, last)
    with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as store, store:
        changed = store.execute(tamper, {"fork": last, "child": child, "root": root, "other": other}).rowcount
    assert changed
    if read_before and "UPDATE kept SET parent" in tamper:  # this record isn't read again
        assert path(bench, last) == [*((root, index) for index in range(4)), (child, 0)]
    else:
        refused(-32012, path, bench, last)
    bench.close()


@pytest.mark.parametrize("lost_index", [1, 4])
@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("read_before", [False, True])
def test_lost_records_are_not_replaced_by_others(bench, lost_index, forged, read_before):
    session_id = bench.create()
    add(bench, session_id, 9)
    child = fork(bench, session_id)
    if read_before:
        assert len(path(bench, child)) == 9
    row = bench.store._rows[session_id]
    last = row.records[-1]
    del row.records[-lost_index:]
    row.version -= lost_index
    bench.sessions.queues.forget([session_id])
    refused(-32012, path, bench, child)
    for amount in range(lost_index):
        bench.result(session_id, "add", amount=amount)
    if forged:
        row.records[-1] = replace(row.records[-1], id=last.id)
    refused(-32012, path, bench, child)
