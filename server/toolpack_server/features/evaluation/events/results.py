"""Types of results of events. Types only, as in `protocol/results.py`."""

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Events(TypedDict):
    """The rules by which a session's world moves, its beginning (RFC 3339), and the seconds that a call takes."""

    rules: list[dict[str, Json]]
    begins: NotRequired[str]
    step: NotRequired[float]


class SessionMoves(TypedDict):
    """`events` are the rules by which the session's world moves."""

    events: NotRequired[Events]


class CallMoved(TypedDict):
    """Members of a call in a session with events.

    `at` is its time. A call of the world itself has the name of the `event`. `problem` says which event the call set
    off that couldn't happen. `reactions` has the seconds since the first time of each event, if the call is the agent's
    first change after it.
    """

    at: NotRequired[str]
    event: NotRequired[str]
    problem: NotRequired[str]
    reactions: NotRequired[dict[str, float]]


class MessageMoved(TypedDict):
    """An `event` sends it `at` this time."""

    at: NotRequired[str]
    event: NotRequired[str]
    problem: NotRequired[str]


class EventRecord(TypedDict):
    """The record of an event that calls no function. `offer` and `withdraw` name functions."""

    index: int
    kind: Literal["event"]
    event: str
    by: Literal["world"]
    at: str
    offer: NotRequired[list[str]]
    withdraw: NotRequired[list[str]]
    problem: NotRequired[str]
    version: int
    started_at: str
    duration_ms: float
    path_index: NotRequired[int]
    session_id: NotRequired[str]


class EventComing(TypedDict):
    """An event that will happen, and its time."""

    event: str
    at: str


class EventsAhead(TypedDict):
    """The time of a session, RFC 3339 in UTC, and its next events in order."""

    time: str
    coming: list[EventComing]
