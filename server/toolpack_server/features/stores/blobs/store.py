"""Wrapper of a store, which keeps large blobs as objects in a bucket.

The inner store decides which blobs exist. For a large blob, the inner store contains a stub with the name of an object.
The object is written before its stub.

Each object has a unique name, even if two objects have the same content. So after a stub was deleted, its object can be
deleted, even if the same blob is written again meanwhile. The name ends with a checksum. A body that doesn't match the
checksum isn't cached, so the object is read again the next time.

After a crash between an upload and its commit, an object has no stub. A *sweep* deletes such unnamed objects when they
are old.
"""

import contextlib
import re
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import MissingBlobError, OverloadedError, SettingsError
from toolpack_server.base.logger import log
from toolpack_server.features.stores.blobs.bucket import Bucket
from toolpack_server.stores.base import NO_HISTORY, Commit, History, SessionStore, StoredSession
from toolpack_server.stores.blob_stubs import MARK, name_of, size_of, stub

MIN_BYTES = 32 * 1024  # minimum size of a blob outside the store; for a smaller blob, an object costs more than a row
CACHE_BYTES = 64 * 2**20  # size of the cache of blobs, in addition to the cache of sessions
MAX_UPLOADED = 4096  # maximum number of uploaded blobs that wait for their commit
DELETION_BATCH_SIZE = 256  # number of objects that one request deletes
SWEEP_SECONDS = 6 * 3600.0  # interval between sweeps by any server
SWEEP_CHECK_SECONDS = 600.0  # interval between checks whether a sweep is due
# Minimum age of an unnamed object that a sweep deletes; a younger object might still get its stub.
UNNAMED_SECONDS = 24 * 3600.0
LOOKUP_BATCH_SIZE = 50  # number of blobs that are looked up at a time
# Blob ids that can be part of an object's name. All ids that the server creates match this pattern.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{2,100}")


def opened(inner: SessionStore, url: str, min_bytes: int = MIN_BYTES) -> "OutsideBlobs":
    """Wrap a store so that it keeps large blobs at a URL.

    Args:
        inner: The store.
        url: URL of the folder or the bucket.
        min_bytes: Minimum size of a large blob.

    Raises:
        SettingsError: The store doesn't support stubs, or the URL can't be used.
    """
    if not hasattr(inner, "outside_name"):
        raise SettingsError("This store can't keep blobs outside it: unset TOOLPACK_BLOBS_URL, or use another store.")
    name = inner.outside_name("")
    if not name:
        new = secrets.token_hex(8)
        # Check before the store saves the name, because from then on the marker must exist.
        Bucket(url, new).check(new=True)
        name = inner.outside_name(new)
    objects = Bucket(url, name)
    objects.check(new=False)
    return OutsideBlobs(inner, objects, min_bytes)


