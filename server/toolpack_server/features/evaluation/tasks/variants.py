"""Pass rates by variant of perturbations: the table that `evaluate` prints for perturbed rollouts.

Pure. Lost answers and repeated changes are counted from the histories of the sessions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.tasks.pass_rates import aligned, pass_all, rates

MAX_K = 8  # of pass^k
CLEAN = "clean"  # name of the row of rollouts without perturbations
HEAD = ("variant", "n", "passed", "pass^k", "perturbed", "recovered", "lost", "repeated")


class LostAnswers(NamedTuple):
    """Number of calls whose answer the agent lost, and of equal calls that changed the environment again."""

    lost: int = 0
    repeated: int = 0


def count_lost_answers(path: Iterable[Mapping[str, Any]]) -> LostAnswers:
    """Count the lost answers in a history, and the equal calls after them that changed the environment once more."""
    lost = repeated = version = 0
    lost_calls: list[tuple[str, Any]] = []  # that changed the environment
    for record in path:
        changed, version = record["version"] > version, record["version"]
        if record["kind"] != "call" or record.get("by") != "agent" or record["error"] is not None:
            continue
        call = record["function"], record["kwargs"]
        repeated += changed and call in lost_calls
        perturbed = record.get("perturbed")
        if perturbed and perturbed["run"] and perturbed["agent"].get("error"):
            lost += 1
            if changed:
                lost_calls.append(call)
    return LostAnswers(lost, repeated)


def variants_table(verdicts: Sequence[Mapping[str, Any]], lost_answers: Mapping[str, LostAnswers]) -> str:
    """Return a table of the valid rollouts, with a row for each variant.

    Args:
        lost_answers: The lost answers by session_id.
    """
    rows: list[Sequence[str]] = [HEAD]
    valid = [verdict for verdict in verdicts if verdict["valid"]]
    for variant in sorted({verdict.get("variant") for verdict in valid}, key=lambda name: name or ""):
        group = [verdict for verdict in valid if verdict.get("variant") == variant]
        by_task = rates(group)
        k = min(MAX_K, *(rate.rollouts for rate in by_task))
        perturbed = [verdict for verdict in group if verdict["perturbed"]]
        lost = [lost_answers.get(verdict["session_id"], LostAnswers()) for verdict in group]
        rows.append(
            (
                variant or CLEAN,
                str(len(group)),
                f"{_passed_share(group):.3f}",
                f"{sum(pass_all(rate, k) for rate in by_task) / len(by_task):.3f} ({k})",
                str(len(perturbed)),
                f"{_passed_share(perturbed):.3f}" if perturbed else "-",
                str(sum(each.lost for each in lost)),
                str(sum(each.repeated for each in lost)),
            )
        )
    return aligned(rows)


def _passed_share(verdicts: Sequence[Mapping[str, Any]]) -> float:
    return sum(bool(verdict["passed"]) for verdict in verdicts) / len(verdicts)
