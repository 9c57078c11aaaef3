"""Rounds that measure each case and bare Starlette by turns, so that other load on the machine affects both.

Before and after each run of a case, two references run: bare Starlette as pip installs it, and on uvloop and httptools.
The run is compared with the mean of the reference's runs before and after it. A row of the table has the median of the
case's runs.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tools.benchmarks.contenders import CONTENDERS, Contender
from tools.benchmarks.load import Case, HttpCase, Sample
from tools.benchmarks.processes import UnavailableError
from tools.benchmarks.workshop import Workshop


@dataclass
class Row:
    """A row of the table.

    Attributes:
        name: The name of the case.
        note: A remark for readers.
        per_second: Answered calls per second.
        p50_ms: The median latency.
        p99_ms: The 99th percentile of the latency.
        cpu_us: The server's CPU time per call.
        ratio: Calls per second, divided by those of bare Starlette.
        ratio_fast: Calls per second, divided by those of bare Starlette on uvloop and httptools.
        ratios: The ratio to bare Starlette in each run.
        problems: Wrong answers, or a state that doesn't match the answers.
        unavailable: The reason why the case couldn't be measured, or None.
    """

    name: str
    note: str = ""
    per_second: float = 0
    p50_ms: float = 0
    p99_ms: float = 0
    cpu_us: float = 0
    ratio: float = 0
    ratio_fast: float = 0
    ratios: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unavailable: str | None = None


@dataclass(frozen=True)
class Plan:
    """The plan of the measurement: the number of runs of each case, and the duration of a run in seconds."""

    rounds: int
    seconds: int

    @property
    def bare_seconds(self) -> int:
        return max(1, self.seconds // 2)


References = tuple[HttpCase, HttpCase]
"""Bare Starlette as pip installs it, and on uvloop and httptools."""


def compare(workshop: Workshop, references: References, plan: Plan, only: Sequence[str]) -> list[Row]:
    """Measure the contenders whose name contains a word of `only`, or all contenders if `only` is empty."""
    for reference in references:
        reference.measure(1)  # warm-up
    rows, reference_samples = [], [_measure_references(references, plan)]
    for contender in CONTENDERS:
        if not only or any(word in contender.name for word in only):
            rows += _measure_contender(contender, workshop, plan, references, reference_samples)
    plain, fast = zip(*reference_samples, strict=True)
    ratios = [each.per_second / other.per_second for each, other in reference_samples]
    return [
        row(references[0], plain, [(1.0, ratio) for ratio in ratios]),
        row(references[1], fast, [(1 / ratio, 1.0) for ratio in ratios]),
        *rows,
    ]


def _measure_references(references: References, plan: Plan) -> tuple[Sample, Sample]:
    plain, fast = references
    return plain.measure(plan.bare_seconds), fast.measure(plan.bare_seconds)


def _measure_contender(
    contender: Contender,
    workshop: Workshop,
    plan: Plan,
    references: References,
    reference_samples: list[tuple[Sample, Sample]],
) -> list[Row]:
    rows = []
    try:
        with ExitStack() as stack:
            for case in stack.enter_context(contender.cases(workshop)):
                print(f"{case.name} …", file=sys.stderr, flush=True)
                rows.append(_measure_case(case, plan, references, reference_samples))
    except (UnavailableError, OSError, RuntimeError) as error:
        rows.append(Row(contender.name, unavailable=str(error)))
    return rows


def _measure_case(
    case: Case, plan: Plan, references: References, reference_samples: list[tuple[Sample, Sample]]
) -> Row:
    case.measure(1)  # warm-up
    samples, ratios = [], []
    before = _measure_references(references, plan)
    for _ in range(plan.rounds):
        sample = case.measure(plan.seconds)
        after = _measure_references(references, plan)
        samples.append(sample)
        plain, fast = (
            sample.per_second / statistics.mean(bare.per_second for bare in around)
            for around in zip(before, after, strict=True)
        )
        ratios.append((plain, fast))
        reference_samples.append(before)
        before = after
    reference_samples.append(before)
    return row(case, samples, ratios)


def row(case: Case, samples: Sequence[Sample], ratios: Sequence[tuple[float, float]]) -> Row:
    """Summarise the samples of a case, and its ratios to both references."""

    def median(read: Callable[[Sample], float]) -> float:
        return statistics.median(map(read, samples))

    plain, fast = zip(*ratios, strict=True)
    return Row(
        case.name,
        case.note,
        median(lambda sample: sample.per_second),
        median(lambda sample: sample.p50_ms),
        median(lambda sample: sample.p99_ms),
        median(lambda sample: sample.cpu_us),
        statistics.median(plain),
        statistics.median(fast),
        list(plain),
        [problem for sample in samples for problem in sample.problems],
    )
