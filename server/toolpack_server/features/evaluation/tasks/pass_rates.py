"""How often tasks are done: the share that passed, and what that says of k attempts.

Pure, and unbiased: all choices of k among the n rollouts of a task count alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

from toolpack_server.base.terminal import printable


class Rate(NamedTuple):
    """What the rollouts of one task came to, of those without perturbations or of those with one variant of them."""

    task: str
    rollouts: int
    passed: int
    mean_reward: float
    variant: str | None = None


def rates(verdicts: Iterable[Mapping[str, Any]]) -> list[Rate]:
    """Get the rates of all tasks and variants; verdicts that aren't valid count in none."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for verdict in verdicts:
        if verdict["valid"]:
            found.setdefault((verdict["task"], verdict.get("variant") or ""), []).append(verdict)
    return [
        Rate(
            task,
            len(some),
            sum(verdict["passed"] for verdict in some),
            sum(verdict["reward"] for verdict in some) / len(some),
            variant or None,
        )
        for (task, variant), some in sorted(found.items())
    ]


def all_of(rate: Rate, k: int) -> float:
    """Get how probable it is that all of k rollouts pass (pass^k), which says how reliable an agent is."""
    return comb(rate.passed, k) / comb(rate.rollouts, k)


def any_of(rate: Rate, k: int) -> float:
    """Get how probable it is that at least one of k rollouts passes (pass@k)."""
    return 1 - comb(rate.rollouts - rate.passed, k) / comb(rate.rollouts, k)


def table(found: Sequence[Rate]) -> str:
    """Get the text of all rates; pass^k and pass@k are means over the tasks, up to the fewest rollouts."""
    rows: list[tuple[str, ...]] = [("task", "n", "passed", "mean reward")]
    rows += [(rate.task, str(rate.rollouts), str(rate.passed), f"{rate.mean_reward:.3f}") for rate in found]
    text = aligned(rows)
    if not found:
        return "No session with a task."
    rows = [("k", "pass^k", "pass@k")]
    for k in range(1, min(rate.rollouts for rate in found) + 1):
        means = (sum(chance(rate, k) for rate in found) / len(found) for chance in (all_of, any_of))
        rows.append((str(k), *(f"{mean:.3f}" for mean in means)))
    return f"{text}\n\n{aligned(rows)}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)
