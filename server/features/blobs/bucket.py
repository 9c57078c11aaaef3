"""A folder or an object store, by obstore, in which each blob is an object.

The rule: an object is written once, under a name that nobody has used or will use, and acknowledged by the object store
before anything refers to it. Each request has a deadline, then it ends with `OverloadedError`. Several go at once.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from server.features.api import OverloadedError, SettingsError

try:
    import obstore
    from obstore.exceptions import BaseError, NotFoundError
    from obstore.store import LocalStore, from_url
except ImportError:
    raise SettingsError("TOOLPACK_BLOBS_URL needs obstore: pip install 'toolpack-server[blobs]'.") from None

SCHEMES = "file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
ANSWER_SECONDS = 5  # for one request
GIVE_UP_SECONDS = 5  # after which none is sent again
AT_ONCE = 8  # requests
LISTED_AT_ONCE = 1000
MARKER = "swept"  # the object that shows where a store's blobs are; its age says when they were looked through


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
        scheme, _, rest = url.partition("://")
        try:
            if scheme == "file" and rest.startswith("/"):
                Path(rest).mkdir(mode=0o700, parents=True, exist_ok=True)
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
        """Write an object, and delete it; and look whether this is where the store's blobs are.

        Args:
            new: No store has the name yet: what shows that its blobs are here is written.

        Raises:
            SettingsError: That isn't possible, or this is another place.
        """
        name, marker = f"{self._name}/check", f"{self._name}/{MARKER}"
        try:
            obstore.put(self._store, name, b"check", use_multipart=False)
            obstore.delete(self._store, name)
            if new:
                obstore.put(self._store, marker, b"", use_multipart=False)
            obstore.head(self._store, marker)
        except (NotFoundError, FileNotFoundError):
            raise SettingsError(
                f"This store's blobs aren't where TOOLPACK_BLOBS_URL says: there is no {marker}. Name the place where "
                "they are, or bring that folder back."
            ) from None
        except (BaseError, OSError) as error:
            raise SettingsError(f"Blobs can't be kept where TOOLPACK_BLOBS_URL says: {_first_line(error)}.") from None

    def put(self, bodies: Mapping[str, bytes]) -> None:
        """Write objects; all of them are there then.

        Raises:
            OverloadedError: They can't be written now.
        """

        def put(name: str) -> None:
            obstore.put(self._store, f"{self._name}/{name}", bodies[name], use_multipart=False)

        try:
            self._each(put, [*bodies])
        except (BaseError, OSError) as error:
            raise _unreachable(error) from error

    def get(self, names: Sequence[str]) -> dict[str, bytes]:
        """Read objects; those that don't exist are left out.

        Raises:
            OverloadedError: They can't be read now.
        """

        def get(name: str) -> bytes | None:
            try:
                return bytes(obstore.get(self._store, f"{self._name}/{name}").bytes())
            except (NotFoundError, FileNotFoundError):
                return None

        try:
            found = self._each(get, names)
        except (BaseError, OSError) as error:
            raise _unreachable(error) from error
        return {name: body for name, body in zip(names, found, strict=True) if body is not None}

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, as many in one request as the object store lets; one that doesn't exist is no error.

        Raises:
            OverloadedError: They can't be deleted now.
        """
        paths = [f"{self._name}/{name}" for name in names]
        try:
            obstore.delete(self._store, paths)
        except (NotFoundError, FileNotFoundError):  # a folder says so, and hasn't deleted the others
            for path in paths:
                self._delete_one(path)
        except (BaseError, OSError) as error:
            raise _unreachable(error) from error

    def _delete_one(self, path: str) -> None:
        try:
            obstore.delete(self._store, path)
        except (NotFoundError, FileNotFoundError):
            pass
        except (BaseError, OSError) as error:
            raise _unreachable(error) from error

    def pages(self) -> Iterator[Sequence[tuple[str, float]]]:
        """Get the names of all objects, and when each was written, in seconds since the epoch, some at a time.

        Raises:
            OverloadedError: They can't be listed now.
        """
        begin = len(self._name) + 1
        try:
            for page in obstore.list(self._store, self._name, chunk_size=LISTED_AT_ONCE):
                listed = [(each["path"][begin:], each["last_modified"].timestamp()) for each in page]
                yield [each for each in listed if "." in each[0]]
        except (BaseError, OSError) as error:
            raise _unreachable(error) from error

    def swept_at(self) -> float:
        """Get when somebody has looked through the objects last; 0.0 if nobody has."""
        try:
            return float(obstore.head(self._store, f"{self._name}/{MARKER}")["last_modified"].timestamp())
        except (NotFoundError, FileNotFoundError):
            return 0.0
        except (BaseError, OSError) as error:
            raise _unreachable(error) from error

    def note_sweep(self) -> None:
        self.put({MARKER: b""})

    def close(self) -> None:
        self._threads.shutdown()

    def _each(self, do: Any, names: Sequence[str]) -> list[Any]:
        return [do(names[0])] if len(names) == 1 else [*self._threads.map(do, names)]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _unreachable(error: Exception) -> OverloadedError:
    del error  # it names hosts and buckets, which aren't a client's to know
    return OverloadedError("The blobs' object store can't be used now: send the request again, with the same call_id.")
