"""Evaluation of a session's stored state by the evaluator or the solution of a task.

The verdict depends only on the stored bytes, the records and the task's name. Evaluators get unpickled copies, so they
can't change the session. An exception raised by author code becomes an `EvaluationError`.
"""

import copy
import inspect
import traceback
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from toolpack_server.base.errors import (
    EvaluationError,
    Interrupted,
    InvalidParamsError,
    MissingBlobError,
    RequestError,
    ToolpackServerError,
)
from toolpack_server.base.logger import log
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.execution.call import call
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.snapshot import Snapshot, Versions
from toolpack_server.execution.views import thawed
from toolpack_server.execution.volumes import READING, Volumes
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.evaluation.tasks.finding import find_task
from toolpack_server.features.evaluation.tasks.results import TaskSolution, Verdict
from toolpack_server.features.evaluation.tasks.rollouts import (
    RewardError,
    Rollout,
    RolloutCall,
    RolloutMessage,
    Worlds,
    verdict,
)
from toolpack_server.features.evaluation.tasks.solutions import (
    check_callers,
    plain_calls,
    reached_solution,
    solution_calls,
)
from toolpack_server.features.evaluation.tasks.task import Task
from toolpack_server.functions.coroutines import run_coroutine
from toolpack_server.functions.tracebacks import raised_at
from toolpack_server.functions_runtime import error_text
from toolpack_server.packs.toolpack import as_made
from toolpack_server.protocol.results import SaidMessage
from toolpack_server.protocol.senders import CLIENT, WORLD
from toolpack_server.sessions.paths import PathRecord
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.volumes.volume import is_piece


class ReplayError(ToolpackServerError):
    """A call failed while an evaluator ran it again.

    Attributes:
        kind: The class name of the exception that the function raised.
        error: The text `ErrorType: message`, which the result of the call also contains.
        raised_at: The file, line and function that raised it.
    """

    def __init__(self, function: str, kind: str, error: str, raised_at: str | None = None) -> None:
        super().__init__(f"the call of `{function}` failed: {error}")
        self.kind = kind
        self.error = error
        self.raised_at = raised_at


class SeenRecord(NamedTuple):
    """The part of a record that an evaluator sees. `_rollout` builds the evaluator's `Rollout` from these parts."""

    version: int | None  # the session's version after the record; None for a parent's record
    call: Mapping[str, Any] | None  # fields of a `RolloutCall` (not index, version, parent), and `nested`
    message: SaidMessage | None
    answer: str | None  # None if the record belongs to a parent, because forks don't inherit answers
    event: tuple[str, str] | None = None  # the name and time of an event that called no function
    reactions: Mapping[str, float] = {}  # seconds since each event, if this is the agent's first change after the event


