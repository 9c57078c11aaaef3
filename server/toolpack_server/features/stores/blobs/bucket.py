"""Bucket of a store's objects: a folder, or a bucket in an object store. Each blob outside the store is one object.

An object is written once, under a unique name, before the store refers to it. The library obstore sends the requests,
which run in parallel. A request that takes too long raises `OverloadedError`.

A folder can be unmounted while the server runs. Writes would then succeed in the wrong place, and all objects would
seem to be missing. So the store keeps a *marker* object in the bucket. An object counts as written or as missing only
if the marker exists.
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
ANSWER_SECONDS = 5  # timeout for one request, in seconds
GIVE_UP_SECONDS = 5  # timeout for all attempts together, in seconds
MAX_REQUESTS = 8  # maximum number of parallel requests
PAGE_SIZE = 1000  # number of objects in a page of a list
MARKER = "swept"  # name of the marker; its write time is the time of the last sweep
NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
MISPLACED = "This store's blobs aren't where TOOLPACK_BLOBS_URL says"
RETRY = "send the request again, with the same call_id."


class Bucket:
    """The objects of one store in a folder or a bucket.

    Args:
        url: URL of the folder or the bucket. Several stores can use the same URL.
        name: Name of the store. All its objects are in a folder with this name.

    Raises:
        SettingsError: The URL is wrong, or the folder or bucket can't be used.
    """

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._folder: Path | None = None
        self._is_misplaced = False  # whether the marker was missing at the last request
        self._is_away = False  # whether the last request failed
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
                    # `allow_http` matters only if an environment variable sets an http:// endpoint.
                    client_options={"timeout": f"{ANSWER_SECONDS}s", "connect_timeout": "2s", "allow_http": True},
                    retry_config={
                        "max_retries": 10,
                        "retry_timeout": seconds,
                        "backoff": {"init_backoff": slower / 20, "max_backoff": slower, "base": 2},
                    },
                )
            else:
                raise SettingsError(f"TOOLPACK_BLOBS_URL isn't a URL of a folder or a bucket: use {SCHEMES}.")
        except (BaseError, OSError, ValueError) as error:
            raise SettingsError(
                f"The folder or bucket of TOOLPACK_BLOBS_URL can't be used: {_first_line(error)}."
            ) from None
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, "blobs")

    def check(self, *, new: bool) -> None:
        """Check that objects can be written, and that the marker exists. For a new store, write the marker.

        If objects of an existing store can't be written now, only log that, because calls that need no object still
        work.

        Args:
            new: Whether the store has no objects yet.

        Raises:
            SettingsError: The marker is missing, so the store's blobs must be elsewhere. This error is also raised if
                the store is new and its objects can't be written.
        """
        name, marker = f"{self._name}/check", f"{self._name}/{MARKER}"
        try:
            if not new and self._marker() is None:
                raise SettingsError(
                    f"{MISPLACED}: there is no {marker}. Set TOOLPACK_BLOBS_URL to their location, or restore that "
                    "folder."
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
        """Raise `OverloadedError` if the marker is missing, because the store's blobs must then be elsewhere.

        A folder is checked each time. An object store is checked only if the marker was missing before. An object store
        that can't be reached raises no error here, because calls that need no object still work.
        """
        if self._folder is not None or self._is_misplaced:
            self._do(self._require_marker)

    def put(self, bodies: Mapping[str, bytes]) -> None:
        """Write objects. When this method returns, all objects are stored.

        Args:
            bodies: The bytes of the objects, by name.

        Raises:
            OverloadedError: The objects can't be written now.
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
                self._require_marker()  # the folder might have been unmounted meanwhile

        self._do(put_all)

    def get(self, sizes: Mapping[str, int]) -> dict[str, bytes]:
        """Return the bodies of objects, by name. Omit objects that don't exist or have another size.

        Args:
            sizes: The expected sizes in bytes, by name.

        Raises:
            OverloadedError: The objects can't be read now.
        """

        def get(name: str) -> bytes | None:
            path = f"{self._name}/{name}"
            if not self._may_exist(path):
                return None
            try:
                result = obstore.get(self._store, path)
                return bytes(result.bytes()) if result.meta["size"] == sizes[name] else None
            except (NotFoundError, FileNotFoundError):
                return None

        def get_all() -> dict[str, bytes]:
            pairs = zip(sizes, self._each(get, [*sizes]), strict=True)
            bodies = {name: body for name, body in pairs if body is not None}
            if len(bodies) < len(sizes):
                self._require_marker()
            return bodies

        return self._do(get_all)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, with as few requests as the object store allows. Ignore objects that don't exist.

        Raises:
            OverloadedError: The objects can't be deleted now.
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
        """Yield all objects in pages. Each object is its name, and its write time in seconds since the epoch.

        Raises:
            OverloadedError: The objects can't be listed now.
        """
        begin = len(self._name) + 1
        try:
            if self._folder is not None:
                yield from _files(self._folder / self._name)
                return
            for page in obstore.list(self._store, self._name, chunk_size=PAGE_SIZE):
                listed = [(entry["path"][begin:], entry["last_modified"].timestamp()) for entry in page]
                yield [pair for pair in listed if "." in pair[0]]  # omit the marker and the object that `check` writes
        except (BaseError, OSError) as error:
            raise self._unreachable(error) from error

    def swept_at(self) -> float:
        """Return the time of the last sweep by any server, according to the clock that dates the objects."""
        return self._do(self._require_marker)

    def note_sweep(self) -> float:
        """Write the marker again, and return its write time: the current time of the clock that dates the objects."""

        def note() -> float:
            if self._folder is None:
                self._require_marker()
                obstore.put(self._store, f"{self._name}/{MARKER}", b"", use_multipart=False)
            else:
                # Unlike `touch`, this doesn't create a missing file.
                with (self._folder / self._name / MARKER).open("r+b") as marker:
                    marker.write(b"\n")
            return self._require_marker()

        return self._do(note)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown()

    def _each(self, do: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """Call a function for each name in parallel, and return the results in order."""
        return [do(names[0])] if len(names) == 1 else [*self._threads.map(do, names)]

    def _do(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. Raise `OverloadedError` if the objects can't be used now."""
        try:
            result = work()
        except (BaseError, OSError) as error:
            raise self._unreachable(error) from error
        if self._is_away:
            self._is_away = False
            log.info("The blobs' object store can be used again")
        return result

    def _marker(self) -> float | None:
        """Return the write time of the marker, or None if it is missing."""
        path = f"{self._name}/{MARKER}"
        if not self._may_exist(path):
            return None
        try:
            return float(obstore.head(self._store, path)["last_modified"].timestamp())
        except (NotFoundError, FileNotFoundError):
            return None

    def _require_marker(self) -> float:
        """Return the write time of the marker. Raise `OverloadedError` if it is missing."""
        written = self._marker()
        if (written is None) != self._is_misplaced:
            self._is_misplaced = written is None
            if written is None:
                log.error("%s: there is no %s/%s. Restore that folder.", MISPLACED, self._name, MARKER)
            else:
                log.info("The store's blobs are again where TOOLPACK_BLOBS_URL says")
        if written is None:
            raise OverloadedError(f"{MISPLACED}: {RETRY}")
        return written

    def _may_exist(self, path: str) -> bool:
        """Return whether obstore can safely open an object.

        In a folder, only regular files are safe, because a pipe could block forever.
        """
        return self._folder is None or _written_at(self._folder / path) is not None

    def _unreachable(self, error: Exception) -> OverloadedError:
        """Return the error for clients. Log the failure, unless the previous request also failed."""
        if not self._is_away:
            self._is_away = True
            log.warning("The blobs' object store can't be used now: %s", _first_line(error))
        # The message omits the cause, because it contains names of hosts and buckets, which clients mustn't see.
        return OverloadedError(f"The blobs' object store can't be used now: {RETRY}")


def _files(folder: Path) -> Iterator[list[tuple[str, float]]]:
    """Yield the files in the subfolders of a folder, in pages. Each file is its name and its write time."""
    for subfolder in [*folder.iterdir()] if folder.is_dir() else []:
        if subfolder.is_dir():
            with os.scandir(subfolder) as entries:
                for page in iter(lambda: [*islice(entries, PAGE_SIZE)], []):
                    names = [(f"{subfolder.name}/{entry.name}", entry) for entry in page if "." in entry.name]
                    dated = [(name, _written_at(entry)) for name, entry in names]
                    yield [(name, written) for name, written in dated if written is not None]


def _written_at(path: Path | os.DirEntry[str]) -> float | None:
    """Return the write time of a regular file, or None if the path isn't a regular file."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in NOT_FOUND:
            return None
        raise
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, because obstore adds lines about its own code."""
    return str(error).partition("\n")[0].rstrip(".")
