"""Calls of functions in a session: the operation, its record, and the kind of that record.

The record of a call and the changed environment are stored in one commit. A call that is refused before its function
starts changes nothing and has no record.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from toolpack_server.base.errors import MAX_SHOWN, CrashedError, TooLargeError, VersionConflictError
from toolpack_server.base.terminal import printable
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import NONE, Effect, SessionState
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure, Failure, cut_error
from toolpack_server.execution.nested import NestedCall
from toolpack_server.execution.operations import RunCall
from toolpack_server.execution.plan import Plan, SessionFunctions, uncompared
from toolpack_server.execution.read_only_checks import ReadOnlyCheck
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.functions.steps import Steps
from toolpack_server.jsonio.strict import Fragment, cut_if_longer, dumps
from toolpack_server.observability.suspects import LIMIT
from toolpack_server.packs.names import without_dots
from toolpack_server.protocol import results
from toolpack_server.protocol.senders import CLIENT, WORLD
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.nested import MAX_NESTED_CALLS, NestedRecord
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.part_bytes import PartBytes
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.sessions.record_kinds import RecordKind, Shown, short
from toolpack_server.sessions.records import cut_arguments
from toolpack_server.stores.base import Record, StoredSession
from toolpack_server.volumes.volume import is_piece

LARGE_ARGUMENTS = 4096  # size in bytes; for larger arguments, the quotas are checked before the function runs
COMPARING_SECONDS = 60.0  # time limit of a read-only check, independent of the call's deadline
CANCELLED = "The client cancelled the call. Nothing has changed."


class CallRequest(NamedTuple):
    """A call as the client sent it.

    The docstring of `rpc.methods.RunFunction` describes the attributes that aren't listed here.

    Attributes:
        kwargs: The arguments. The function receives this object itself and might change it.
        sent: The arguments as JSON text, for the record and the log. Unlike `kwargs`, the text never changes.
        problem: Why the arguments are invalid, which makes the call fail. None if they are valid.
        by: Name of the address that received the call, or `client`. The limits of this address apply.
    """

    function: str
    kwargs: Mapping[str, Any]
    sent: bytes
    call_id: str | None = None
    expected_version: int | None = None
    timeout_seconds: float | None = None
    problem: str | None = None
    by: str = CLIENT


class CallOperation(SessionOperation):
    """Operation that runs a function in a session.

    Attributes:
        plan: The function, its arguments and its properties. `prepare` sets it.
        outcome: The outcome that a hook has set, to record and return it instead of running the function. None means
            that the function runs.
        dry_run: Whether to run the function without committing its changes. A hook can set this attribute.
        blobs: The bytes of the session's parts.
    """

    method = "run_function"
    record_kind = "call"
    starts_clock = True
    dry_run = False
    plan: Plan
    blobs: PartBytes

    def __init__(self, context: SessionContext, session_id: str, owner: str, request: CallRequest) -> None:
        super().__init__(context, session_id, owner, request.call_id)
        self.kind = request.function if request.function in context.functions else ""
        self.by = request.by
        self.request = self._sent = request
        self.outcome: Outcome | None = None
        self._toolpacks: tuple[str, ...] = ()
        self._shown_kwargs = b""
        self._nested: NestedRecord | None = None  # None if the record has no nested calls
        # The outcome, if the record's line for clients contains the complete result.
        self._complete: Outcome | None = None

    def prepare(self, state: SessionState) -> float:
        """Plan the call, and return its deadline in seconds."""
        request, context, recipe = self.request, self.context, self.facts.recipe
        # If the recipe contains no feature's data, every address offers all functions.
        limited = self.by != CLIENT and recipe.feature_options
        offered = context.addresses.of(state.session, self.by).functions if limited else None
        self._toolpacks = recipe.toolpacks
        runtime = context.runtime(self._toolpacks, offered)
        self.plan = runtime.plan(request.function, request.kwargs, request.timeout_seconds)
        self.blobs = PartBytes(context.store, state.parts, state.blobs, state.unstored)
        max_bytes = context.settings.max_record_bytes
        sent = request.sent
        self._shown_kwargs = sent if len(sent) <= max_bytes else cut_arguments(sent, request.kwargs, max_bytes)
        if self.plan.nested:
            self._record_nested(self.plan.nested, max_bytes)
        return self.plan.timeout_seconds

    def _record_nested(self, calls: Sequence[NestedCall], max_bytes: int) -> None:
        """Prepare the record of the nested calls. If the call contains too many, it fails without running."""
        if len(calls) > MAX_NESTED_CALLS:
            problem = (
                f"{len(calls)} calls are nested in this call; {MAX_NESTED_CALLS} are allowed: send some of them first."
            )
            self.outcome = wrong_arguments(problem, "too_many_calls")
        else:
            self._nested = NestedRecord(calls, max_bytes)

    def restart(self) -> None:
        """Undo the preparation of a call that will start again after other operations have run.

        The caller must have checked `expected_version`, because the other operations can change the version.
        """
        self._sent = self._sent._replace(expected_version=None)
        self.request, self.outcome, self.dry_run, self.hook_scratch, self._nested = self._sent, None, False, NONE, None

    def refuse(self, outcome: Outcome) -> None:
        """Record and return an outcome instead of running the function. Nested calls aren't recorded."""
        self.outcome, self._nested = outcome, None

    def narrow(self, offered: frozenset[str]) -> None:
        """Plan the call again as if the session had only the functions with these names."""
        self._replan(self.context.runtime(self._toolpacks, offered))

    def retarget(self, request: CallRequest) -> None:
        """Run another call instead of the call that the client sent. The `call_id` stays that of the client's call."""
        self.request, self._nested = request, None
        max_bytes = self.context.settings.max_record_bytes
        self._shown_kwargs = cut_arguments(request.sent, request.kwargs, max_bytes)
        self._replan(self.plan.runtime)
        if self.plan.nested:
            self._record_nested(self.plan.nested, max_bytes)

    def _replan(self, runtime: SessionFunctions) -> None:
        """Replace the plan, but keep the execution policy that a hook has set."""
        policy, request = self.plan.policy, self.request
        self.plan = runtime.plan(request.function, request.kwargs, request.timeout_seconds)
        self.plan.policy = policy
        # Calls with a policy must be repeatable; comparing only some of them could make repetitions differ.
        self.plan.compares &= policy is None

    def asked(self) -> Sequence[Any]:
        """Return the parameters that a repeated call must have in common with the first call."""
        return self.request.function, self.request.kwargs

    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Outcome:  # noqa: ARG002
        """Rebuild the outcome of the first call from its record, and return it."""
        outcome = _recorded_outcome(shown, private, content=self.plan.content)
        outcome.toolpack, outcome.function = self.plan.toolpack, self.plan.registered_name
        return outcome

    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run the function, unless the call already has an outcome, and return the effect.

        Raises:
            VersionConflictError: The session isn't at the call's `expected_version`.
        """
        request, context, plan, blobs = self.request, self.context, self.plan, self.blobs
        if request.expected_version is not None and request.expected_version != state.version:
            raise VersionConflictError(request.expected_version, state.version)
        live = state.take_live()
        if plan.policy:  # decode the environments again, so that a repeated call gets equal environments
            live = {name: copy for name, copy in live.items() if is_piece(name)}
        snapshot = Snapshot(state.parts, blobs, live)
        if len(self._shown_kwargs) > LARGE_ARGUMENTS:  # fail early, before the function runs in vain
            try:
                context.quotas.check_session(state, len(self._shown_kwargs), at_least=True)
            except TooLargeError as error:
                return Effect(self.too_large(error))
        # The supervisor recognizes a repeated call by this number, because all workers are forked with one hash seed.
        # The number omits an agent's call_id. Otherwise an agent could crash one worker after the other with new ids.
        call_id = request.call_id if self.by == CLIENT else None
        number = hash((self.session_id, self.by, call_id, plan.toolpack, plan.registered_name)) & sys.maxsize
        suspected = context.running.suspects.times(number)
        if suspected >= LIMIT:
            return Effect(_too_many_crashes(plan))
        began = time.perf_counter()

        def start() -> None:
            nonlocal began
            began = time.perf_counter()
            start_clock(plan.timeout_seconds, plan.own_timeout_seconds)

        outcome = self.outcome or (request.problem and wrong_arguments(request.problem, "json_invalid"))
        if not outcome:
            if plan.compares:
                plan.comparing = lambda: start_clock(COMPARING_SECONDS, COMPARING_SECONDS)
            # A worker has died during a call that is suspected. No other suspect runs beside it in this worker.
            alone = suspected and context.running.suspects.begin(number, context.settings.queue_timeout_seconds)
            # If the function makes this process exit, the supervisor reads the function's name from this slot.
            slot = context.running.begin(plan.toolpack, plan.registered_name, number)
            try:
                call = RunCall(plan, self._toolpacks, request.sent, snapshot, start)
                outcome = yield from context.runner.steps(call)
            finally:
                plan.comparing = uncompared  # breaks a reference cycle: the job holds the plan and the clock
                context.running.end(slot)
                if suspected:
                    context.running.suspects.end(number, alone=bool(alone), forget=self.by == CLIENT)
        seconds = time.perf_counter() - began
        outcome.toolpack, outcome.function, outcome.content = plan.toolpack, plan.registered_name, plan.content
        if plan.read_only or outcome.comparison:
            self._count_read_only(outcome.comparison, seconds)
        change = self._effect(outcome, seconds)
        snapshot.live.update(outcome.live)
        change.blobs, change.live = blobs, snapshot.live
        if outcome.blobs:
            change.parts = {part: blob_id for part, (blob_id, _) in outcome.blobs.items()}
            change.new_blobs = dict(outcome.blobs.values())
            blobs.update({part: blob for part, (_, blob) in outcome.blobs.items() if not is_piece(part)})
        return change

    def _count_read_only(self, check: ReadOnlyCheck | None, seconds: float) -> None:
        """Count a call to a read-only function. If the function has changed the environment nevertheless, log that.

        Args:
            check: The result of the read-only check. None if this call wasn't checked.
            seconds: The duration of the call, including the check.
        """
        plan, context = self.plan, self.context
        if plan.read_only:
            # Limited, because an executor could send any number.
            check_seconds = min(check.seconds, seconds) if check else None
            context.read_only_checks.called(plan.toolpack, plan.registered_name, seconds, check_seconds)
        if check and check.broken:
            context.mark_not_read_only(*check.broken)

    def _effect(self, outcome: Outcome, seconds: float) -> Effect:
        """Return the effect of an outcome, including the record's fields that clients see.

        Those fields contain a long result only in shortened form. `private_members` returns the whole result.
        """
        if self.dry_run:
            outcome.drop_changes()
        result = b'""' if outcome.result is None else outcome.result
        max_bytes = self.context.settings.max_record_bytes
        failure = outcome.failure
        self._complete = None if len(result) > max_bytes else outcome
        members: dict[str, Any] = {
            "function": self.request.function[:MAX_SHOWN],
            "kwargs": Fragment(self._shown_kwargs),
            "result": Fragment(result if self._complete else cut_if_longer(result, max_bytes)),
            "error": failure and cut_error(failure.text, max_bytes),
            "by": self.by,
        }
        if failure is not None:
            members["failure"] = failure.why
        if outcome.changed:
            members["changed"] = outcome.changed
        if self._nested is not None:
            members["nested"] = self._nested.members(outcome.nested, failure.text if failure else None)
        return Effect(outcome, members, int(outcome.changes), seconds)

    def private_members(self, change: Effect) -> Mapping[str, Any]:
        """Return the private fields: the failure, and the result if the line for clients contains only a part of it."""
        answer: Outcome = change.answer
        if answer.failure is not None:
            return {"failure": answer.failure.members()}
        result = {} if answer is self._complete else {"result": Fragment(answer.result or b'""')}
        content = {"content": True} if answer.content else {}
        return {"failure": None, **result, **content}

    def too_large(self, error: TooLargeError) -> Outcome:
        """Return a failed outcome, so that the agent can send a smaller call. The outcome isn't recorded."""
        return failed(self.plan, CallFailure.of(error, keep_cause=False))

    def on_timeout(self, state: SessionState) -> Effect:
        """Return the effect of a missed deadline: a failed outcome, which is recorded.

        Raise an error if the deadline passed during `prepare`.
        """
        if not hasattr(self, "plan"):  # the deadline passed during `prepare`
            return super().on_timeout(state)
        change = self._effect(timed_out(self.plan), self.plan.timeout_seconds)
        change.record = self.record(state, change)
        return change


