"""Table of pass rates by perturbation variant, which the command `evaluate` prints for perturbed rollouts.

The table also counts *false answers*: results and errors that contradict what the call did, because a rule injected a
fault. It shows whether agents check such answers before they repeat a call. All functions here are pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.tasks.pass_rates import align, pass_all, rates

MAX_K = 8  # max k of pass^k
CLEAN = "clean"  # name of the row for rollouts without perturbations
HEAD = ("variant", "n", "passed", "pass^k", "perturbed", "recovered", "lost", "repeated", "phantom", "redone")


class FalseAnswers(NamedTuple):
    """How many calls of a rollout got a false answer, and how many later calls repeated them.

    Attributes:
        lost: Number of calls that took effect, but were answered with an error.
        repeated: Number of equal calls that changed the environment again after a lost answer, usually by mistake.
        phantom: Number of calls that had no effect, but were answered with a result.
        redone: Number of equal calls that changed the environment after a phantom, and so made up for it.
    """

    lost: int = 0
    repeated: int = 0
    phantom: int = 0
    redone: int = 0


def count_false_answers(path: Iterable[Mapping[str, Any]]) -> FalseAnswers:
    """Count the false answers to the agent in a history, and the agent's calls that repeated such a call.

    Calls are equal if they have the same function and arguments. A call has changed the environment if its record has a
    higher version than the record before it.
    """
    lost = repeated = phantom = redone = version = 0
    lost_calls: list[tuple[str, Any]] = []  # only calls that changed the environment
    phantom_calls: list[tuple[str, Any]] = []
    for record in path:
        changed, version = record["version"] > version, record["version"]
        if record["kind"] != "call" or record.get("by") != "agent" or record["error"] is not None:
            continue
        call = record["function"], record["kwargs"]
        repeated += changed and call in lost_calls
        if changed and call in phantom_calls:
            redone += 1
            phantom_calls.remove(call)  # one call makes up for the phantom, so further equal calls don't count
        perturbed = record.get("perturbed") or {}
        if perturbed.get("phantom"):
            phantom += 1
            if call not in phantom_calls:
                phantom_calls.append(call)
        elif perturbed and perturbed["run"] and perturbed["agent"].get("error"):
            lost += 1
            if changed:
                lost_calls.append(call)
    return FalseAnswers(lost, repeated, phantom, redone)


def variants_table(verdicts: Sequence[Mapping[str, Any]], false_answers: Mapping[str, FalseAnswers]) -> str:
    """Return a table of the valid rollouts, with a row for each variant and the columns of `HEAD`.

    Args:
        verdicts: The verdicts of all rollouts, each with `session_id`, and with `variant` if the session has rules.
        false_answers: By session_id: how many calls got a false answer because of a fault. Sessions without an entry
            count as 0.
    """
    rows: list[Sequence[str]] = [HEAD]
    valid = [verdict for verdict in verdicts if verdict["valid"]]
    for variant in sorted({verdict.get("variant") for verdict in valid}, key=lambda name: name or ""):
        group = [verdict for verdict in valid if verdict.get("variant") == variant]
        by_task = rates(group)
        k = min(MAX_K, *(rate.rollouts for rate in by_task))
        perturbed = [verdict for verdict in group if verdict["perturbed"]]
        counts = [false_answers.get(verdict["session_id"], FalseAnswers()) for verdict in group]
        rows.append(
            (
                variant or CLEAN,
                str(len(group)),
                f"{_passed_share(group):.3f}",
                f"{sum(pass_all(rate, k) for rate in by_task) / len(by_task):.3f} ({k})",
                str(len(perturbed)),
                f"{_passed_share(perturbed):.3f}" if perturbed else "-",
                *(str(sum(column)) for column in zip(*counts, strict=True)),
            )
        )
    return align(rows)


def _passed_share(verdicts: Sequence[Mapping[str, Any]]) -> float:
    return sum(bool(verdict["passed"]) for verdict in verdicts) / len(verdicts)
