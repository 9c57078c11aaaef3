"""One contract for all stores: each sentence of `SessionStore` and `SharedStore` as a test.

Every new store must pass these tests.
"""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, cycle

import pytest
import redis_server
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from shared_memory import SharedMemory
from store_sessions import change, claim, commit, delete, delete_expired, existing, fork_of, numbers, record_id, session

from server.base.errors import (
    MissingBlobError,
    SessionNotFoundError,
    SettingsError,
    VersionNotRetainedError,
)
from server.stores import open_store
from server.stores.base import HELD_SECONDS, Commit, Counted, ForkPoint, Head, History, Lease, Record, SessionQuery


@pytest.fixture(params=["memory", "sqlite", "sqlite-shared", "redis"])
def url(request, tmp_path):
    if request.param == "redis":
        return redis_server.emptied(request.getfixturevalue("redis_url"))
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/{request.param}.db"


@pytest.fixture
def store(url):
    opened = SharedMemory() if url == "memory:" else open_store(url, exclusive="shared" not in url)
    yield opened
    opened.close()


@pytest.fixture
def one(store):
    """A session with two parts."""
    kept = session()
    store.create([kept], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0"})
    return kept


def ancestor(store, kept):
    """Get a session as it was created; it has no time of expiry any more."""
    found = store.ancestor(kept.id)
    return found and replace(found, expires_at=kept.expires_at)


class TestCreate:
    def test_a_session_is_stored_unchanged(self, store):
        kept = session(
            recipe=bytes(range(256)),
            details=b"\n\0\n\xff",
            labels={"a": "1", 'quote"': "\\ \n"},
            owner="bob ü",
        )
        store.create([kept], {"bank": "b"}, {"b": b"\0\xff\n"})
        assert store.get(kept.id) == (kept, Head(-1, 0, {"bank": "b"}, 0))
        assert store.blobs(["b"]) == {"b": b"\0\xff\n"}

    def test_sessions_differ_in_their_recipes(self, store):
        sessions = [session(recipe=recipe) for recipe in (b"", b"one", b"other", b"one")]
        store.create(sessions, {}, {})
        assert [store.get(each.id)[0] for each in sessions] == sessions

    def test_a_session_may_have_no_parts(self, store):
        kept = session()
        store.create([kept], {}, {})
        assert store.get(kept.id) == (kept, Head(-1, 0, {}, 0))
        assert store.parts_at(kept.id, 0) == {}
        assert store.commit([commit(kept, 0)]) == [True]
        store.trim(kept.id, 0, 0)
        assert store.get(kept.id)[1] == Head(0, 1, {}, 0, record_id(kept, 0))

    def test_sessions_created_together_each_have_the_parts(self, store):
        many = [session() for _ in range(50)]
        store.create(many, {"bank": "b", "mail": "b"}, {"b": b"x"})
        assert all(store.get(each.id) == (each, Head(-1, 0, {"bank": "b", "mail": "b"}, 0)) for each in many)
        assert store.commit([change(many[0], 0, "b1")]) == [True]
        assert store.get(many[1].id)[1].parts["bank"] == "b"

    def test_a_fork_refers_to_existing_blobs(self, store, one):
        fork = fork_of(one, 3, 5)
        store.create([fork], {"bank": "b0"}, {})
        assert store.get(fork.id)[0] == ancestor(store, fork) == fork
        assert store.get(fork.id)[1].parts == {"bank": "b0"}

    @pytest.mark.usefixtures("one")
    def test_an_existing_blob_is_left_unchanged(self, store):
        store.create([session()], {"bank": "b0"}, {"b0": b"other"})
        assert store.blobs(["b0"]) == {"b0": b"bank 0"}

    def test_a_missing_blob_is_refused_and_nothing_added(self, store):
        first, second = session(), session()
        with pytest.raises(MissingBlobError):
            store.create([first, second], {"bank": "b", "mail": "gone"}, {"b": b"x"})
        assert store.get(first.id) is None
        assert store.count() == 0
        assert existing(store, "b") == []

    def test_an_existing_session_is_left_unchanged(self, store, one):
        store.commit([change(one, 0, "b1")])
        store.create([one], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0", "new": b"x"})
        assert store.get(one.id)[1] == Head(0, 1, {"bank": "b1", "mail": "m0"}, 0, record_id(one, 0))
        assert store.count() == store.count("alice") == 1
        delete(store, [one.id])
        assert existing(store, "b0", "m0", "b1", "new") == []

    def test_no_session_keeps_a_blob_that_it_does_not_refer_to(self, store):
        store.create([session()], {"bank": "b"}, {"b": b"x", "other": b"y"})
        store.create([], {"bank": "c"}, {"c": b"x"})
        assert existing(store, "b", "other", "c") == ["b"]


def nothing_is_left_of(store, kept):
    return ancestor(store, kept) is None and store.records(kept.id, -1, 10) == []


class TestKept:
    """What forks need of a session that is deleted."""

    def test_a_deleted_session_is_seen_by_its_forks_alone(self, store, one):
        store.commit([change(one, index, f"v{index}", call_id="c" if index == 1 else None) for index in range(4)])
        fork = fork_of(one, 2, 1)
        store.create([fork], store.parts_at(one.id, 2), {})
        records = store.records(one.id, -1, 10)
        assert delete(store, [one.id, "unknown"]) == [one.id]
        assert delete(store, [one.id]) == []
        assert store.count("alice") == 1
        assert (store.get(one.id), store.find_agent(one.agent_key), claim(store, one, "w")) == (None, None, None)
        assert [kept.id for kept, _ in store.list(SessionQuery(None, {}, "", 10))] == [fork.id]
        assert [kept.id for kept, _ in store.list(SessionQuery("alice", {}, "", 10, newest_first=True))] == [fork.id]
        assert [kept.id for kept, _ in store.list(SessionQuery("alice", {}, "", 10, parent=one.id))] == [fork.id]
        assert store.record_of_call(one.id, "c") is None
        assert store.commit([change(one, 4, "v4"), change(fork, 0, "f0")]) == [False, True]
        store.renew(one.id, 9000.0)
        store.trim(one.id, 0, 0)
        assert ancestor(store, one) == one
        assert store.records(one.id, -1, 10) == records[:2]
        assert store.records(one.id, 0, 10, max_bytes=1) == records[1:2]
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}
        with pytest.raises(VersionNotRetainedError):
            store.parts_at(one.id, 2)
        assert existing(store, "b0", "v0", "v1", "v2", "v3", "v4") == ["b0", "v1"]

    def test_it_goes_with_the_last_fork_and_so_do_its_ancestors(self, store, one):
        child, grandchild, other = fork_of(one), session(), session()
        store.create([child], {"bank": "b1"}, {"b1": b"1"})
        store.commit([commit(child, 0)])
        grandchild, other = fork_of(child, 1, 0), fork_of(child, 1, 0)
        store.create([grandchild, other], {"bank": "b2"}, {"b2": b"2"})
        delete(store, [child.id, one.id])
        assert ancestor(store, child) == child
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}
        with pytest.raises(SessionNotFoundError):
            store.parts_at(child.id, 0)
        assert existing(store, "b0", "b1", "b2") == ["b0", "b2"]
        delete(store, [other.id])
        assert len(store.records(child.id, -1, 10)) == 1
        delete(store, [grandchild.id])
        assert nothing_is_left_of(store, child)
        assert nothing_is_left_of(store, one)
        assert existing(store, "b0", "b1", "b2") == []
        assert store.stored_bytes("alice") == 0

    def test_a_session_outlives_its_forks(self, store, one):
        store.commit([commit(one, 0)])
        child = fork_of(one, 1, 0)
        store.create([child], {}, {})
        grandchild = fork_of(child)
        store.create([grandchild], {}, {})
        delete(store, [child.id])
        delete(store, [grandchild.id])
        assert nothing_is_left_of(store, child)
        assert store.get(one.id)[1].index == 0
        delete(store, [one.id])
        assert nothing_is_left_of(store, one)

    def test_an_expired_session_is_kept_for_its_forks_too(self, store):
        short = session(expires_at=1000.0)
        store.create([short], {"bank": "b"}, {"b": b"b"})
        fork = fork_of(short, expires_at=1520.0)
        store.create([fork], {"bank": "b"}, {})
        assert list(delete_expired(store, 1500.0, 10)) == [short.id]
        assert list(delete_expired(store, 1500.0, 10)) == []
        assert store.get(short.id) is None
        assert store.parts_at(short.id, 0) == {"bank": "b"}
        assert list(delete_expired(store, 1530.0, 10)) == [fork.id]
        assert nothing_is_left_of(store, short)
        assert store.stored_bytes("alice") == 0

    def test_its_bytes_count_for_its_owner(self, store, one):
        body = b"x" * 1000
        store.commit([change(one, index, f"v{index}", body=body) for index in range(300)])
        before = store.stored_bytes("alice")
        fork = fork_of(one, 250, 249)
        store.create([fork], store.parts_at(one.id, 250), {})
        delete(store, [one.id])
        assert 250_000 < store.stored_bytes("alice") < before - 50 * 1000
        assert store.stored_bytes("bob") == 0
        delete(store, [fork.id])
        assert store.stored_bytes("alice") == 0

    def test_its_id_is_taken_until_it_goes(self, store, one):
        fork = fork_of(one)
        store.create([fork], {}, {})
        delete(store, [one.id])
        store.create([one], {"bank": "again"}, {"again": b"x"})
        assert store.get(one.id) is None
        assert existing(store, "again") == []
        delete(store, [fork.id])
        store.create([one], {"bank": "again"}, {"again": b"x"})
        assert store.get(one.id)[1] == Head(-1, 0, {"bank": "again"})

    def test_a_session_that_does_not_exist_is_not_forked(self, store, one):
        fork = fork_of(one)
        store.create([fork], {"bank": "b0"}, {})
        delete(store, [one.id])
        store.create([fork], {"bank": "b0"}, {})  # sent again
        for kept in (one, session()):
            with pytest.raises(SessionNotFoundError):
                store.create([fork, fork_of(kept)], {"bank": "new"}, {"new": b"x"})
        assert store.count() == 1
        assert existing(store, "new") == []

    def test_a_long_line_of_ancestors_goes_at_once(self, store):
        line = [session()]
        store.create(line, {"bank": "b"}, {"b": b"b"})
        for number in range(300):
            store.commit([commit(line[-1], 0)])
            line.append(fork_of(line[-1], 1, 0))
            store.create(line[-1:], {"bank": f"b{number}"}, {f"b{number}": b"b"})
            delete(store, [line[-2].id])
        assert existing(store, "b", "b0", "b298", "b299") == ["b", "b299"]
        assert len(store.records(line[0].id, -1, 10)) == 1
        delete(store, [line[-1].id])
        assert all(nothing_is_left_of(store, kept) for kept in line)
        assert store.stored_bytes("alice") == 0


