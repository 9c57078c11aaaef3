"""Operations that run author code of tasks: `evaluate` and `solve`. They can run in an executor process.

An executor gets the session's stored state as bytes. Older versions are sent to it only if the evaluator reads them.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import override

from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.evaluation.tasks.evaluation import Evidence, evaluate, solve
from toolpack_server.features.evaluation.tasks.results import TaskSolution, Verdict


@dataclass(eq=False)
class EvaluateTask(RunnerOperation[Verdict]):
    """Runs the evaluator of a task."""

    task: str
    evidence: Evidence
    name = "evaluate"
    shape = TypeAdapter(Verdict)

    def __post_init__(self) -> None:
        self.who = f"The evaluator of {self.task!r}"

    @override
    def run(self, context: ExecutionContext) -> Verdict:
        return evaluate(self.task, self.evidence, context)

    @override
    def fits(self, result: Verdict) -> bool:
        """Return whether an executor sent a possible result. The server trusts no process that runs author code."""
        matches = (result["task"], result["version"]) == (self.task, self.evidence.version)
        return matches and result["valid"] and "failure" not in result and result["reward"] is not None


@dataclass(eq=False)
class SolveTask(RunnerOperation[TaskSolution]):
    """Computes the solution of a task."""

    task: str
    evidence: Evidence
    name = "solve"
    shape = TypeAdapter(TaskSolution)

    def __post_init__(self) -> None:
        self.who = f"The solution of {self.task!r}"

    @override
    def run(self, context: ExecutionContext) -> TaskSolution:
        return solve(self.task, self.evidence, context)


OPERATIONS: tuple[type[RunnerOperation[Any]], ...] = (EvaluateTask, SolveTask)
