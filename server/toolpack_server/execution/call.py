"""Execution of a call, as a pure function of a plan and a snapshot.

This module does no I/O, acquires no lock, and reads the clock only to measure read-only checks. The result is an
`Outcome`, even if the function fails. The call has no effect until the caller commits the outcome.
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
    """The outcome of a call: its result or failure, and the changes for the caller to commit."""

    result: bytes | None = None  # the result as JSON text; None after an error
    failure: CallFailure | None = None
    changes: bool = False  # the call might have changed the environment, so the commit must increase the version
    # The new blob id and bytes of each part that the call might have changed.
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    # The decoded object of each part that the call used, or a reference to this object in an executor. The next call
    # can use the object instead of decoding the part's bytes.
    live: dict[str, Any] = field(default_factory=dict)
    toolpack: str = ""  # the toolpack of the function; "" if there is no such function
    function: str = ""  # the function's name in the toolpack
    comparison: ReadOnlyCheck | None = None  # the check of the call's read-only functions; None if no check was due
    content: bool = False  # the result is a list of MCP content blocks
    # For each part that the call might have changed, the digest that the execution policy computed.
    digests: dict[str, Any] = field(default_factory=dict)
    nested: Sequence[bytes] = ()  # the results, as JSON, of the nested calls that returned
    changed: Mapping[str, int] | None = None  # number of changed pages or files, by volume that the call changed

    def drop_changes(self) -> None:
        """Remove all changes. Also remove the live objects, because the call might have changed them."""
        self.changes, self.changed = False, None
        self.blobs, self.live, self.digests = {}, {}, {}


def call(plan: Plan, snapshot: Snapshot, context: ExecutionContext) -> Outcome:
    """Run a function on this thread, in a new `contextvars` context, and encode the parts that it might have changed.

    Raises:
        RequestError: The stored environment can't be decoded. The call had no effect.
        MissingBlobError: A part of the environment is missing from the store. The call had no effect.
    """
    return Context().run(run_steps, call_steps(plan, snapshot, context), context.interruptible)


def call_steps(plan: Plan, snapshot: Snapshot, context: ExecutionContext) -> Steps[Outcome]:
    """Run a call like `call`, but yield the function's coroutines to the caller, which awaits them.

    If the plan contains an execution policy, the caller must await the coroutines on this thread, because the policy
    applies to this process.
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
            # This has an effect only after an exception. Without one, `_end_volumes` has already released the volumes.
            world.volumes.abandon(keep=False)
    if plan.policy is not None and outcome.failure is None:
        classes = context.codec.catalog.classes
        outcome.digests |= {part: plan.policy.digest_part(outcome.live[part], classes) for part in world.dirty}
        # A policy promises that a call can be repeated with the same result, so the next call must decode everything.
        # The iteration order of a set depends on how the set was filled: a live set and its decoded copy can differ.
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
    # BaseException: if a function raises SystemExit or KeyboardInterrupt, only its call fails; the server continues.
    except BaseException as error:
        # If no function raised a `GeneratorExit`, the caller is closing this generator because it abandoned the call.
        if isinstance(error, RequestError | InternalSignal | GeneratorExit) and not world.raised:
            raise  # the server's own code raised the error
        if isinstance(error, WrappedStopIteration):
            error = error.error
        return Outcome(failure=_failure(world, error, Failure.RAISED if world.raised else None))


def _failure(world: World, error: BaseException, why: Failure | None) -> CallFailure:
    """Return the failure of a call.

    Raise an error instead if the cause is an unusable volume or a shortage on the host: such a call isn't recorded.
    """
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

    If a volume can't be stored, the call fails, and all its changes are discarded.
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
