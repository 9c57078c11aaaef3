"""Types of the fields that perturbations add to results. Like `protocol/results.py`, the module contains only types."""

from typing import NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Perturbations(TypedDict):
    """Rules that inject faults and texts into the calls of a session's agent.

    `variant` names a variant of the session's task. The variant's rules come before `rules`. In the description of a
    session, `rules` includes the variant's rules. `seed` determines the random numbers of the rules.
    """

    variant: NotRequired[str | None]
    rules: NotRequired[list[dict[str, Json]]]
    seed: NotRequired[str]


class SessionPerturbations(TypedDict):
    """`perturbations` contains the rules for the session's agent."""

    perturbations: NotRequired[Perturbations]


class AgentView(TypedDict):
    """The fields of a call where the agent's view differs from the real call."""

    function: NotRequired[str]
    kwargs: NotRequired[dict[str, Json]]
    error: NotRequired[str | None]
    result: NotRequired[Json]


class Perturbed(TypedDict):
    """The perturbation of a call. `rules` names the rules that changed the call. `agent` contains the agent's view.

    The other fields of the record show the real call. `phantom` is true if the function ran, but its changes weren't
    committed. `run` is false if the function didn't run, or if its changes weren't committed.
    """

    rules: list[str]
    run: bool
    phantom: NotRequired[bool]
    agent: AgentView


class CallPerturbed(TypedDict):
    """`perturbed` is present if rules changed the call."""

    perturbed: NotRequired[Perturbed]