class TestGet:
    def test_unknown_ids_and_keys_are_none(self, store, one):
        assert store.get("unknown") is None
        assert store.find_agent("unknown") is None
        assert store.find_agent(one.agent_key) == one.id

    def test_an_expired_session_can_still_be_read(self, store):
        kept = session(expires_at=0.0)
        store.create([kept], {}, {})
        assert store.get(kept.id)[0] == kept

    @pytest.mark.usefixtures("one")
    def test_blobs(self, store):
        assert store.blobs(["m0", "b0", "m0"]) == {"b0": b"bank 0", "m0": b"mail 0"}
        assert store.blobs([]) == {}
        with pytest.raises(MissingBlobError):
            store.blobs(["b0", "gone"])


class TestCommit:
    def test_a_commit_moves_the_head(self, store, one):
        kept = commit(
            one, 0, call_id="c", body=b"{\n}\0", parts={"bank": "b1"}, blobs={"b1": b"bank 1"}, expires_at=3000.125
        )
        assert store.commit([kept]) == [True]
        assert store.get(one.id) == (
            replace(one, expires_at=3000.125),
            Head(0, 1, {"bank": "b1", "mail": "m0"}, 0, record_id(one, 0)),
        )
        assert store.records(one.id, -1, 10) == [kept.record]
        assert store.blobs(["b1"]) == {"b1": b"bank 1"}

    def test_the_version_may_stay_and_may_grow_without_a_changed_part(self, store, one):
        assert store.commit([commit(one, 0, version=0), commit(one, 1, version=1)]) == [True, True]
        assert store.get(one.id) == (one, Head(1, 1, {"bank": "b0", "mail": "m0"}, 0, record_id(one, 1)))
        assert store.parts_at(one.id, 1) == {"bank": "b0", "mail": "m0"}

    def test_a_batch_is_stored_in_order(self, store, one):
        other = session()
        store.create([other], {"bank": "b0"}, {})
        batch = [change(one, 0, "x"), change(other, 0, "y"), change(one, 1, "z"), commit(one, 2, parts={"mail": "y"})]
        assert store.commit(batch) == [True] * 4
        assert store.get(one.id)[1] == Head(2, 3, {"bank": "z", "mail": "y"}, 0, record_id(one, 2))

    @pytest.mark.parametrize(
        "refused",
        [
            pytest.param(lambda one: change(replace(one, id="gone"), 1, "new"), id="session gone"),
            pytest.param(lambda one: change(one, 1, "new", epoch=1), id="another epoch"),
            pytest.param(lambda one: change(one, 0, "new"), id="index there"),
            pytest.param(lambda one: change(one, 2, "new"), id="index with a gap"),
            pytest.param(lambda one: change(one, 1, "new", call_id="c"), id="call_id there"),
            pytest.param(
                lambda one: commit(one, 1, parts={"bank": "new", "mail": "gone"}, blobs={"new": b"x"}),
                id="missing blob",
            ),
        ],
    )
    def test_a_refused_commit_changes_nothing_and_affects_no_other(self, store, one, refused):
        other = session()
        store.create([other], {"bank": "b0"}, {})
        assert store.commit([change(one, 0, "first", call_id="c")]) == [True]
        before = store.get(one.id), store.records(one.id, -1, 10)
        bad = refused(one)._replace(expires_at=9999.0)
        batch = [change(other, 0, "o1"), bad, change(other, 1, "o2")]
        assert store.commit(batch) == [True, False, True]
        assert (store.get(one.id), store.records(one.id, -1, 10)) == before
        assert existing(store, "new", "o1", "o2") == ["o1", "o2"]

    def test_a_commit_names_the_record_before_it(self, store, one):
        assert store.commit([change(one, 0, "first", after="another")]) == [False]
        assert store.commit([change(one, 0, "first")]) == [True]
        assert store.get(one.id)[1].last == record_id(one, 0)
        other = change(one, 1, "new")
        assert store.commit([other._replace(after="another")]) == [False]
        assert store.commit([other._replace(after="another"), other]) == [False, True]
        assert store.commit([other._replace(record=replace(other.record, id="another"))]) == [False]
        assert [record.id for record in store.records(one.id, -1, 9)] == [record_id(one, 0), record_id(one, 1)]

    def test_a_commit_names_its_holder(self, store, one):
        claim(store, one, "w1")
        assert store.commit([change(one, 0, "b1", epoch=1, holder="w2")]) == [False]
        batch = [change(one, 0, "b1", epoch=1, holder="w1"), change(one, 1, "b2", epoch=1, holder="w1", release=True)]
        assert store.commit(batch) == [True, True]
        assert store.commit(batch) == [True, True]
        assert store.commit([change(one, 2, "b3", epoch=1, holder="w1")]) == [False]

    def test_commits_after_a_refused_one_are_refused_too(self, store, one):
        batch = [change(one, 0, "x", epoch=3), change(one, 1, "y"), commit(one, 2, parts={"bank": "x"})]
        assert store.commit(batch) == [False, False, False]
        assert store.get(one.id)[1].index == -1

    def test_the_same_call_id_in_two_sessions_is_two_calls(self, store, one):
        other = session()
        store.create([other], {}, {})
        assert store.commit([commit(one, 0, call_id="c"), commit(other, 0, call_id="c")]) == [True, True]

    def test_a_repeated_commit_is_stored_once(self, store, one):
        batch = [change(one, 0, "b1", call_id="c", expires_at=3000.0), change(one, 1, "b2")]
        assert store.commit(batch) == [True, True]
        store.renew(one.id, 4000.0)
        before = store.get(one.id)
        assert store.commit(batch) == [True, True]
        assert store.commit([batch[1], batch[0]]) == [True, True]
        assert store.get(one.id) == before
        delete(store, [one.id])
        assert existing(store, "b0", "b1", "b2") == []

    def test_a_repeated_commit_is_recognized_after_its_epoch_and_blobs_are_gone(self, store, one):
        batch = [change(one, index, f"b{index + 1}") for index in range(3)]
        store.commit(batch)
        claim(store, one, "worker")
        store.trim(one.id, 0, 0)
        again = [each._replace(blobs={}) for each in batch]
        assert store.commit(again) == [True] * 3
        assert existing(store, "b1", "b2") == []

    @pytest.mark.parametrize("other", [{"body": b"[]"}, {"call_id": "d"}, {"call_id": None}, {"version": 0}])
    def test_another_record_at_the_same_index_is_refused(self, store, one, other):
        assert store.commit([commit(one, 0, call_id="c")]) == [True]
        assert store.commit([commit(one, 0, **{"call_id": "c", **other})]) == [False]

    def test_an_empty_batch_does_nothing(self, store):
        assert store.commit([]) == []

    def test_threads_that_commit_to_one_session_have_one_winner_for_each_index(self, store, one):
        rounds, workers = 25, 4
        start = threading.Barrier(workers)

        def work(worker):
            won = []
            start.wait()
            for _ in range(rounds):
                index = store.get(one.id)[1].index + 1
                blob = f"w{worker}-{index}"
                if store.commit([change(one, index, blob, body=blob.encode())]) == [True]:
                    won.append(index)
            return won

        with ThreadPoolExecutor(workers) as pool:
            won = sorted(index for indices in pool.map(work, range(workers)) for index in indices)
        assert won == list(range(len(won)))
        assert len(won) >= rounds
        records = store.records(one.id, -1, 1000)
        assert [record.index for record in records] == won
        assert store.get(one.id)[1].parts["bank"] == records[-1].body.decode()

    def test_threads_that_commit_to_their_own_sessions_all_win(self, store):
        mine = [session() for _ in range(4)]
        store.create(mine, {"bank": "b"}, {"b": b"x"})

        def work(kept):
            kept_all = [store.commit([change(kept, index, f"{kept.id}-{index}")]) for index in range(25)]
            return kept_all == [[True]] * 25

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, mine))


