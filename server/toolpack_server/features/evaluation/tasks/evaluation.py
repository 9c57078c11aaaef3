"""Evaluate what a session has left: its first environments, those of one version, and the records that led there.

Pure, as `call` is. The verdict follows from bytes, records and the task's name; everything is thawed anew,
and what an evaluator does to it reaches nobody. Whatever goes wrong in an author's code is an `EvaluationError`.
"""

import copy
import inspect
import traceback
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
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
from toolpack_server.features.evaluation.tasks.results import Solution, Verdict
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
from toolpack_server.sessions.paths import PathRecord
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.volumes.volume import is_piece


class ReplayError(ToolpackServerError):
    """A call failed that an evaluator replays.

    Attributes:
        kind: The name of the class of the exception that it has raised.
        error: `ErrorType: message`, as in the call's envelope.
        raised_at: File, line and function.
    """

    def __init__(self, function: str, kind: str, error: str, raised_at: str | None = None) -> None:
        super().__init__(f"the call of `{function}` failed: {error}")
        self.kind = kind
        self.error = error
        self.raised_at = raised_at


class SeenRecord(NamedTuple):
    """What an evaluator sees of a record on the path."""

    version: int | None  # the session's after it; None in the record of a parent
    call: Mapping[str, Any] | None  # the members of a `RolloutCall` but index, version and parent; its `nested` ones
    message: SaidMessage | None
    answer: str | None  # a parent's doesn't count


def seen(record: PathRecord, kinds: RecordKinds) -> SeenRecord:
    """Get what an evaluator sees of a record."""
    shown, kind = record.shown, kinds[record.shown["kind"]]
    call = None
    if kind.is_call:
        call = {name: shown[name] for name in ("function", "kwargs", "result", "error")}
        call["by"] = shown.get("by", "client")
        call |= {name: shown[name] for name in ("nested", "perturbed") if name in shown}
    version, answer = (shown["version"], kind.answer(shown)) if record.own else (None, None)
    return SeenRecord(version, call, kind.message(shown), answer)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a session has left for an evaluator."""

    toolpacks: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]  # of the toolpacks, as they were given
    initial: Snapshot  # the environments with which its family began
    final: Snapshot  # those of the version
    version: int
    path: Sequence[SeenRecord]  # what is seen of the records that led there
    answer: str | None  # that counts instead of the recorded one, or None
    at: Versions  # gets the environments of another version


def evaluate(name: str, evidence: Evidence, context: ExecutionContext) -> Verdict:
    """Get the verdict on a task by its evaluator.

    Raises:
        EvaluationError: The evaluator, or the solution, failed.
        RequestError: The stored environments can't be used, or a version that it asks for is no longer kept.
    """
    pack, task = find_task(context.codec.catalog, name)
    worlds = _Thawed(evidence, context)
    evaluator = task.evaluate or (reached_solution() if task.solution is not None else None)
    with _faults(f"The evaluator of {name!r}"), closing(worlds):
        if evaluator is None:
            raise TypeError("the task has neither an evaluator nor a solution")
        with context.interruptible:
            rollout = _rollout(pack.name, task.own(), evidence, worlds)
        try:
            with context.interruptible:
                returned = evaluator(rollout)
                if inspect.isawaitable(returned):
                    returned = run_coroutine(_awaited(returned))
        except Exception as error:
            if worlds.failed is not None:
                raise worlds.failed from None
            if not isinstance(error, AssertionError):
                raise
            rollout.check("assert", passed=False, detail=_assertion(error))
            returned = 0.0
        return verdict(name, evidence.version, returned, rollout.checks)


def solve(name: str, evidence: Evidence, context: ExecutionContext) -> Solution:
    """Get a task's solution in the environment with which a session began.

    Raises:
        InvalidParamsError: It has none.
        EvaluationError: The solution failed.
        RequestError: The stored environments can't be used.
    """
    pack, task = find_task(context.codec.catalog, name)
    if task.solution is None:
        raise InvalidParamsError(f"The task {name!r} has no solution.")
    with closing(_Thawed(evidence, context)) as worlds, _faults(f"The solution of {name!r}"), context.interruptible:
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


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@contextmanager
def _faults(what: str) -> Iterator[None]:
    """Make what an author's code raises an `EvaluationError`, and log it with its traceback."""
    try:
        yield
    except (RequestError, MissingBlobError, Interrupted):
        raise
    except BaseException as error:  # SystemExit too
        log.warning("%s failed", what, exc_info=error)
        kind = error.kind if isinstance(error, ReplayError | RewardError) else type(error).__name__
        not_finite = isinstance(error, RewardError)
        place = error.raised_at if isinstance(error, ReplayError) else raised_at(error)
        raise EvaluationError(
            f"{what} failed: {error_text(error)}", kind, not_finite=not_finite, raised_at=place
        ) from error


