"""Checks that functions declared read-only leave their environments unchanged.

The server doesn't store the environment after a read-only call. If the call changes the environment nevertheless, the
live objects differ from the snapshot, and the next call would see a change that was never committed. To detect this, a
check compares the live objects with the snapshot.

Because checks take time, they have a budget. The first calls of each function are always checked. A later call is
checked only while checks take less than a fixed share of the function's time and of the total time. A setting turns on
the check of every call.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, RootModel

from toolpack_server.base.errors import ReadOnlyError, SnapshotError
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.lazy_environment import LazyEnvironment
from toolpack_server.execution.parts import merge
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import Volumes
from toolpack_server.snapshots.comparison import Difference, first_difference
from toolpack_server.snapshots.pieces import Groups

FIRST_CALLS = 3  # calls of each function that are always checked
SHARE = 0.02  # maximum share of the time that may be spent on checks

Key = tuple[str, str]
"""The names of a toolpack and of one of its functions."""


@dataclass(slots=True)
class _Tally:
    """Counters for one read-only function, from which `is_due` computes the share of time spent on checks.

    Attributes:
        compared: Number of checked calls.
        called_seconds: Duration of all calls, including their checks.
        compared_seconds: Duration of all checks.
    """

    compared: int = 0
    called_seconds: float = 0.0
    compared_seconds: float = 0.0


class ReadOnlyChecks:
    """Decides which calls of read-only functions are checked, and remembers which functions broke their declaration.

    Args:
        always: Check every call.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._tallies: dict[Key, _Tally] = {}
        self._changing: set[Key] = set()
        self._began = time.monotonic()
        self._compared_seconds = 0.0

    def is_trusted(self, toolpack: str, function: str) -> bool:
        """Return whether no check has caught a function changing its environment."""
        return (toolpack, function) not in self._changing

    def is_due(self, toolpack: str, function: str) -> bool:
        """Return whether to check the next call of a read-only function."""
        if self._always:
            return True
        tally = self._tallies.get((toolpack, function))
        if tally is None or tally.compared < FIRST_CALLS:
            return True
        mean = tally.compared_seconds / tally.compared
        if tally.compared_seconds + mean > SHARE * tally.called_seconds:
            return False
        # Compare with the elapsed time, not with the sum of the calls' durations: many calls can wait at the same time,
        # but each check uses the CPU.
        return self._compared_seconds + mean <= SHARE * (time.monotonic() - self._began)

    def called(self, toolpack: str, function: str, seconds: float, compared_seconds: float | None) -> None:
        """Count a call of a read-only function.

        This uses no lock. If two threads count at once and one count is lost, the budget is only slightly wrong.

        Args:
            seconds: Duration of the call, including the check.
            compared_seconds: Duration of the check; None if the call wasn't checked.
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
        """Stop treating a function as read-only. Return whether it counted as read-only before."""
        is_new = (toolpack, function) not in self._changing
        self._changing.add((toolpack, function))
        return is_new


class CheckedWorld(Protocol):
    """The attributes of a `World` that a check uses. This protocol avoids an import cycle."""

    plan: Plan
    snapshot: Snapshot
    dirty: set[str]
    volumes: Volumes | None
    loaded: dict[str, tuple[BaseModel, Sequence[str]]]

    @property
    def codec(self) -> PlainCodec: ...

    def decode(self, part: str) -> BaseModel: ...


@dataclass(slots=True)
class ReadOnlyCheck:
    """Check of one call: compares the environments before and after each of its read-only functions."""

    seconds: float = 0.0  # duration of the check so far
    # If a function broke its declaration: its toolpack, its name in the toolpack, and a description of the change.
    broken: tuple[str, str, str] | None = None
    _restored: dict[str, bytes | None] = field(default_factory=dict)  # the bytes of each restored part

    def restored(self, codec: PlainCodec, part: str, environment: BaseModel) -> None:
        """Freeze a restored part and remember the bytes, for the comparison after the call.

        These bytes can differ from the snapshot's bytes, because restoring a set can change its order.
        """
        began = time.perf_counter()
        self._restored[part] = codec.try_freeze(environment)
        self.seconds += time.perf_counter() - began

    def before(self, world: CheckedWorld, toolpack: str) -> BaseModel | Groups | None:
        """Return a toolpack's environment as it is before the function, in the form that `after` compares with.

        - For a lazy environment, return its state.
        - If a nested call might already have changed another kind of environment, return a copy.
        - Return None if the environment still equals the snapshot. Also return None if it can't be stored, because the
          call will fail for that reason.
        """
        began = time.perf_counter()
        try:
            environment, parts = world.loaded.get(toolpack) or (None, ())
            lazy = _lazy_environment(world, toolpack)
            if lazy is not None and environment is not None:
                with _without_volumes(world, environment):
                    return lazy.state()
            if environment is None or world.dirty.isdisjoint(parts):
                return None
            with _without_volumes(world, environment):
                return world.codec.copy(environment)
        except SnapshotError:
            return None
        finally:
            self.seconds += time.perf_counter() - began

    def after(self, world: CheckedWorld, function: str, key: Key, before: BaseModel | Groups | None) -> None:
        """Raise `ReadOnlyError` if a function has changed its environment.

        Args:
            key: The name of the function's toolpack, and the function's name in the toolpack.
            before: The result of the method `before`.
        """
        world.plan.comparing()  # gives the check its own deadline, because its time isn't the function's
        began = time.perf_counter()
        try:
            change = self.change(world, key[0], before)
        finally:
            self.seconds += time.perf_counter() - began
        if change:
            path, reason = change
            # Agents may read the message, so it names the path but no value.
            where = f"env{'' if path.startswith('[') or not path else '.'}{path}"
            self.broken = *key, f"{where}: {reason}"
            raise ReadOnlyError(f"{function} promised read_only=True but changed {where}", *self.broken)

    def change(self, world: CheckedWorld, toolpack: str, before: BaseModel | Groups | None) -> Difference | None:
        """Return the path and the description of an environment's first change, or None if it is unchanged.

        Args:
            before: The result of the method `before`. None: compare with the snapshot.
        """
        environment, parts = world.loaded.get(toolpack) or (None, ())
        lazy = _lazy_environment(world, toolpack)
        if environment is None or not (parts or lazy):  # the call used only volumes, which it can't write to
            return None
        with _without_volumes(world, environment):
            if lazy is not None:
                change = lazy.change_since({} if isinstance(before, BaseModel) else before)
            else:
                change = self._changed(world, environment, parts, before if isinstance(before, BaseModel) else None)
        if change and isinstance(environment, RootModel):  # leave out `root`: authors don't see this field
            change = change[0].removeprefix("root").removeprefix("."), change[1]
        return change

    def _changed(
        self, world: CheckedWorld, environment: BaseModel, parts: Sequence[str], before: BaseModel | None
    ) -> Difference | None:
        """Return the first change to an environment that isn't lazy, or None. Compare the bytes first, for speed."""
        codec = world.codec
        now = codec.try_freeze(environment)
        if before is None:
            if not world.dirty.isdisjoint(parts) or (now is not None and self._is_as_it_was(world, parts, now)):
                return None
            before = merge(world.decode(part) for part in parts)
        was = codec.try_freeze(before)
        if now is None or was is None:
            return first_difference(before, environment)
        if now == was:
            return None
        # Compare restored copies, because a difference that isn't stored must not be reported.
        return first_difference(codec.thaw(was), codec.thaw(now))

    def _is_as_it_was(self, world: CheckedWorld, parts: Sequence[str], now: bytes) -> bool:
        """Return whether an environment in a single part still has the bytes that it had before the call.

        If this returns False, the environment might still be unchanged, so the caller must compare the objects.

        Args:
            now: The present bytes of the environment.
        """
        if len(parts) > 1:
            return False
        snapshot, part = world.snapshot, parts[0]
        if self._restored.get(part) == now:
            return True
        return now == world.codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])


def _lazy_environment(world: CheckedWorld, toolpack: str) -> LazyEnvironment | None:
    """Return the content of a toolpack's environment, if it is stored as a chain."""
    return None if world.volumes is None else world.volumes.lazy_environment(toolpack)


def _without_volumes(world: CheckedWorld, environment: BaseModel) -> AbstractContextManager[None]:
    return nullcontext() if world.volumes is None else world.volumes.outside(environment)
