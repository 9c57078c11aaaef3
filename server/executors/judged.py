"""Evaluators and solutions in executors, as the worker sees them: what it sends there, and what comes back.

The rule: the evidence goes there as bytes; an older version when an evaluator asks for it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from server.errors import EvaluationError, RequestError
from server.execution.evaluation import Evidence
from server.execution.world import Snapshot
from server.executors.answers import check
from server.executors.channel import Frame
from server.executors.child import Child
from server.results import Solution, Verdict

_VERDICT, _SOLUTION = TypeAdapter(Verdict), TypeAdapter(Solution)


class Judged:
    """Something to evaluate or to solve, in the worker.

    Args:
        what: `evaluate` or `solve`.
        task: The task.
        evidence: What the session has left.
        opened: Gets the bytes of a part as an executor reads them.
    """

    def __init__(self, what: str, task: str, evidence: Evidence, opened: Callable[[Snapshot, str], bytes]) -> None:
        self._what = what
        self._task = task
        self._evidence = evidence
        self._opened = opened
        self._refused: RequestError | None = None

    def ask(self, child: Child) -> Frame:
        """Ask an executor, hand it the versions that it asks for, and get its answer."""
        evidence = self._evidence
        head = {
            "do": self._what,
            "task": self._task,
            "toolpacks": evidence.toolpacks,
            "options": evidence.options,
            "version": evidence.version,
            "answer": evidence.answer,
            "path": [[record.own, record.shown] for record in evidence.path],
            "initial": [*evidence.initial.parts],
            "final": [*evidence.final.parts],
        }
        child.ask(head, [*self._pieces(evidence.initial), *self._pieces(evidence.final)])
        while True:
            frame = child.answer()
            version = frame.head.get("at")
            if version is None:
                return frame
            check(type(version) is int and version >= 0)
            try:
                snapshot = evidence.at(version)
            except RequestError as error:
                self._refused = error
                child.ask({"parts": None})
            else:
                child.ask({"parts": [*snapshot.parts]}, [*self._pieces(snapshot)])

    def _pieces(self, snapshot: Snapshot) -> Iterator[bytes]:
        return (self._opened(snapshot, part) for part in snapshot.parts)

    def read(self, answer: Frame) -> Mapping[str, Any]:
        """Get the head of the answer, or raise what it says.

        Raises:
            EvaluationError: The evaluator, or the solution, failed.
            RequestError: It asked for a version that can't be had.
        """
        if "failed" in answer.head:
            raise EvaluationError(str(answer.head["failed"]), str(answer.head["kind"]))
        if "gone" in answer.head:
            check(self._refused)
            raise self._refused  # type: ignore[misc] # just checked
        return answer.head


def read_verdict(head: Mapping[str, Any], task: str, evidence: Evidence) -> Verdict:
    """Get the verdict in an answer; raises `ValueError` if it is none."""
    verdict: Verdict = _VERDICT.validate_python(head["verdict"])
    check((verdict["task"], verdict["version"]) == (task, evidence.version))
    return verdict


def read_solution(head: Mapping[str, Any]) -> Solution:
    """Get the solution in an answer; raises `ValueError` if it is none."""
    return _SOLUTION.validate_python(head["solution"])
