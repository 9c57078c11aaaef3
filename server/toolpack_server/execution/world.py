"""The environments that one call sees.

The snapshot is the truth, the live object a cache. A call gets its environments here. If it fails they are
dropped; only a commit stores what it has changed.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, RootModel

from toolpack_server.base.errors import ResultError, SnapshotError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.parts import besides_volumes, emptied, merge, parts_of, wanted
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READ_ONLY, Volumes, stored_volumes
from toolpack_server.jsonio.strict import cut_if_longer, dumps
from toolpack_server.jsonio.view import to_json, without_json
from toolpack_server.snapshots.comparison import first_difference


@dataclass(slots=True)
class ExecutionContext:
    """What a call, or another operation, needs in the process where it runs."""

    codec: PlainCodec
    max_result_bytes: int
    # Surrounds an author's code: a passed deadline interrupts that alone.
    interruptible: AbstractContextManager[object] = field(default_factory=nullcontext)


@dataclass(slots=True)
class PromiseCheck:
    """What came out when read-only functions were compared with their promise."""

    seconds: float = 0.0
    # The toolpack of a falsely read-only function, its name there, and its change.
    broken: tuple[str, str, str] | None = None


@dataclass(slots=True)
class World:
    """The environments that one call sees; the parts in its footprint are thawed at first use."""

    plan: Plan
    snapshot: Snapshot
    context: ExecutionContext
    comparison: PromiseCheck | None  # what came out of comparing; None if nothing is compared
    room: int  # how many bytes the results of nested calls may have as JSON; what is longer is cut
    touched: dict[str, BaseModel] = field(default_factory=dict)  # the parts that the call has used
    dirty: set[str] = field(default_factory=set)  # the names of the parts that it may have changed
    raised: bool = False  # the toolpack's own code raised an exception, not the code around it
    volumes: Volumes | None = None  # those of the environments that the call has used, if they have any
    nested: list[bytes] = field(default_factory=list)  # the results of nested calls as JSON, in the order of the calls
    _loaded: dict[str, tuple[BaseModel, Sequence[str]]] = field(default_factory=dict)
    _restored: dict[str, bytes | None] = field(default_factory=dict)  # in a call that is compared, see `_note_restored`

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

    def is_dirty(self, toolpack: str) -> bool:
        return toolpack in self._loaded and not self.dirty.isdisjoint(self._loaded[toolpack][1])

    def copy(self, toolpack: str) -> BaseModel | None:
        """Get a copy of a toolpack's environment as it is now; None if it can't be stored, so that the call fails."""
        environment = self._loaded[toolpack][0]
        try:
            with self._without_volumes(environment):
                return self.context.codec.copy(environment)
        except SnapshotError:
            return None

    def change(self, toolpack: str, before: BaseModel | None = None) -> tuple[str, str] | None:
        """Find a change of a toolpack's environment since `before`, by default since its snapshot: path and reason."""
        if toolpack not in self._loaded:
            return None
        environment, parts = self._loaded[toolpack]
        if not parts:  # it has volumes only, and a call that is read-only can't write into those
            return None
        with self._without_volumes(environment):
            return self._changed(environment, parts, before)

    def _changed(
        self, environment: BaseModel, parts: Sequence[str], before: BaseModel | None
    ) -> tuple[str, str] | None:
        now = self.context.codec.frozen(environment)
        if before is None:
            if not self.dirty.isdisjoint(parts) or (now is not None and self._is_as_it_was(parts, now)):
                return None
            before = merge(self._decode(part) for part in parts)
        was = self.context.codec.frozen(before)
        if now is None or was is None:
            found = first_difference(before, environment)
        elif now == was:
            return None
        else:
            # Only a snapshot of it shows what a snapshot would lose anyway: nobody is accused of that.
            found = first_difference(self.context.codec.thawed(was), self.context.codec.thawed(now))
        if found and isinstance(environment, RootModel):  # its only field is all of the environment
            found = found[0].removeprefix("root").removeprefix("."), found[1]
        return found

    def _without_volumes(self, environment: BaseModel) -> AbstractContextManager[None]:
        return nullcontext() if self.volumes is None else self.volumes.outside(environment)

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
                environment = self._decode(part)
                if self.comparison is not None:
                    self._note_restored(part, environment, self.comparison)
            self.touched[part] = environment
        return environment

    def _note_restored(self, part: str, environment: BaseModel, comparison: PromiseCheck) -> None:
        """Note which bytes a part that was restored would be stored as: the order of its sets may be another one."""
        began = time.perf_counter()
        self._restored[part] = self.context.codec.frozen(environment)
        comparison.seconds += time.perf_counter() - began

    def _is_as_it_was(self, parts: Sequence[str], now: bytes) -> bool:
        """Whether these are the bytes of an environment's only part; if not, it may still hold the same."""
        if len(parts) > 1:
            return False
        snapshot, part = self.snapshot, parts[0]
        if self._restored.get(part) == now:
            return True
        return now == self.context.codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])

    def _decode(self, part: str) -> BaseModel:
        snapshot = self.snapshot
        return self.context.codec.decode(part, snapshot.parts[part], snapshot.blobs[part])
