"""Blobs in an object store: no fault between the upload of an object and its commit loses or damages a version."""

import contextlib
import os
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis_server
from command_line import invoke
from serving import KEY, Bench, open_store, refused, wait_until

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import MissingBlobError, OverloadedError, SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.stores.blobs import bucket
from toolpack_server.features.stores.blobs.bucket import Bucket
from toolpack_server.features.stores.blobs.feature import outside
from toolpack_server.features.stores.blobs.settings import BlobsSettings
from toolpack_server.features.stores.blobs.store import UNNAMED_SECONDS, opened
from toolpack_server.stores.blob_stubs import MARK, name_of
from toolpack_server.stores.memory import MemoryStore
from toolpack_server.testing.store_contract.samples import change, commit, fork_of, session

LARGE = 1000


@pytest.fixture
def inner():
    return MemoryStore()


@pytest.fixture
def store(inner, tmp_path):
    with contextlib.closing(opened(inner, f"file://{tmp_path}/blobs", LARGE)) as store:
        yield store


@pytest.fixture
def stored_session(store):
    stored = session()
    store.create([stored], {"bank": "b0", "mail": "m0"}, {"b0": b"b" * LARGE, "m0": b"small"})
    return stored


def large(stored, index, blob, **members):
    return commit(stored, index, parts={"bank": blob}, blobs={blob: blob.encode() * LARGE}, **members)


def test_large_blobs_are_objects_and_small_ones_rows(store, inner, stored_session):
    assert store.commit([large(stored_session, 0, "b1"), change(stored_session, 1, "m1", part="mail")]) == [True, True]
    assert [name_of(inner.blobs([blob])[blob]) is None for blob in ("b0", "b1", "m0", "m1")] == [
        False,
        False,
        True,
        True,
    ]
    assert len(store.listed()) == 2
    assert store.blobs(["b0", "b1", "m0"]) == {"b0": b"b" * LARGE, "b1": b"b1" * LARGE, "m0": b"small"}


def test_sizes_are_those_of_the_blobs(store, stored_session):
    before = store.stored_bytes("alice")
    store.commit([large(stored_session, 0, "b1")])
    assert store.stored_bytes("alice") - before == store.get(stored_session.id)[1].size == 2 * LARGE + 2
    store.commit([large(stored_session, 1, "b2"), large(stored_session, 2, "b3")])
    store.trim(stored_session.id, 100, 2 * LARGE)
    assert store.parts_at(stored_session.id, 2)
    store.trim(stored_session.id, 100, 2 * LARGE - 1)
    with pytest.raises(MissingBlobError):
        store.blobs(["b2"])


def test_small_blob_that_looks_like_a_stub_is_read_unchanged(store, stored_session):
    forged = MARK + b"%016d:b0/b0.00" % LARGE
    store.commit([commit(stored_session, 0, parts={"mail": "forged"}, blobs={"forged": forged})])
    assert store.blobs(["forged"]) == {"forged": forged}


def test_object_is_deleted_after_its_last_reference(store, stored_session):
    store.commit([large(stored_session, 0, "b1"), large(stored_session, 1, "b2")])
    fork = fork_of(stored_session, 2, 1)
    store.create([fork], store.parts_at(stored_session.id, 2), {})
    store.trim(stored_session.id, 0, 0)
    wait_until(lambda: store.clean_up() or len(store.listed()) == 2)  # b0 and b2 remain
    store.delete([stored_session.id])
    store.clean_up()
    assert store.blobs(["b2"])
    store.delete([fork.id])
    wait_until(lambda: store.clean_up() or store.listed() == [])


@pytest.mark.usefixtures("stored_session")
def test_existing_blob_is_not_written_again(store):
    other = session()
    store.create([other], {"bank": "b0"}, {"b0": b"b" * LARGE})
    assert store.commit([commit(other, 0, parts={"bank": "b0"}, blobs={"b0": b"b" * LARGE})]) == [True]
    assert len(store.listed()) == 1


