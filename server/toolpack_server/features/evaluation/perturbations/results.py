"""The shapes of what perturbations add to the results of others.

Types only, as in `server/toolpack_server/protocol/results.py`.
"""

from typing import NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Perturbations(TypedDict):
    """The faults and injections that the agent of a session meets, by rules.

    `variant` is one of its task, whose rules come first; where a session is described all of them are in `rules`.
    `seed` is what chance is drawn from.
    """

    variant: NotRequired[str | None]
    rules: NotRequired[list[dict[str, Json]]]
    seed: NotRequired[str]


class SessionPerturbations(TypedDict):
    """`perturbations` are those that its agent meets."""

    perturbations: NotRequired[Perturbations]


class AgentView(TypedDict):
    """What an agent has sent and heard of a call, where that isn't what has happened."""

    function: NotRequired[str]
    kwargs: NotRequired[dict[str, Json]]
    error: NotRequired[str | None]
    result: NotRequired[Json]


class Perturbed(TypedDict):
    """The rules that a call has met, and whether it was run; all else in its record is what has happened."""

    rules: list[str]
    run: bool
    agent: AgentView


class CallPerturbed(TypedDict):
    """`perturbed` says which rules it has met, if any."""

    perturbed: NotRequired[Perturbed]
