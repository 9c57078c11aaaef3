"""Objects in a folder or an object store, through obstore. Each blob is one object.

An object is written once, under a unique name. The object store acknowledges it before anything refers to it. Requests
run in parallel. Each has a timeout, after which it raises `OverloadedError`.

A folder may be unmounted while the server runs. Then writes succeed in the wrong place, and all objects seem to be
missing. So an object counts as written or as missing only if the store's marker object is there.
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
ANSWER_SECONDS = 5  # timeout of one request
GIVE_UP_SECONDS = 5  # timeout of all attempts
MAX_REQUESTS = 8  # in parallel
PAGE_SIZE = 1000  # objects of a list
MARKER = "swept"  # the object that marks the location of a store's blobs; its date is that of the last sweep
NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
MISPLACED = "This store's blobs aren't where TOOLPACK_BLOBS_URL says"
RETRY = "send the request again, with the same call_id."


class Bucket:
    """The objects of one store in a folder or a bucket.

    Args:
        url: URL of the folder or the bucket. Other stores may use it, too.
        name: Name of the store. All of its objects are in a folder of that name.

    Raises:
        SettingsError: The URL is wrong or can't be used.
    """

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._folder: Path | None = None
        self._is_misplaced = self._is_away = False  # after the last request
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
                    # This allows http:// only for an endpoint that an environment variable sets.
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
        """Check that objects can be written. Check that the store's marker is here, or write it for a new store.

        Args:
            new: Whether the store has no objects yet.

        Raises:
            SettingsError: The marker is missing, so the store's blobs are elsewhere. Or the store is new, and its
                objects can't be written. If an old store's can't be written now, that is only logged, because calls
                that need no object still work.
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
        """Raise `OverloadedError` if the store's blobs aren't here.

        A folder is checked each time. An object store is checked only if its marker was missing before; one that can't
        be reached isn't an error here, because calls that need no object still work.
        """
        if self._folder is not None or self._is_misplaced:
            self._do(self._require_marker)

    def put(self, bodies: Mapping[str, bytes]) -> None:
        """Write objects. When this returns, all of them are stored.

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
                self._require_marker()  # again: the folder may have been unmounted meanwhile

        self._do(put_all)

    def get(self, sizes: Mapping[str, int]) -> dict[str, bytes]:
        """Return the bodies of objects, by name. Omit objects that don't exist or have another size.

        Args:
            sizes: The expected sizes in bytes, by name.

        Raises:
            OverloadedError: They can't be read now.
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
        """Delete objects, in as few requests as the object store allows. Ignore objects that don't exist.

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
        """Yield pages of all objects: the name and the write time, in seconds since the epoch.

        Raises:
            OverloadedError: They can't be listed now.
        """
        begin = len(self._name) + 1
        try:
            if self._folder is not None:
                yield from _files(self._folder / self._name)
                return
            for page in obstore.list(self._store, self._name, chunk_size=PAGE_SIZE):
                listed = [(entry["path"][begin:], entry["last_modified"].timestamp()) for entry in page]
                yield [pair for pair in listed if "." in pair[0]]  # the marker and the check have no dot
        except (BaseError, OSError) as error:
            raise self._unreachable(error) from error

    def swept_at(self) -> float:
        """Return the time of the last sweep by any server, by the clock that dates the objects."""
        return self._do(self._require_marker)

    def note_sweep(self) -> float:
        """Write the marker again. Return its time, which is now, by the clock that dates the objects."""

        def note() -> float:
            if self._folder is None:
                self._require_marker()
                obstore.put(self._store, f"{self._name}/{MARKER}", b"", use_multipart=False)
            else:
                with (self._folder / self._name / MARKER).open("r+b") as marker:  # doesn't create a missing file
                    marker.write(b"\n")
            return self._require_marker()

        return self._do(note)

    def close(self) -> None:
        self._threads.shutdown()

    def _each(self, do: Callable[[str], T], names: Sequence[str]) -> list[T]:
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
        """Return whether obstore may open an object. In a folder, anything but a regular file might block forever."""
        return self._folder is None or _written_at(self._folder / path) is not None

    def _unreachable(self, error: Exception) -> OverloadedError:
        if not self._is_away:
            self._is_away = True
            log.warning("The blobs' object store can't be used now: %s", _first_line(error))
        # The cause contains names of hosts and buckets, which clients mustn't see.
        return OverloadedError(f"The blobs' object store can't be used now: {RETRY}")


def _files(folder: Path) -> Iterator[list[tuple[str, float]]]:
    """Yield pages of the files in the subfolders of a folder: the name and the write time."""
    for subfolder in [*folder.iterdir()] if folder.is_dir() else []:
        if subfolder.is_dir():
            with os.scandir(subfolder) as entries:
                for page in iter(lambda: [*islice(entries, PAGE_SIZE)], []):
                    names = [(f"{subfolder.name}/{entry.name}", entry) for entry in page if "." in entry.name]
                    dated = [(name, _written_at(entry)) for name, entry in names]
                    yield [(name, written) for name, written in dated if written is not None]


def _written_at(path: Path | os.DirEntry[str]) -> float | None:
    """Return the write time of a regular file, or None if the path is missing or something else."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in NOT_FOUND:
            return None
        raise
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
