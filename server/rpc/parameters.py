"""The parameters of the JSON-RPC methods.

The rule: a parameter's type, limits and description are defined in its class here and nowhere else. Validation,
positional order and the OpenRPC document derive from it; the docstring of a class is its method's summary.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_TTL_SECONDS = 10 * 365 * 86_400
MAX_LABELS_BYTES = 16 * 2**10
MAX_CALL_ID = 128
MAX_STEP_SECONDS = 366 * 86_400
CLOCK_YEARS = 1900, 9000
MAX_COUNT = 2**53 - 1  # up to this, integers are exact in every store and JSON parser (RFC 8259, section 6)

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)

SessionId = Annotated[str, Field(description="The session.")]
Version = Annotated[int, Field(ge=0, le=MAX_COUNT, description="A version of the session.")]


def _check_size(labels: dict[str, str]) -> dict[str, str]:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in labels.items())
    if size > MAX_LABELS_BYTES:
        raise PydanticCustomError(
            "labels_too_large", f"All labels together have {size} bytes; {MAX_LABELS_BYTES} are allowed"
        )
    return labels


Labels = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=4096)]],
    Field(max_length=64),
    AfterValidator(_check_size),
]
CallId = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)] | None,
    Field(
        None,
        description="An id made by whoever may send the request again: what it did the first time is answered, "
        "and nothing done twice.",
    ),
]
TtlSeconds = Annotated[
    float | None,
    Field(
        None,
        gt=0,
        le=MAX_TTL_SECONDS,
        allow_inf_nan=False,
        description="Time to live after its last call, in seconds.",
    ),
]
Limit = Annotated[int, Field(100, ge=1, le=1000, description="The maximum number of results.")]


def _check_clock(clock: str) -> str:
    if not _RFC_3339.fullmatch(clock):
        raise PydanticCustomError("clock", "The clock is not a time like 2026-03-02T09:30:00Z, with an offset")
    try:
        year = datetime.fromisoformat(clock).year
    except ValueError:
        raise PydanticCustomError("clock", "There is no such time") from None
    if not CLOCK_YEARS[0] <= year <= CLOCK_YEARS[1]:
        raise PydanticCustomError("clock", f"The year is not between {CLOCK_YEARS[0]} and {CLOCK_YEARS[1]}")
    return clock


Seed = Annotated[
    Annotated[str, Field(min_length=1, max_length=128)] | None,
    Field(None, description="What its functions draw random numbers from, so that they draw the same again."),
]
Clock = Annotated[
    Annotated[str, AfterValidator(_check_clock)] | None,
    Field(None, description="The time that its functions see at the start, RFC 3339 with an offset."),
]
ClockStepSeconds = Annotated[
    float | None,
    Field(
        None,
        ge=0,
        le=MAX_STEP_SECONDS,
        allow_inf_nan=False,
        description="How far each call moves the clock on; default: 1.",
    ),
]
Format = Literal["native", "openai", "anthropic", "gemini", "mcp"]


class Params(BaseModel):
    """Parameters of a method, in their positional order."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class AgentListFunctions(Params):
    """List the session's functions, in registration order."""

    format: Format = Field("native", description="The format of the function descriptions.")


class ListFunctions(Params):
    """List a session's functions, in registration order; without a session, all that are loaded."""

    session_id: str | None = Field(None, description="The session.")
    format: Format = Field("native", description="The format of the function descriptions.")


class AgentRunFunction(Params):
    """Run a function on the session's environment."""

    function: str = Field(description="The function's name.")
    kwargs: dict[str, Any] | str = Field(
        default_factory=dict,
        description="Its arguments: an object, or the JSON text of one, as models' tool calls carry it. A value that "
        'is exactly {"$call": {"function": …, "args": {…}}} is run first and replaced by its result.',
    )
    raise_on_error: bool = Field(False, description="Answer a failed call with a JSON-RPC error, not an envelope.")
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)] | None = Field(
        None,
        description="An id that makes the call safe to retry: if a call with it is recorded, that result is returned "
        "and nothing is run.",
    )
    expected_version: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="Refuse the call unless the session is at this version."
    )
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="A deadline in seconds; it can only shorten the function's own."
    )


class RunFunction(AgentRunFunction):
    """Run a function on a session's environment: atomically, in order of arrival, and once per call_id."""

    session_id: SessionId
    function: str = Field(description="The function's name.")


