"""Calls of which the agent has heard something else than what happened, as their records say it.

The record is of what has happened; `perturbed` has what the agent heard where that differs.
"""

from typing_extensions import override

from toolpack_server.features.evaluation.perturbations.results import AgentView
from toolpack_server.sessions.calls import CallKind
from toolpack_server.sessions.record_kinds import Shown


def heard(shown: Shown) -> Shown:
    """Get the record of a call as its caller knows it."""
    return {**shown, **shown["perturbed"]["agent"]} if "perturbed" in shown else shown


class PerturbedCallKind(CallKind):
    @override
    def check(self, shown: Shown) -> None:
        super().check(shown)
        if "perturbed" in shown and not shown["perturbed"]["agent"].keys() <= AgentView.__annotations__.keys():
            raise ValueError("the agent has heard what no call says")

    @override
    def heard(self, shown: Shown) -> Shown:
        return heard(shown)

    @override
    def why_heard(self, shown: Shown) -> str:
        return f"perturbed by {', '.join(shown['perturbed']['rules'])}"
