"""The operations on tasks: to evaluate one, and to get its solution.

The rule: an executor gets the evidence as bytes; an older version of the session when an evaluator looks at it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter
from typing_extensions import override

from server.base.errors import EvaluationError, RequestError, VersionNotRetainedError, shown
from server.execution.codec import Codec
from server.execution.runner import (
    Ask,
    Frame,
    Means,
    RunnerOperation,
    check_answer,
    opened,
    read_snapshot,
    write_snapshot,
)
from server.execution.world import Snapshot
from server.features.tasks.evaluation import Evidence, Seen, evaluate, solve
from server.protocol.results import Solution, Verdict

T = TypeVar("T")

INITIAL, FINAL = "initial", "final"


class _Judging(RunnerOperation[T], Generic[T]):
    """Let an author's code judge what a session has left."""

    _judge: ClassVar[Callable[..., Any]]
    _result: ClassVar[TypeAdapter[Any]]
    _author: ClassVar[str]  # whose code it is

    def __init__(self, task: str, evidence: Evidence) -> None:
        self._task = task
        self._evidence = evidence
        self._refused: RequestError | None = None
        self._older: dict[Any, Snapshot] = {}  # by version, those that were asked for
        self.who = f"{self._author} of {task!r}"

    @override
    def run(self, means: Means) -> T:
        result: T = self._judge(self._task, self._evidence, means)
        return result

    @override
    def write(self, codec: Codec, executor: int) -> Frame:
        evidence = self._evidence
        initial, final = (write_snapshot(codec, snapshot) for snapshot in (evidence.initial, evidence.final))
        head = {
            "task": self._task,
            "toolpacks": evidence.toolpacks,
            "options": evidence.options,
            "version": evidence.version,
            "answer": evidence.answer,
            "path": evidence.path,
            "initial": initial.head,
            "final": final.head,
        }
        return Frame(head, [*initial.pieces, *final.pieces])

    @override
    def supply(self, need: Any, codec: Codec) -> Frame:
        """Get the environments of an older version, or a piece of a volume."""
        if isinstance(need, list):
            where, part = need
            named = {INITIAL: self._evidence.initial, FINAL: self._evidence.final, **self._older}
            check_answer(where in named and part in named[where].parts)
            return Frame({}, [opened(codec, named[where], part)])
        check_answer(type(need) is int and need >= 0)
        try:
            self._older = {need: self._evidence.at(need), **self._older}
            return write_snapshot(codec, self._older[need])
        except RequestError as error:
            self._refused = error
            return Frame({"parts": None}, [])

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        return not sizes

    @override
    def read(self, answer: Frame, means: Means, executor: int) -> T:
        head = answer.head
        if "failed" in head:
            raise EvaluationError(str(head["failed"])[: means.max_result_bytes], shown(str(head["kind"])))
        if "gone" in head:
            check_answer(self._refused)
            raise self._refused  # type: ignore[misc] # just checked
        result: T = self._result.validate_python(head["result"])
        return result

    @classmethod
    @override
    def serving(cls, means: Means, ask: Ask) -> Callable[[Frame], Frame]:
        def at(version: int) -> Snapshot:
            found = ask(version)
            if found.head["parts"] is None:
                raise VersionNotRetainedError(version, 0, 0)  # the worker knows why
            return read_snapshot(found, lambda part: ask([version, part]))

        def serve(request: Frame) -> Frame:
            try:
                return Frame({"result": cls(request.head["task"], _evidence(request, ask, at)).run(means)}, [])
            except EvaluationError as error:
                return Frame({"failed": str(error), "kind": error.kind}, [])
            except VersionNotRetainedError:
                return Frame({"gone": True}, [])

        return serve


class EvaluateTask(_Judging[Verdict]):
    name = "evaluate"
    _judge = staticmethod(evaluate)
    _result = TypeAdapter(Verdict)
    _author = "The evaluator"

    @override
    def read(self, answer: Frame, means: Means, executor: int) -> Verdict:
        verdict = super().read(answer, means, executor)
        check_answer((verdict["task"], verdict["version"]) == (self._task, self._evidence.version))
        check_answer(verdict["valid"] and verdict["failure"] is None and verdict["reward"] is not None)
        return verdict


class SolveTask(_Judging[Solution]):
    name = "solve"
    _judge = staticmethod(solve)
    _result = TypeAdapter(Solution)
    _author = "The solution"


OPERATIONS: tuple[type[RunnerOperation[Any]], ...] = (EvaluateTask, SolveTask)


def _evidence(request: Frame, ask: Ask, at: Callable[[int], Snapshot]) -> Evidence:
    head, pieces = request.head, iter(request.pieces)
    initial, final = (_snapshot(head[name], pieces, ask, name) for name in (INITIAL, FINAL))
    return Evidence(
        toolpacks=tuple(head["toolpacks"]),
        options=head["options"],
        initial=initial,
        final=final,
        version=head["version"],
        path=[Seen(*each) for each in head["path"]],
        answer=head["answer"],
        at=at,
    )


def _snapshot(head: Mapping[str, Any], pieces: Iterator[bytes], ask: Ask, name: str) -> Snapshot:
    return read_snapshot(Frame(head, [next(pieces) for _ in head["given"]]), lambda part: ask([name, part]))
