"""A store around another one, of which the large blobs are objects elsewhere.

The store stays what says which blobs there are. In the place of a large one it has a stub, with the name of
an object that was written before. Each object has a name of its own, never used again, also if it has the same content:
so an object whose stub was dropped can be deleted, whatever others write meanwhile. The name ends with a checksum: what
was read wrong isn't kept, so it is right as soon as the object is. An object to which no stub leads, as after a crash
between its writing and the commit, is found by its age.
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

MIN_BYTES = 32 * 1024  # of a blob outside; a smaller one costs an object more than a row
CACHE_BYTES = 64 * 2**20  # of blobs, which never change; beside the states of sessions
AHEAD = 4096  # objects that were written for calls whose commits haven't come yet
DELETED_AT_ONCE = 256
SWEEP_EVERY_SECONDS = 6 * 3600.0  # among all servers
LOOK_EVERY_SECONDS = 600.0  # whether it is time to
UNNAMED_SECONDS = 24 * 3600.0  # that an object lives without a stub: its commit may still come
NAMED_AT_ONCE = 50
_PLAIN = re.compile(r"[A-Za-z0-9_-]{2,100}")  # an id that can be a part of an object's name, as those of the server can


def opened(inner: SessionStore, url: str, min_bytes: int = MIN_BYTES) -> "OutsideBlobs":
    """Keep the large blobs of a store elsewhere; raises `SettingsError` if that isn't possible."""
    if not hasattr(inner, "outside_name"):
        raise SettingsError("TOOLPACK_BLOBS_URL: this store can't keep blobs outside: unset it, or use another store.")
    name = inner.outside_name("")
    if not name:
        new = secrets.token_hex(8)
        Bucket(url, new).check(new=True)  # before the store has the name, so each name has its place
        name = inner.outside_name(new)
    objects = Bucket(url, name)
    objects.check(new=False)
    return OutsideBlobs(inner, objects, min_bytes)


