"""The shapes of the methods' results: one description for the OpenRPC document, the schemas and the client's types.

Types only. Whatever a method answers is described here and nowhere else; what a feature adds to it, there.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Json = Any
"""Any JSON value."""

Failure = Literal["not_found", "arguments", "raised", "too_large", "deadline", "crashed", "episode_over"]
"""What has made a call fail; `toolpack_server.execution.failure` says the same as an enumeration."""


class Envelope(TypedDict):
    """A call's result or its error; `result` is "" where there is an error."""

    result: Json
    error: str | None


class Parent(TypedDict):
    """The session and the version that a session was forked from."""

    session_id: str
    version: int


class AddressPaths(TypedDict):
    """The paths of an address."""

    agent_path: str


class SessionOutline(TypedDict):
    """What a session is, without the paths by which agents reach it; a fork has a `parent`."""

    session_id: str
    toolpacks: list[str]
    version: int
    labels: dict[str, str]
    created_at: str
    expires_at: str
    parent: NotRequired[Parent]


class Session(SessionOutline, AddressPaths):
    """A session; the agent under test gets `agent_path`.

    `toolpack_versions` has the versions that it was created with of those of its toolpacks that come with an installed
    distribution.
    """

    toolpack_versions: dict[str, str]


class Function(TypedDict):
    """A function in the native format."""

    name: str
    description: str
    parameters: dict[str, Json]
    returns: NotRequired[dict[str, Json]]
    toolpack: str
    read_only: bool


class ToolpackDescription(TypedDict):
    """A toolpack: JSON Schemas of its options, if it has some, and its environment, and its functions' names.

    `distribution` is what was installed with it, and `version` the version of that, unless it is in a folder.
    """

    name: str
    description: str
    distribution: NotRequired[str]
    version: NotRequired[str]
    opt_in: bool
    options: NotRequired[dict[str, Json]]
    environment: dict[str, Json]
    functions: list[str]
    tasks: int


class FunctionList(TypedDict):
    """The functions in registration order, each in the format that was asked for."""

    result: list[Function] | list[dict[str, Json]]
    error: None


class NestedCallRecord(TypedDict):
    """A nested call, in the record of the call in which it was nested.

    `parent` is the place in this list of the call that it was an argument of, unless that is the record's. One that
    hasn't returned has the error of the whole call.
    """

    function: str
    kwargs: dict[str, Json]
    result: Json
    error: str | None
    parent: NotRequired[Annotated[int, Field(ge=0)]]


class CallRecord(TypedDict):
    """The record of a call; the calls that were nested in it, in the order in which they ran, are `nested`.

    In place of long arguments and of a long result it has `{"$cut": {"bytes": ..., "digest": ...}}`; arguments that
    came as a text that isn't JSON are `{"$text": ...}`. On a path it has a `place`, and says whose record it is.
    `changed` says how many pages of which database, or files, it has changed.
    """

    index: int
    kind: Literal["call"]
    call_id: NotRequired[str]
    function: str
    kwargs: dict[str, Json]
    result: Json
    error: str | None
    failure: NotRequired[Failure]
    version: int
    state: NotRequired[str]
    started_at: str
    duration_ms: float
    place: NotRequired[int]
    session_id: NotRequired[str]
    by: NotRequired[str]
    nested: NotRequired[list[NestedCallRecord]]
    changed: NotRequired[dict[str, int]]


class ResetRecord(TypedDict):
    """The record of a reset."""

    index: int
    kind: Literal["reset"]
    call_id: NotRequired[str]
    to_version: Annotated[int, Field(ge=0)]
    version: int
    state: NotRequired[str]
    started_at: str
    duration_ms: float


Record = dict[str, Json]
"""A record, whatever its kind: in the document `wiring/service.py` puts the shapes of all kinds in its place."""


class Message(TypedDict):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class SaidMessage(Message):
    """A message of a conversation; one of a participant says by whom it was said, and to whom, unless to all."""

    by: NotRequired[str]
    to: NotRequired[str]


class PartFailure(TypedDict):
    """Whose part in a session has failed, the name of the reason, and what has happened."""

    by: str
    reason: str
    message: str


class Export(TypedDict):
    """An exact snapshot, in base64, with the fingerprints of the classes that it needs.

    Its databases and files aren't in it but in `contents`, by toolpack and field, such as `shop/db`: each as a file,
    SQLite's or tar, in base64.
    """

    format: str
    toolpacks: list[str]
    fingerprints: dict[str, str]
    version: int
    snapshot: str
    contents: dict[str, str]
