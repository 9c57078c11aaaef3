"""Contract tests for expiry, lists, deletion and leases."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.stores.base import HELD_SECONDS, Head, Lease, SessionQuery, StoreClock
from toolpack_server.testing.store_contract.samples import (
    change,
    claim,
    commit,
    delete,
    delete_expired,
    existing,
    fork_of,
    record_id,
    session,
)


class TestExpiryAndListing:
    def test_renewed_session_expires_later(self, store):
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
    def test_gaps_between_clock_readings_do_not_count(self, store, jump):
        start = 10.0**9
        assert store.count_time(start) == StoreClock(start, 0.0)
        assert store.count_time(start + jump) == StoreClock(start, jump)
        for later in (0, 1, 9, 11, 40, 100, 101, 90, 31, 91):
            assert store.count_time(start + jump + later) == StoreClock(start + later, jump)
        assert store.count_time(start + 91) == StoreClock(start + 91, 0.0)  # the clock was corrected

    def test_count_time_without_argument_uses_shared_clock(self, store):
        assert abs(store.count_time().now - time.time()) < 10
        assert store.count_time().now <= store.count_time().now

    def test_expired_session_stays_while_busy(self, store):
        busy, expired = session(expires_at=20.0), session(expires_at=10.0)
        store.create([busy, expired], {}, {})
        assert list(delete_expired(store, 20.0, 10, {busy.id})) == [expired.id]
        assert list(delete_expired(store, 20.0 + HELD_SECONDS - 1, 10, {busy.id})) == []
        assert list(delete_expired(store, 20.0 + HELD_SECONDS, 10, {busy.id})) == [busy.id]

    def test_commit_during_expiry_renews_session_or_is_refused(self, store):
        delete_expired(store, 10.0, 1)
        for _ in range(20):
            sample = session(expires_at=20.0)
            store.create([sample], {}, {})
            start = threading.Barrier(2)

            def renew(sample=sample, start=start):
                start.wait()
                return store.commit([commit(sample, 0, expires_at=1000.0)])

            with ThreadPoolExecutor(1) as pool:
                renewed = pool.submit(renew)
                start.wait()
                expired = delete_expired(store, 20.0, 1000)
                assert renewed.result() == [not expired] == [store.get(sample.id) is not None]

    def test_list_filters_by_owner_and_labels_in_id_order(self, store):
        many = [session(owner=("alice", "bob")[n % 2], labels={"n": str(n % 3), "x": '"n":"0"'}) for n in range(30)]
        store.create(many[::-1], {}, {})
        store.commit([commit(many[3], 0)])

        def listed(*arguments):
            return [each.id for each, _ in store.list(SessionQuery(*arguments))]

        ids = [each.id for each in many]
        assert store.list(SessionQuery(None, {}, "", 100)) == [(each, int(each is many[3])) for each in many]
        assert listed(None, {}, ids[4], 3) == ids[5:8]
        assert listed("alice", {}, "", 100) == ids[::2]
        assert listed("bob", {"n": "0"}, "", 2) == ids[3:10:6]
        assert listed("bob", {"n": "0", "x": '"n":"0"'}, ids[3], 100) == ids[9::6]
        assert listed("bob", {"n": "0", "other": ""}, "", 100) == []
        assert listed("nobody", {}, "", 100) == []
        assert listed(None, {}, "", 0) == []

    def test_list_finds_label_after_many_sessions_without_it(self, store):
        store.create([session() for _ in range(450)], {}, {})
        last = session(labels={"run": "2"})
        store.create([last], {}, {})
        assert store.list(SessionQuery(None, {"run": "2"}, "", 1)) == [(last, 0)]

    def test_list_newest_first(self, store):
        # Forks that are created together have the same creation time.
        many = [session(owner=("alice", "bob")[n % 2], created_at=1000.5 + n // 5) for n in range(30)]
        store.create(many[::-1], {}, {})
        store.commit([commit(many[3], 0)])

        def listed(*arguments):
            return [each.id for each, _ in store.list(SessionQuery(*arguments, newest_first=True))]

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

    def test_list_of_forks_in_both_orders(self, store):
        root = session()
        forks = [fork_of(root, 1, created_at=1000.5 + n // 2, labels={"n": str(n % 2)}) for n in range(9)]
        others = [fork_of(forks[0]), fork_of(root, owner="bob")]
        store.create([root], {}, {})
        store.create(forks[::-1], {}, {})
        store.create(others[:1], {}, {})
        store.create(others[1:], {}, {})

        def listed(*arguments, **more):
            return [each.id for each, _ in store.list(SessionQuery(*arguments, **{"parent": root.id, **more}))]

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

    def test_count_of_owner_and_of_all(self, store):
        store.create([session(owner=owner) for owner in ("", "bob", "bob")], {}, {})
        assert [store.count(), store.count(""), store.count("bob"), store.count("carol")] == [3, 1, 2, 0]


class TestDelete:
    def test_delete_removes_all_data(self, store, one):
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
        if hasattr(store, "release"):
            store.release(one.id, "worker", 0)
        assert store.get(one.id) is None
        assert delete(store, []) == delete(store, [one.id]) == []

    def test_reused_id_starts_empty(self, store, one):
        store.commit([change(one, 0, "b1", call_id="c")])
        claim(store, one, "worker")
        delete(store, [one.id])
        again = replace(one, recipe=b"another")
        store.create([again], {"bank": "b0"}, {"b0": b"new"})
        assert store.get(one.id) == (again, Head(-1, 0, {"bank": "b0"}, 0))
        assert store.commit([change(again, 0, "b1", call_id="c")]) == [True]

    def test_many_sessions_with_long_histories_are_deleted(self, store, one):
        many = [session() for _ in range(250)]
        store.create(many, {"bank": "b0"}, {})
        store.commit([commit(many[0], index) for index in range(450)])
        store.commit([change(each, index, f"{each.id}-{index}") for each in many[1:] for index in range(2)])
        assert sorted(delete(store, [each.id for each in many])) == sorted(each.id for each in many)
        assert store.count() == 1
        assert existing(store, "b0", *(f"{each.id}-1" for each in many)) == ["b0"]
        assert store.get(one.id)[0] == one

    def test_shared_blobs_stay_until_last_session_is_deleted(self, store):
        first, second = session(recipe=b"x" * 1000), session(recipe=b"x" * 1000)
        store.create([first, second], {"bank": "b"}, {"b": b"x"})
        delete(store, [first.id])
        assert store.get(second.id) == (second, Head(-1, 0, {"bank": "b"}, 0))
        assert existing(store, "b") == ["b"]


class TestLeases:
    @pytest.fixture(autouse=True)
    def leased(self, store):
        if not hasattr(store, "claim"):
            pytest.skip("a store of one process has no leases")

    def test_lease_has_one_holder(self, store, one):
        assert claim(store, one, "w1") == Head(-1, 0, {"bank": "b0", "mail": "m0"}, 1)
        assert claim(store, one, "w2") == Lease("w1", 0)
        assert claim(store, one, "w1").epoch == 2
        assert store.get(one.id)[1].epoch == 2

    def test_claim_of_several_leases_is_one_step(self, store, one):
        two, three = session(), session()
        store.create([two, three], {"bank": "b0"}, {"b0": b"0"})
        claim(store, two, "w2")
        ids = [three.id, "gone", two.id, one.id]
        parts = {"bank": "b0", "mail": "m0"}
        assert store.claim(ids, "w1") == [Head(-1, 0, {"bank": "b0"}, 1), None, Lease("w2", 0), Head(-1, 0, parts, 1)]
        assert [head.epoch for head in store.claim([two.id, one.id], "w1", {Lease("w2", 0), Lease("w3", 1)})] == [2, 2]
        assert store.claim([], "w1") == []

    def test_commit_needs_current_epoch(self, store, one):
        claim(store, one, "w1")
        assert store.commit([commit(one, 0)]) == [False]
        assert store.commit([commit(one, 0, epoch=2)]) == [False]
        assert store.commit([commit(one, 0, epoch=1)]) == [True]
        assert claim(store, one, "w2") == Lease("w1", 0)

    def test_lease_is_released_with_or_without_commit(self, store, one):
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

    def test_batch_renews_and_releases_each_session_separately(self, store, one):
        two, three = session(), session()
        store.create([two, three], {"bank": "b0"}, {})
        all_three = (one, two, three)
        for each in all_three:
            claim(store, each, "w1")
        batch = [
            change(one, 0, "x", epoch=1, expires_at=3000.5),
            change(two, 0, "y", epoch=1, release=True),
            change(one, 1, "z", epoch=1, release=True),
            change(three, 0, "w", epoch=1, expires_at=4000.5),
        ]
        assert store.commit(batch) == [True] * 4
        assert [store.get(each.id)[0].expires_at for each in all_three] == [3000.5, two.expires_at, 4000.5]
        answers = [claim(store, each, "w2") for each in all_three]
        assert [getattr(each, "epoch", None) for each in answers] == [2, 2, None]
        assert answers[2] == Lease("w1", 0)

    def test_refused_commit_does_not_release_lease(self, store, one):
        claim(store, one, "w1")
        assert store.commit([commit(one, 5, epoch=1, release=True)]) == [False]
        assert claim(store, one, "w2") == Lease("w1", 0)

    def test_watcher_of_dead_holder_acquires_its_lease(self, store, one):
        claim(store, one, "w1")
        store.heartbeat("w1")
        store.heartbeat("w1")
        lease = claim(store, one, "w2")
        assert lease == Lease("w1", 2)
        store.heartbeat("w1")
        assert claim(store, one, "w2", lease) == Lease("w1", 3)
        assert claim(store, one, "w2", Lease("w3", 3)) == Lease("w1", 3)
        assert claim(store, one, "w2", Lease("w1", 3)).epoch == 2
        assert store.commit([commit(one, 0, epoch=1)]) == [False]
        assert claim(store, one, "w1") == Lease("w2", 0)

    @pytest.mark.parametrize("heartbeats", [0, 2])
    def test_leases_of_ended_holder_are_free(self, store, one, heartbeats):
        claim(store, one, "w1")
        for _ in range(heartbeats):
            store.heartbeat("w1")
        for _ in range(2):
            store.holder_ended("w1")
        store.holder_ended("w3")
        assert claim(store, one, "w2").epoch == 2
        assert claim(store, one, "w4") == Lease("w2", 0)

    def test_expired_session_stays_while_live_worker_holds_lease(self, store):
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

    def test_heartbeat_returns_sessions_that_others_ask_for(self, store, one):
        assert not store.heartbeat("w1")
        store.ask(one.id, "w1")
        store.ask(one.id, "w1")
        store.ask("s2", "w1")
        assert not store.heartbeat("w2")
        assert set(store.heartbeat("w1")) == {one.id, "s2"}
        assert not store.heartbeat("w1")

    def test_concurrent_claims_have_one_holder(self, store, one):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda worker: claim(store, one, f"w{worker}"), range(8)))
        assert sum(isinstance(answer, Head) for answer in answers) == 1


class TestLifetime:
    def test_ping_raises_nothing(self, store):
        store.ping()

    def test_store_can_be_closed_twice_and_reopened(self, new_store):
        opener = new_store()
        store, sample = opener(), session()
        store.create([sample], {"bank": "b0"}, {"b0": b"bank 0"})
        store.commit([change(sample, 0, "b1")])
        before = store.get(sample.id)
        store.close()
        store.close()
        with contextlib.closing(opener()) as again:
            assert again.get(sample.id) in (None, before)  # a store is allowed to lose its data when it is closed