def seen_record(record: PathRecord, kinds: RecordKinds) -> SeenRecord:
    """Convert a record to the part of it that an evaluator sees."""
    shown, kind = record.shown, kinds[record.shown["kind"]]
    call = None
    if kind.is_call:
        call = {name: shown[name] for name in ("function", "kwargs", "result", "error")}
        call["by"] = shown.get("by", CLIENT)
        call |= {name: shown[name] for name in ("nested", "perturbed", "event", "at") if name in shown}
    version, answer = (shown["version"], kind.answer(shown)) if record.own else (None, None)
    event = (shown["event"], shown["at"]) if "event" in shown and call is None else None
    reactions = shown.get("reactions", {}) if call is not None else {}
    return SeenRecord(version, call, kind.message(shown), answer, event, reactions)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The stored state of a session that an evaluator needs. `Tasks.evidence` reads it; an executor can get a copy."""

    toolpacks: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]  # options by toolpack, from the client or the task
    initial: Snapshot  # the environments at the beginning, before any fork
    final: Snapshot  # the environments at `version`
    version: int
    path: Sequence[SeenRecord]  # the history up to `version`
    answer: str | None  # replaces the recorded answer; None: use the recorded answer
    at: Versions  # function that returns the environments at another version


def evaluate(name: str, evidence: Evidence, context: ExecutionContext) -> Verdict:
    """Return the verdict of a task's evaluator.

    Raises:
        EvaluationError: The evaluator or the solution failed.
        RequestError: The stored environments can't be used, or a version that the evaluator needs is no longer stored.
    """
    pack, task = find_task(context.codec.catalog, name)
    worlds = _StoredWorlds(evidence, context)
    evaluator = task.evaluate or (reached_solution() if task.solution is not None else None)
    with _author_errors(f"The evaluator of {name!r}"), closing(worlds):
        if evaluator is None:
            raise TypeError("the task has neither an evaluator nor a solution")
        with context.interruptible:
            rollout = _rollout(pack.name, task.own(), evidence, worlds)
        try:
            with context.interruptible:
                returned = evaluator(rollout)
                if inspect.isawaitable(returned):
                    returned = run_coroutine(_as_coroutine(returned))
        except Exception as error:
            if worlds.failed is not None:  # the cause is an unreadable database or file, not the evaluator
                raise worlds.failed from None
            if not isinstance(error, AssertionError):
                raise
            rollout.check("assert", passed=False, detail=_assertion(error))
            returned = 0.0
        return verdict(name, evidence.version, returned, rollout.checks, rollout.reactions)


def solve(name: str, evidence: Evidence, context: ExecutionContext) -> TaskSolution:
    """Return a task's solution for the initial environment of a session.

    Raises:
        InvalidParamsError: The task has no solution.
        EvaluationError: The solution failed.
        RequestError: The stored environments can't be used.
    """
    pack, task = find_task(context.codec.catalog, name)
    if task.solution is None:
        raise InvalidParamsError(f"The task {name!r} has no solution.")
    worlds = _StoredWorlds(evidence, context)
    with closing(worlds), _author_errors(f"The solution of {name!r}"), context.interruptible:
        calls = solution_calls(task, worlds.initial()[pack.name])
        try:
            check_callers(calls, task.participants)
        except InvalidParamsError as error:
            raise ValueError(str(error)) from None
    answer = task.answer if isinstance(task.answer, str) else "\n".join(task.answer)
    return {
        "calls": [{"function": function, "kwargs": kwargs, "by": by} for function, kwargs, by in calls],
        "answer": answer,
    }


async def _as_coroutine(awaitable: Any) -> Any:
    """Wrap any awaitable in a coroutine, because `run_coroutine` accepts only coroutines."""
    return await awaitable


@contextmanager
def _author_errors(what: str) -> Iterator[None]:
    """Convert exceptions raised by author code to `EvaluationError`, and log them with their traceback.

    Args:
        what: The name of the author code in the message, such as "The evaluator of 'bank/pay'".
    """
    try:
        yield
    except (RequestError, MissingBlobError, Interrupted):
        raise
    except BaseException as error:  # author code might also raise SystemExit
        log.warning("%s failed", what, exc_info=error)
        kind = error.kind if isinstance(error, ReplayError | RewardError) else type(error).__name__
        not_finite = isinstance(error, RewardError)
        location = error.raised_at if isinstance(error, ReplayError) else raised_at(error)
        raise EvaluationError(
            f"{what} failed: {error_text(error)}", kind, not_finite=not_finite, raised_at=location
        ) from error


def _assertion(error: AssertionError) -> str:
    """Return the message of a failed assertion. If the message is empty, return the assertion's source line."""
    if str(error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line or "") if frames else ""