class CreateSession(Params):
    """Create a session: a private world of the chosen toolpacks."""

    toolpacks: list[str] | None = Field(None, description="Names of toolpacks; default: all that are not opt_in.")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Options by toolpack.")
    environment: dict[str, Any] = Field(
        default_factory=dict, description="Initial environments as JSON, by toolpack; default: those of the toolpacks."
    )
    ttl_seconds: TtlSeconds
    labels: Labels = Field(default_factory=dict, description="Labels, to find and close sessions by.")
    call_id: CallId
    task: str | None = Field(
        None,
        description="A task, as toolpack/name: its toolpacks and options, over which the given options are laid; "
        "the given toolpacks are added.",
    )
    seed: Seed
    clock: Clock
    clock_step_seconds: ClockStepSeconds


class GetSession(Params):
    """Describe a session."""

    session_id: SessionId


class GetEnvironment(Params):
    """Get the JSON of a session's environments, by toolpack."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")
    pointer: str = Field("", description="JSON Pointer (RFC 6901) to the part to get; default: all.")


class DiffEnvironment(Params):
    """Get the JSON Patch (RFC 6902) from one version's environments to another's, or to another session's."""

    session_id: SessionId
    from_version: Version | None = Field(
        None, description="The version to start from; default: 0, or with to_session_id the current one."
    )
    to_version: Version | None = Field(None, description="The version to end with; default: the current one.")
    to_session_id: str | None = Field(None, description="The session to end with; default: the same.")


class GetTrace(Params):
    """Get a session's records, in order."""

    session_id: SessionId
    after: int = Field(
        -1, ge=-1, le=MAX_COUNT, description="Get records after this index, or place on the path; default: all."
    )
    limit: Limit
    path: bool = Field(
        False,
        description="Get the path only: the records that led to the current version, also those of the sessions that "
        "this one was forked from.",
    )


class ForkSession(Params):
    """Create sessions that start from a version of this one."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")
    count: int = Field(1, ge=1, le=1000, description="How many to create.")
    labels: Labels | None = Field(None, description="Their labels; default: this session's.")
    ttl_seconds: TtlSeconds
    call_id: CallId
    seed: Seed
    clock: Clock
    clock_step_seconds: ClockStepSeconds


class ResetSession(Params):
    """Commit a new version with the content of an older one."""

    session_id: SessionId
    version: Version = Field(0, description="The older version.")
    call_id: CallId


class CloseSession(Params):
    """Close a session and delete all its data."""

    session_id: SessionId


class CloseSessions(Params):
    """Close all sessions that have these labels."""

    labels: Annotated[Labels, Field(min_length=1)] = Field(description="The labels, all of which must match.")


class ListSessions(Params):
    """List the caller's sessions, sorted by session_id or the newest first."""

    labels: Labels = Field(default_factory=dict, description="Labels, all of which must match.")
    after: str = Field("", description="List the sessions after this session_id; default: from the first.")
    limit: Limit
    parent: str | None = Field(None, description="List the forks of this session only.")
    order: Literal["id", "-created"] = Field("id", description="By session_id, or by time of creation, newest first.")


class ListToolpacks(Params):
    """List the loaded toolpacks: their options, environments and functions."""


class ExportSession(Params):
    """Get an exact snapshot of a session, for a client that has the same classes and trusts the server."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")


class ReplaySession(Params):
    """Run a session's records again, in order, in a new session, up to the first that comes out differently."""

    session_id: SessionId
    limit: int = Field(1000, ge=1, le=100_000, description="How many records to run again, at most.")
    labels: Labels | None = Field(None, description="The labels of the new session; default: this session's.")


class ExportBundle(Params):
    """Get a session as one file, which `import_bundle` takes here or on another server."""

    session_id: SessionId
    versions: Literal["all", "ends"] = Field(
        "all", description="The versions in it: all that are kept, or the first and the current one."
    )


class ImportBundle(Params):
    """Create a session from a bundle: exactly the one that was exported, or by running its records again."""

    bundle: str = Field(description="What `export_bundle` gave, in base64.")
    mode: Literal["exact", "replay"] = Field(
        "exact", description="`replay` takes bundles of strangers: nothing but arguments is used, and then compared."
    )
    labels: Labels | None = Field(None, description="The labels of the session; default: those in the bundle.")
    ttl_seconds: TtlSeconds


class Discover(Params):
    """Get the OpenRPC document of this server."""
