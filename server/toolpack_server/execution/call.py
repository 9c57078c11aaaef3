"""Run one call, as a pure function of a plan and a snapshot.

No I/O, no lock, and no clock but the one that measures comparisons. Whatever a function does, the answer is
an `Outcome`; the call has no effect until that is committed.
"""

from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from toolpack_server.base.errors import InternalSignal, OverloadedError, RequestError, TooLargeError
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.execution.host_errors import host_error
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.read_only_checks import ReadOnlyCheck
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import Volumes
from toolpack_server.execution.world import ExecutionContext, World
from toolpack_server.functions.content import check_content
from toolpack_server.functions.steps import Steps, WrappedStopIteration, run_steps
from toolpack_server.jsonio.view import to_json


@dataclass(slots=True)
class Outcome:
    """The outcome of a call."""

    result: bytes | None = None  # the result as JSON text; None after an error
    failure: CallFailure | None = None
    changes: bool = False  # the call may have changed the environment, so the version increases
    # The new blob id and bytes of each part that it may have changed.
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    # The objects of the parts that it used, equal to their bytes, or where an executor holds them.
    live: dict[str, Any] = field(default_factory=dict)
    toolpack: str = ""  # the toolpack of the function; "" if there is no such function
    function: str = ""  # the function's name in the toolpack
    # What came out when read-only functions were compared with their promise; None if none was.
    comparison: ReadOnlyCheck | None = None
    content: bool = False  # the result is a list of MCP's content blocks
    # For each part that it may have changed, what the conditions under which it ran have found there.
    found: dict[str, Any] = field(default_factory=dict)
    nested: Sequence[bytes] = ()  # the results, as JSON, of those nested calls that have returned
    changed: Mapping[str, int] | None = None  # for each volume that it has changed, how many pages or files


def call(plan: Plan, snapshot: Snapshot, context: ExecutionContext) -> Outcome:
    """Run a function on this thread, in context variables of its own, and freeze the parts that it may have changed.

    Raises:
        RequestError: The stored environment can't be used; the call had no effect.
        MissingBlobError: A part of it is missing from the store; likewise.
    """
    return Context().run(run_steps, call_steps(plan, snapshot, context), context.interruptible)


def call_steps(plan: Plan, snapshot: Snapshot, context: ExecutionContext) -> Steps[Outcome]:
    """Do what `call` does, but let somebody else await the coroutines, unless it runs under conditions."""
    world = World(plan, snapshot, context, ReadOnlyCheck() if plan.compares else None, context.max_result_bytes)
    live: dict[str, Any] = {}
    try:
        if plan.conditions is None:
            outcome = yield from _run(world)
        else:
            with plan.conditions.hold():
                outcome = yield from _run(world)
        if world.volumes is not None:
            live = _end_volumes(world.volumes, outcome, world)
    finally:
        if world.volumes is not None:
            world.volumes.abandon(keep=False)  # where it was given up or refused; else nothing is left to do
    if plan.conditions is not None and outcome.failure is None:
        classes = context.codec.catalog.classes
        outcome.found |= {part: plan.conditions.find(outcome.live[part], classes) for part in world.dirty}
        outcome.live = {}  # the next call reads everything anew: the order of a set depends on how it was filled
    if live:
        outcome.live = {**outcome.live, **live}
    outcome.comparison = world.check
    outcome.nested = world.nested
    return outcome


def _run(world: World) -> Steps[Outcome]:
    plan, codec, most = world.plan, world.context.codec, world.context.max_result_bytes
    try:
        value = yield from plan.runtime.steps(world, plan.function, plan.arguments)
        result = to_json(value, codec.catalog.plain)
        if len(result) > most:
            raise TooLargeError(f"the result has {len(result)} bytes as JSON; {most} are allowed.")
        if plan.content:
            check_content(result)
        if world.volumes is not None:
            world.volumes.take_out()
        outcome = Outcome(result, changes=not plan.read_only, live=world.touched)
        for part in world.dirty:
            outcome.blobs[part] = codec.encode(part, world.touched[part])
        return outcome  # noqa: TRY300 - every line above can raise
    # BaseException: if a function raises SystemExit or KeyboardInterrupt, that is its failure, not the server's.
    except BaseException as error:
        # A `GeneratorExit` that no function has raised closes the steps of a call that was given up.
        if isinstance(error, RequestError | InternalSignal | GeneratorExit) and not world.raised:
            raise
        if isinstance(error, WrappedStopIteration):
            error = error.error
        return Outcome(failure=_failure(world, error, Failure.RAISED if world.raised else None))


def _failure(world: World, error: BaseException, why: Failure | None) -> CallFailure:
    """Describe why a call has failed, or refuse it: because of a volume that can't be used, or of the machine."""
    if world.volumes is not None:
        explained = world.volumes.explain(error)
        if explained is not error or world.volumes.failed is not None:
            raise explained from None
    trouble = host_error(error)
    if trouble is not None:
        raise OverloadedError(trouble) from None
    return CallFailure.of(error, why, world.context.max_result_bytes, keep_cause=world.plan.tracebacks)


def _end_volumes(volumes: Volumes, outcome: Outcome, world: World) -> dict[str, Any]:
    """Add to an outcome what the call has changed in volumes; get where their working copies are."""
    try:
        if outcome.failure is None:
            changes = volumes.finish()
            outcome.blobs |= changes.blobs
            outcome.changed, outcome.found = changes.counts, changes.found
            return changes.live
    except BaseException as error:  # noqa: BLE001 - it is the call's failure, whatever it is
        outcome.failure = _failure(world, error, Failure.RAISED)
        outcome.result, outcome.changes, outcome.blobs, outcome.live = None, False, {}, {}
    return volumes.abandon()