def _rollout(toolpack: str, task: Task, evidence: Evidence, worlds: Worlds) -> Rollout[Any]:
    """Build the `Rollout` that an evaluator gets as its argument, from the stored records."""
    calls, messages, submitted = [], [], []
    for index, each in enumerate(evidence.path):
        if each.call is not None:
            calls += _calls(index, each.version, **each.call)
        if each.event is not None:
            calls.append(_plain_event(index, each.version, *each.event))
        if each.message is not None:
            messages.append(RolloutMessage(index=index, version=each.version, **each.message))
        if each.answer is not None:
            submitted.append(each.answer)
    answer = evidence.answer
    if answer is None:
        spoken = [message.content for message in messages if message.role == "assistant"]
        answer = next(iter([*submitted[-1:], *spoken[-1:]]), "")  # the submitted answer, else the last message
    return Rollout(
        worlds,
        toolpack,
        task,
        options=copy.deepcopy(evidence.options.get(toolpack, {})),
        calls=calls,
        messages=messages,
        answer=answer,
        version=evidence.version,
        reactions={name: seconds for each in evidence.path for name, seconds in each.reactions.items()},
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _plain_event(index: int, version: int | None, name: str, at: str) -> RolloutCall:
    """Return an event that called no function as a `RolloutCall` without a function name."""
    return RolloutCall(index, "", {}, None, None, version, WORLD, at=_time(at), event=name)


def _calls(
    index: int, version: int | None, *, nested: Sequence[Any] = (), at: str | None = None, **call: Any
) -> list[RolloutCall]:
    """Return the nested calls of a call, followed by the call itself."""
    time = None if at is None else _time(at)
    outer = RolloutCall(index=index, version=version, at=time, **call)
    calls: dict[int, RolloutCall] = {}
    # Reversed, because a parent comes after its arguments but must be built before them.
    for number, each in reversed([*enumerate(nested)]):
        parent = calls[each["parent"]] if "parent" in each else outer
        own = {name: each[name] for name in ("function", "kwargs", "result", "error")}
        calls[number] = RolloutCall(index=index, version=version, by=outer.by, parent=parent, at=time, **own)
    return [*reversed(calls.values()), outer]


class _StoredWorlds(Worlds):
    """Loads environments from stored bytes. The evaluator's deadline interrupts only author code, never the loading."""

    def __init__(self, evidence: Evidence, context: ExecutionContext) -> None:
        self._evidence = evidence
        self._context = context
        self.plain = context.codec.catalog.plain
        self._opened: list[Volumes] = []

    def close(self) -> None:
        """Close all databases and files."""
        opened, self._opened = self._opened, []
        for volumes in opened:
            volumes.abandon()

    @property
    def failed(self) -> Exception | None:
        """The error raised when a database or file tree couldn't be read, or None."""
        return next((volumes.failed for volumes in self._opened if volumes.failed), None)

    def initial(self) -> dict[str, Any]:
        with uninterruptible:
            return self._load(self._evidence.initial)

    def _load(self, snapshot: Snapshot) -> dict[str, Any]:
        volumes = Volumes(self._context.codec, read_only=READING)
        self._opened.append(volumes)
        return as_made(thawed(self._context.codec, snapshot, volumes))

    def at(self, version: int | None) -> dict[str, Any]:
        evidence = self._evidence
        with uninterruptible:
            if version is None or version == evidence.version:
                return self._load(evidence.final)
            return self._load(evidence.at(version))

    def replay(self, calls: Sequence[Any], *, raise_on_error: bool) -> dict[str, Any]:
        """Run the calls one after another on the bytes of the snapshot, as the server runs the calls of a session."""
        context, initial = self._context, self._evidence.initial
        plain = plain_calls(calls)
        with uninterruptible:
            # The calls have no deadlines of their own, because the evaluator's deadline covers all calls together.
            runtime = SessionRuntime(context.codec.catalog.functions(self._evidence.toolpacks), float("inf"))
            snapshot = Snapshot(dict(initial.parts), initial.blobs)
            blobs: dict[str, bytes] = {}
            initial_blobs: Any = initial.blobs  # a mapping that can read blobs on access
            for function, kwargs, _ in plain:
                plan = runtime.plan(function, kwargs)
                outcome = call(plan, snapshot, context)
                if outcome.failure is not None and raise_on_error:
                    failure = outcome.failure
                    raise ReplayError(function, failure.kind, failure.text, failure.raised_at)
                parts = {**snapshot.parts, **{part: blob_id for part, (blob_id, _) in outcome.blobs.items()}}
                blobs |= {part: blob for part, (_, blob) in outcome.blobs.items()}
                # Environments are decoded again for each call. Only open volumes are passed on.
                live = {name: location for name, location in outcome.live.items() if is_piece(name)}
                snapshot = Snapshot(parts, ChainMap(blobs, initial_blobs), live)
            return self._load(snapshot)
