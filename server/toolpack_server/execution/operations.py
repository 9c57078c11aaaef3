"""Runner operations of the core: run a function; build, show, export and compare environments.

A runner executes each operation in this process or in an executor process. An operation consists of one class here and
one entry in `OPERATIONS`. Features add their own operations.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import TypeAdapter
from typing_extensions import override

from toolpack_server.base.errors import CrashedError
from toolpack_server.execution.call import Outcome, call_steps
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.execution.initial import Built, build, parse
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.views import (
    bind_volumes,
    reading,
    thawed,
    view,
    view_changes,
    view_without_volumes,
)
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.functions.leftovers import Watch
from toolpack_server.functions.steps import Steps, run_steps
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.snapshots.pickling import freeze
from toolpack_server.volumes.volume import Volume, is_piece


class RunCall(RunnerOperation[Outcome]):
    """Run a function.

    Args:
        toolpacks: The session's toolpacks, from which an executor builds the session's functions.
        sent: The call with its arguments, as JSON text, for an executor.
        start: Called just before the function starts.
    """

    name = "call"
    leaves_traces = True

    def __init__(
        self, plan: Plan, toolpacks: Sequence[str], sent: bytes, snapshot: Snapshot, start: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.toolpacks = toolpacks
        self.sent = sent
        self.snapshot = snapshot
        self.start = start
        self.who = f"`{plan.function}`"

    @override
    def run(self, context: ExecutionContext) -> Outcome:
        return run_steps(self.steps(context), context.interruptible)

    @override
    def steps(self, context: ExecutionContext) -> Steps[Outcome]:
        plan = self.plan
        self.start()
        watch = Watch()
        outcome = yield from call_steps(plan, self.snapshot, context)
        if watch.leaves_work(plan.footprint):
            outcome.live = {}  # threads started by the function might still change these objects
        return outcome

    @override
    def crashed(self, error: CrashedError) -> Outcome:
        return Outcome(failure=CallFailure.of(error, Failure.CRASHED, keep_cause=False))


@dataclass(eq=False)
class MakeEnvironment(RunnerOperation[Built]):
    """Base class of the operations that create a toolpack's environment."""

    toolpack: str
    source: Any
    policy: ExecutionPolicy | None = None
    _make: ClassVar["staticmethod[[ExecutionContext, str, Any, ExecutionPolicy | None], Built]"]
    _author: ClassVar[str]  # name of the code that runs, for error messages

    def __post_init__(self) -> None:
        self.who = f"{self._author} of toolpack {self.toolpack!r}"

    @override
    def run(self, context: ExecutionContext) -> Built:
        return self._make(context, self.toolpack, self.source, self.policy)


@dataclass(eq=False)
class BuildEnvironment(MakeEnvironment):
    """Build a toolpack's initial environment from options."""

    name = "build"
    _make = staticmethod(build)
    _author = "The factory"


@dataclass(eq=False)
class ParseEnvironment(MakeEnvironment):
    """Build a toolpack's environment from JSON."""

    name = "parse"
    _make = staticmethod(parse)
    _author = "The environment"


@dataclass(eq=False)
class ExportEnvironments(RunnerOperation[bytes]):
    """Export all environments, by toolpack, as one exact snapshot."""

    snapshot: Snapshot
    name = "export"

    @override
    def run(self, context: ExecutionContext) -> bytes:
        return freeze(thawed(context.codec, self.snapshot), context.codec.catalog.classes)


class _JsonText(RunnerOperation[bytes]):
    """Base class of operations that return JSON text."""

    @override
    def fits(self, result: Any) -> bool:
        loads(result)  # raises if the text isn't JSON, because the text is copied unchanged into a response
        return True


@dataclass(eq=False)
class ViewEnvironments(_JsonText):
    """Convert all environments to JSON, by toolpack. Items that a JSON Pointer doesn't lead to can be left out."""

    snapshot: Snapshot
    within: Sequence[str] = ()  # the steps of the JSON Pointer
    name = "view"

    @override
    def run(self, context: ExecutionContext) -> bytes:
        return view(context.codec, self.snapshot, self.within)


