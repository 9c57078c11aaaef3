"""Types of the members that perturbations add to results. The module has only types, as `protocol/results.py`."""

from typing import NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Perturbations(TypedDict):
    """Rules that inject faults and texts into the calls of a session's agent.

    `variant` names a variant of the session's task. Its rules come before `rules`. In the description of a session,
    `rules` includes the rules of the variant. `seed` is the seed of random numbers.
    """

    variant: NotRequired[str | None]
    rules: NotRequired[list[dict[str, Json]]]
    seed: NotRequired[str]


class SessionPerturbations(TypedDict):
    """`perturbations` are the rules for the session's agent."""

    perturbations: NotRequired[Perturbations]


class AgentView(TypedDict):
    """The members of a call that the agent sent or got differently from the real call."""

    function: NotRequired[str]
    kwargs: NotRequired[dict[str, Json]]
    error: NotRequired[str | None]
    result: NotRequired[Json]


class Perturbed(TypedDict):
    """The perturbation of a call: `rules` changed the call, and `agent` has the agent's view.

    The other members of the record show the real call. `phantom` is true if the function ran, but
    its changes weren't committed. `run` is false then, and if the function didn't run.
    """

    rules: list[str]
    run: bool
    phantom: NotRequired[bool]
    agent: AgentView


class CallPerturbed(TypedDict):
    """`perturbed` is present if rules changed the call."""

    perturbed: NotRequired[Perturbed]
