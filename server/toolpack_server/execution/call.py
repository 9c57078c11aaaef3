"""Execution of a call, as a pure function of a plan and a snapshot.

The code here does no I/O, takes no lock, and reads the clock only to measure read-only checks. The result is an
`Outcome`, even if the function fails. The call has no effect until the outcome is committed.
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
    changes: bool = False  # True if the call may have changed the environment, so that the version increases
    # The new blob id and bytes of each part that the call may have changed.
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    # The live object of each part that the call used, equal to its bytes, or a reference to it in an executor.
    live: dict[str, Any] = field(default_factory=dict)
    toolpack: str = ""  # the toolpack of the function; "" if there is no such function
    function: str = ""  # the function's name in the toolpack
    comparison: ReadOnlyCheck | None = None  # the check of the read-only functions; None if it wasn't due
    content: bool = False  # the result is a list of MCP content blocks
    # The digest, by the execution policy, of each part that the call may have changed.
    digests: dict[str, Any] = field(default_factory=dict)
    nested: Sequence[bytes] = ()  # the results, as JSON, of the nested calls that returned
    changed: Mapping[str, int] | None = None  # number of changed pages or files, by volume that the call changed

    def drop_changes(self) -> None:
        """Remove all changes. The live objects are removed, too, because the call may have changed them."""
        self.changes, self.changed = False, None
        self.blobs, self.live, self.digests = {}, {}, {}


def call(plan: Plan, snapshot: Snapshot, context: ExecutionContext) -> Outcome:
    """Run a function on this thread, in a new `contextvars` context, and encode the parts that it may have changed.

    Raises:
        RequestError: The stored environment can't be used. The call had no effect.
        MissingBlobError: A part of the environment is missing from the store. The call had no effect.
    """
    return Context().run(run_steps, call_steps(plan, snapshot, context), context.interruptible)


def call_steps(plan: Plan, snapshot: Snapshot, context: ExecutionContext) -> Steps[Outcome]:
    """Run a call like `call`, but yield its coroutines to the caller, which awaits them.

    With an execution policy, the caller must await them on this thread, because the policy applies to this process.
    """
    world = World(plan, snapshot, context, ReadOnlyCheck() if plan.compares else None, context.max_result_bytes)
    live: dict[str, Any] = {}
    try:
        if plan.policy is None:
            outcome = yield from _run(world)
        else:
            with plan.policy.hold():
                outcome = yield from _run(world)
        if world.volumes is not None:
            live = _end_volumes(world.volumes, outcome, world)
    finally:
        if world.volumes is not None:
            # Only has an effect after an exception: otherwise `_end_volumes` has released the volumes.
            world.volumes.abandon(keep=False)
    if plan.policy is not None and outcome.failure is None:
        classes = context.codec.catalog.classes
        outcome.digests |= {part: plan.policy.digest_part(outcome.live[part], classes) for part in world.dirty}
        # The next call must decode everything. The order of a set depends on how the set was filled, so a live object
        # could give other results than the decoded one when the call is repeated.
        outcome.live = {}
    if live:
        outcome.live = {**outcome.live, **live}
    outcome.comparison = world.check
    outcome.nested = world.nested
    return outcome


def _run(world: World) -> Steps[Outcome]:
    """Run the function, and return the outcome with the encoded parts, or with the failure."""
    plan, codec, max_bytes = world.plan, world.context.codec, world.context.max_result_bytes
    try:
        value = yield from plan.runtime.steps(world, plan.function, plan.arguments)
        result = to_json(value, codec.catalog.plain)
        if len(result) > max_bytes:
            raise TooLargeError(f"the result has {len(result)} bytes as JSON; {max_bytes} are allowed.")
        if plan.content:
            check_content(result)
        if world.volumes is not None:
            world.volumes.take_out()
        outcome = Outcome(result, changes=not plan.read_only, live=world.touched)
        for part in world.dirty:
            outcome.blobs[part] = codec.encode(part, world.touched[part])
        return outcome  # noqa: TRY300 - every line above can raise
    # BaseException: a function that raises SystemExit or KeyboardInterrupt has failed; the server must go on.
    except BaseException as error:
        # A `GeneratorExit` that no function raised closes the steps of an abandoned call.
        if isinstance(error, RequestError | InternalSignal | GeneratorExit) and not world.raised:
            raise  # the server's own code raised the error
        if isinstance(error, WrappedStopIteration):
            error = error.error
        return Outcome(failure=_failure(world, error, Failure.RAISED if world.raised else None))


def _failure(world: World, error: BaseException, why: Failure | None) -> CallFailure:
    """Return the failure of a call. Raise instead if an unusable volume or the host caused the error."""
    if world.volumes is not None:
        explained = world.volumes.explain(error)
        if explained is not error or world.volumes.failed is not None:
            raise explained from None
    message = host_error(error)
    if message is not None:
        raise OverloadedError(message) from None
    return CallFailure.of(error, why, world.context.max_result_bytes, keep_cause=world.plan.tracebacks)


def _end_volumes(volumes: Volumes, outcome: Outcome, world: World) -> dict[str, Any]:
    """Add the changes of volumes to an outcome, and return the handles of their working copies.

    If a volume can't be stored, the call has failed, and no change of the call is kept.
    """
    try:
        if outcome.failure is None:
            changes = volumes.finish()
            outcome.blobs |= changes.blobs
            outcome.changed, outcome.digests = changes.counts, changes.digests
            return changes.live
    except BaseException as error:  # noqa: BLE001 - any exception is the call's failure
        outcome.failure = _failure(world, error, Failure.RAISED)
        outcome.result, outcome.changes, outcome.blobs, outcome.live = None, False, {}, {}
    return volumes.abandon()
