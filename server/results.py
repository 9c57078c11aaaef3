"""The shapes of the methods' results: one description for the OpenRPC document, the schemas and the client's types.

The rule: types only. Whatever a method answers is described here and nowhere else.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Json = Any
"""Any JSON value."""


class Envelope(TypedDict):
    """A call's result or its error; `result` is "" where there is an error."""

    result: Json
    error: str | None


class Parent(TypedDict):
    """The session and the version that a session was forked from."""

    session_id: str
    version: int


class Session(TypedDict):
    """A session; the agent under test gets `agent_path`, or `mcp_path` if it speaks MCP."""

    session_id: str
    agent_path: str
    mcp_path: str
    toolpacks: list[str]
    version: int
    labels: dict[str, str]
    created_at: str
    expires_at: str
    parent: Parent | None


class Function(TypedDict):
    """A function in the native format."""

    name: str
    description: str
    parameters: dict[str, Json]
    returns: dict[str, Json] | None
    toolpack: str
    read_only: bool


class ToolpackDescription(TypedDict):
    """A toolpack: JSON Schemas of its options (null if it has none) and its environment, and its functions' names."""

    name: str
    description: str
    opt_in: bool
    options: dict[str, Json] | None
    environment: dict[str, Json]
    functions: list[str]
    tasks: int


class FunctionList(TypedDict):
    """The functions in registration order, each in the format that was asked for."""

    result: list[Function] | list[dict[str, Json]]
    error: None


class CallRecord(TypedDict):
    """The record of a call.

    In place of long arguments and of a long result it has `{"$cut": {"bytes": ..., "digest": ...}}`; arguments that
    came as a text that isn't JSON are `{"$text": ...}`. On a path it has a `place`, and says whose record it is.
    """

    index: int
    kind: Literal["call"]
    call_id: str | None
    function: str
    kwargs: dict[str, Json]
    result: Json
    error: str | None
    version: int
    started_at: str
    duration_ms: float
    place: NotRequired[int]
    session_id: NotRequired[str]


class ResetRecord(TypedDict):
    """The record of a reset."""

    index: int
    kind: Literal["reset"]
    call_id: NotRequired[str]
    to_version: int
    version: int
    started_at: str
    duration_ms: float


Record = CallRecord | ResetRecord


class Export(TypedDict):
    """An exact snapshot, in base64, with the fingerprints of the classes that it needs."""

    format: str
    toolpacks: list[str]
    fingerprints: dict[str, str]
    version: int
    snapshot: str


class Difference(TypedDict):
    """How a call came out differently when it was run again; texts are cut at 2,000 characters."""

    index: int
    what: Literal["error", "result", "state"]
    recorded: str | None
    replayed: str | None


class Replay(TypedDict):
    """The new session, how many records were run again in it, and the first difference.

    `complete` is true if all records were run again without a difference.
    """

    session: Session
    replayed: int
    complete: bool
    diverged: Difference | None


class Bundle(TypedDict):
    """A session as one file, in base64, and its size in bytes."""

    format: str
    size: int
    bundle: str


RESULTS: dict[str, Any] = {
    "create_session": Session,
    "list_toolpacks": list[ToolpackDescription],
    "list_functions": FunctionList,
    "run_function": Envelope,
    "get_session": Session,
    "get_environment": Json,
    "diff_environment": list[dict[str, Json]],
    "get_trace": list[Record],
    "fork_session": list[Session],
    "reset_session": Session,
    "close_session": Literal[True],
    "close_sessions": int,
    "list_sessions": list[Session],
    "export_session": Export,
    "replay_session": Replay,
    "export_bundle": Bundle,
    "import_bundle": Session | Replay,
    "rpc.discover": dict[str, Json],
}
"""The result of each method."""
