"""Result types of the core's methods, for the OpenRPC document, the schemas and the client. Features have their own."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Json = Any
"""Any JSON value."""

Failure = Literal["not_found", "arguments", "raised", "too_large", "deadline", "crashed", "episode_over", "cancelled"]
"""Kinds of failures of a call; the enumeration `toolpack_server.execution.failure.Failure` has the same values."""


class Envelope(TypedDict):
    """A call's result or error. `result` is "" if there is an error."""

    result: Json
    error: str | None


class Parent(TypedDict):
    """The session and the version that a session was forked from."""

    session_id: str
    version: int


class AddressPaths(TypedDict):
    """The URL paths of an address."""

    agent_path: str


class SessionOutline(TypedDict):
    """A session without the paths of its agents. A fork has a `parent`."""

    session_id: str
    toolpacks: list[str]
    version: int
    labels: dict[str, str]
    created_at: str
    expires_at: str
    parent: NotRequired[Parent]


class Session(SessionOutline, AddressPaths):
    """A session. Its agent gets `agent_path`.

    For each toolpack from an installed distribution, `toolpack_versions` contains the version at the session's
    creation.
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
    """A toolpack, with JSON Schemas of its options and its environment, and the names of its functions.

    An installed toolpack has a `distribution` and its `version`; a toolpack from a folder has neither.
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
    """The functions in the order of registration, in the requested format."""

    result: list[Function] | list[dict[str, Json]]
    error: None


class NestedCallRecord(TypedDict):
    """A nested call, in the record of the outer call.

    If it was an argument of another nested call, `parent` is the index of that call in this list. If a nested call
    didn't return, its error is that of the outer call.
    """

    function: str
    kwargs: dict[str, Json]
    result: Json
    error: str | None
    parent: NotRequired[Annotated[int, Field(ge=0)]]


class CallRecord(TypedDict):
    """The record of a call. `nested` lists the nested calls, in order.

    Long arguments and long results are replaced by `{"$cut": {"bytes": ..., "digest": ...}}`. Arguments that aren't a
    JSON object are recorded as `{"$text": ...}`. A record of a history also contains `path_index`, its index on the
    path, and `session_id`, its session. `changed` contains the number of changed pages for each database, and of
    changed files for each file tree.
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
    path_index: NotRequired[int]
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
"""A record of any kind. The OpenRPC document replaces it by the union of all kinds of records."""


class Message(TypedDict):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class SaidMessage(Message):
    """A message of a conversation. A participant's message has its sender, and its recipient unless it is for all."""

    by: NotRequired[str]
    to: NotRequired[str]


class PartFailure(TypedDict):
    """A participant's failure. `by` is the participant's name, `reason` a code, and `message` the explanation."""

    by: str
    reason: str
    message: str


class ChangesSummary(TypedDict):
    """The number of changes between two versions, and the first of them as operations of a JSON Patch (RFC 6902)."""

    total: int
    changes: list[dict[str, Json]]


class Export(TypedDict):
    """An exact snapshot in base64, with the fingerprints of the classes that it needs.

    `contents` maps each database and file tree, named by toolpack and field such as `shop/db`, to an SQLite file or a
    tar archive in base64.
    """

    format: str
    toolpacks: list[str]
    fingerprints: dict[str, str]
    version: int
    snapshot: str
    contents: dict[str, str]
