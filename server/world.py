"""A session's environments between bytes and objects: what one call sees, and what it leaves behind.

The rule: the snapshot is the truth, the live object a cache. A call takes environments out of here, and only a commit
puts them back; whatever fails just forgets them.
"""

import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

from pydantic import BaseModel

from server.catalog import Catalog
from server.errors import ClassesChangedError, SnapshotError, TooLargeError
from server.graph import difference
from server.parts import divide, emptied, environments, holds, merge, toolpack_of
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

    def encode(self, part: str, environment: BaseModel) -> bytes:
        """Freeze and seal a part of a toolpack's environment.

        Raises:
            SnapshotError: It holds something that can't be kept exactly.
            TooLargeError: It is too large to keep.
        """
        toolpack = toolpack_of(part)
        payload = freeze(environment, self.catalog.classes)
        if len(payload) > self._max_bytes:
            raise TooLargeError(
                f"the environment of {toolpack!r} has grown to {len(payload)} bytes; {self._max_bytes} are allowed."
            )
        return seal(payload, self.catalog.fingerprints[toolpack], self._key)

    def decode(self, part: str, blob: bytes) -> BaseModel:
        """Check and thaw a part of a toolpack's environment.

        Raises:
            ClassesChangedError: It was written by other classes than those that are loaded.
            StateDamagedError: Its hash is wrong, or it can't be read.
        """
        toolpack = toolpack_of(part)
        fingerprint = self.catalog.fingerprints.get(toolpack)
        if fingerprint is None:
            raise ClassesChangedError(f"Toolpack {toolpack!r} is not loaded any more: load it, or close the session.")
        environment: BaseModel = thaw(unseal(blob, fingerprint, self._key), self.catalog.classes)
        return environment

    def write(self, toolpack: str, environment: BaseModel) -> dict[str, tuple[str, bytes]]:
        """Divide a whole environment, and get the new id and the bytes of each part.

        Raises:
            SnapshotError: It holds something that can't be kept exactly.
            TooLargeError: It is too large to keep.
        """
        parts = divide(self.catalog.toolpacks[toolpack], environment)
        return {part: (self.new_blob_id(), self.encode(part, held)) for part, held in parts.items()}


class World:
    """The environments that one call sees, each thawed when it is first touched, and only as far as the call reaches.

    Args:
        parts: The names of all parts that the session has.
        thaw: Gets a part.
        reach: For each toolpack, the attributes of its environment that the call takes; None means it can't be told.
        read_only: Whether the call promises to leave everything unchanged.
        interruptible: Surrounds a function's own code, the only place where an overrunning call may be interrupted.

    Attributes:
        touched: The parts that the call has taken.
        dirty: The names of those that it may have changed.
        raised: An exception came out of a function's own code, not from the way to it.
    """

    def __init__(
        self,
        parts: Iterable[str],
        thaw: Callable[[str], BaseModel],
        reach: Mapping[str, frozenset[str] | None],
        *,
        read_only: bool,
        interruptible: AbstractContextManager[object] | None = None,
    ) -> None:
        self._parts = sorted(parts)
        self._thaw = thaw
        self._reach = reach
        self.read_only = read_only
        self.interruptible = interruptible or nullcontext()
        self.touched: dict[str, BaseModel] = {}
        self.dirty: set[str] = set()
        self.raised = False
        self._entered: dict[str, tuple[BaseModel, list[str]]] = {}

    def environment(self, toolpack: str) -> BaseModel:
        """Get the environment of a toolpack, with at least the attributes that the call reaches."""
        if toolpack not in self._entered:
            self._entered[toolpack] = self._enter(toolpack, self._reach[toolpack])
        return self._entered[toolpack][0]

    def may_change(self, toolpack: str) -> None:
        """Note that the call may have changed what it has taken of a toolpack's environment."""
        if toolpack in self._entered:
            self.dirty.update(self._entered[toolpack][1])

    def _enter(self, toolpack: str, reach: frozenset[str] | None) -> tuple[BaseModel, list[str]]:
        parts = [part for part in self._parts if toolpack_of(part) == toolpack]
        wanted = parts if reach is None else [part for part in parts if any(holds(part, name) for name in reach)]
        if len(wanted) == 1:
            environment = self._take(wanted[0])
            if len(parts) == 1 or (reach is not None and reach <= environment.__dict__.keys()):
                return environment, wanted
        # The call holds at once what was apart: a function was edited, or calls are nested. From now on it is one part,
        # since the call may tie it together; unless it promises not to.
        whole = merge(self._take(part) for part in parts)
        if not self.read_only:
            self.touched.update({part: whole if part == parts[0] else emptied(whole) for part in parts})
            self.dirty.update(parts)
        return whole, parts

    def _take(self, part: str) -> BaseModel:
        environment = self.touched.get(part)
        if environment is None:
            environment = self.touched[part] = self._thaw(part)
        return environment


class InitialEnvironments:
    """The parts that sessions start from, built once for the same options and shared by all that use them.

    They live in memory alone: a restart builds them anew, so an edited toolpack never starts from old data.

    Args:
        codec: Writes them.
        max_bytes: How many bytes of them are kept for the next session.
    """

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._size = 0
        self._built: OrderedDict[tuple[str, bytes], dict[str, tuple[str, bytes]]] = OrderedDict()
        self._lock = Lock()

    def get(self, toolpack: str, options: Mapping[str, Any]) -> dict[str, tuple[str, bytes]]:
        """Get the id and the bytes of each part of a toolpack's initial environment.

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
        built = self._codec.write(toolpack, environment)
        kept = environments({part: self._codec.decode(part, blob) for part, (_, blob) in built.items()})
        lost = difference(environment, kept[toolpack])
        if lost:
            raise SnapshotError(f"the initial environment of {toolpack!r} can't be kept exactly: {lost}")
        with self._lock:
            if key in self._built:
                return self._built[key]
            self._built[key] = built
            self._size += _size(built)
            while self._size > self._max_bytes and len(self._built) > 1:
                self._size -= _size(self._built.popitem(last=False)[1])
        return built


def _size(built: Mapping[str, tuple[str, bytes]]) -> int:
    return sum(len(blob) for _, blob in built.values())