class OutsideBlobs:
    """Store that keeps large blobs as objects in a bucket. Methods not defined here are the inner store's.

    Args:
        inner: The inner store.
        objects: The bucket of the objects.
        min_bytes: Minimum size of a large blob.
    """

    def __init__(self, inner: Any, objects: Bucket, min_bytes: int) -> None:
        self._inner = inner
        self._objects = objects
        self._min_bytes = min_bytes
        self._cache = BoundedCache[str, bytes](CACHE_BYTES, len)  # blobs, by blob id
        self._uploaded = BoundedCache[str, bytes](MAX_UPLOADED)  # stubs of uploaded blobs, by blob id
        self._dropped: deque[str] = deque()  # names of objects to delete
        self._background = ThreadPoolExecutor(1, "blobs")
        self._cleanup: Future[None] | None = None
        self._next_check = time.monotonic()  # time when to check again whether a sweep is due
        self._closed = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Upload the large blobs, then create the sessions with stubs in their place."""
        large = self._large(blobs)
        stubs = self._stubs(large)
        try:
            self._inner.create(sessions, parts, {**_without(blobs, large), **stubs}, history)
        except MissingBlobError:
            if len(stubs) == len(large):
                raise
            # A blob that the store contained during `_stubs` was deleted meanwhile, so upload all.
            stubs = self._upload(large)
            self._inner.create(sessions, parts, {**_without(blobs, large), **stubs}, history)

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Upload the large blobs that weren't uploaded before. Then apply the commits with stubs in their place."""
        large: dict[str, bytes] = {}
        for commit in commits:
            if commit.blobs:
                large |= self._large(commit.blobs)
        if not large:
            answers: list[bool] = self._inner.commit(commits)
            return answers
        stubs = self._stubs(large)
        answers = self._inner.commit(_with_stubs(commits, large, stubs))
        # Upload all for the same reason as in `create`, and send all commits again.
        if len(stubs) < len(large) and not all(answers):
            answers = self._inner.commit(_with_stubs(commits, large, self._upload(large)))
        return answers

    def upload_before_commit(self, blobs: Mapping[str, bytes]) -> None:
        """Upload the large blobs of a change that will soon be committed, so that the commit needn't wait.

        Args:
            blobs: All blobs of the change.

        Raises:
            OverloadedError: The objects can't be written now.
        """
        large = self._large(blobs)
        new = _without(large, [blob for blob in large if self._uploaded.get(blob) is not None])
        for blob, stub_ in self._upload(new).items():
            self._uploaded.put(blob, stub_)

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return blobs by id, with the bytes of their objects in place of stubs."""
        bodies: dict[str, bytes] = self._inner.blobs(ids)
        stubs = {blob: body for blob, body in bodies.items() if name_of(body) is not None}
        if not stubs:
            return bodies
        missing = self._fill(bodies, stubs)
        if missing:
            # The blobs might have been deleted after the store was read, and stored again under other names.
            again = self._inner.blobs(missing)
            moved = {blob: body for blob, body in again.items() if name_of(body) not in {None, name_of(stubs[blob])}}
            missing = [*{*missing} - {*moved}, *self._fill(bodies, moved)]
            if missing:
                log.error("%d blobs are missing at TOOLPACK_BLOBS_URL, for example %s", len(missing), missing[0])
                raise MissingBlobError(*missing)
        return bodies

    def clean_up(self) -> None:
        """Clean up the inner store, and start to delete objects in the background."""
        self._inner.clean_up()
        if self._cleanup is None or self._cleanup.done():
            with contextlib.suppress(RuntimeError):  # the store was closed
                self._cleanup = self._background.submit(self._delete_objects)

    def ping(self) -> None:
        self._inner.ping()
        self._objects.ping()

    def close(self) -> None:
        """Stop the background work, then close the bucket and the inner store."""
        self._closed.set()
        self._background.shutdown()
        self._objects.close()
        self._inner.close()

    # Objects

    def _large(self, blobs: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the blobs that belong outside the store."""
        # A small blob that begins like a stub also belongs outside, because inside the store it would be read as a
        # stub.
        return {
            blob: body
            for blob, body in blobs.items()
            if (len(body) >= self._min_bytes or body.startswith(MARK)) and _PLAIN.fullmatch(blob)
        }

    def _stubs(self, large: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return stubs for the blobs that the store doesn't contain. Upload each of them unless it was uploaded before.

        A stub is used only once.
        """
        stubs = {blob: uploaded for blob in large if (uploaded := self._uploaded.pop(blob)) is not None}
        rest = _without(large, stubs)
        return stubs | self._upload(_without(rest, _named(self._inner, rest)))

    def _upload(self, large: Mapping[str, bytes]) -> dict[str, bytes]:
        """Write an object for each blob. Return their stubs, by blob id."""
        if not large:
            return {}
        names = {blob: f"{blob[:2]}/{blob}.{secrets.token_hex(8)}{_checksum(body)}" for blob, body in large.items()}
        self._objects.put({name: large[blob] for blob, name in names.items()})
        for blob, body in large.items():
            self._cache.put(blob, body)
        return {blob: stub(len(large[blob]), name) for blob, name in names.items()}

    def _fill(self, bodies: dict[str, bytes], stubs: Mapping[str, bytes]) -> list[str]:
        """Replace stubs in `bodies` by the bytes of their objects. Return the ids of the missing blobs."""
        filled = {blob: body for blob in stubs if (body := self._cache.get(blob)) is not None}
        names = {blob: name for blob, body in stubs.items() if blob not in filled and (name := name_of(body))}
        read = self._objects.get({name: size_of(stubs[blob]) for blob, name in names.items()}) if names else {}
        for blob, name in names.items():
            if name in read:
                filled[blob] = read[name]
                if name.endswith(_checksum(read[name])):
                    self._cache.put(blob, read[name])
        bodies |= filled
        return [blob for blob in stubs if blob not in filled]

    # Deletion

    def _delete_objects(self) -> None:
        """Delete the objects of deleted stubs, and sweep if that is due."""
        try:
            self._delete_dropped()
            if time.monotonic() >= self._next_check:
                self._next_check = time.monotonic() + SWEEP_CHECK_SECONDS
                # `abs`, because the last sweep can lie in the future if a clock was wrong.
                if abs(time.time() - self._objects.swept_at()) > SWEEP_SECONDS:
                    self._next_check = time.monotonic() + SWEEP_SECONDS
                    self.sweep()
        except OverloadedError:  # the next call of `clean_up` tries again
            log.debug("Blobs could not be deleted now")
        except Exception:
            log.exception("Blobs could not be deleted")

    def _delete_dropped(self) -> None:
        """Delete the objects of the stubs that the inner store has deleted."""
        while not self._closed.is_set():
            if len(self._dropped) < DELETION_BATCH_SIZE:
                taken = map(name_of, self._inner.take_dropped(DELETION_BATCH_SIZE))
                self._dropped += (name for name in taken if name is not None)
            names = [*islice(self._dropped, DELETION_BATCH_SIZE)]
            if not names:
                return
            self._objects.delete(names)
            for _ in names:
                self._dropped.popleft()

    def sweep(self, age: float = UNNAMED_SECONDS) -> int:
        """Delete the objects without stubs that are older than `age` seconds. Return their number.

        Several servers can sweep at the same time. Ages are measured with the clock that dates the objects, not with
        the servers' clocks.
        """
        deleted, now = 0, self._objects.note_sweep()
        for page in self._objects.pages():
            old = [name for name, written in page if written < now - age]
            unnamed = self.unnamed(old)
            if unnamed:
                self._objects.delete(unnamed)
                deleted += len(unnamed)
            if self._closed.is_set():
                break
        return deleted

    def unnamed(self, names: Sequence[str]) -> list[str]:
        """Return the names of objects that no stub contains."""
        named = self.named({name.partition("/")[2].partition(".")[0] for name in names})
        return [name for name in names if name not in named]

    def listed(self) -> list[str]:
        """Return the names of all objects in the bucket."""
        return [name for page in self._objects.pages() for name, _ in page]

    def named(self, ids: Collection[str]) -> set[str]:
        """Return the object names in the stubs of these blobs."""
        return {name for name in _named(self._inner, ids).values() if name is not None}


def _named(store: Any, ids: Collection[str]) -> dict[str, str | None]:
    """Return the object name of each blob that the store contains, or None for a blob without an object."""
    named: dict[str, str | None] = {}
    left = deque(ids)
    while left:
        batch = [left.popleft() for _ in range(min(LOOKUP_BATCH_SIZE, len(left)))]
        while batch:
            try:
                named |= {blob: name_of(body) for blob, body in store.blobs(batch).items()}
                break
            except MissingBlobError as error:
                missing = {*error.args} & {*batch} or {batch[0]}
                batch = [blob for blob in batch if blob not in missing]
    return named


def _checksum(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"


def _without(blobs: Mapping[str, Any], others: Collection[str]) -> dict[str, Any]:
    """Return the blobs whose id isn't in `others`."""
    return {blob: body for blob, body in blobs.items() if blob not in others}


def _with_stubs(commits: Sequence[Commit], large: Collection[str], stubs: Mapping[str, bytes]) -> list[Commit]:
    """Return the commits with stubs in place of large blobs.

    Omit a large blob without a stub, because it is already stored.
    """
    return [
        commit._replace(
            blobs={
                blob: stubs.get(blob, body) for blob, body in commit.blobs.items() if blob in stubs or blob not in large
            }
        )
        if commit.blobs
        else commit
        for commit in commits
    ]