class OutsideBlobs:
    """A store whose large blobs are objects; what isn't here the store itself does.

    Args:
        min_bytes: The size from which on a blob is large.
    """

    def __init__(self, inner: Any, objects: Bucket, min_bytes: int) -> None:
        self._inner = inner
        self._objects = objects
        self._min_bytes = min_bytes
        self._cache = BoundedCache[str, bytes](CACHE_BYTES, len)  # by blob id
        self._ahead = BoundedCache[str, bytes](AHEAD)  # stubs, by blob id
        self._dropped: deque[str] = deque()  # names of objects to be deleted
        self._background = ThreadPoolExecutor(1, "blobs")
        self._tidying: Future[None] | None = None
        self._look_at = time.monotonic()
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
        large = self._large(blobs)
        stubs = self._stubs(large)
        try:
            self._inner.create(sessions, parts, {**_without(blobs, large), **stubs}, history)
        except MissingBlobError:
            if len(stubs) == len(large):
                raise
            # One that was stored a moment ago was deleted meanwhile.
            stubs = self._written(large)
            self._inner.create(sessions, parts, {**_without(blobs, large), **stubs}, history)

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        large: dict[str, bytes] = {}
        for commit in commits:
            if commit.blobs:
                large |= self._large(commit.blobs)
        if not large:
            answers: list[bool] = self._inner.commit(commits)
            return answers
        stubs = self._stubs(large)
        answers = self._inner.commit(_with_stubs(commits, large, stubs))
        if len(stubs) < len(large) and not all(answers):  # as above; those that are stored are answered as such
            answers = self._inner.commit(_with_stubs(commits, large, self._written(large)))
        return answers

    def upload_before_commit(self, blobs: Mapping[str, bytes]) -> None:
        """Write the objects of blobs that are to be committed soon, so that the commit needn't wait for that.

        Raises:
            OverloadedError: They can't be written now.
        """
        large = self._large(blobs)
        new = _without(large, [blob for blob in large if self._ahead.get(blob) is not None])
        for blob, written in self._written(new).items():
            self._ahead.put(blob, written)

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = self._inner.blobs(ids)
        outside = {blob: body for blob, body in found.items() if name_of(body) is not None}
        if not outside:
            return found
        missing = self._fill(found, outside)
        if missing:
            # They may have been deleted after the store was asked, and even have come back since.
            again = self._inner.blobs(missing)
            moved = {blob: body for blob, body in again.items() if name_of(body) not in {None, name_of(outside[blob])}}
            missing = [*{*missing} - {*moved}, *self._fill(found, moved)]
            if missing:
                log.error("%d blobs are missing where TOOLPACK_BLOBS_URL says, such as %s", len(missing), missing[0])
                raise MissingBlobError(*missing)
        return found

    def clean_up(self) -> None:
        self._inner.clean_up()
        if self._tidying is None or self._tidying.done():
            with contextlib.suppress(RuntimeError):  # closed
                self._tidying = self._background.submit(self._tidy)

    def ping(self) -> None:
        self._inner.ping()
        self._objects.ping()

    def close(self) -> None:
        self._closed.set()
        self._background.shutdown()
        self._objects.close()
        self._inner.close()

    # Bucket

    def _large(self, blobs: Mapping[str, bytes]) -> dict[str, bytes]:
        # A small one that looks like a stub would be taken for one.
        return {
            blob: body
            for blob, body in blobs.items()
            if (len(body) >= self._min_bytes or body.startswith(MARK)) and _PLAIN.fullmatch(blob)
        }

    def _stubs(self, large: Mapping[str, bytes]) -> dict[str, bytes]:
        """Get stubs for blobs, but those that the store has already; each stub is given once."""
        stubs = {blob: ahead for blob in large if (ahead := self._ahead.pop(blob)) is not None}
        rest = _without(large, stubs)
        return stubs | self._written(_without(rest, _named(self._inner, rest)))

    def _written(self, large: Mapping[str, bytes]) -> dict[str, bytes]:
        """Write objects for blobs, and get their stubs."""
        if not large:
            return {}
        names = {blob: f"{blob[:2]}/{blob}.{secrets.token_hex(8)}{_checksum(body)}" for blob, body in large.items()}
        self._objects.put({name: large[blob] for blob, name in names.items()})
        for blob, body in large.items():
            self._cache.put(blob, body)
        return {blob: stub(len(large[blob]), name) for blob, name in names.items()}

    def _fill(self, found: dict[str, bytes], outside: Mapping[str, bytes]) -> list[str]:
        """Put the bytes of objects in the place of their stubs; return the ids of those that don't exist."""
        kept = {blob: body for blob in outside if (body := self._cache.get(blob)) is not None}
        names = {blob: name for blob, body in outside.items() if blob not in kept and (name := name_of(body))}
        read = self._objects.get({name: size_of(outside[blob]) for blob, name in names.items()}) if names else {}
        for blob, name in names.items():
            if name in read:
                kept[blob] = read[name]
                if name.endswith(_checksum(read[name])):
                    self._cache.put(blob, read[name])
        found |= kept
        return [blob for blob in outside if blob not in kept]

    # What is left over

    def _tidy(self) -> None:
        try:
            self._delete_dropped()
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_EVERY_SECONDS
                if abs(time.time() - self._objects.swept_at()) > SWEEP_EVERY_SECONDS:  # or this clock is wrong
                    self._look_at = time.monotonic() + SWEEP_EVERY_SECONDS
                    self.sweep()
        except OverloadedError:  # the next round does it
            log.debug("Blobs could not be deleted now")
        except Exception:
            log.exception("Blobs could not be deleted")

    def _delete_dropped(self) -> None:
        while not self._closed.is_set():
            if len(self._dropped) < DELETED_AT_ONCE:
                taken = map(name_of, self._inner.take_dropped(DELETED_AT_ONCE))
                self._dropped += (name for name in taken if name is not None)
            names = [*islice(self._dropped, DELETED_AT_ONCE)]
            if not names:
                return
            self._objects.delete(names)
            for _ in names:
                self._dropped.popleft()

    def sweep(self, age: float = UNNAMED_SECONDS) -> int:
        """Delete objects of this age, in seconds, to which no stub leads; return how many.

        Several servers may do so at once. Their clocks don't count, only the one that dates the objects.
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
        """Get those of these objects to which no stub leads."""
        named = self.named({name.partition("/")[2].partition(".")[0] for name in names})
        return [name for name in names if name not in named]

    def listed(self) -> list[str]:
        """Get the names of all objects."""
        return [name for page in self._objects.pages() for name, _ in page]

    def named(self, ids: Collection[str]) -> set[str]:
        """Get the names of the objects of these blobs, as the store has them."""
        return {name for name in _named(self._inner, ids).values() if name is not None}


def _named(store: Any, ids: Collection[str]) -> dict[str, str | None]:
    """Get those of these blobs that a store has, and for each the name of its object, if it has one."""
    named: dict[str, str | None] = {}
    left = deque(ids)
    while left:
        some = [left.popleft() for _ in range(min(NAMED_AT_ONCE, len(left)))]
        while some:
            try:
                named |= {blob: name_of(body) for blob, body in store.blobs(some).items()}
                break
            except MissingBlobError as error:
                missing = {*error.args} & {*some} or {some[0]}
                some = [blob for blob in some if blob not in missing]
    return named


def _checksum(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"


def _without(blobs: Mapping[str, Any], others: Collection[str]) -> dict[str, Any]:
    return {blob: body for blob, body in blobs.items() if blob not in others}


def _with_stubs(commits: Sequence[Commit], large: Collection[str], stubs: Mapping[str, bytes]) -> list[Commit]:
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