def test_commit_uses_an_object_that_was_uploaded_before(store, stored_session, monkeypatch):
    store.upload_before_commit({"b1": b"b1" * LARGE, "s1": b"small"})
    monkeypatch.setattr(Bucket, "put", None)
    assert store.commit([large(stored_session, 0, "b1")]) == [True]
    assert len(store.listed()) == 2


def fail(*_, **__):
    raise OverloadedError("as told")


def test_failed_upload_commits_nothing(store, stored_session, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "put", fail)
        with pytest.raises(OverloadedError):
            store.commit([large(stored_session, 0, "b1")])
        assert store.commit([change(stored_session, 0, "m1", part="mail")]) == [True]  # A small blob needs no object.
    assert store.commit([large(stored_session, 1, "b1")]) == [True]


@pytest.mark.parametrize("when", ["before", "after"])
def test_failed_commit_may_be_repeated(store, inner, stored_session, when, monkeypatch):
    def commit_and_fail(commits):
        if when == "after":
            assert MemoryStore.commit(inner, commits) == [True]
        raise OverloadedError("as told")

    with monkeypatch.context() as patched:
        patched.setattr(inner, "commit", commit_and_fail)
        with pytest.raises(OverloadedError):
            store.commit([large(stored_session, 0, "b1")])
    assert store.commit([large(stored_session, 0, "b1")]) == [True]
    assert store.blobs(["b1"]) == {"b1": b"b1" * LARGE}


@pytest.mark.parametrize("step", ["commit", "create"])
def test_blob_deleted_before_its_reuse_is_written_again(store, inner, stored_session, step, monkeypatch):
    other = session()
    store.create([other], {"bank": "x0"}, {"x0": b"x" * LARGE})
    do = getattr(MemoryStore, step)
    lost_names = []

    def lose(*arguments):
        if not lost_names:
            lost_names.append(MemoryStore.delete(inner, [stored_session.id]))
        return do(inner, *arguments)

    monkeypatch.setattr(inner, step, lose)
    body = {"b0": b"b" * LARGE}
    if step == "commit":
        assert store.commit([commit(other, 0, parts={"bank": "b0"}, blobs=body)]) == [True]
    else:
        store.create([session()], {"bank": "b0"}, body)
    store._cache.pop("b0")
    store.clean_up()
    wait_until(store._cleanup.done)
    assert store.blobs(["b0"]) == body


def test_object_is_deleted_though_its_content_was_written_again(store, stored_session):
    store.delete([stored_session.id])
    second_session = session()
    store.create(
        [second_session], {"bank": "b0"}, {"b0": b"b" * LARGE}
    )  # before the object of the first session was deleted
    wait_until(lambda: store.clean_up() or len(store.listed()) == 1)
    store._cache.pop("b0")
    assert store.blobs(["b0"]) == {"b0": b"b" * LARGE}


def test_reader_between_deletion_and_rewrite_gets_the_new_object(store, stored_session, monkeypatch):
    store._cache.pop("b0")
    get, reads = Bucket.get, []

    def get_late(objects, names):
        if not reads:
            reads.append(names)
            store.delete([stored_session.id])
            store._delete_dropped()
            store.create([session()], {"bank": "b0"}, {"b0": b"b" * LARGE})
            store._cache.pop("b0")
        return get(objects, names)

    monkeypatch.setattr(Bucket, "get", get_late)
    assert store.blobs(["b0"]) == {"b0": b"b" * LARGE}


@pytest.mark.usefixtures("stored_session")
def test_objects_left_by_a_crash_are_swept_by_age(store, tmp_path):
    store.upload_before_commit({"b1": b"b1" * LARGE})  # without a commit
    assert len(store.listed()) == 2
    assert store.sweep() == 0
    long_ago = time.time() - UNNAMED_SECONDS - 1
    for path in Path(tmp_path, "blobs").rglob("*.*"):
        os.utime(path, (long_ago, long_ago))
    assert store.sweep() == 1
    assert [name.partition("/")[2][:2] for name in store.listed()] == ["b0"]
    assert store.sweep() == 0