class CancelCallOperation(CallOperation):
    """Operation that records a call as cancelled, unless the call already has a record."""

    def prepare(self, state: SessionState) -> float:
        """Plan the call, and set its outcome to "cancelled" so that the function doesn't run."""
        seconds = super().prepare(state)
        self.refuse(failed(self.plan, CallFailure("CancelledError", CANCELLED, Failure.CANCELLED)))
        return seconds


class RecordedCall(NamedTuple):
    """A committed call, as read from its record.

    Attributes:
        outcome: The outcome of the call.
        ended_at: The time when the call ended, in seconds since the epoch.
    """

    outcome: Outcome
    ended_at: float


def recorded_call(context: SessionContext, session: StoredSession, request: CallRequest) -> RecordedCall | None:
    """Return a committed call from its record, or None if no call with its call_id is committed.

    The function reads the store, so it blocks, but it doesn't wait in the session's queue. It can't see a commit that
    is still in progress.

    Raises:
        CallIdReusedError: An earlier call with this call_id had another function or other arguments.
    """
    operation = CallOperation(context, session.id, session.owner, request)
    earlier = operation.earlier_record(Recipe.of(session).feature_options)
    if earlier is None:
        return None
    _, shown, private = earlier
    ended_at = datetime.fromisoformat(shown["started_at"]).timestamp() + shown["duration_ms"] / 1000
    return RecordedCall(_recorded_outcome(shown, private, content=False), ended_at)


