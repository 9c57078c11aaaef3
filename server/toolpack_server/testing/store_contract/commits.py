"""Contract tests for creation and commits, and for deleted sessions that are kept for their forks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError, VersionNotRetainedError
from toolpack_server.stores.base import Head, SessionQuery
from toolpack_server.testing.store_contract.samples import (
    ancestor,
    change,
    claim,
    commit,
    delete,
    delete_expired,
    existing,
    fork_of,
    is_fully_deleted,
    record_id,
    session,
)


class TestCreate:
    def test_session_is_stored_unchanged(self, store):
        sample = session(
            recipe=bytes(range(256)),
            details=b"\n\0\n\xff",
            labels={"a": "1", 'quote"': "\\ \n"},
            owner="bob ü",
        )
        store.create([sample], {"bank": "b"}, {"b": b"\0\xff\n"})
        assert store.get(sample.id) == (sample, Head(-1, 0, {"bank": "b"}, 0))
        assert store.blobs(["b"]) == {"b": b"\0\xff\n"}

    def test_sessions_created_together_may_differ_in_recipe(self, store):
        sessions = [session(recipe=recipe) for recipe in (b"", b"one", b"other", b"one")]
        store.create(sessions, {}, {})
        assert [store.get(each.id)[0] for each in sessions] == sessions

    def test_session_may_have_no_parts(self, store):
        sample = session()
        store.create([sample], {}, {})
        assert store.get(sample.id) == (sample, Head(-1, 0, {}, 0))
        assert store.parts_at(sample.id, 0) == {}
        assert store.commit([commit(sample, 0)]) == [True]
        store.trim(sample.id, 0, 0)
        assert store.get(sample.id)[1] == Head(0, 1, {}, 0, record_id(sample, 0))

    def test_sessions_created_together_have_same_parts(self, store):
        many = [session() for _ in range(50)]
        store.create(many, {"bank": "b", "mail": "b"}, {"b": b"x"})
        assert all(store.get(each.id) == (each, Head(-1, 0, {"bank": "b", "mail": "b"}, 0)) for each in many)
        assert store.commit([change(many[0], 0, "b1")]) == [True]
        assert store.get(many[1].id)[1].parts["bank"] == "b"

    def test_fork_refers_to_existing_blobs(self, store, one):
        fork = fork_of(one, 3, 5)
        store.create([fork], {"bank": "b0"}, {})
        assert store.get(fork.id)[0] == ancestor(store, fork) == fork
        assert store.get(fork.id)[1].parts == {"bank": "b0"}

    def test_existing_blob_is_left_unchanged(self, store, one):
        store.create([fork_of(one)], {"bank": "b0"}, {"b0": b"other"})
        assert store.blobs(["b0"]) == {"b0": b"bank 0"}

    def test_create_with_missing_blob_adds_nothing(self, store):
        first, second = session(), session()
        with pytest.raises(MissingBlobError):
            store.create([first, second], {"bank": "b", "mail": "gone"}, {"b": b"x"})
        assert store.get(first.id) is None
        assert store.count() == 0
        assert existing(store, "b") == []

    def test_existing_session_is_left_unchanged(self, store, one):
        store.commit([change(one, 0, "b1")])
        store.create([one], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0", "new": b"x"})
        assert store.get(one.id)[1] == Head(0, 1, {"bank": "b1", "mail": "m0"}, 0, record_id(one, 0))
        assert store.count() == store.count("alice") == 1
        delete(store, [one.id])
        assert existing(store, "b0", "m0", "b1", "new") == []

    def test_unreferenced_blob_is_not_stored(self, store):
        store.create([session()], {"bank": "b"}, {"b": b"x", "other": b"y"})
        store.create([], {"bank": "c"}, {"c": b"x"})
        assert existing(store, "b", "other", "c") == ["b"]


class TestKept:
    """Deleted sessions that are kept for their forks."""

    def test_deleted_session_is_visible_only_to_its_forks(self, store, one):
        store.commit([change(one, index, f"v{index}", call_id="c" if index == 1 else None) for index in range(4)])
        fork = fork_of(one, 2, 1)
        store.create([fork], store.parts_at(one.id, 2), {})
        records = store.records(one.id, -1, 10)
        assert delete(store, [one.id, "unknown"]) == [one.id]
        assert delete(store, [one.id]) == []
        assert store.count("alice") == 1
        assert (store.get(one.id), store.find_agent(one.agent_key), claim(store, one, "w")) == (None, None, None)
        assert [each.id for each, _ in store.list(SessionQuery(None, {}, "", 10))] == [fork.id]
        assert [each.id for each, _ in store.list(SessionQuery("alice", {}, "", 10, newest_first=True))] == [fork.id]
        assert [each.id for each, _ in store.list(SessionQuery("alice", {}, "", 10, parent=one.id))] == [fork.id]
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

    def test_kept_session_and_ancestors_go_with_last_fork(self, store, one):
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
        assert is_fully_deleted(store, child)
        assert is_fully_deleted(store, one)
        assert existing(store, "b0", "b1", "b2") == []
        assert store.stored_bytes("alice") == 0

    def test_session_outlives_its_forks(self, store, one):
        store.commit([commit(one, 0)])
        child = fork_of(one, 1, 0)
        store.create([child], {}, {})
        grandchild = fork_of(child)
        store.create([grandchild], {}, {})
        delete(store, [child.id])
        delete(store, [grandchild.id])
        assert is_fully_deleted(store, child)
        assert store.get(one.id)[1].index == 0
        delete(store, [one.id])
        assert is_fully_deleted(store, one)

    def test_expired_session_is_kept_for_its_forks(self, store):
        short = session(expires_at=1000.0)
        store.create([short], {"bank": "b"}, {"b": b"b"})
        fork = fork_of(short, expires_at=1520.0)
        store.create([fork], {"bank": "b"}, {})
        assert list(delete_expired(store, 1500.0, 10)) == [short.id]
        assert list(delete_expired(store, 1500.0, 10)) == []
        assert store.get(short.id) is None
        assert store.parts_at(short.id, 0) == {"bank": "b"}
        assert list(delete_expired(store, 1530.0, 10)) == [fork.id]
        assert is_fully_deleted(store, short)
        assert store.stored_bytes("alice") == 0

    def test_kept_session_counts_bytes_for_its_owner(self, store, one):
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

    def test_id_of_kept_session_stays_taken(self, store, one):
        fork = fork_of(one)
        store.create([fork], {}, {})
        delete(store, [one.id])
        store.create([one], {"bank": "again"}, {"again": b"x"})
        assert store.get(one.id) is None
        assert existing(store, "again") == []
        delete(store, [fork.id])
        store.create([one], {"bank": "again"}, {"again": b"x"})
        assert store.get(one.id)[1] == Head(-1, 0, {"bank": "again"})

    def test_fork_of_missing_session_is_refused(self, store, one):
        fork = fork_of(one)
        store.create([fork], {"bank": "b0"}, {})
        delete(store, [one.id])
        store.create([fork], {"bank": "b0"}, {})  # sent again
        for sample in (one, session()):
            with pytest.raises(SessionNotFoundError):
                store.create([fork, fork_of(sample)], {"bank": "new"}, {"new": b"x"})
        assert store.count() == 1
        assert existing(store, "new") == []

    def test_long_chain_of_ancestors_is_deleted_at_once(self, store):
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
        assert all(is_fully_deleted(store, sample) for sample in line)
        assert store.stored_bytes("alice") == 0


class TestGet:
    def test_unknown_ids_and_keys_are_none(self, store, one):
        assert store.get("unknown") is None
        assert store.find_agent("unknown") is None
        assert store.find_agent(one.agent_key) == one.id

    def test_expired_session_can_still_be_read(self, store):
        sample = session(expires_at=0.0)
        store.create([sample], {}, {})
        assert store.get(sample.id)[0] == sample

    @pytest.mark.usefixtures("one")
    def test_blobs_are_returned_by_id(self, store):
        assert store.blobs(["m0", "b0", "m0"]) == {"b0": b"bank 0", "m0": b"mail 0"}
        assert store.blobs([]) == {}
        with pytest.raises(MissingBlobError):
            store.blobs(["b0", "gone"])


class TestCommit:
    def test_commit_updates_head(self, store, one):
        first = commit(
            one, 0, call_id="c", body=b"{\n}\0", parts={"bank": "b1"}, blobs={"b1": b"bank 1"}, expires_at=3000.125
        )
        assert store.commit([first]) == [True]
        assert store.get(one.id) == (
            replace(one, expires_at=3000.125),
            Head(0, 1, {"bank": "b1", "mail": "m0"}, 0, record_id(one, 0)),
        )
        assert store.records(one.id, -1, 10) == [first.record]
        assert store.blobs(["b1"]) == {"b1": b"bank 1"}

    def test_version_may_stay_or_grow_without_changed_part(self, store, one):
        assert store.commit([commit(one, 0, version=0), commit(one, 1, version=1)]) == [True, True]
        assert store.get(one.id) == (one, Head(1, 1, {"bank": "b0", "mail": "m0"}, 0, record_id(one, 1)))
        assert store.parts_at(one.id, 1) == {"bank": "b0", "mail": "m0"}

    def test_batch_is_stored_in_order(self, store, one):
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
    def test_refused_commit_changes_nothing_and_affects_no_other(self, store, one, refused):
        other = session()
        store.create([other], {"bank": "b0"}, {})
        assert store.commit([change(one, 0, "first", call_id="c")]) == [True]
        before = store.get(one.id), store.records(one.id, -1, 10)
        bad = refused(one)._replace(expires_at=9999.0)
        batch = [change(other, 0, "o1"), bad, change(other, 1, "o2")]
        assert store.commit(batch) == [True, False, True]
        assert (store.get(one.id), store.records(one.id, -1, 10)) == before
        assert existing(store, "new", "o1", "o2") == ["o1", "o2"]

    def test_commit_needs_id_of_last_record(self, store, one):
        assert store.commit([change(one, 0, "first", after="another")]) == [False]
        assert store.commit([change(one, 0, "first")]) == [True]
        assert store.get(one.id)[1].last == record_id(one, 0)
        other = change(one, 1, "new")
        assert store.commit([other._replace(after="another")]) == [False]
        assert store.commit([other._replace(after="another"), other]) == [False, True]
        assert store.commit([other._replace(record=replace(other.record, id="another"))]) == [False]
        assert [record.id for record in store.records(one.id, -1, 9)] == [record_id(one, 0), record_id(one, 1)]

    def test_commit_needs_lease_holder(self, store, one):
        claim(store, one, "w1")
        assert store.commit([change(one, 0, "b1", epoch=1, holder="w2")]) == [False]
        batch = [change(one, 0, "b1", epoch=1, holder="w1"), change(one, 1, "b2", epoch=1, holder="w1", release=True)]
        assert store.commit(batch) == [True, True]
        assert store.commit(batch) == [True, True]
        assert store.commit([change(one, 2, "b3", epoch=1, holder="w1")]) == [False]

    def test_commits_that_follow_refused_one_are_refused(self, store, one):
        batch = [change(one, 0, "x", epoch=3), change(one, 1, "y"), commit(one, 2, parts={"bank": "x"})]
        assert store.commit(batch) == [False, False, False]
        assert store.get(one.id)[1].index == -1

    def test_same_call_id_in_two_sessions_is_two_calls(self, store, one):
        other = session()
        store.create([other], {}, {})
        assert store.commit([commit(one, 0, call_id="c"), commit(other, 0, call_id="c")]) == [True, True]

    def test_repeated_commit_is_stored_once(self, store, one):
        batch = [change(one, 0, "b1", call_id="c", expires_at=3000.0), change(one, 1, "b2")]
        assert store.commit(batch) == [True, True]
        store.renew(one.id, 4000.0)
        before = store.get(one.id)
        assert store.commit(batch) == [True, True]
        assert store.commit([batch[1], batch[0]]) == [True, True]
        assert store.get(one.id) == before
        delete(store, [one.id])
        assert existing(store, "b0", "b1", "b2") == []

    def test_repeated_commit_succeeds_with_old_epoch_and_no_blobs(self, store, one):
        batch = [change(one, index, f"b{index + 1}") for index in range(3)]
        store.commit(batch)
        claim(store, one, "worker")
        store.trim(one.id, 0, 0)
        again = [each._replace(blobs={}) for each in batch]
        assert store.commit(again) == [True] * 3
        assert existing(store, "b1", "b2") == []

    @pytest.mark.parametrize("other", [{"body": b"[]"}, {"call_id": "d"}, {"call_id": None}, {"version": 0}])
    def test_other_record_at_same_index_is_refused(self, store, one, other):
        assert store.commit([commit(one, 0, call_id="c")]) == [True]
        assert store.commit([commit(one, 0, **{"call_id": "c", **other})]) == [False]

    def test_empty_batch_does_nothing(self, store):
        assert store.commit([]) == []

    def test_concurrent_commits_have_one_winner_per_index(self, store, one):
        rounds, workers = 25, 4
        start = threading.Barrier(workers)

        def work(worker):
            indexes = []
            start.wait()
            for _ in range(rounds):
                index = store.get(one.id)[1].index + 1
                blob = f"w{worker}-{index}"
                if store.commit([change(one, index, blob, body=blob.encode())]) == [True]:
                    indexes.append(index)
            return indexes

        with ThreadPoolExecutor(workers) as pool:
            indexes = sorted(index for worker_indexes in pool.map(work, range(workers)) for index in worker_indexes)
        assert indexes == list(range(len(indexes)))
        assert len(indexes) >= rounds
        records = store.records(one.id, -1, 1000)
        assert [record.index for record in records] == indexes
        assert store.get(one.id)[1].parts["bank"] == records[-1].body.decode()

    def test_concurrent_commits_to_different_sessions_succeed(self, store):
        mine = [session() for _ in range(4)]
        store.create(mine, {"bank": "b"}, {"b": b"x"})

        def work(sample):
            outcomes = [store.commit([change(sample, index, f"{sample.id}-{index}")]) for index in range(25)]
            return outcomes == [[True]] * 25

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, mine))


def test_commit_to_session_deleted_since_last_one_is_refused(store, one):
    assert store.commit([commit(one, 0)]) == [True]
    delete(store, [one.id])
    assert store.commit([commit(one, 1)]) == [False]
    again = session(id=one.id)
    store.create([again], {}, {})
    assert store.commit([commit(again, 1)]) == [False]
    assert store.commit([commit(again, 0), commit(again, 1)]) == [True, True]
