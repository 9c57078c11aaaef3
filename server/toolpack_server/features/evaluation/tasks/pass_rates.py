"""Pass rates of tasks: the share of rollouts that passed, and the estimates pass^k and pass@k.

Both estimates are unbiased, because they average over all choices of k rollouts among the n rollouts of a task. All
functions here are pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

from toolpack_server.base.terminal import printable


class Rate(NamedTuple):
    """Results of all rollouts of one task with one variant. If they have no perturbations, `variant` is None."""

    task: str
    rollouts: int
    passed: int
    mean_reward: float
    variant: str | None = None


def rates(verdicts: Iterable[Mapping[str, Any]]) -> list[Rate]:
    """Return the pass rate of each task with each variant. Invalid verdicts don't count."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for verdict in verdicts:
        if verdict["valid"]:
            groups.setdefault((verdict["task"], verdict.get("variant") or ""), []).append(verdict)
    return [
        Rate(
            task,
            len(group),
            sum(verdict["passed"] for verdict in group),
            sum(verdict["reward"] for verdict in group) / len(group),
            variant or None,
        )
        for (task, variant), group in sorted(groups.items())
    ]


def pass_all(rate: Rate, k: int) -> float:
    """Return pass^k: the probability that all of k rollouts pass. It measures an agent's reliability."""
    return comb(rate.passed, k) / comb(rate.rollouts, k)


def pass_any(rate: Rate, k: int) -> float:
    """Return pass@k: the probability that at least one of k rollouts passes."""
    return 1 - comb(rate.rollouts - rate.passed, k) / comb(rate.rollouts, k)


def rates_table(task_rates: Sequence[Rate]) -> str:
    """Return two tables as text: the rate of each task, and pass^k and pass@k, averaged over the tasks.

    The largest k is the smallest number of rollouts of any task, because both estimates need k rollouts of each task.
    """
    rows: list[tuple[str, ...]] = [("task", "n", "passed", "mean reward")]
    rows += [(rate.task, str(rate.rollouts), str(rate.passed), f"{rate.mean_reward:.3f}") for rate in task_rates]
    text = align(rows)
    if not task_rates:
        return "No valid rollout."
    rows = [("k", "pass^k", "pass@k")]
    for k in range(1, min(rate.rollouts for rate in task_rates) + 1):
        means = (sum(chance(rate, k) for rate in task_rates) / len(task_rates) for chance in (pass_all, pass_any))
        rows.append((str(k), *(f"{mean:.3f}" for mean in means)))
    return f"{text}\n\n{align(rows)}"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as text with aligned columns: the first column to the left, all other columns to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)
