"""Checks that functions declared read-only leave their environments unchanged.

A read-only call isn't frozen. If it changes the environment all the same, the live objects differ from the snapshot:
the next call sees a change that was never committed. Only a comparison of the two finds that.

Comparing costs little. The first calls of each function are compared, then as many as fit into a share of the
time that its calls take and of the time that passes. A setting has all of them compared.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, RootModel

from toolpack_server.base.errors import ReadOnlyError, SnapshotError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.parts import merge
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import Volumes
from toolpack_server.snapshots.comparison import first_difference

FIRST_CALLS = 3
SHARE = 0.02

Key = tuple[str, str]
"""A toolpack and one of its functions."""


@dataclass(slots=True)
class _Tally:
    """The read-only calls of one function: how many were compared, and the seconds of calling and of comparing."""

    compared: int = 0
    called_seconds: float = 0.0
    compared_seconds: float = 0.0


class ReadOnlyChecks:
    """Decides which calls of read-only functions are compared, and keeps which functions were falsely read-only."""

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._tallies: dict[Key, _Tally] = {}
        self._changing: set[Key] = set()
        self._began = time.monotonic()
        self._compared_seconds = 0.0

    def is_trusted(self, toolpack: str, function: str) -> bool:
        return (toolpack, function) not in self._changing

    def is_due(self, toolpack: str, function: str) -> bool:
        """Whether the next call of a read-only function is to be compared."""
        if self._always:
            return True
        tally = self._tallies.get((toolpack, function))
        if tally is None or tally.compared < FIRST_CALLS:
            return True
        one = tally.compared_seconds / tally.compared
        if tally.compared_seconds + one > SHARE * tally.called_seconds:
            return False
        # Functions may wait at the same time, but comparing takes the processor.
        return self._compared_seconds + one <= SHARE * (time.monotonic() - self._began)

    def called(self, toolpack: str, function: str, seconds: float, compared_seconds: float | None) -> None:
        """Note a call of a read-only function.

        Threads may call this at the same time: what one of them overwrites makes no difference to the share.
        Of `seconds`, `compared_seconds` were for comparing; None if it wasn't compared.
        """
        tally = self._tallies.get((toolpack, function))
        if tally is None:
            tally = self._tallies.setdefault((toolpack, function), _Tally())
        tally.called_seconds += seconds
        if compared_seconds is not None:
            tally.compared += 1
            tally.compared_seconds += compared_seconds
            self._compared_seconds += compared_seconds

    def mark_not_read_only(self, toolpack: str, function: str) -> bool:
        """Take a function for a changing one from now on; return whether that is new."""
        known = (toolpack, function) in self._changing
        self._changing.add((toolpack, function))
        return not known


class CheckedWorld(Protocol):
    """The attributes of a `World` that a check uses."""

    plan: Plan
    snapshot: Snapshot
    dirty: set[str]
    volumes: Volumes | None

    @property
    def codec(self) -> PlainCodec: ...

    def loaded(self, toolpack: str) -> tuple[BaseModel, Sequence[str]] | None: ...

    def decode(self, part: str) -> BaseModel: ...


@dataclass(slots=True)
class ReadOnlyCheck:
    """The comparison of the environments of one call with what its read-only functions were given."""

    seconds: float = 0.0
    # The toolpack of a falsely read-only function, its name there, and its change.
    broken: tuple[str, str, str] | None = None
    _restored: dict[str, bytes | None] = field(default_factory=dict)

    def restored(self, codec: PlainCodec, part: str, environment: BaseModel) -> None:
        """Note which bytes a part that was restored would be stored as: the order of its sets may be another one."""
        began = time.perf_counter()
        self._restored[part] = codec.frozen(environment)
        self.seconds += time.perf_counter() - began

    def before(self, world: CheckedWorld, toolpack: str) -> BaseModel | None:
        """Return a copy of an environment that the call may have changed already.

        None if its snapshot will do, or if it can't be stored, so that the call fails.
        """
        began = time.perf_counter()
        try:
            environment, parts = world.loaded(toolpack) or (None, ())
            if environment is None or world.dirty.isdisjoint(parts):
                return None
            with _without_volumes(world, environment):
                return world.codec.copy(environment)
        except SnapshotError:
            return None
        finally:
            self.seconds += time.perf_counter() - began

    def after(self, world: CheckedWorld, function: str, key: Key, before: BaseModel | None) -> None:
        """Raise `ReadOnlyError` if a function has changed its environment, of which there may be a copy from before."""
        world.plan.comparing()
        began = time.perf_counter()
        try:
            change = self.change(world, key[0], before)
        finally:
            self.seconds += time.perf_counter() - began
        if change:
            path, reason = change
            # An agent may read the message: it names the path, and no value.
            where = f"env{'' if path.startswith('[') or not path else '.'}{path}"
            self.broken = *key, f"{where}: {reason}"
            raise ReadOnlyError(f"{function} promised read_only=True but changed {where}", *self.broken)

    def change(self, world: CheckedWorld, toolpack: str, before: BaseModel | None) -> tuple[str, str] | None:
        """Return the path and the reason of an environment's change since `before`, or since its snapshot."""
        environment, parts = world.loaded(toolpack) or (None, ())
        if environment is None or not parts:  # only volumes, into which a read-only call can't write
            return None
        with _without_volumes(world, environment):
            return self._changed(world, environment, parts, before)

    def _changed(
        self, world: CheckedWorld, environment: BaseModel, parts: Sequence[str], before: BaseModel | None
    ) -> tuple[str, str] | None:
        codec = world.codec
        now = codec.frozen(environment)
        if before is None:
            if not world.dirty.isdisjoint(parts) or (now is not None and self._is_as_it_was(world, parts, now)):
                return None
            before = merge(world.decode(part) for part in parts)
        was = codec.frozen(before)
        if now is None or was is None:
            change = first_difference(before, environment)
        elif now == was:
            return None
        else:
            # Only a snapshot of it shows what a snapshot would lose anyway: nobody is accused of that.
            change = first_difference(codec.thawed(was), codec.thawed(now))
        if change and isinstance(environment, RootModel):  # its only field is all of the environment
            change = change[0].removeprefix("root").removeprefix("."), change[1]
        return change

    def _is_as_it_was(self, world: CheckedWorld, parts: Sequence[str], now: bytes) -> bool:
        """Return whether these are the bytes of an environment's only part; if not, it may still hold the same."""
        if len(parts) > 1:
            return False
        snapshot, part = world.snapshot, parts[0]
        if self._restored.get(part) == now:
            return True
        return now == world.codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])


def _without_volumes(world: CheckedWorld, environment: BaseModel) -> AbstractContextManager[None]:
    return nullcontext() if world.volumes is None else world.volumes.outside(environment)
