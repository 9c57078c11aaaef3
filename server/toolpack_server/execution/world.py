"""World: the environments of a session, as one call sees and changes them.

The snapshot is authoritative, and live objects are only a cache of it. If the call fails, its environments are dropped.
Only a commit stores the changes.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from toolpack_server.base.errors import ResultError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.parts import emptied, merge, parts_in_use, parts_of, without_volumes
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.read_only_checks import ReadOnlyCheck
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import READ_ONLY, Volumes, stored_chains, stored_environment
from toolpack_server.jsonio.strict import cut_if_longer, dumps
from toolpack_server.jsonio.view import to_json, without_json


@dataclass(slots=True)
class ExecutionContext:
    """The process's resources for calls and other operations."""

    codec: PlainCodec
    max_result_bytes: int
    # Context manager to put around an author's code. A missed deadline interrupts only code within it.
    interruptible: AbstractContextManager[object] = field(default_factory=nullcontext)


@dataclass(slots=True)
class World:
    """The environments of one call. The parts in its footprint are decoded at first use."""

    plan: Plan
    snapshot: Snapshot
    context: ExecutionContext
    check: ReadOnlyCheck | None  # check of the call's read-only functions; None if no check is due
    # Bytes that are left for the results of nested calls (calls written as arguments of this call), as JSON in the
    # record. A longer result is replaced by a placeholder.
    nested_bytes_left: int
    touched: dict[str, BaseModel] = field(default_factory=dict)  # the parts that the call has used
    dirty: set[str] = field(default_factory=set)  # the names of the parts that the call might have changed
    raised: bool = False  # the exception was raised by the toolpack's code, not by the server's code around it
    volumes: Volumes | None = None  # the volumes of the environments in use; None if these contain no volumes
    nested: list[bytes] = field(default_factory=list)  # the results of nested calls as JSON, in the order of the calls
    # By toolpack: the environment in use, and the names of its parts.
    loaded: dict[str, tuple[BaseModel, Sequence[str]]] = field(default_factory=dict)

    @property
    def codec(self) -> PlainCodec:
        return self.context.codec

    def environment(self, toolpack: str) -> BaseModel:
        """Return the environment of a toolpack, with at least the attributes in the call's footprint."""
        if toolpack not in self.loaded:
            self.loaded[toolpack] = self._load(toolpack, self.plan.footprint[toolpack])
        return self.loaded[toolpack][0]

    def may_change(self, toolpack: str) -> None:
        """Mark the loaded parts of a toolpack's environment as dirty, so that they are encoded after the call."""
        if toolpack in self.loaded:
            self.dirty.update(self.loaded[toolpack][1])

    def add_nested_result(self, result: Any) -> None:
        """Keep the result of a nested call (an argument of the outer call) as JSON, for the record.

        This happens before the outer function can change the result. A result that has no JSON form, or is longer than
        the bytes left, is kept as a placeholder.
        """
        try:
            if isinstance(result, Iterator):  # reading its values would consume them
                raise ResultError
            text = to_json(result, self.context.codec.catalog.plain)
        except ResultError:
            text = dumps(without_json(result))
        self.nested.append(cut_if_longer(text, self.nested_bytes_left))
        self.nested_bytes_left -= len(self.nested[-1])

    def _load(self, toolpack: str, footprint: frozenset[str] | None) -> tuple[BaseModel, Sequence[str]]:
        """Return a toolpack's environment, with its volumes, and the names of its parts."""
        names = tuple(self.snapshot.parts)
        if not stored_chains(names, toolpack):
            return self._load_parts(toolpack, names, footprint)
        if self.volumes is None:
            self.volumes = Volumes(
                self.context.codec,
                read_only=READ_ONLY if self.plan.read_only else "",
                policy=self.plan.policy,
            )
        chain = stored_environment(names, toolpack)
        attributes = footprint and without_volumes(names, toolpack, footprint)
        parts: Sequence[str]
        if chain is not None:
            environment, parts = self.volumes.bind_lazy(chain, self.snapshot), ()
        elif footprint and not attributes:
            environment, parts = emptied(self.context.codec.catalog.toolpacks[toolpack].environment_class), ()
        else:
            environment, parts = self._load_parts(toolpack, names, attributes)
        self.volumes.bind(toolpack, environment, self.snapshot)
        return environment, parts

    def _load_parts(
        self, toolpack: str, names: tuple[str, ...], footprint: frozenset[str] | None
    ) -> tuple[BaseModel, Sequence[str]]:
        """Return the environment, and the names of its parts.

        The environment is the only part that contains the footprint, or all parts merged if there is no such part.
        """
        parts, chosen = parts_of(names, toolpack), parts_in_use(names, toolpack, footprint)
        if len(chosen) == 1:
            environment = self._take(chosen[0])
            if len(parts) == 1 or (footprint is not None and footprint <= environment.__dict__.keys()):
                return environment, chosen
        # The call uses several parts, because a function was edited or calls are nested. The call can make one part
        # refer to another. So all parts are merged: the first part gets all fields, and the other parts become empty.
        # A read-only call stores nothing, so its parts needn't change.
        whole = merge(self._take(part) for part in parts)
        if not self.plan.read_only:
            self.touched.update({part: whole if part == parts[0] else emptied(type(whole)) for part in parts})
            self.dirty.update(parts)
        return whole, parts

    def _take(self, part: str) -> BaseModel:
        """Return a part as an object: the live object of the snapshot, or else a newly decoded object."""
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
        """Return a new copy of a part, decoded from the snapshot."""
        snapshot = self.snapshot
        return self.context.codec.decode(part, snapshot.parts[part], snapshot.blobs[part])