def _recorded_outcome(shown: Mapping[str, Any], private: Mapping[str, Any], *, content: bool) -> Outcome:
    """Rebuild the outcome of a call from the lines of its record.

    Args:
        shown: The fields that clients see.
        private: The fields that only the server reads.
        content: Whether the function returns MCP content blocks. Used if the record doesn't say so.
    """
    failure = private["failure"]
    return Outcome(
        None if failure else dumps(private.get("result", shown["result"])),
        CallFailure.from_members(failure) if failure else None,
        content=private.get("content", content),
    )


def failed(plan: Plan, failure: CallFailure) -> Outcome:
    """Return the outcome of a call that failed for another reason than an exception raised by its function."""
    return Outcome(failure=failure, toolpack=plan.toolpack, function=plan.registered_name)


def timed_out(plan: Plan) -> Outcome:
    """Return the outcome of a call that missed its deadline."""
    error = TimeoutError(
        f"`{plan.function}` took longer than {plan.timeout_seconds:g} s and was given up; nothing has changed."
    )
    return failed(plan, CallFailure.of(error, Failure.DEADLINE))


class CallKind(RecordKind):
    """Kind of the record of a call."""

    name = "call"
    shape = results.CallRecord
    title = "{function}"
    is_call = True

    def check(self, shown: Shown) -> None:
        """Check the fields of a record, and check that the parent of each nested call is in the record."""
        super().check(shown)
        nested = shown.get("nested", ())
        # A parent comes after the calls that are its arguments, because it ran later.
        parents = [(index, call["parent"]) for index, call in enumerate(nested) if call.get("parent") is not None]
        if not all(index < parent < len(nested) for index, parent in parents):
            raise ValueError("the parent of a nested call is missing")

    def text(self, shown: Shown, width: int) -> str:
        """Return lines of text: the call, its nested calls, its result, and the agent's answer if that differs."""
        after = f"[version {shown['version']}, {shown['duration_ms']:g} ms]"
        nested = "".join(f"      {_call_text(call)}  {_end_text(call, width)}\n" for call in shown.get("nested", ()))
        text = f"{_call_text(shown)}  {after}\n{nested}      {_end_text(shown, width)}"
        answer = self.heard(shown)
        if answer is not shown:
            text += f"\n      {printable(self.why_heard(shown))}; the agent got: {_end_text(answer, width)}"
        return text

    def why_heard(self, shown: Shown) -> str:
        """Return why the caller got another answer than the real outcome.

        Subclasses that change answers override this method.
        """
        raise NotImplementedError

    def add_to_trajectory(self, messages: list[dict[str, Any]], shown: Shown) -> None:
        """Add the assistant's message with the call, and the message with its result or error."""
        if shown.get("by") == WORLD:
            return  # a call by an event; the agent can see it only in the answer to a wait
        shown = self.heard(shown)
        call_id = shown.get("call_id") or f"call_{shown['path_index']}"
        arguments = json.dumps(shown["kwargs"], ensure_ascii=False)
        function = {"name": without_dots(shown["function"]), "arguments": arguments}
        # If the assistant wrote a text just before the call, the text and the call are one message.
        if not messages or messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]:
            messages.append({"role": "assistant", "content": None})
        messages[-1]["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        result = shown["result"] if shown["error"] is None else shown["error"]
        content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def _too_many_crashes(plan: Plan) -> Outcome:
    """Return the outcome of a call that isn't run because it has probably crashed too many workers.

    The outcome isn't recorded, so the call can run after its function was corrected.
    """
    error = CrashedError(
        f"`{plan.function}` has ended its process {LIMIT} times, and isn't run again until the server runs other code; "
        "nothing has changed."
    )
    return failed(plan, CallFailure.of(error, Failure.CRASHED, keep_cause=False))


def _call_text(shown: Shown) -> str:
    """Return a call as one line of text, with short arguments."""
    arguments = ", ".join(f"{name}={short(value, 60)}" for name, value in shown["kwargs"].items())
    return printable(f"{shown['function']}({arguments})")


def _end_text(shown: Shown, width: int) -> str:
    """Return the error or the shortened result of a call as one line of text."""
    return printable(f"✗ {shown['error']}" if shown["error"] else f"→ {short(shown['result'], width)}")


def wrong_arguments(problem: str, kind: str) -> Outcome:
    """Return the failed outcome of a call that can't run because its arguments are wrong.

    Args:
        problem: What is wrong.
        kind: The `type` of the error, in the style of pydantic's errors.
    """
    errors = [{"loc": [], "msg": problem, "type": kind}]
    return Outcome(failure=CallFailure("ValidationError", problem, Failure.ARGUMENTS, errors))
