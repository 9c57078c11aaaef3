"""Result and record types of participants. Types only, as in `server/toolpack_server/protocol/results.py`."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import AddressPaths


class ParticipantPaths(AddressPaths):
    """The paths of a participant's address."""


class SessionParticipants(TypedDict):
    """`participants` has the paths of each participant. It is omitted if the agent is the only one."""

    participants: NotRequired[dict[str, ParticipantPaths]]


class HeardMessage(TypedDict):
    """A message that a participant sent or received. `index` counts only its own messages."""

    index: int
    by: str
    to: NotRequired[str]
    content: str


class HeardMessages(TypedDict):
    """The messages after the given one. `done` is true if the session has ended and these are the last messages."""

    messages: list[HeardMessage]
    done: bool


class TurnRecord(TypedDict):
    """The record of a turn of a model that plays a participant. `problem` says why its answer was discarded."""

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
