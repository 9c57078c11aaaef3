"""The environments that one call sees.

The rule: the snapshot is the truth, the live object a cache. A call gets its environments here. If it fails they are
dropped; only a commit stores what it has changed.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from server.execution.codec import PlainCodec
from server.execution.parts import emptied, merge, toolpack_of, wanted


@dataclass(slots=True)
class Snapshot:
    """The environments of a session as passed to a call, which may take live objects out of it.

    Attributes:
        parts: The blob id of each part.
        blobs: The bytes of each part.
        live: Objects that are equal to the bytes of their part.
        bound: No blob may have the format of version 0.1.0; see `Codec.decode`.
    """

    parts: Mapping[str, str]
    blobs: Mapping[str, bytes]
    live: dict[str, Any] = field(default_factory=dict)
    bound: bool = True


class World:
    """The environments that one call sees; the parts in its footprint are thawed at first use.

    Args:
        snapshot: The session's environments.
        codec: Reads their bytes.
        footprint: For each toolpack, the attributes of its environment that the call uses; None means all.
        read_only: Whether the call promises to leave everything unchanged.
        interruptible: Entered around a function's own code, the only code that a passed deadline interrupts.

    Attributes:
        touched: The parts that the call has used.
        dirty: The names of the parts that it may have changed.
        raised: The toolpack's own code raised an exception, not the code around it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        codec: PlainCodec,
        footprint: Mapping[str, frozenset[str] | None],
        *,
        read_only: bool,
        interruptible: AbstractContextManager[object] | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._codec = codec
        self._footprint = footprint
        self.read_only = read_only
        self.interruptible = interruptible or nullcontext()
        self.touched: dict[str, BaseModel] = {}
        self.dirty: set[str] = set()
        self.raised = False
        self._loaded: dict[str, tuple[BaseModel, list[str]]] = {}

    def environment(self, toolpack: str) -> BaseModel:
        """Get the environment of a toolpack, with at least the attributes in the call's footprint."""
        if toolpack not in self._loaded:
            self._loaded[toolpack] = self._load(toolpack, self._footprint[toolpack])
        return self._loaded[toolpack][0]

    def may_change(self, toolpack: str) -> None:
        """Note that the call may have changed the parts that it has used of a toolpack's environment."""
        if toolpack in self._loaded:
            self.dirty.update(self._loaded[toolpack][1])

    def _load(self, toolpack: str, footprint: frozenset[str] | None) -> tuple[BaseModel, list[str]]:
        parts = sorted([part for part in self._snapshot.parts if toolpack_of(part) == toolpack])
        chosen = wanted(parts, toolpack, footprint)
        if len(chosen) == 1:
            environment = self._take(chosen[0])
            if len(parts) == 1 or (footprint is not None and footprint <= environment.__dict__.keys()):
                return environment, chosen
        # The call uses several parts: a function was edited, or calls are nested. It may connect them, so they become
        # one part, unless the call is read-only.
        whole = merge(self._take(part) for part in parts)
        if not self.read_only:
            self.touched.update({part: whole if part == parts[0] else emptied(type(whole)) for part in parts})
            self.dirty.update(parts)
        return whole, parts

    def _take(self, part: str) -> BaseModel:
        environment = self.touched.get(part)
        if environment is None:
            environment = self._snapshot.live.pop(part, None)
            if environment is None:
                snapshot = self._snapshot
                environment = self._codec.decode(part, snapshot.parts[part], snapshot.blobs[part], bound=snapshot.bound)
            self.touched[part] = environment
        return environment