class TestHistory:
    def test_each_version_has_its_parts(self, store, one):
        store.commit([change(one, 0, "b1"), commit(one, 1, version=1), change(one, 2, "m2", part="mail", version=2)])
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}
        assert store.parts_at(one.id, 1) == {"bank": "b1", "mail": "m0"}
        assert store.parts_at(one.id, 2) == {"bank": "b1", "mail": "m2"}

    def test_a_future_version_and_a_deleted_session(self, store, one):
        with pytest.raises(VersionNotRetainedError):
            store.parts_at(one.id, 1)
        with pytest.raises(VersionNotRetainedError):
            store.parts_at(one.id, -1)
        with pytest.raises(SessionNotFoundError):
            store.parts_at("gone", 0)

    @pytest.mark.parametrize(("versions", "kept"), [(0, 99), (6, 99), (6, 2), (6, 0)])
    def test_a_history_is_taken_over(self, store, versions, kept):
        grown = session(owner="grown")
        store.create([grown], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0"})
        for index in range(versions):
            part = "bank" if index % 2 else "mail"
            call_id = f"c{index}" if index < 3 else None
            assert store.commit([change(grown, index, f"blob {index}", part=part, call_id=call_id)]) == [True]
        if versions:
            assert store.commit([commit(grown, versions, version=versions)]) == [True]
        store.trim(grown.id, kept, 10**6)
        head = store.get(grown.id)[1]
        oldest = max(1, versions - kept)
        parts = {version: store.parts_at(grown.id, version) for version in (0, *range(oldest, versions + 1))}
        records = store.records(grown.id, -1, 99)
        changes, before = {}, parts[0]
        for version in list(parts)[1:]:
            changes[version] = {part: blob for part, blob in parts[version].items() if before[part] != blob}
            before = parts[version]
        names = {blob for each in parts.values() for blob in each.values()}
        blobs = {f"new {blob}": body for blob, body in store.blobs(sorted(names)).items()}

        def renamed(mapping):
            return {part: f"new {blob}" for part, blob in mapping.items()}

        history = History({version: renamed(each) for version, each in changes.items()}, records)
        moved = session(owner="moved")
        missing = dict([*blobs.items()][1:])
        with pytest.raises(MissingBlobError):
            store.create([moved], renamed(parts[0]), missing, history)
        assert store.get(moved.id) is None
        assert store.stored_bytes("moved") == 0
        for _ in range(2):
            store.create([moved], renamed(parts[0]), blobs, history)
        found = store.get(moved.id)[1]
        assert found == replace(head, parts=renamed(head.parts))
        assert found.size == pytest.approx(head.size, abs=100)
        assert store.stored_bytes("moved") == pytest.approx(store.stored_bytes("grown"), abs=400)
        assert store.records(moved.id, -1, 99) == records
        assert store.record_of_call(moved.id, "c1") == store.record_of_call(grown.id, "c1")
        for version in range(versions + 2):
            if version in parts:
                assert store.parts_at(moved.id, version) == renamed(parts[version])
            else:
                with pytest.raises(VersionNotRetainedError):
                    store.parts_at(moved.id, version)
        delete(store, [grown.id])
        next_one = commit(moved, len(records), version=versions + 1, after=found.last)
        assert store.commit([next_one]) == [True]
        assert store.get(moved.id)[1].version == versions + 1
        store.trim(moved.id, 0, 0)
        delete(store, [moved.id])
        assert store.stored_bytes("moved") == 0
        with pytest.raises(MissingBlobError):
            store.blobs(["new b0"])

    def test_records(self, store, one):
        kept = [commit(one, index, call_id=f"c{index}" if index % 2 else None) for index in range(7)]
        store.commit(kept)
        records = [each.record for each in kept]
        assert store.records(one.id, -1, 100) == records
        assert store.records(one.id, 2, 3) == records[3:6]
        assert store.records(one.id, 6, 3) == []
        assert store.records(one.id, -5, 2) == records[:2]
        assert store.records(one.id, -1, 0) == []
        assert store.records("gone", -1, 10) == []
        assert store.record_of_call(one.id, "c3") == records[3]
        assert store.record_of_call(one.id, "c2") is None
        assert store.record_of_call("gone", "c3") is None

    def test_records_up_to_a_number_of_bytes(self, store, one):
        store.commit([commit(one, index, body=b"x" * 1000) for index in range(40)])

        def counted(after, limit, max_bytes):
            found = store.records(one.id, after, limit, max_bytes)
            assert [record.index for record in found] == list(range(after + 1, after + 1 + len(found)))
            return len(found)

        assert [counted(-1, 100, most) for most in (0, 999, 1000, 1999, 2000, 30_999)] == [1, 1, 1, 1, 2, 30]
        assert counted(-1, 100, 10**6) == 40
        assert counted(37, 100, 10**6) == 2
        assert counted(10, 3, 10**6) == 3
        assert counted(39, 3, 10) == 0

    @pytest.mark.parametrize("owner", ["", "ann", 'a"n', "a\\n", '"', '","', "\\", "añ€\U0001f600", "a\nn", "a]["])
    def test_a_commit_counts_for_its_owner_whatever_the_name(self, store, owner):
        kept = session(owner=owner, agent_key=f"key of {owner}")
        store.create([kept], {}, {})
        before = store.stored_bytes(owner)
        blobs = {"b": b"b" * 2000, "c": b"c" * 500}
        store.commit([commit(kept, 0, body=b"x" * 1000, parts={"x": "b", "y": "b", "z": "c"}, blobs=blobs)])
        assert store.stored_bytes(owner) - before == pytest.approx(3500, abs=60)
        delete(store, [kept.id])
        assert store.stored_bytes(owner) == 0

    def test_bytes_are_counted(self, store):
        assert store.stored_bytes("ann") == 0
        recipe = b"r" * 10_000
        kept = session(owner="ann", recipe=recipe, labels={"label": "l" * 5_000})
        store.create([kept], {"bank": "b"}, {"b": b"b" * 20_000})
        near = pytest.approx
        assert store.stored_bytes("ann") == near(35_000, abs=300)
        assert store.get(kept.id)[1].size < 6_000
        fork = replace(session(owner="ann", recipe=recipe), parent=ForkPoint(kept.id, 0))
        store.create([fork], {"bank": "b"}, {})
        assert store.stored_bytes("ann") == near(35_000, abs=600)
        for index in range(5):
            store.commit(
                [
                    commit(
                        kept, index, body=b"x" * 7_000, parts={"bank": f"v{index}"}, blobs={f"v{index}": b"v" * 1_000}
                    ),
                    commit(fork, index, body=b"x" * 100),
                ]
            )
        assert store.stored_bytes("ann") == near(75_500, abs=1_500)
        assert store.get(kept.id)[1].size == near(42_500, abs=2_900)  # with or without the labels
        store.trim(kept.id, 0, 0)
        assert store.stored_bytes("ann") == near(71_500, abs=1_500)
        assert store.stored_bytes("") == 0
        delete(store, [kept.id])
        assert store.stored_bytes("ann") == near(35_800, abs=1_500)  # what the fork needs stays
        delete(store, [fork.id])
        assert store.stored_bytes("ann") == 0

    def test_trim_keeps_the_first_the_current_and_the_newest(self, store, one):
        store.commit([change(one, index, f"b{index + 1}") for index in range(9)])
        store.trim(one.id, 3, 10**6)
        assert existing(store, *(f"b{number}" for number in range(10))) == ["b0", "b6", "b7", "b8", "b9"]
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}
        assert store.parts_at(one.id, 6) == {"bank": "b6", "mail": "m0"}
        with pytest.raises(VersionNotRetainedError) as refused:
            store.parts_at(one.id, 5)
        assert refused.value.oldest == 6
        assert len(store.records(one.id, -1, 100)) == 9

    def test_trim_keeps_a_part_that_an_older_version_wrote(self, store, one):
        store.commit(
            [change(one, 0, "m1", part="mail"), *(change(one, index, f"b{index + 1}") for index in range(1, 6))]
        )
        store.trim(one.id, 1, 10**6)
        assert store.parts_at(one.id, 5) == {"bank": "b5", "mail": "m1"}
        assert store.get(one.id)[1].parts == {"bank": "b6", "mail": "m1"}
        assert existing(store, "b2", "b3", "b4", "m1") == ["m1"]

    def test_trim_counts_only_the_bytes_that_only_those_versions_need(self, store, one):
        def sized(index, blob, size):
            return commit(one, index, parts={"bank": blob}, blobs={blob: b"x" * size})

        back = commit(one, 5, parts={"bank": "big"})
        store.commit(
            [sized(0, "old", 10), sized(1, "big", 500), sized(2, "a", 60), sized(3, "b", 40), sized(4, "c", 1)]
        )
        store.commit(
            [back]
        )  # the current version has the content of version 2, so its blob doesn't count for the history
        store.trim(one.id, 100, 101)
        assert store.parts_at(one.id, 2) == {"bank": "big", "mail": "m0"}
        with pytest.raises(VersionNotRetainedError) as refused:
            store.parts_at(one.id, 1)
        assert refused.value.oldest == 2
        store.trim(one.id, 100, 100)
        assert existing(store, "old", "big", "a", "b", "c") == ["big", "b", "c"]

    def test_trim_of_nothing(self, store, one):
        store.trim(one.id, 0, 0)
        store.trim("gone", 0, 0)
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}

    def test_a_version_stays_for_the_fork_that_refers_to_it(self, store, one):
        store.commit([change(one, index, f"b{index + 1}") for index in range(3)])
        fork = session()
        store.create([fork], store.parts_at(one.id, 1), {})
        store.trim(one.id, 0, 0)
        assert existing(store, "b1", "b2") == ["b1"]
        delete(store, [one.id])
        assert existing(store, "b0", "b1", "b3", "m0") == ["b1", "m0"]
        assert store.commit([change(fork, 0, "f1")]) == [True]
        delete(store, [fork.id])
        assert existing(store, "b1", "m0", "f1") == []

    def test_records_of_several_sessions_at_these_indices_and_no_others(self, store, one):
        other = session()
        store.create([other], {}, {})
        store.commit([commit(kept, index) for kept in (one, other) for index in range(6)])
        wanted = [(one.id, range(1, 3)), (other.id, range(4, 9)), (one.id, range(5, 5)), ("gone", range(3))]
        wanted += [(other.id, range(1)), (one.id, range(6, 8))]
        found = [[record.index for record in each] for each in store.records_at(wanted)]
        assert found == [[1, 2], [4, 5], [], [], [0], []]


