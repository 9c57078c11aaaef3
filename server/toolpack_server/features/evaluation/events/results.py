"""Result types of events. The module has only types, as `protocol/results.py`."""

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json


@with_config(ConfigDict(extra="forbid", strict=True))
class Events(TypedDict):
    """A session's event rules. `begins` is its first time (RFC 3339), `step` the seconds that a call takes."""

    rules: list[dict[str, Json]]
    begins: NotRequired[str]
    step: NotRequired[float]


class SessionEventMembers(TypedDict):
    """`events` are the session's event rules."""

    events: NotRequired[Events]


class CallEventMembers(TypedDict):
    """In a session with events, `at` is the time of the call.

    `event` names the event that made the call. `problem` says why an event that the call set off can't happen.
    `reactions` has seconds by event: from the first time that the event happened to this call, if the call is the
    agent's first change after it.
    """

    at: NotRequired[str]
    event: NotRequired[str]
    problem: NotRequired[str]
    reactions: NotRequired[dict[str, float]]


class MessageEventMembers(TypedDict):
    """If an `event` sent it, `at` is its time.

    `problem` says why an event that this event set off can't happen.
    """

    at: NotRequired[str]
    event: NotRequired[str]
    problem: NotRequired[str]


class EventRecord(TypedDict):
    """The record of an event that calls no function.

    `offer` and `withdraw` name the functions that agents get or lose. `problem` says why an event that this event set
    off can't happen.
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
    """An event that will happen, and its time."""

    event: str
    at: str


class EventsAhead(TypedDict):
    """The time of a session (RFC 3339, in UTC), and its coming events in order of time."""

    time: str
    coming: list[EventComing]
