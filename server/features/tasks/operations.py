"""The operations on tasks: to evaluate one, and to get its solution.

The rule: an executor gets the evidence as bytes; an older version of the session when an evaluator looks at it.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import override

from server.execution.declared import Declared
from server.execution.runner import Frame, RunnerOperation, check_answer
from server.execution.world import Means
from server.features.tasks.evaluation import Evidence, evaluate, solve
from server.features.tasks.results import Solution, Verdict


@dataclass(eq=False)
class EvaluateTask(Declared[Verdict]):
    task: str
    evidence: Evidence
    name = "evaluate"
    shape = TypeAdapter(Verdict)

    def __post_init__(self) -> None:
        self.who = f"The evaluator of {self.task!r}"

    @override
    def run(self, means: Means) -> Verdict:
        return evaluate(self.task, self.evidence, means)

    @override
    def read(self, answer: Frame, means: Means, process: int) -> Verdict:
        verdict = super().read(answer, means, process)
        check_answer((verdict["task"], verdict["version"]) == (self.task, self.evidence.version))
        check_answer(verdict["valid"] and "failure" not in verdict and verdict["reward"] is not None)
        return verdict


@dataclass(eq=False)
class SolveTask(Declared[Solution]):
    task: str
    evidence: Evidence
    name = "solve"
    shape = TypeAdapter(Solution)

    def __post_init__(self) -> None:
        self.who = f"The solution of {self.task!r}"

    @override
    def run(self, means: Means) -> Solution:
        return solve(self.task, self.evidence, means)


OPERATIONS: tuple[type[RunnerOperation[Any]], ...] = (EvaluateTask, SolveTask)
