"""Result and record types of participants. Like `protocol/results.py`, the module contains only types."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import AddressPaths


class ParticipantPaths(AddressPaths):
    """The URL paths of a participant's address."""


class SessionParticipants(TypedDict):
    """`participants` maps each participant to its paths. It is omitted if the agent is the only participant."""

    participants: NotRequired[dict[str, ParticipantPaths]]


class HeardMessage(TypedDict):
    """A message that a participant sent or received. `index` counts only the messages that this participant sees."""

    index: int
    by: str
    to: NotRequired[str]
    content: str


class HeardMessages(TypedDict):
    """The messages after the index `after`. `done` is true if the session has ended and no further messages exist."""

    messages: list[HeardMessage]
    done: bool


class TurnRecord(TypedDict):
    """The record of a turn of a model that plays a participant. `problem` says why the turn was discarded."""

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
    """The record of a participant's failure, which ends the session for all participants."""

    index: int
    kind: Literal["failure"]
    call_id: NotRequired[str]
    participant: str
    reason: str
    message: str
    version: int
    started_at: str
    duration_ms: float