class TestExpiryAndListing:
    def test_renewed_and_expired(self, store):
        early, middle, late = (session(expires_at=at) for at in (10.0, 20.5, 30.0))
        store.create([late, early, middle], {}, {})
        store.renew(early.id, 40.0)
        store.renew("gone", 1.0)
        assert store.get(early.id)[0].expires_at == 40.0
        assert list(delete_expired(store, 20.0, 10)) == []
        assert list(delete_expired(store, 20.5, 10)) == [middle.id]
        assert store.get(middle.id) is None
        assert store.get("gone") is None
        assert len(delete_expired(store, 40.0, 1)) == 1
        assert len(delete_expired(store, 40.0, 10)) == 1
        assert store.count() == 0

    @pytest.mark.parametrize("jump", [10**7, -(10**7)])
    def test_time_that_nobody_counted_does_not_count(self, store, jump):
        start = 10.0**9
        assert store.count_time(start) == Counted(start, 0.0)
        assert store.count_time(start + jump) == Counted(start, jump)
        for later in (0, 1, 9, 11, 40, 100, 101, 90, 31, 91):
            assert store.count_time(start + jump + later) == Counted(start + later, jump)
        assert store.count_time(start + 91) == Counted(start + 91, 0.0)  # the clock is set right again

    def test_the_time_is_that_of_the_clock_that_all_have(self, store):
        assert abs(store.count_time().now - time.time()) < 10
        assert store.count_time().now <= store.count_time().now

    def test_an_expired_session_stays_while_something_runs_in_it(self, store):
        busy, expired = session(expires_at=20.0), session(expires_at=10.0)
        store.create([busy, expired], {}, {})
        assert list(delete_expired(store, 20.0, 10, {busy.id})) == [expired.id]
        assert list(delete_expired(store, 20.0 + HELD_SECONDS - 1, 10, {busy.id})) == []
        assert list(delete_expired(store, 20.0 + HELD_SECONDS, 10, {busy.id})) == [busy.id]

    def test_a_commit_either_keeps_its_session_or_is_refused(self, store):
        delete_expired(store, 10.0, 1)
        for _ in range(20):
            kept = session(expires_at=20.0)
            store.create([kept], {}, {})
            start = threading.Barrier(2)

            def renew(kept=kept, start=start):
                start.wait()
                return store.commit([commit(kept, 0, expires_at=1000.0)])

            with ThreadPoolExecutor(1) as pool:
                renewed = pool.submit(renew)
                start.wait()
                expired = delete_expired(store, 20.0, 1000)
                assert renewed.result() == [not expired] == [store.get(kept.id) is not None]

    def test_listed_by_owner_and_labels_in_order_of_ids(self, store):
        many = [session(owner=("alice", "bob")[n % 2], labels={"n": str(n % 3), "x": '"n":"0"'}) for n in range(30)]
        store.create(many[::-1], {}, {})
        store.commit([commit(many[3], 0)])

        def listed(*arguments):
            return [kept.id for kept, _ in store.list(SessionQuery(*arguments))]

        ids = [each.id for each in many]
        assert store.list(SessionQuery(None, {}, "", 100)) == [(each, int(each is many[3])) for each in many]
        assert listed(None, {}, ids[4], 3) == ids[5:8]
        assert listed("alice", {}, "", 100) == ids[::2]
        assert listed("bob", {"n": "0"}, "", 2) == ids[3:10:6]
        assert listed("bob", {"n": "0", "x": '"n":"0"'}, ids[3], 100) == ids[9::6]
        assert listed("bob", {"n": "0", "other": ""}, "", 100) == []
        assert listed("nobody", {}, "", 100) == []
        assert listed(None, {}, "", 0) == []

    def test_listed_after_many_without_the_label(self, store):
        store.create([session() for _ in range(450)], {}, {})
        last = session(labels={"run": "2"})
        store.create([last], {}, {})
        assert store.list(SessionQuery(None, {"run": "2"}, "", 1)) == [(last, 0)]

    def test_listed_newest_first(self, store):
        # Forks that are made together have the same time of creation.
        many = [session(owner=("alice", "bob")[n % 2], created_at=1000.5 + n // 5) for n in range(30)]
        store.create(many[::-1], {}, {})
        store.commit([commit(many[3], 0)])

        def listed(*arguments):
            return [kept.id for kept, _ in store.list(SessionQuery(*arguments, newest_first=True))]

        ids = [each.id for each in many]
        newest = store.list(SessionQuery(None, {}, "", 100, newest_first=True))
        assert newest == [(each, int(each is many[3])) for each in many[::-1]]
        assert listed("alice", {}, "", 3) == ids[28:23:-2]
        assert listed("alice", {}, ids[24], 3) == ids[22:17:-2]
        assert listed(None, {}, ids[24], 3) == ids[23:20:-1]
        assert listed("nobody", {}, "", 3) == []
        delete(store, [ids[24]])
        assert listed("alice", {}, ids[26], 2) == ids[22:19:-2]
        for owner in (None, "alice"):
            with pytest.raises(SessionNotFoundError):
                listed(owner, {}, ids[24], 3)

    def test_forks_of_a_session_are_listed_in_both_orders(self, store):
        root = session()
        forks = [fork_of(root, 1, created_at=1000.5 + n // 2, labels={"n": str(n % 2)}) for n in range(9)]
        others = [fork_of(forks[0]), fork_of(root, owner="bob")]
        store.create([root], {}, {})
        store.create(forks[::-1], {}, {})
        store.create(others[:1], {}, {})
        store.create(others[1:], {}, {})

        def listed(*arguments, **more):
            return [kept.id for kept, _ in store.list(SessionQuery(*arguments, **{"parent": root.id, **more}))]

        ids = [each.id for each in forks]
        assert listed("alice", {}, "", 100) == ids
        assert listed(None, {}, "", 100) == [*ids, others[1].id]
        assert listed("alice", {}, ids[2], 2) == ids[3:5]
        assert listed("alice", {"n": "1"}, ids[2], 2) == ids[3:6:2]
        assert listed("alice", {}, "", 100, newest_first=True) == ids[::-1]
        assert listed("alice", {}, ids[5], 2, newest_first=True) == ids[4:2:-1]
        assert listed("alice", {}, "", 100, parent=forks[0].id) == [others[0].id]
        assert listed("alice", {}, "", 100, parent=forks[1].id) == []
        delete(store, [root.id, ids[4]])
        assert listed("alice", {}, ids[3], 2) == ids[5:7]
        assert listed("alice", {}, ids[6], 2, newest_first=True) == [ids[5], ids[3]]
        with pytest.raises(SessionNotFoundError):
            listed("alice", {}, ids[4], 2, newest_first=True)

    def test_counted(self, store):
        store.create([session(owner=owner) for owner in ("", "bob", "bob")], {}, {})
        assert [store.count(), store.count(""), store.count("bob"), store.count("carol")] == [3, 1, 2, 0]


class TestDelete:
    def test_all_data_of_a_session_is_deleted(self, store, one):
        store.commit([change(one, 0, "b1", call_id="c")])
        assert delete(store, [one.id, "gone", one.id]) == [one.id]
        assert store.get(one.id) is None
        assert store.find_agent(one.agent_key) is None
        assert store.records(one.id, -1, 10) == []
        assert store.record_of_call(one.id, "c") is None
        assert store.count() == store.count("alice") == 0
        assert list(delete_expired(store, 10.0**10, 10)) == []
        assert store.list(SessionQuery(None, {}, "", 10)) == []
        assert store.list(SessionQuery("alice", {}, "", 10, newest_first=True)) == []
        assert existing(store, "b0", "m0", "b1") == []
        assert store.commit([change(one, 1, "b2")]) == [False]
        store.renew(one.id, 5.0)
        store.trim(one.id, 0, 0)
        store.release(one.id, "worker", 0)
        assert store.get(one.id) is None
        assert delete(store, []) == delete(store, [one.id]) == []

    def test_a_reused_id_starts_empty(self, store, one):
        store.commit([change(one, 0, "b1", call_id="c")])
        claim(store, one, "worker")
        delete(store, [one.id])
        again = replace(one, recipe=b"another")
        store.create([again], {"bank": "b0"}, {"b0": b"new"})
        assert store.get(one.id) == (again, Head(-1, 0, {"bank": "b0"}, 0))
        assert store.commit([change(again, 0, "b1", call_id="c")]) == [True]

    def test_many_with_long_histories(self, store, one):
        many = [session() for _ in range(250)]
        store.create(many, {"bank": "b0"}, {})
        store.commit([commit(many[0], index) for index in range(450)])
        store.commit([change(each, index, f"{each.id}-{index}") for each in many[1:] for index in range(2)])
        assert sorted(delete(store, [each.id for each in many])) == sorted(each.id for each in many)
        assert store.count() == 1
        assert existing(store, "b0", *(f"{each.id}-1" for each in many)) == ["b0"]
        assert store.get(one.id)[0] == one

    def test_shared_blobs_stay_until_the_last_fork_is_deleted(self, store):
        first, second = session(recipe=b"x" * 1000), session(recipe=b"x" * 1000)
        store.create([first, second], {"bank": "b"}, {"b": b"x"})
        delete(store, [first.id])
        assert store.get(second.id) == (second, Head(-1, 0, {"bank": "b"}, 0))
        assert existing(store, "b") == ["b"]


class TestLeases:
    def test_a_lease_has_one_holder(self, store, one):
        assert claim(store, one, "w1") == Head(-1, 0, {"bank": "b0", "mail": "m0"}, 1)
        assert claim(store, one, "w2") == Lease("w1", 0)
        assert claim(store, one, "w1").epoch == 2
        assert store.get(one.id)[1].epoch == 2

    def test_leases_of_several_sessions_are_acquired_in_one_step(self, store, one):
        two, three = session(), session()
        store.create([two, three], {"bank": "b0"}, {"b0": b"0"})
        claim(store, two, "w2")
        ids = [three.id, "gone", two.id, one.id]
        parts = {"bank": "b0", "mail": "m0"}
        assert store.claim(ids, "w1") == [Head(-1, 0, {"bank": "b0"}, 1), None, Lease("w2", 0), Head(-1, 0, parts, 1)]
        assert [head.epoch for head in store.claim([two.id, one.id], "w1", {Lease("w2", 0), Lease("w3", 1)})] == [2, 2]
        assert store.claim([], "w1") == []

    def test_a_commit_needs_the_current_epoch(self, store, one):
        claim(store, one, "w1")
        assert store.commit([commit(one, 0)]) == [False]
        assert store.commit([commit(one, 0, epoch=2)]) == [False]
        assert store.commit([commit(one, 0, epoch=1)]) == [True]
        assert claim(store, one, "w2") == Lease("w1", 0)

    def test_a_lease_is_released_with_a_commit_or_without(self, store, one):
        claim(store, one, "w1")
        assert store.commit([commit(one, 0, epoch=1, release=True)]) == [True]
        assert claim(store, one, "w2").epoch == 2
        store.release(one.id, "w2", 1)
        assert claim(store, one, "w1") == Lease("w2", 0)
        store.release(one.id, "w1", 2)
        assert claim(store, one, "w1") == Lease("w2", 0)
        store.release(one.id, "w2", 2)
        assert claim(store, one, "w1") == Head(0, 1, {"bank": "b0", "mail": "m0"}, 3, record_id(one, 0))
        store.release("gone", "w1", 0)

    def test_commits_that_go_in_together_each_renew_and_give_back_their_own(self, store, one):
        two, three = session(), session()
        store.create([two, three], {"bank": "b0"}, {})
        everybody = (one, two, three)
        for each in everybody:
            claim(store, each, "w1")
        batch = [
            change(one, 0, "x", epoch=1, expires_at=3000.5),
            change(two, 0, "y", epoch=1, release=True),
            change(one, 1, "z", epoch=1, release=True),
            change(three, 0, "w", epoch=1, expires_at=4000.5),
        ]
        assert store.commit(batch) == [True] * 4
        assert [store.get(each.id)[0].expires_at for each in everybody] == [3000.5, two.expires_at, 4000.5]
        claimed = [claim(store, each, "w2") for each in everybody]
        assert [getattr(each, "epoch", None) for each in claimed] == [2, 2, None]
        assert claimed[2] == Lease("w1", 0)

    def test_a_refused_commit_does_not_release_the_lease(self, store, one):
        claim(store, one, "w1")
        assert store.commit([commit(one, 5, epoch=1, release=True)]) == [False]
        assert claim(store, one, "w2") == Lease("w1", 0)

    def test_a_dead_holders_lease_can_be_claimed_by_its_watcher(self, store, one):
        claim(store, one, "w1")
        store.heartbeat("w1")
        store.heartbeat("w1")
        seen = claim(store, one, "w2")
        assert seen == Lease("w1", 2)
        store.heartbeat("w1")
        assert claim(store, one, "w2", seen) == Lease("w1", 3)
        assert claim(store, one, "w2", Lease("w3", 3)) == Lease("w1", 3)
        assert claim(store, one, "w2", Lease("w1", 3)).epoch == 2
        assert store.commit([commit(one, 0, epoch=1)]) == [False]
        assert claim(store, one, "w1") == Lease("w2", 0)

    @pytest.mark.parametrize("heartbeats", [0, 2])
    def test_of_a_holder_that_has_ended_all_know_it(self, store, one, heartbeats):
        claim(store, one, "w1")
        for _ in range(heartbeats):
            store.heartbeat("w1")
        for _ in range(2):
            store.holder_ended("w1")
        store.holder_ended("w3")
        assert claim(store, one, "w2").epoch == 2
        assert claim(store, one, "w4") == Lease("w2", 0)

    def test_a_session_stays_while_a_living_worker_holds_its_lease(self, store):
        held = [session(expires_at=20.0) for _ in range(3)]
        expired = session(expires_at=20.0)
        store.create([*held, expired], {}, {})
        for each, worker in zip(held, ("lives", "ends", "never seen"), strict=True):
            claim(store, each, worker)
        store.heartbeat("lives")
        store.heartbeat("ends")
        assert set(delete_expired(store, 21.0, 1) + delete_expired(store, 21.0, 9)) == {held[2].id, expired.id}
        store.holder_ended("ends")
        assert list(delete_expired(store, 21.0, 9)) == [held[1].id]
        assert list(delete_expired(store, 19.0 + HELD_SECONDS, 9)) == []
        store.commit([commit(held[0], 0, epoch=1, release=True, holder="lives")])
        assert list(delete_expired(store, 21.0, 9)) == [held[0].id]

    def test_a_holder_is_asked_for_what_others_wait_for(self, store, one):
        assert not store.heartbeat("w1")
        store.ask(one.id, "w1")
        store.ask(one.id, "w1")
        store.ask("s2", "w1")
        assert not store.heartbeat("w2")
        assert set(store.heartbeat("w1")) == {one.id, "s2"}
        assert not store.heartbeat("w1")

    def test_threads_that_claim_one_session_have_one_holder(self, store, one):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda worker: claim(store, one, f"w{worker}"), range(8)))
        assert sum(isinstance(answer, Head) for answer in answers) == 1


class TestLifetime:
    def test_whether_it_is_shared(self, url):
        with contextlib.closing(open_store(url, exclusive="shared" not in url)) as store:
            assert store.shared == ("shared" in url or url.startswith("redis"))

    def test_ping(self, store):
        store.ping()

    def test_closed_twice_and_opened_again(self, store, url, one):
        store.commit([change(one, 0, "b1")])
        store.close()
        store.close()
        again = open_store(url, exclusive="shared" not in url)
        try:
            assert (again.get(one.id) is not None) == (not url.startswith("memory"))
        finally:
            again.close()


class Comparison(RuleBasedStateMachine):
    """Applies the same operations to two stores and compares all visible state."""

    sessions = Bundle("sessions")
    parts = st.sampled_from(["bank", "mail", "x/y"])

    def open(self):
        raise NotImplementedError

    @initialize()
    def begin(self):
        self.stores = [SharedMemory(), self.open()]
        self.forked, self.names = set(), count()
        self.workers = {"w1": "w1", "w2": "w2"}

    def teardown(self):
        for store in getattr(self, "stores", []):
            store.close()

    def both(self, ask):
        answers = []
        for store in self.stores:
            try:
                answers.append(ask(store))
            except (MissingBlobError, SessionNotFoundError, VersionNotRetainedError) as error:
                answers.append((type(error), getattr(error, "oldest", None)))
        assert answers[0] == answers[1]
        return answers[0]

    def name(self):
        return f"n{next(self.names)}"

    def head(self, kept):
        found = self.stores[0].get(kept.id)
        return found[1] if found else Head(-1, 0, {}, 0)

    @rule(target=sessions, names=st.sets(parts), owner=st.sampled_from(["", "bob"]))
    def create(self, names, owner):
        kept = session(owner=owner, labels={"owner": owner})
        mapping = {part: self.name() for part in sorted(names)}
        self.both(lambda store: store.create([kept], mapping, {blob: blob.encode() for blob in mapping.values()}))
        return kept

    @rule(target=sessions, origin=sessions, version=st.integers(0, 5))
    def fork(self, origin, version):
        found = self.both(lambda store: store.parts_at(origin.id, version))
        head = self.head(origin)
        kept = session(parent=ForkPoint(origin.id, version, head.index, head.last))
        if isinstance(found, dict):
            self.both(lambda store: store.create([kept], found, {}))
        self.forked.add(origin.id)
        return kept

    @rule(
        chosen=st.lists(sessions, min_size=1, max_size=3),
        names=st.sets(parts),
        size=st.integers(0, 40),
        call_id=st.sampled_from([None, None, "c1", "c2", "ü"]),
        index_error=st.sampled_from([0, 0, 0, 1, -1]),
        epoch=st.sampled_from([0, 0, 0, 1]),
        grow=st.booleans(),
        release=st.booleans(),
    )
    def commit(self, *, chosen, names, size, call_id, index_error, epoch, grow, release):
        batch, ahead, batch_ids = [], {}, {}
        for kept in chosen:
            head = self.head(kept)
            index = ahead[kept.id] = ahead.get(kept.id, head.index) + 1
            version = head.version + index - head.index - (0 if grow or names else index - head.index)
            new = {part: self.name() for part in sorted(names)}
            record = Record(max(index + index_error, 0), version, call_id, self.name().encode())
            blobs = dict.fromkeys(new.values(), b"x" * size)
            after = head.last if index == head.index + 1 else batch_ids[kept.id]
            batch_ids[kept.id] = record.id
            batch.append(Commit(kept.id, head.epoch + epoch, record, new, blobs, 5000.0 + index, release, after))
        self.both(lambda store: store.commit(batch))
        self.both(lambda store: store.commit(batch))

    @rule(kept=sessions, version=st.integers(0, 6))
    def reset(self, kept, version):
        found = self.both(lambda store: store.parts_at(kept.id, version))
        if isinstance(found, dict):
            head = self.head(kept)
            record = Record(head.index + 1, head.version + 1, None, b"reset")
            self.both(lambda store: store.commit([Commit(kept.id, head.epoch, record, found, after=head.last)]))

    @rule(kept=sessions, versions=st.integers(0, 4), size=st.integers(0, 100))
    def trim(self, kept, versions, size):
        self.both(lambda store: store.trim(kept.id, versions, size))

    @rule(kept=consumes(sessions))
    def delete(self, kept):
        self.both(lambda store: delete(store, [kept.id]))

    @rule(kept=sessions, worker=st.sampled_from(["w1", "w2"]))
    def claim(self, kept, worker):
        worker = self.workers[worker]
        answer = self.both(lambda store: claim(store, kept, worker))
        if isinstance(answer, Lease):
            self.both(lambda store: claim(store, kept, worker, answer))

    @rule(worker=st.sampled_from(["w1", "w2"]), kept=sessions, epoch=st.integers(0, 2))
    def heartbeat_and_release(self, worker, kept, epoch):
        worker = self.workers[worker]
        self.both(lambda store: store.heartbeat(worker))
        self.both(lambda store: store.release(kept.id, worker, epoch))

    @rule(worker=st.sampled_from(["w1", "w2"]))
    def holder_ended(self, worker):
        """Whoever has ended never comes back: another one has its place."""
        ended, self.workers[worker] = self.workers[worker], f"{worker}-{self.name()}"
        self.both(lambda store: store.holder_ended(ended))

    def same(self, session_id, version):
        self.both(lambda store: store.get(session_id))
        self.both(lambda store: store.records(session_id, -1, 1000))
        self.both(lambda store: store.record_of_call(session_id, "c1"))
        for each in range(version + 2):
            found = self.both(lambda store, at=each: store.parts_at(session_id, at))
            blobs = list(found.values()) if isinstance(found, dict) else []
            self.both(lambda store, ids=blobs: store.blobs(ids))

    @invariant()
    def all_is_the_same(self):
        if not hasattr(self, "stores"):
            return
        for kept, version in self.both(lambda store: list(store.list(SessionQuery(None, {}, "", 1000)))):
            self.same(kept.id, version)
            self.both(
                lambda store, of=kept.id: list(
                    store.list(SessionQuery("bob", {}, "", 1000, parent=of, newest_first=True))
                )
            )
        self.both(lambda store: list(store.list(SessionQuery(None, {}, "", 1000, newest_first=True))))
        for session_id in self.forked:
            self.both(lambda store, of=session_id: store.records(of, -1, 1000))
            self.both(lambda store, of=session_id: store.parts_at(of, 0))
            found = self.both(
                lambda store, of=session_id: [replace(each, expires_at=0.0) for each in [store.ancestor(of)] if each]
            )
            assert found or not self.stores[0].list(SessionQuery(None, {}, "", 1, parent=session_id))
        assert sorted(self.stores[0]._blobs) == self.kept_blobs()
        self.both(lambda store: store.count("bob"))

    @rule(now=st.sampled_from([1990.0, 2000.5, 4990.0, 5001.0]))
    def delete_expired(self, now):
        self.both(lambda store: sorted(delete_expired(store, now, 1000)))

    @rule(clock=st.sampled_from([1000.0, 1005.0, 1030.0, 5000.0, 100.0]))
    def count_time(self, clock):
        self.both(lambda store: store.count_time(clock))


def run_machine(machine, examples, steps):
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=health
    )
    return machine.TestCase


def new_file(folder):
    """Get the URL of a new store; the files of earlier ones, 20 MB each, aren't needed any more."""
    for path in folder.iterdir():
        path.unlink()
    return f"sqlite:///{folder}/{next(numbers)}.db"


def test_random_operations_on_sqlite(tmp_path):
    class Sqlite(Comparison):
        def open(self):
            return open_store(new_file(tmp_path))

        def kept_blobs(self):
            return [blob for (blob,) in self.stores[1]._file.read("SELECT id FROM blobs ORDER BY id")]

    run_machine(Sqlite, 60, 25)("runTest").runTest()


class InTurn:
    """Stores of the same data, as several processes have them open, that take turns."""

    def __init__(self, *stores):
        self._stores = stores
        self._turns = cycle(stores)

    def __getattr__(self, name):
        return getattr(next(self._turns), name)

    def close(self):
        for store in self._stores:
            store.close()


def test_random_operations_on_a_sqlite_that_is_shared(tmp_path):
    class Shared(Comparison):
        def open(self):
            url = new_file(tmp_path)
            return InTurn(*(open_store(url, exclusive=False) for _ in range(2)))

        def kept_blobs(self):
            return [blob for (blob,) in self.stores[1]._file.read("SELECT id FROM blobs ORDER BY id")]

    run_machine(Shared, 30, 25)("runTest").runTest()


def test_random_operations_on_redis(redis_url):
    class Redis(Comparison):
        def open(self):
            return open_store(redis_server.emptied(redis_url))

        def kept_blobs(self):
            keys = (
                key.decode().removeprefix("toolpack:blob:") for key in self.stores[1]._redis._client.keys("*blob:*")
            )
            return sorted(key for key in keys if not key.startswith("recipe:"))

    run_machine(Redis, 15, 20)("runTest").runTest()


@pytest.mark.parametrize(
    "wrong", ["sqlite:", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///folder/", "x:"]
)
def test_wrong_urls_are_refused(wrong):
    with pytest.raises(SettingsError, match=r"use .*sqlite:///"):
        open_store(wrong)


def test_a_session_that_was_deleted_since_its_last_commit_is_not_committed_to(store, one):
    assert store.commit([commit(one, 0)]) == [True]
    delete(store, [one.id])
    assert store.commit([commit(one, 1)]) == [False]
    again = session(id=one.id)
    store.create([again], {}, {})
    assert store.commit([commit(again, 1)]) == [False]
    assert store.commit([commit(again, 0), commit(again, 1)]) == [True, True]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_fork_is_small(kind, tmp_path, request):
    url = (
        f"sqlite:///{tmp_path}/forks.db"
        if kind == "sqlite"
        else redis_server.emptied(request.getfixturevalue("redis_url"))
    )
    store = open_store(url)

    def size():
        if kind == "redis":
            return store._redis._client.info("memory")["used_memory"]
        return store._file.read("PRAGMA page_count")[0][0] * 4096

    recipe = b"x" * 110_000
    kept = session(recipe=recipe)
    store.create([kept], {"bank": "b"}, {"b": b"x" * 110_000})
    before = size()
    for _ in range(10):
        store.create([fork_of(kept, recipe=recipe) for _ in range(100)], {"bank": "b"}, {})
    assert (size() - before) / 1000 < {"sqlite": 500, "redis": 1200}[kind]
    store.close()
