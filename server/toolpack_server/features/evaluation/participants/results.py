"""The shapes of what participants hear.

Types only, as in `server/toolpack_server/protocol/results.py`.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import AddressPaths


class ParticipantPaths(AddressPaths):
    """The paths of a participant's address."""


class SessionParticipants(TypedDict):
    """`participants` has the paths of each participant; it is missing if there is none but the agent."""

    participants: NotRequired[dict[str, ParticipantPaths]]


class HeardMessage(TypedDict):
    """What a participant has said or was told; `index` counts only that."""

    index: int
    by: str
    to: NotRequired[str]
    content: str


class HeardMessages(TypedDict):
    """The messages after the one that a participant has; `done` says that the answer was submitted."""

    messages: list[HeardMessage]
    done: bool


class TurnRecord(TypedDict):
    """The record of what a model has answered for a participant, and with `problem` why nothing was made of it."""

    index: int
    kind: Literal["turn"]
    call_id: NotRequired[str]
    participant: str
    metadata: dict[str, Any]
    problem: NotRequired[str]
    version: int
    started_at: str
    duration_ms: float


class FailureRecord(TypedDict):
    """The record of a participant that has failed, which ends the session for all."""

    index: int
    kind: Literal["failure"]
    call_id: NotRequired[str]
    participant: str
    reason: str
    message: str
    version: int
    started_at: str
    duration_ms: float