@pytest.mark.usefixtures("stored_session")
def test_two_servers_may_sweep_at_once(store, inner, tmp_path):
    store.upload_before_commit({f"b{number}": b"b" * LARGE for number in range(1, 60)})
    with (
        contextlib.closing(opened(inner, f"file://{tmp_path}/blobs", LARGE)) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        swept = [threads.submit(each.sweep, -1) for each in (store, other)]
        assert sum(each.result() for each in swept) >= 59
        assert store.listed() == other.listed() == [name_of(inner.blobs(["b0"])["b0"])]


@pytest.mark.usefixtures("stored_session")
def test_stores_in_one_folder_sweep_only_their_own_objects(store, tmp_path):
    with contextlib.closing(opened(MemoryStore(), f"file://{tmp_path}/blobs", LARGE)) as other:
        assert other.sweep(-1) == 0
        assert other.listed() == []
    assert len(store.listed()) == 1


def test_failed_deletion_is_repeated_in_the_next_round(store, stored_session, monkeypatch):
    store.delete([stored_session.id])
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "delete", fail)
        store.clean_up()
        wait_until(store._cleanup.done)
    assert len(store.listed()) == 1
    wait_until(lambda: store.clean_up() or store.listed() == [])


def test_store_with_outside_blobs_requires_its_setting(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    plain = Settings(store=url).give(BlobsSettings())
    with contextlib.closing(outside(open_store(url), plain)) as store:
        assert store.outside_name("") == ""
    with contextlib.closing(opened(open_store(url), f"file://{tmp_path}/blobs", LARGE)):
        pass
    with pytest.raises(SettingsError, match="set TOOLPACK_BLOBS_URL"):
        outside(open_store(url), plain)


def test_location_without_the_stores_blobs_is_rejected(tmp_path):
    """The location may be a folder that isn't mounted, or another bucket.

    Without this check the server would write new blobs there, and report all earlier blobs as lost.
    """
    url, blobs_folder = f"sqlite:///{tmp_path}/s.db", tmp_path / "blobs"
    with contextlib.closing(opened(open_store(url), f"file://{blobs_folder}", LARGE)) as store:
        name = store.outside_name("")
    blobs_folder.rename(tmp_path / "away")
    with contextlib.closing(open_store(url)) as inner:
        with pytest.raises(SettingsError, match=rf"aren't where TOOLPACK_BLOBS_URL says: there is no {name}/swept\."):
            opened(inner, f"file://{blobs_folder}", LARGE)
        assert [each for each in blobs_folder.rglob("*") if each.is_file()] == []
        shutil.rmtree(blobs_folder)
        (tmp_path / "away").rename(blobs_folder)
        opened(inner, f"file://{blobs_folder}", LARGE).close()


@pytest.fixture
def unmounted(tmp_path):
    """Return a context manager that replaces the folder by an empty one, as if its file system weren't mounted."""
    blobs_folder, away = tmp_path / "blobs", tmp_path / "away"

    @contextlib.contextmanager
    def unmount():
        blobs_folder.rename(away)
        blobs_folder.mkdir()
        yield
        assert [each for each in blobs_folder.rglob("*") if each.is_file()] == []
        shutil.rmtree(blobs_folder)
        away.rename(blobs_folder)

    return unmount


def test_unmounted_folder_rejects_writes_and_loses_nothing(store, stored_session, unmounted):
    store._cache.pop("b0")
    with unmounted():
        for step in (lambda: store.commit([large(stored_session, 0, "b1")]), lambda: store.blobs(["b0"]), store.ping):
            with pytest.raises(OverloadedError, match="aren't where TOOLPACK_BLOBS_URL says"):
                step()
        assert store.commit([change(stored_session, 0, "m1", part="mail")]) == [True]  # A small blob needs no object.
    assert store.ping() is None
    assert store.commit([large(stored_session, 1, "b1")]) == [True]
    store._cache.pop("b1")
    assert store.blobs(["b0", "b1"]) == {"b0": b"b" * LARGE, "b1": b"b1" * LARGE}


def test_folder_unmounted_during_a_write_is_detected(store, stored_session, tmp_path, monkeypatch):
    put = bucket.obstore.put

    def put_late(*arguments, **options):
        (tmp_path / "blobs").rename(tmp_path / "away")
        (tmp_path / "blobs").mkdir()
        return put(*arguments, **options)

    monkeypatch.setattr(bucket.obstore, "put", put_late)
    with pytest.raises(OverloadedError, match="aren't where"):
        store.commit([large(stored_session, 0, "b1")])
    assert store.get(stored_session.id)[1].version == 0


def test_nothing_is_swept_while_a_folder_is_unmounted(store, stored_session, unmounted):
    store.delete([stored_session.id])
    with unmounted():
        store._next_check = 0
        store.clean_up()
        wait_until(store._cleanup.done)
        with pytest.raises(OverloadedError):
            store.sweep()
    wait_until(lambda: store.clean_up() or store.listed() == [])


@pytest.mark.usefixtures("stored_session")
@pytest.mark.parametrize("days", [-2, 2])
def test_server_with_a_wrong_clock_deletes_no_young_object(store, days, monkeypatch):
    store.upload_before_commit({"b1": b"b1" * LARGE})
    now = time.time() + days * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    store.clean_up()
    wait_until(store._cleanup.done)
    assert store.sweep() == 0
    assert len(store.listed()) == 2


DAMAGES = {
    "fifo": os.mkfifo,
    "folder": os.mkdir,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "huge": lambda path: path.touch() or os.truncate(path, 2**40),
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_only_regular_files_are_read_as_objects(store, stored_session, tmp_path, damage):
    store.commit([large(stored_session, 0, "b1")])
    store._cache.pop("b0")
    path = next(Path(tmp_path, "blobs").rglob("b0.*"))
    path.unlink()
    damage(path)
    with pytest.raises(MissingBlobError):
        store.blobs(["b0"])
    store.delete([stored_session.id])  # The irregular file doesn't prevent the deletion of other objects.
    wait_until(lambda: store.clean_up() or not [each for each in store.listed() if "b1." in each])


def test_marker_must_be_a_regular_file(store, stored_session, tmp_path):
    marker = next(Path(tmp_path, "blobs").rglob("swept"))
    marker.unlink()
    os.mkfifo(marker)
    with pytest.raises(OverloadedError, match="aren't where"):
        store.commit([large(stored_session, 0, "b1")])


def test_only_a_new_store_needs_its_object_store_to_open(inner, monkeypatch, caplog):
    monkeypatch.setattr(bucket, "GIVE_UP_SECONDS", 0.01)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{redis_server.free_port()}")
    with pytest.raises(SettingsError, match="can't be kept where TOOLPACK_BLOBS_URL says"):
        opened(inner, "s3://bucket", LARGE)
    inner.outside_name("name")
    with contextlib.closing(opened(inner, "s3://bucket", LARGE)) as store:
        assert "object store can't be used now" in caplog.text
        stored = session()
        with pytest.raises(OverloadedError):
            store.create([stored], {"bank": "b0"}, {"b0": b"b" * LARGE})
        store.create([stored], {"bank": "m0"}, {"m0": b"small"})
        assert store.blobs(["m0"]) == {"m0": b"small"}
        assert store.ping() is None


@pytest.mark.parametrize(
    "wrong", ["x", "file://relative", "http://host/x?k=hidden", "s3://", "az://x?k=hidden", "file:///dev/null/x"]
)
def test_invalid_url_is_rejected_without_showing_its_keys(wrong):
    with pytest.raises(SettingsError, match="TOOLPACK_BLOBS_URL") as caught:
        Bucket(wrong, "name")
    assert "hidden" not in str(caught.value)


@pytest.fixture
def bench(tmp_path):
    store = opened(MemoryStore(), f"file://{tmp_path}/blobs", 1)
    with contextlib.closing(store), Bench(store=store, key=KEY, cache_bytes=0) as bench:
        yield bench


def test_bucket_that_lost_objects_is_an_error_until_a_reset(bench, tmp_path):
    session_id = bench.create("ledger")
    assert bench.result(session_id, "add", amount=3) == 3
    assert bench.result(session_id, "total") == 3
    bench.store._cache = type(bench.store._cache)(0)
    first = {
        name_of(body) for body in bench.store._inner.blobs([*bench.store.parts_at(session_id, 0).values()]).values()
    }
    for name in {*bench.store.listed()} - first:
        next(Path(tmp_path, "blobs").rglob(Path(name).name)).unlink()
    error = refused(-32012, bench.call, session_id, "total")
    assert "missing from the store: restore it, or reset the session" in error.message
    bench.rpc("reset_session", session_id=session_id, version=0)
    assert bench.result(session_id, "total") == 0


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body[:-1] + bytes([body[-1] ^ 1])])
def test_truncated_or_altered_read_is_only_temporary(bench, tmp_path, damage):
    """A proxy may cut an answer. The error mustn't advise a reset, which would lose the session for nothing."""
    session_id = bench.create("ledger")
    assert bench.result(session_id, "add", amount=3) == 3
    bench.store._cache = BoundedCache(2**20, len)
    paths = {path: path.read_bytes() for path in (tmp_path / "blobs").rglob("*.*")}
    for path, body in paths.items():
        path.write_bytes(damage(body))
    refused(-32012, bench.call, session_id, "total")
    for path, body in paths.items():
        path.write_bytes(body)
    assert bench.result(session_id, "total") == 3
    for path in paths:
        path.unlink()
    assert bench.result(session_id, "total") == 3  # from the cache