def _assertion(error: AssertionError) -> str:
    """Describe an assertion that failed: by its message, else by its line."""
    if str(error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line or "") if frames else ""


def _rollout(toolpack: str, task: Task, evidence: Evidence, worlds: Worlds) -> Rollout[Any]:
    calls, messages, submitted = [], [], []
    for index, each in enumerate(evidence.path):
        if each.call is not None:
            calls += _calls(index, each.version, **each.call)
        if each.message is not None:
            messages.append(RolloutMessage(index=index, version=each.version, **each.message))
        if each.answer is not None:
            submitted.append(each.answer)
    answer = evidence.answer
    if answer is None:
        said = [message.content for message in messages if message.role == "assistant"]
        answer = next(iter([*submitted[-1:], *said[-1:]]), "")
    return Rollout(
        worlds,
        toolpack,
        task,
        options=copy.deepcopy(evidence.options.get(toolpack, {})),
        calls=calls,
        messages=messages,
        answer=answer,
        version=evidence.version,
    )


def _calls(index: int, version: int | None, *, nested: Sequence[Any] = (), **call: Any) -> list[RolloutCall]:
    """Get a call, and before it those that were nested in it."""
    outer = RolloutCall(index=index, version=version, **call)
    found: dict[int, RolloutCall] = {}
    for place, each in reversed([*enumerate(nested)]):  # a parent comes after its arguments
        parent = found[each["parent"]] if "parent" in each else outer
        own = {name: each[name] for name in ("function", "kwargs", "result", "error")}
        found[place] = RolloutCall(index=index, version=version, by=outer.by, parent=parent, **own)
    return [*reversed(found.values()), outer]


class _Thawed(Worlds):
    """While it reads and writes bytes, a passed deadline interrupts nothing."""

    def __init__(self, evidence: Evidence, context: ExecutionContext) -> None:
        self._evidence = evidence
        self._context = context
        self.plain = context.codec.catalog.plain
        self._opened: list[Volumes] = []

    def close(self) -> None:
        """End the use of all databases and files."""
        opened, self._opened = self._opened, []
        for volumes in opened:
            volumes.abandon()

    @property
    def failed(self) -> Exception | None:
        """Why a database or files can't be read."""
        return next((volumes.failed for volumes in self._opened if volumes.failed), None)

    def initial(self) -> dict[str, Any]:
        with uninterruptible:
            return self._thawed(self._evidence.initial)

    def _thawed(self, snapshot: Snapshot) -> dict[str, Any]:
        volumes = Volumes(self._context.codec, read_only=READING)
        self._opened.append(volumes)
        return as_made(thawed(self._context.codec, snapshot, volumes))

    def at(self, version: int | None) -> dict[str, Any]:
        evidence = self._evidence
        with uninterruptible:
            if version is None or version == evidence.version:
                return self._thawed(evidence.final)
            return self._thawed(evidence.at(version))

    def replay(self, calls: Sequence[Any], *, raise_on_error: bool) -> dict[str, Any]:
        context, initial = self._context, self._evidence.initial
        plain = plain_calls(calls)
        with uninterruptible:
            # No deadline of their own: that of the evaluator holds for all of them together.
            runtime = SessionRuntime(context.codec.catalog.functions(self._evidence.toolpacks), float("inf"))
            snapshot = Snapshot(dict(initial.parts), initial.blobs)
            blobs: dict[str, bytes] = {}
            initial_blobs: Any = initial.blobs  # some of which are read when they are needed
            for function, kwargs, _ in plain:
                plan = runtime.plan(function, kwargs)
                outcome = call(plan, snapshot, context)
                if outcome.failure is not None and raise_on_error:
                    failure = outcome.failure
                    raise ReplayError(function, failure.kind, failure.text, failure.raised_at)
                parts = {**snapshot.parts, **{part: blob_id for part, (blob_id, _) in outcome.blobs.items()}}
                blobs |= {part: blob for part, (_, blob) in outcome.blobs.items()}
                live = {name: place for name, place in outcome.live.items() if is_piece(name)}
                snapshot = Snapshot(parts, ChainMap(blobs, initial_blobs), live)
            return self._thawed(snapshot)
