"""Record kind of calls whose agent may have got another answer than the real one.

The record has what really happened. Its member `perturbed` has what the agent sent and got, where that differs.
"""

from typing_extensions import override

from toolpack_server.features.evaluation.perturbations.results import AgentView
from toolpack_server.sessions.calls import CallKind
from toolpack_server.sessions.record_kinds import Shown


def agent_view(shown: Shown) -> Shown:
    """Return the record of a call with what its agent sent and got."""
    return {**shown, **shown["perturbed"]["agent"]} if "perturbed" in shown else shown


class PerturbedCallKind(CallKind):
    @override
    def check(self, shown: Shown) -> None:
        super().check(shown)
        if "perturbed" in shown and not shown["perturbed"]["agent"].keys() <= AgentView.__annotations__.keys():
            raise ValueError("`perturbed.agent` has a member that no call has")

    @override
    def heard(self, shown: Shown) -> Shown:
        return agent_view(shown)

    @override
    def why_heard(self, shown: Shown) -> str:
        perturbed = shown["perturbed"]
        nothing = ", nothing was committed" if perturbed.get("phantom") else ""
        return f"perturbed by {', '.join(perturbed['rules'])}{nothing}"
