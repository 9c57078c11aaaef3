"""A folder or an object store, by obstore, in which each blob is an object.

An object is written once, under a name that nobody has used or will use, and acknowledged by the object store
before anything refers to it. Each request has a deadline, then it ends with `OverloadedError`. Several go at once.

A folder may be unmounted while the server runs, and then takes and lacks everything. So an object counts as written, or
as missing, only where the store's marker is.
"""

import datetime as dt
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from toolpack_server.base.errors import OverloadedError, SettingsError
from toolpack_server.base.logger import log

try:
    import obstore
    from obstore.exceptions import BaseError, NotFoundError
    from obstore.store import LocalStore, from_url
except ImportError:
    raise SettingsError("TOOLPACK_BLOBS_URL needs obstore: pip install 'toolpack-server[blobs]'.") from None

T = TypeVar("T")

SCHEMES = "file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
ANSWER_SECONDS = 5  # for one request
GIVE_UP_SECONDS = 5  # after which none is sent again
AT_ONCE = 8  # requests
LISTED_AT_ONCE = 1000
MARKER = "swept"  # the object that shows where a store's blobs are; its age says when they were looked through
NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
MISPLACED = "This store's blobs aren't where TOOLPACK_BLOBS_URL says"
AGAIN = "send the request again, with the same call_id."


