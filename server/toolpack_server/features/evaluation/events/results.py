"""Result types of events. Like `protocol/results.py`, the module contains only types."""

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Events(TypedDict):
    """A session's event rules. The session begins at the time `begins` (RFC 3339); a call takes `step` seconds."""

    rules: list[dict[str, Json]]
    begins: NotRequired[str]
    step: NotRequired[float]


class SessionEventMembers(TypedDict):
    """`events` contains the session's event rules."""

    events: NotRequired[Events]


class CallEventMembers(TypedDict):
    """In a session with events, `at` is the time of the call.

    `event` names the event that made the call. `problem` says why an event that the call triggered can't happen. If the
    call is the agent's first change after an event, `reactions` maps the event's name to the seconds that have passed
    since the event first happened.
    """

    at: NotRequired[str]
    event: NotRequired[str]
    problem: NotRequired[str]
    reactions: NotRequired[dict[str, float]]


class MessageEventMembers(TypedDict):
    """`event` names the event that sent the message.

    `at` is the event's time. `problem` says why another event, triggered by this event, can't happen.
    """

    at: NotRequired[str]
    event: NotRequired[str]
    problem: NotRequired[str]


class EventRecord(TypedDict):
    """The record of an event that calls no function.

    `offer` and `withdraw` name the functions that agents get or lose. `problem` says why another event, triggered by
    this event, can't happen.
    """

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
    """An event that will happen. `at` is its time."""

    event: str
    at: str


class EventsAhead(TypedDict):
    """The time of a session (RFC 3339, in UTC), and its coming events in order of time."""

    time: str
    coming: list[EventComing]
