"""Record kind of calls that perturbation rules can change.

The record shows the real call. If the agent sent or received something else, the record's `perturbed.agent` contains
these fields as the agent saw them.
"""

from typing_extensions import override

from toolpack_server.features.evaluation.perturbations.results import AgentView
from toolpack_server.sessions.calls import CallKind
from toolpack_server.sessions.record_kinds import Shown


def agent_view(shown: Shown) -> Shown:
    """Return a call's record as its agent saw it: with the function, arguments and answer of the agent's view."""
    return {**shown, **shown["perturbed"]["agent"]} if "perturbed" in shown else shown


class PerturbedCallKind(CallKind):
    """The record of a call. Trajectories show the agent's view of the call."""

    @override
    def check(self, shown: Shown) -> None:
        super().check(shown)
        if "perturbed" in shown and not shown["perturbed"]["agent"].keys() <= AgentView.__annotations__.keys():
            raise ValueError("`perturbed.agent` has an unknown field")

    @override
    def heard(self, shown: Shown) -> Shown:
        return agent_view(shown)

    @override
    def why_heard(self, shown: Shown) -> str:
        perturbed = shown["perturbed"]
        nothing = ", nothing was committed" if perturbed.get("phantom") else ""
        return f"perturbed by {', '.join(perturbed['rules'])}{nothing}"
