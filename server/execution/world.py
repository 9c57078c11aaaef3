"""The environments that one call sees.

The rule: the snapshot is the truth, the live object a cache. A call takes environments out of here; whatever fails
is just forgotten, and only a commit keeps what the call has changed.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pydantic import BaseModel

from server.execution.codec import Codec
from server.execution.parts import emptied, holds, merge, toolpack_of


@dataclass(slots=True)
class Snapshot:
    """The environments of a session as a call gets them; the call may take live objects out.

    Attributes:
        parts: The names of all parts.
        blobs: The bytes of each part.
        live: Objects that equal the bytes of their part.
    """

    parts: Iterable[str]
    blobs: Mapping[str, bytes]
    live: dict[str, BaseModel] = field(default_factory=dict)


class World:
    """The environments that one call sees, each thawed when it is first touched, and only as far as its footprint.

    Args:
        snapshot: The session's environments.
        codec: Reads their bytes.
        footprint: For each toolpack, the attributes of its environment that the call takes; None means all.
        read_only: Whether the call promises to leave everything unchanged.
        interruptible: Surrounds a function's own code, the only place where a call past its deadline is interrupted.

    Attributes:
        touched: The parts that the call has taken.
        dirty: The names of those that it may have changed.
        raised: A function's own code raised an exception, not the code around it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        codec: Codec,
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
        self._entered: dict[str, tuple[BaseModel, list[str]]] = {}

    def environment(self, toolpack: str) -> BaseModel:
        """Get the environment of a toolpack, with at least the attributes in the call's footprint."""
        if toolpack not in self._entered:
            self._entered[toolpack] = self._enter(toolpack, self._footprint[toolpack])
        return self._entered[toolpack][0]

    def may_change(self, toolpack: str) -> None:
        """Note that the call may have changed what it has taken of a toolpack's environment."""
        if toolpack in self._entered:
            self.dirty.update(self._entered[toolpack][1])

    def _enter(self, toolpack: str, footprint: frozenset[str] | None) -> tuple[BaseModel, list[str]]:
        parts = sorted([part for part in self._snapshot.parts if toolpack_of(part) == toolpack])
        if len(parts) == 1:
            return self._take(parts[0]), parts
        if footprint is not None:
            wanted = [part for part in parts if any(holds(part, name) for name in footprint)]
            if len(wanted) == 1:
                environment = self._take(wanted[0])
                if footprint <= environment.__dict__.keys():
                    return environment, wanted
        # The call takes several parts at once: a function was edited, or calls are nested. As it may connect them, they
        # are one part from now on, unless the call is read-only.
        whole = merge(self._take(part) for part in parts)
        if not self.read_only:
            self.touched.update({part: whole if part == parts[0] else emptied(whole) for part in parts})
            self.dirty.update(parts)
        return whole, parts

    def _take(self, part: str) -> BaseModel:
        environment = self.touched.get(part)
        if environment is None:
            environment = self._snapshot.live.pop(part, None)
            if environment is None:
                environment = self._codec.decode(part, self._snapshot.blobs[part])
            self.touched[part] = environment
        return environment