@dataclass(eq=False)
class ViewWithoutVolumes(_JsonText):
    """Convert all environments to JSON, by toolpack, without their volumes."""

    snapshot: Snapshot
    name = "view-rest"

    @override
    def run(self, context: ExecutionContext) -> bytes:
        return view_without_volumes(context.codec, self.snapshot)


@dataclass(eq=False)
class ViewChanges(_JsonText):
    """Convert the environments of two snapshots to JSON, without items that are equal in both.

    The result is empty if the equal items can't be found. The caller then compares the whole environments.
    """

    before: Snapshot
    after: Snapshot
    name = "view-changes"

    @override
    def run(self, context: ExecutionContext) -> bytes:
        return view_changes(context.codec, self.before, self.after)

    @override
    def fits(self, result: Any) -> bool:
        return not result or super().fits(result)


@dataclass(eq=False)
class ViewVolume(_JsonText):
    """Convert the value at a JSON Pointer in a volume, or a page of the value, to JSON.

    The result is empty if there is no value at the pointer.
    """

    snapshot: Snapshot
    volume: str
    within: Sequence[str]  # the steps of the pointer inside the volume
    after: str | None
    limit: int | None
    name = "view-volume"

    @override
    def run(self, context: ExecutionContext) -> bytes:
        try:
            with reading(context.codec) as volumes:
                return dumps(bind_volumes(self.snapshot, volumes)[self.volume].at(self.within, self.after, self.limit))
        except LookupError:
            return b""

    @override
    def fits(self, result: Any) -> bool:
        return not result or super().fits(result)


@dataclass(eq=False)
class ExportVolumes(RunnerOperation[dict[str, str]]):
    """Export the volumes in a file format that other programs can read. The result maps each name to base64."""

    snapshot: Snapshot
    name = "export-volumes"
    shape = TypeAdapter(dict[str, str])

    @override
    def run(self, context: ExecutionContext) -> dict[str, str]:
        with reading(context.codec) as volumes:
            by_name = bind_volumes(self.snapshot, volumes)
            return {name: base64.b64encode(volume.export()).decode() for name, volume in by_name.items()}


@dataclass(eq=False)
class PatchVolumes(RunnerOperation[list[dict[str, Any]]]):
    """Compute the JSON Patch operations that turn the volumes of one snapshot into the volumes of another.

    A volume that exists in only one of the snapshots is added or removed as a whole.
    """

    before: Snapshot
    after: Snapshot
    paths: Mapping[str, str]  # the JSON Pointers of the volumes, by name
    text_diffs: bool
    name = "patch-volumes"
    shape = TypeAdapter(list[dict[str, Any]])

    def __post_init__(self) -> None:
        self.before, self.after = map(_pieces, (self.before, self.after))

    @override
    def run(self, context: ExecutionContext) -> list[dict[str, Any]]:
        patch: list[dict[str, Any]] = []
        with reading(context.codec) as old, reading(context.codec) as new:
            lefts, rights = bind_volumes(self.before, old), bind_volumes(self.after, new)
            for name, path in self.paths.items():
                left, right = lefts.get(name), rights.get(name)
                if left is None and right is not None:
                    patch.append({"op": "add", "path": path, "value": right.view()})
                elif right is None:
                    patch.append({"op": "remove", "path": path})
                elif left is not None and not _is_same(left, right):
                    patch += left.patch(right, path, text_diffs=self.text_diffs)
        return patch


OPERATIONS: tuple[type[RunnerOperation[Any]], ...] = (
    RunCall,
    BuildEnvironment,
    ParseEnvironment,
    ViewEnvironments,
    ViewWithoutVolumes,
    ViewChanges,
    ViewVolume,
    ExportEnvironments,
    ExportVolumes,
    PatchVolumes,
)


def _is_same(left: Volume, right: Volume) -> bool:
    """Return whether two volumes consist of the same pieces."""
    keys = [volume.mount and volume.mount.chain.key for volume in (left, right)]
    return keys[0] is not None and keys[0] == keys[1]


def _pieces(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with only its pieces, which volumes consist of, so that fewer blobs go to an executor."""
    return Snapshot({part: blob for part, blob in snapshot.parts.items() if is_piece(part)}, snapshot.blobs)