class Bucket:
    """The objects of one store in a folder or a bucket.

    Args:
        url: Of the folder or the bucket; others may use it, too.
        name: Of the store: all of its objects are in a folder of that name.

    Raises:
        SettingsError: The URL is wrong, or it can't be used.
    """

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._folder: Path | None = None
        self._is_misplaced = self._is_away = False  # as the last request has shown
        scheme, _, rest = url.partition("://")
        try:
            if scheme == "file" and rest.startswith("/"):
                self._folder = Path(rest)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._store: Any = LocalStore(rest)
            elif scheme in {"s3", "gs", "az"} and rest:
                seconds = dt.timedelta(seconds=GIVE_UP_SECONDS)
                slower = dt.timedelta(seconds=1)
                self._store = from_url(
                    url,
                    # Without TLS only if the endpoint that the environment names is so.
                    client_options={"timeout": f"{ANSWER_SECONDS}s", "connect_timeout": "2s", "allow_http": True},
                    retry_config={
                        "max_retries": 10,
                        "retry_timeout": seconds,
                        "backoff": {"init_backoff": slower / 20, "max_backoff": slower, "base": 2},
                    },
                )
            else:
                raise SettingsError(f"TOOLPACK_BLOBS_URL names no place for blobs: use {SCHEMES}.")
        except (BaseError, OSError, ValueError) as error:
            raise SettingsError(
                f"The place that TOOLPACK_BLOBS_URL names can't be used: {_first_line(error)}."
            ) from None
        self._threads = ThreadPoolExecutor(AT_ONCE, "blobs")

    def check(self, *, new: bool) -> None:
        """Check that objects can be written, and that the store's blobs are here.

        Args:
            new: No store has the name yet: write the marker. Otherwise an object store that can't be used now is only
                logged, as calls that need no object go on.

        Raises:
            SettingsError: This is another place, or a new store's objects can't be written.
        """
        name, marker = f"{self._name}/check", f"{self._name}/{MARKER}"
        try:
            if not new and self._marker() is None:
                raise SettingsError(
                    f"{MISPLACED}: there is no {marker}. Name the place where they are, or bring that folder back."
                )
            obstore.put(self._store, name, b"check", use_multipart=False)
            obstore.delete(self._store, name)
            if new:
                obstore.put(self._store, marker, b"", use_multipart=False)
        except (BaseError, OSError) as error:
            if not new:
                self._unreachable(error)
                return
            raise SettingsError(f"Blobs can't be kept where TOOLPACK_BLOBS_URL says: {_first_line(error)}.") from None

    def ping(self) -> None:
        """Raise `OverloadedError` if the store's blobs aren't here; an object store that is away is no such case.

        Only a folder is looked at each time; an object store that has answered so before is asked again.
        """
        if self._folder is not None or self._is_misplaced:
            self._do(self._require_marker)

    def put(self, bodies: Mapping[str, bytes]) -> None:
        """Write objects; all of them are there then.

        Raises:
            OverloadedError: They can't be written now.
        """

        def put(name: str) -> None:
            if name == MARKER:
                self._require_marker()
            else:
                obstore.put(self._store, f"{self._name}/{name}", bodies[name], use_multipart=False)

        def put_all() -> None:
            if self._folder is None:
                self._each(put, [MARKER, *bodies])
            else:
                self._require_marker()
                self._each(put, [*bodies])
                self._require_marker()  # not unmounted in between

        self._do(put_all)

    def get(self, sizes: Mapping[str, int]) -> dict[str, bytes]:
        """Read objects of these sizes; those that don't exist, or have another size, are left out.

        Raises:
            OverloadedError: They can't be read now.
        """

        def get(name: str) -> bytes | None:
            path = f"{self._name}/{name}"
            if not self._may_exist(path):
                return None
            try:
                found = obstore.get(self._store, path)
                return bytes(found.bytes()) if found.meta["size"] == sizes[name] else None
            except (NotFoundError, FileNotFoundError):
                return None

        def get_all() -> dict[str, bytes]:
            found = zip(sizes, self._each(get, [*sizes]), strict=True)
            bodies = {name: body for name, body in found if body is not None}
            if len(bodies) < len(sizes):
                self._require_marker()
            return bodies

        return self._do(get_all)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, as many in one request as the object store lets; one that doesn't exist is no error.

        Raises:
            OverloadedError: They can't be deleted now.
        """

        def delete_all() -> None:
            self._require_marker()
            if self._folder is None:
                obstore.delete(self._store, [f"{self._name}/{name}" for name in names])
                return
            for name in names:
                try:
                    (self._folder / self._name / name).unlink()
                except OSError as error:
                    if error.errno not in {*NOT_FOUND, errno.EISDIR}:
                        raise

        self._do(delete_all)

    def pages(self) -> Iterator[Sequence[tuple[str, float]]]:
        """Yield the names of all objects, and when each was written, in seconds since the epoch, some at a time.

        Raises:
            OverloadedError: They can't be listed now.
        """
        begin = len(self._name) + 1
        try:
            if self._folder is not None:
                yield from _files(self._folder / self._name)
                return
            for page in obstore.list(self._store, self._name, chunk_size=LISTED_AT_ONCE):
                listed = [(each["path"][begin:], each["last_modified"].timestamp()) for each in page]
                yield [each for each in listed if "." in each[0]]
        except (BaseError, OSError) as error:
            raise self._unreachable(error) from error

    def swept_at(self) -> float:
        """Return when a server last looked through the objects, by the clock that dates the objects."""
        return self._do(self._require_marker)

    def note_sweep(self) -> float:
        """Date the marker anew, and return its time: now, by the clock that dates the objects."""

        def note() -> float:
            if self._folder is None:
                self._require_marker()
                obstore.put(self._store, f"{self._name}/{MARKER}", b"", use_multipart=False)
            else:
                with (self._folder / self._name / MARKER).open("r+b") as marker:  # creates none elsewhere
                    marker.write(b"\n")
            return self._require_marker()

        return self._do(note)

    def close(self) -> None:
        self._threads.shutdown()

    def _each(self, do: Callable[[str], T], names: Sequence[str]) -> list[T]:
        return [do(names[0])] if len(names) == 1 else [*self._threads.map(do, names)]

    def _do(self, work: Callable[[], T]) -> T:
        """Do work on the objects; raise `OverloadedError` if they can't be used now."""
        try:
            done = work()
        except (BaseError, OSError) as error:
            raise self._unreachable(error) from error
        if self._is_away:
            self._is_away = False
            log.info("The blobs' object store can be used again")
        return done

    def _marker(self) -> float | None:
        """Return when the marker was written; None if there is none."""
        path = f"{self._name}/{MARKER}"
        if not self._may_exist(path):
            return None
        try:
            return float(obstore.head(self._store, path)["last_modified"].timestamp())
        except (NotFoundError, FileNotFoundError):
            return None

    def _require_marker(self) -> float:
        written = self._marker()
        if (written is None) != self._is_misplaced:
            self._is_misplaced = written is None
            if written is None:
                log.error("%s: there is no %s/%s. Bring that folder back.", MISPLACED, self._name, MARKER)
            else:
                log.info("The store's blobs are where TOOLPACK_BLOBS_URL says again")
        if written is None:
            raise OverloadedError(f"{MISPLACED}: {AGAIN}")
        return written

    def _may_exist(self, path: str) -> bool:
        """Return whether obstore may open an object: anything but a file in a folder can keep it waiting for ever."""
        return self._folder is None or _written_at(self._folder / path) is not None

    def _unreachable(self, error: Exception) -> OverloadedError:
        if not self._is_away:
            self._is_away = True
            log.warning("The blobs' object store can't be used now: %s", _first_line(error))
        # The error names hosts and buckets, which aren't a client's to know.
        return OverloadedError(f"The blobs' object store can't be used now: {AGAIN}")


def _files(folder: Path) -> Iterator[list[tuple[str, float]]]:
    """Yield the names of the files in the folders of a folder, and when each was written, some at a time."""
    for each in [*folder.iterdir()] if folder.is_dir() else []:
        if each.is_dir():
            with os.scandir(each) as entries:
                for page in iter(lambda: [*islice(entries, LISTED_AT_ONCE)], []):
                    dated = [(f"{each.name}/{entry.name}", _written_at(entry)) for entry in page if "." in entry.name]
                    yield [(name, written) for name, written in dated if written is not None]


def _written_at(path: Path | os.DirEntry[str]) -> float | None:
    """Return when a file was written; None if there is none, or something else."""
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in NOT_FOUND:
            return None
        raise
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
