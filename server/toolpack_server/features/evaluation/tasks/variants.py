"""How agents fare with each variant of their tasks: the table that `evaluate` prints for perturbed rollouts.

Pure. What an answer that was lost has led to is seen from the path of its session.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.tasks.pass_rates import aligned, all_of, rates

MOST_K = 8  # of pass^k
CLEAN = "clean"  # the row of rollouts without perturbations
HEAD = ("variant", "n", "passed", "pass^k", "perturbed", "recovered", "lost", "repeated")


class LostAnswers(NamedTuple):
    """The answers that an agent has lost, and how often it has made what had happened happen again."""

    lost: int = 0
    repeated: int = 0


def losses(path: Iterable[Mapping[str, Any]]) -> LostAnswers:
    """Count the lost answers on a path, and the same calls that have changed the world once more after one."""
    lost = repeated = version = 0
    done: list[tuple[str, Any]] = []
    for record in path:
        changed, version = record["version"] > version, record["version"]
        if record["kind"] != "call" or record.get("by") != "agent" or record["error"] is not None:
            continue
        call = record["function"], record["kwargs"]
        repeated += changed and call in done
        perturbed = record.get("perturbed")
        if perturbed and perturbed["run"] and perturbed["agent"].get("error"):
            lost += 1
            if changed:
                done.append(call)
    return LostAnswers(lost, repeated)


def variants_table(verdicts: Sequence[Mapping[str, Any]], found: Mapping[str, LostAnswers]) -> str:
    """Get the table of valid rollouts by variant.

    Args:
        found: What was lost, by session.
    """
    rows: list[Sequence[str]] = [HEAD]
    valid = [verdict for verdict in verdicts if verdict["valid"]]
    for variant in sorted({verdict.get("variant") for verdict in valid}, key=lambda name: name or ""):
        some = [verdict for verdict in valid if verdict.get("variant") == variant]
        by_task = rates(some)
        k = min(MOST_K, *(rate.rollouts for rate in by_task))
        met = [verdict for verdict in some if verdict["perturbed"]]
        lost = [found.get(verdict["session_id"], LostAnswers()) for verdict in some]
        rows.append(
            (
                variant or CLEAN,
                str(len(some)),
                f"{_share(some):.3f}",
                f"{sum(all_of(rate, k) for rate in by_task) / len(by_task):.3f} ({k})",
                str(len(met)),
                f"{_share(met):.3f}" if met else "-",
                str(sum(each.lost for each in lost)),
                str(sum(each.repeated for each in lost)),
            )
        )
    return aligned(rows)


def _share(verdicts: Sequence[Mapping[str, Any]]) -> float:
    return sum(bool(verdict["passed"]) for verdict in verdicts) / len(verdicts)
