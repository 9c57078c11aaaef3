"""Types of the members that perturbations add to results. Types only, as in `protocol/results.py`."""

from typing import NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Perturbations(TypedDict):
    """Rules that inject faults and texts into the calls of a session's agent.

    `variant` names a set of rules of the session's task; they come before `rules`. In the description of a session,
    `rules` includes the rules of the variant. `seed` is the seed of random numbers.
    """

    variant: NotRequired[str | None]
    rules: NotRequired[list[dict[str, Json]]]
    seed: NotRequired[str]


class SessionPerturbations(TypedDict):
    """`perturbations` are the rules for the session's agent."""

    perturbations: NotRequired[Perturbations]


class AgentView(TypedDict):
    """The members of a call as the agent sent and got them, where they differ from the real ones."""

    function: NotRequired[str]
    kwargs: NotRequired[dict[str, Json]]
    error: NotRequired[str | None]
    result: NotRequired[Json]


class Perturbed(TypedDict):
    """The rules that changed a call, whether the call took effect, and the agent's view.

    The other members of the record show what really happened. `phantom` is true if the function ran on a copy of the
    environments: the record has its result, and nothing was committed.
    """

    rules: list[str]
    run: bool
    phantom: NotRequired[bool]
    agent: AgentView


class CallPerturbed(TypedDict):
    """`perturbed` is present if rules changed the call."""

    perturbed: NotRequired[Perturbed]
