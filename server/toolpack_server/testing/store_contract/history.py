"""Contract tests for records, versions, counted bytes and trimming."""

from dataclasses import replace

import pytest

from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError, VersionNotRetainedError
from toolpack_server.stores.base import ForkPoint, History
from toolpack_server.testing.store_contract.samples import (
    change,
    commit,
    delete,
    existing,
    session,
)


class TestHistory:
    def test_each_version_has_its_parts(self, store, one):
        store.commit([change(one, 0, "b1"), commit(one, 1, version=1), change(one, 2, "m2", part="mail", version=2)])
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}
        assert store.parts_at(one.id, 1) == {"bank": "b1", "mail": "m0"}
        assert store.parts_at(one.id, 2) == {"bank": "b1", "mail": "m2"}

    def test_parts_of_unknown_version_or_session_are_errors(self, store, one):
        with pytest.raises(VersionNotRetainedError):
            store.parts_at(one.id, 1)
        with pytest.raises(VersionNotRetainedError):
            store.parts_at(one.id, -1)
        with pytest.raises(SessionNotFoundError):
            store.parts_at("gone", 0)

    @pytest.mark.parametrize(("versions", "kept_versions"), [(0, 99), (6, 99), (6, 2), (6, 0)])
    def test_create_with_history_copies_versions_and_records(self, store, versions, kept_versions):
        grown = session(owner="grown")
        store.create([grown], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0"})
        for index in range(versions):
            part = "bank" if index % 2 else "mail"
            call_id = f"c{index}" if index < 3 else None
            assert store.commit([change(grown, index, f"blob {index}", part=part, call_id=call_id)]) == [True]
        if versions:
            assert store.commit([commit(grown, versions, version=versions)]) == [True]
        store.trim(grown.id, kept_versions, 10**6)
        head = store.get(grown.id)[1]
        oldest = max(1, versions - kept_versions)
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
        moved_head = store.get(moved.id)[1]
        assert moved_head == replace(head, parts=renamed(head.parts))
        assert moved_head.size == pytest.approx(head.size, abs=100)
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
        next_one = commit(moved, len(records), version=versions + 1, after=moved_head.last)
        assert store.commit([next_one]) == [True]
        assert store.get(moved.id)[1].version == versions + 1
        store.trim(moved.id, 0, 0)
        delete(store, [moved.id])
        assert store.stored_bytes("moved") == 0
        with pytest.raises(MissingBlobError):
            store.blobs(["new b0"])

    def test_records_are_returned_in_order(self, store, one):
        batch = [commit(one, index, call_id=f"c{index}" if index % 2 else None) for index in range(7)]
        store.commit(batch)
        records = [each.record for each in batch]
        assert store.records(one.id, -1, 100) == records
        assert store.records(one.id, 2, 3) == records[3:6]
        assert store.records(one.id, 6, 3) == []
        assert store.records(one.id, -5, 2) == records[:2]
        assert store.records(one.id, -1, 0) == []
        assert store.records("gone", -1, 10) == []
        assert store.record_of_call(one.id, "c3") == records[3]
        assert store.record_of_call(one.id, "c2") is None
        assert store.record_of_call("gone", "c3") is None

    def test_records_stop_before_max_bytes(self, store, one):
        store.commit([commit(one, index, body=b"x" * 1000) for index in range(40)])

        def counted(after, limit, max_bytes):
            records = store.records(one.id, after, limit, max_bytes)
            assert [record.index for record in records] == list(range(after + 1, after + 1 + len(records)))
            return len(records)

        assert [counted(-1, 100, max_bytes) for max_bytes in (0, 999, 1000, 1999, 2000, 30_999)] == [1, 1, 1, 1, 2, 30]
        assert counted(-1, 100, 10**6) == 40
        assert counted(37, 100, 10**6) == 2
        assert counted(10, 3, 10**6) == 3
        assert counted(39, 3, 10) == 0

    @pytest.mark.parametrize("owner", ["", "ann", 'a"n', "a\\n", '"', '","', "\\", "añ€\U0001f600", "a\nn", "a]["])
    def test_commit_counts_bytes_for_any_owner_name(self, store, owner):
        sample = session(owner=owner, agent_key=f"key of {owner}")
        store.create([sample], {}, {})
        before = store.stored_bytes(owner)
        blobs = {"b": b"b" * 2000, "c": b"c" * 500}
        store.commit([commit(sample, 0, body=b"x" * 1000, parts={"x": "b", "y": "b", "z": "c"}, blobs=blobs)])
        assert store.stored_bytes(owner) - before == pytest.approx(3500, abs=60)
        delete(store, [sample.id])
        assert store.stored_bytes(owner) == 0

    def test_stored_bytes_counts_shared_data_once(self, store):
        assert store.stored_bytes("ann") == 0
        recipe = b"r" * 10_000
        sample = session(owner="ann", recipe=recipe, labels={"label": "l" * 5_000})
        store.create([sample], {"bank": "b"}, {"b": b"b" * 20_000})
        approx = pytest.approx
        assert store.stored_bytes("ann") == approx(35_000, abs=300)
        assert store.get(sample.id)[1].size < 6_000
        fork = session(owner="ann", recipe=recipe, parent=ForkPoint(sample.id, 0))
        store.create([fork], {"bank": "b"}, {})
        assert store.stored_bytes("ann") == approx(35_000, abs=600)
        for index in range(5):
            store.commit(
                [
                    commit(
                        sample, index, body=b"x" * 7_000, parts={"bank": f"v{index}"}, blobs={f"v{index}": b"v" * 1_000}
                    ),
                    commit(fork, index, body=b"x" * 100),
                ]
            )
        assert store.stored_bytes("ann") == approx(75_500, abs=1_500)
        size = store.get(sample.id)[1].size
        assert size == approx(42_500, abs=2_900)  # with or without the labels
        store.trim(sample.id, 0, 0)
        assert store.stored_bytes("ann") == approx(71_500, abs=1_500)
        assert size - store.get(sample.id)[1].size == approx(4_000, abs=100)
        assert store.stored_bytes("") == 0
        delete(store, [sample.id])
        assert store.stored_bytes("ann") == approx(35_800, abs=1_500)  # the data that the fork needs stays
        delete(store, [fork.id])
        assert store.stored_bytes("ann") == 0

    def test_trim_keeps_first_current_and_newest_versions(self, store, one):
        store.commit([change(one, index, f"b{index + 1}") for index in range(9)])
        store.trim(one.id, 3, 10**6)
        assert existing(store, *(f"b{number}" for number in range(10))) == ["b0", "b6", "b7", "b8", "b9"]
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}
        assert store.parts_at(one.id, 6) == {"bank": "b6", "mail": "m0"}
        with pytest.raises(VersionNotRetainedError) as refused:
            store.parts_at(one.id, 5)
        assert refused.value.oldest == 6
        assert len(store.records(one.id, -1, 100)) == 9

    def test_trim_keeps_part_that_older_version_wrote(self, store, one):
        store.commit(
            [change(one, 0, "m1", part="mail"), *(change(one, index, f"b{index + 1}") for index in range(1, 6))]
        )
        store.trim(one.id, 1, 10**6)
        assert store.parts_at(one.id, 5) == {"bank": "b5", "mail": "m1"}
        assert store.get(one.id)[1].parts == {"bank": "b6", "mail": "m1"}
        assert existing(store, "b2", "b3", "b4", "m1") == ["m1"]

    def test_trim_counts_only_bytes_of_blobs_for_old_versions(self, store, one):
        def sized(index, blob, size):
            return commit(one, index, parts={"bank": blob}, blobs={blob: b"x" * size})

        back = commit(one, 5, parts={"bank": "big"})
        store.commit(
            [sized(0, "old", 10), sized(1, "big", 500), sized(2, "a", 60), sized(3, "b", 40), sized(4, "c", 1)]
        )
        # The current version has the content of version 2, so the blob of version 2 doesn't count as history.
        store.commit([back])
        store.trim(one.id, 100, 101)
        assert store.parts_at(one.id, 2) == {"bank": "big", "mail": "m0"}
        with pytest.raises(VersionNotRetainedError) as refused:
            store.parts_at(one.id, 1)
        assert refused.value.oldest == 2
        store.trim(one.id, 100, 100)
        assert existing(store, "old", "big", "a", "b", "c") == ["big", "b", "c"]

    def test_trim_without_old_versions_does_nothing(self, store, one):
        store.trim(one.id, 0, 0)
        store.trim("gone", 0, 0)
        assert store.parts_at(one.id, 0) == {"bank": "b0", "mail": "m0"}

    def test_blobs_of_trimmed_version_stay_for_forks(self, store, one):
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

    def test_records_at_returns_exactly_the_given_ranges(self, store, one):
        other = session()
        store.create([other], {}, {})
        store.commit([commit(sample, index) for sample in (one, other) for index in range(6)])
        ranges = [(one.id, range(1, 3)), (other.id, range(4, 9)), (one.id, range(5, 5)), ("gone", range(3))]
        ranges += [(other.id, range(1)), (one.id, range(6, 8))]
        indexes = [[record.index for record in each] for each in store.records_at(ranges)]
        assert indexes == [[1, 2], [4, 5], [], [], [0], []]
