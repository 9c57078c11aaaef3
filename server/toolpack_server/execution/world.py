"""The environments that one call sees.

The snapshot is the truth, the live object a cache. A call gets its environments here. If it fails they are
dropped; only a commit stores what it has changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from toolpack_server.base.errors import ResultError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.parts import besides_volumes, emptied, merge, parts_of, wanted
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.read_only_checks import ReadOnlyCheck
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READ_ONLY, Volumes, stored_volumes
from toolpack_server.jsonio.strict import cut_if_longer, dumps
from toolpack_server.jsonio.view import to_json, without_json


@dataclass(slots=True)
class ExecutionContext:
    """What a call, or another operation, needs in the process where it runs."""

    codec: PlainCodec
    max_result_bytes: int
    # Surrounds an author's code: a passed deadline interrupts that alone.
    interruptible: AbstractContextManager[object] = field(default_factory=nullcontext)


@dataclass(slots=True)
class World:
    """The environments that one call sees; the parts in its footprint are thawed at first use."""

    plan: Plan
    snapshot: Snapshot
    context: ExecutionContext
    check: ReadOnlyCheck | None  # of its read-only functions; None if nothing is compared
    room: int  # how many bytes the results of nested calls may have as JSON; what is longer is cut
    touched: dict[str, BaseModel] = field(default_factory=dict)  # the parts that the call has used
    dirty: set[str] = field(default_factory=set)  # the names of the parts that it may have changed
    raised: bool = False  # the toolpack's own code raised an exception, not the code around it
    volumes: Volumes | None = None  # those of the environments that the call has used, if they have any
    nested: list[bytes] = field(default_factory=list)  # the results of nested calls as JSON, in the order of the calls
    _loaded: dict[str, tuple[BaseModel, Sequence[str]]] = field(default_factory=dict)

    @property
    def codec(self) -> PlainCodec:
        return self.context.codec

    def environment(self, toolpack: str) -> BaseModel:
        """Get the environment of a toolpack, with at least the attributes in the call's footprint."""
        if toolpack not in self._loaded:
            self._loaded[toolpack] = self._load(toolpack, self.plan.footprint[toolpack])
        return self._loaded[toolpack][0]

    def may_change(self, toolpack: str) -> None:
        """Note that the call may have changed the parts that it has used of a toolpack's environment."""
        if toolpack in self._loaded:
            self.dirty.update(self._loaded[toolpack][1])

    def returned(self, result: Any) -> None:
        """Note what a nested call has returned, as it is now: the outer function may change it."""
        try:
            if isinstance(result, Iterator):  # to show what it gives would use it up
                raise ResultError
            text = to_json(result, self.context.codec.catalog.plain)
        except ResultError:
            text = dumps(without_json(result))
        self.nested.append(cut_if_longer(text, self.room))
        self.room -= len(self.nested[-1])

    def loaded(self, toolpack: str) -> tuple[BaseModel, Sequence[str]] | None:
        """Return a toolpack's environment, if the call has used it, and the parts that it is made of."""
        return self._loaded.get(toolpack)

    def _load(self, toolpack: str, footprint: frozenset[str] | None) -> tuple[BaseModel, Sequence[str]]:
        names = tuple(self.snapshot.parts)
        if not stored_volumes(names, toolpack):
            return self._load_parts(toolpack, names, footprint)
        rest = footprint and besides_volumes(names, toolpack, footprint)
        if footprint and not rest:
            environment: BaseModel = emptied(self.context.codec.catalog.toolpacks[toolpack].environment_class)
            parts: Sequence[str] = ()
        else:
            environment, parts = self._load_parts(toolpack, names, rest)
        if self.volumes is None:
            self.volumes = Volumes(
                self.context.codec,
                read_only=READ_ONLY if self.plan.read_only else "",
                conditions=self.plan.conditions,
            )
        self.volumes.bind(toolpack, environment, self.snapshot)
        return environment, parts

    def _load_parts(
        self, toolpack: str, names: tuple[str, ...], footprint: frozenset[str] | None
    ) -> tuple[BaseModel, Sequence[str]]:
        parts, chosen = parts_of(names, toolpack), wanted(names, toolpack, footprint)
        if len(chosen) == 1:
            environment = self._take(chosen[0])
            if len(parts) == 1 or (footprint is not None and footprint <= environment.__dict__.keys()):
                return environment, chosen
        # The call uses several parts: a function was edited, or calls are nested. It may connect them, so they become
        # one part, unless the call is read-only.
        whole = merge(self._take(part) for part in parts)
        if not self.plan.read_only:
            self.touched.update({part: whole if part == parts[0] else emptied(type(whole)) for part in parts})
            self.dirty.update(parts)
        return whole, parts

    def _take(self, part: str) -> BaseModel:
        environment = self.touched.get(part)
        if environment is None:
            environment = self.snapshot.live.pop(part, None)
            if environment is None:
                environment = self.decode(part)
                if self.check is not None:
                    self.check.restored(self.context.codec, part, environment)
            self.touched[part] = environment
        return environment

    def decode(self, part: str) -> BaseModel:
        """Return a part as its snapshot has it."""
        snapshot = self.snapshot
        return self.context.codec.decode(part, snapshot.parts[part], snapshot.blobs[part])