def test_call_during_an_outage_is_rejected_and_repeatable(bench, tmp_path, monkeypatch):
    session_id = bench.create("ledger")
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "put", fail)
        refused(-32006, bench.call, session_id, "add", {"call_id": "c"}, amount=3)
    assert bench.call(session_id, "add", {"call_id": "c"}, amount=3)["result"] == 3
    assert bench.result(session_id, "total") == 3
    shutil.rmtree(tmp_path / "blobs")


def test_blobs_check_counts_named_missing_and_unnamed_objects(tmp_path, monkeypatch):
    store, location = f"sqlite:///{tmp_path}/s.db", f"file://{tmp_path}/blobs"
    monkeypatch.setenv("TOOLPACK_BLOBS_URL", location)
    stored = session()
    with contextlib.closing(opened(open_store(store), location, LARGE)) as outside_store:
        outside_store.create([stored], {"bank": "b0"}, {"b0": b"b" * LARGE})
        outside_store.commit([large(stored, 0, "b1"), large(stored, 1, "b2")])
        outside_store.create([fork_of(stored, 2, 1)], {"bank": "b2"}, {})
        outside_store.delete([stored.id])  # The first version is retained for the fork.
        outside_store.clean_up()
        wait_until(outside_store._cleanup.done)
        outside_store.upload_before_commit({"b9": b"9" * LARGE})
    assert invoke("blobs", "--check", "--store", store).output == "2 named, 0 missing, 1 unnamed\n"
    next(Path(tmp_path, "blobs").rglob("b0.*")).unlink()
    result = invoke("blobs", "--check", "--store", store)
    assert result.exit_code == 1
    assert result.output.startswith("2 named, 1 missing, 1 unnamed\nmissing: b0/b0.")
