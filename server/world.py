"""A session's environments between bytes and objects: what one call sees, and what it leaves behind.

The rule: the snapshot is the truth, the live object a cache. A call takes environments out of here, and only a commit
puts them back; whatever fails just forgets them.
"""

import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

from pydantic import BaseModel

from server.catalog import Catalog
from server.errors import ClassesChangedError, SnapshotError, TooLargeError
from server.graph import difference
from server.snapshot import freeze, seal, thaw, unseal
from server.strict_json import dumps

class Codec:
    """Turns environments of the loaded toolpacks into sealed blobs and back.

    Args:
        catalog: The loaded toolpacks.
        key: The key of the hash on every blob.
        max_bytes: The largest blob that is written.
    """

    def __init__(self, catalog: Catalog, key: bytes, max_bytes: int) -> None:
        self.catalog = catalog
        self._key = key
        self._max_bytes = max_bytes
        # Made here, not at import: workers are forked after that, and must not share it.
        self._ids = f"{int(time.time()):08x}{secrets.token_hex(6)}"
        self._serial = itertools.count()

    def new_blob_id(self) -> str:
        """Make an id that no blob has; ids grow with time, which keeps a store's index compact."""
        return f"{self._ids}{next(self._serial):010x}"

    def encode(self, toolpack: str, environment: BaseModel) -> bytes:
        """Freeze and seal an environment.

        Raises:
            SnapshotError: It holds something that can't be kept exactly.
            TooLargeError: It is too large to keep.
        """
        payload = freeze(environment, self.catalog.classes)
        if len(payload) > self._max_bytes:
            raise TooLargeError(
                f"the environment of {toolpack!r} has grown to {len(payload)} bytes; {self._max_bytes} are kept at most."
            )
        return seal(payload, self.catalog.fingerprints[toolpack], self._key)

    def decode(self, toolpack: str, blob: bytes) -> BaseModel:
        """Check and thaw an environment.

        Raises:
            ClassesChangedError: It was written by other classes than those that are loaded.
            StateDamagedError: Its hash is wrong, or it can't be read.
        """
        fingerprint = self.catalog.fingerprints.get(toolpack)
        if fingerprint is None:
            raise ClassesChangedError(f"Toolpack {toolpack!r} is not loaded any more: load it, or close the session.")
        environment: BaseModel = thaw(unseal(blob, fingerprint, self._key), self.catalog.classes)
        return environment


class World:
    """The environments that one call sees, each thawed when it is first touched.

    Args:
        thaw: Gets a toolpack's environment.
        interruptible: Surrounds a function's own code, the only place where an overrunning call may be interrupted.

    Attributes:
        touched: The environments that the call has taken, by toolpack.
        dirty: The toolpacks whose environment it may have changed.
        raised: An exception came out of a function's own code, not from the way to it.
    """

    def __init__(
        self, thaw: Callable[[str], BaseModel], interruptible: AbstractContextManager[object] | None = None
    ) -> None:
        self._thaw = thaw
        self.interruptible = interruptible or nullcontext()
        self.touched: dict[str, BaseModel] = {}
        self.dirty: set[str] = set()
        self.raised = False

    def environment(self, toolpack: str) -> BaseModel:
        """Get the environment of a toolpack."""
        environment = self.touched.get(toolpack)
        if environment is None:
            environment = self.touched[toolpack] = self._thaw(toolpack)
        return environment


class InitialEnvironments:
    """The blobs that sessions start from, built once for the same options and shared by all that use them.

    They live in memory alone: a restart builds them anew, so an edited toolpack never starts from old data.

    Args:
        codec: Writes them.
        max_bytes: How many bytes of them are kept for the next session.
    """

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._size = 0
        self._built: OrderedDict[tuple[str, bytes], tuple[str, bytes]] = OrderedDict()
        self._lock = Lock()

    def get(self, toolpack: str, options: Mapping[str, Any]) -> tuple[str, bytes]:
        """Get the id and the bytes of a toolpack's initial environment.

        Raises:
            InvalidParamsError: The options don't fit.
            SnapshotError: The environment holds something that can't be kept exactly.
        """
        key = toolpack, dumps(options, sort_keys=True)
        with self._lock:
            if key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        # Built outside the lock: it may take long, and two at once do no harm.
        environment = self._codec.catalog.toolpacks[toolpack].build(options)
        blob = self._codec.encode(toolpack, environment)
        lost = difference(environment, self._codec.decode(toolpack, blob))
        if lost:
            raise SnapshotError(f"the initial environment of {toolpack!r} can't be kept exactly: {lost}")
        built = self._codec.new_blob_id(), blob
        with self._lock:
            if key in self._built:
                return self._built[key]
            self._built[key] = built
            self._size += len(blob)
            while self._size > self._max_bytes and len(self._built) > 1:
                self._size -= len(self._built.popitem(last=False)[1][1])
        return built
