"""The methods of the core, in the order in which they are listed.

An operation gets the owner whose sessions the caller may change, or see if it only reads. Methods that aren't
about sessions and their functions belong to features.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from toolpack_server.base.errors import CallFailedError, InvalidParamsError
from toolpack_server.execution.call import Outcome
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.observability.log import shown_id
from toolpack_server.protocol.parameters import (
    MAX_CALL_ID,
    MAX_COUNT,
    Arguments,
    CallId,
    ForkRequest,
    Format,
    Labels,
    Limit,
    SessionId,
    SessionRequest,
    Version,
)
from toolpack_server.protocol.results import Envelope, Export, FunctionList, Json, Record, Session, ToolpackDescription
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.sessions.reader import SessionQuery, SessionReader

MOST_SHOWN = 10  # forks in a log line


def envelope(outcome: Outcome) -> Fragment:
    if outcome.failure is not None:
        return Fragment(b'{"result":"","error":%b}' % dumps(outcome.failure.text))
    return Fragment(b'{"result":%b,"error":null}' % (outcome.result or b'""'))


class CreateSession(SessionRequest, Method, result=Session, positional=("toolpacks",)):
    """Create a session: a private world of the chosen toolpacks."""

    async def handle(self, caller: Caller, app: App) -> Session:
        return await app.sessions.create(caller.owner, self)

    def log_fields(self, result: Session) -> dict[str, Any]:
        return {"session": shown_id(result["session_id"]), "toolpacks": ",".join(result["toolpacks"])}


class ListToolpacks(Method, result=list[ToolpackDescription]):
    """List the loaded toolpacks: their options, environments and functions."""

    async def handle(self, caller: Caller, app: App) -> Fragment:
        return await app.listings.toolpacks(caller.owner)


class ListFunctions(
    Method,
    result=FunctionList,
    agents="List the session's functions, in registration order.",
    positional=("session_id",),
):
    """List a session's functions, in registration order; without a session, all that are loaded."""

    session_id: str | None = Field(None, description="The session.")
    format: Format = Field("native", description="The format of the function descriptions.")

    async def handle(self, caller: Caller, app: App) -> Fragment:
        listed = await app.listings.functions(caller, self.session_id, self.format)
        return Fragment(b'{"result":%b,"error":null}' % listed)


class RunFunction(
    Method, result=Envelope, agents="Run a function on the session's environment.", positional=("kwargs",)
):
    """Run a function on a session's environment: atomically, one call at a time, and once per call_id."""

    session_id: SessionId
    function: str = Field(description="The function's name.")
    kwargs: Arguments = Field(
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

    async def handle(self, caller: Caller, app: App) -> Fragment:
        kwargs, problem = self.kwargs, None
        if type(kwargs) is not dict:
            kwargs, problem = await app.parser.arguments(kwargs, caller.owner)
        request = CallRequest(
            self.function,
            kwargs,
            dumps(kwargs),
            self.call_id,
            self.expected_version,
            self.timeout_seconds,
            problem,
            CLIENT if caller.session_id is None else caller.address,
        )
        outcome = await app.sessions.call(self.session_id, caller.owner, request)
        if self.raise_on_error and outcome.failure is not None:
            raise CallFailedError(outcome.failure, outcome.toolpack)
        return envelope(outcome)


class GetSession(Method, result=Session):
    """Describe a session."""

    session_id: SessionId

    async def handle(self, caller: Caller, app: App) -> Session:
        return await app.sessions.read(lambda reader: reader.describe(self.session_id, caller.sees))


class GetEnvironment(Method, result=Json | Export):
    """Get a session's environments, by toolpack: as JSON, or as an exact snapshot."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")
    pointer: str = Field("", description="JSON Pointer (RFC 6901) to the part to get; default: all.")
    after: str | None = Field(
        None, description="Of a database's table, which the pointer names: get the rows after this key."
    )
    limit: int | None = Field(
        None, ge=1, le=10_000, description="Of such a table: how many rows to get; with `after`, by default 100."
    )
    format: Literal["json", "snapshot"] = Field(
        "json",
        description="`snapshot`: the exact environments, as bytes, for a client that has the same classes and trusts "
        "the server.",
    )

    async def handle(self, caller: Caller, app: App) -> Json | Export:
        if self.format == "snapshot":
            if self.pointer or self.after is not None or self.limit is not None:
                raise InvalidParamsError("pointer, after, limit: a snapshot is of everything: omit them.")
            return await app.sessions.read(
                lambda reader: reader.export(self.session_id, caller.sees, self.version), caller.owner
            )
        return await app.sessions.read(
            lambda reader: reader.environment(
                self.session_id, caller.sees, self.version, self.pointer, self.after, self.limit
            ),
            caller.owner,
        )


class DiffEnvironment(Method, result=list[dict[str, Json]]):
    """Get the JSON Patch (RFC 6902) from one version's environments to another's, or to another session's."""

    session_id: SessionId
    from_version: Version | None = Field(
        None, description="The version to start from; default: 0, or with to_session_id the current one."
    )
    to_version: Version | None = Field(None, description="The version to end with; default: the current one.")
    to_session_id: str | None = Field(None, description="The session to end with; default: the same.")
    text_diffs: bool = Field(False, description="Show text files that have changed as unified diffs.")

    async def handle(self, caller: Caller, app: App) -> list[dict[str, Json]]:
        return await app.sessions.read(
            lambda reader: reader.diff(
                self.session_id,
                caller.sees,
                self.from_version,
                self.to_version,
                self.to_session_id,
                text_diffs=self.text_diffs,
            ),
            caller.owner,
        )


class GetTrace(Method, result=list[Record]):
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

    async def handle(self, caller: Caller, app: App) -> Any:

        def read(reader: SessionReader) -> Any:
            read = reader.path if self.path else reader.trace
            return read(self.session_id, caller.sees, self.after, self.limit)

        return await app.sessions.read(read)


class ForkSession(ForkRequest, Method, result=list[Session]):
    """Create sessions that start from a version of this one."""

    async def handle(self, caller: Caller, app: App) -> list[Session]:
        return await app.sessions.fork(caller.owner, self)

    def log_fields(self, result: list[Session]) -> dict[str, Any]:
        names = [shown_id(session["session_id"]) for session in result]
        parent = result[0]["parent"]
        return {
            "version": parent and parent["version"],
            "count": len(names),
            "forks": ",".join(names[:MOST_SHOWN]) + "…" * (len(names) > MOST_SHOWN),
        }


class ResetSession(Method, result=Session):
    """Commit a new version with the content of an older one."""

    session_id: SessionId
    version: Version = Field(0, description="The older version.")
    call_id: CallId

    async def handle(self, caller: Caller, app: App) -> Session:
        return await app.sessions.reset(self.session_id, caller.owner, self.version, self.call_id)

    def log_fields(self, result: Session) -> dict[str, Any]:
        return {"to_version": self.version, "version": result["version"]}


class CloseSession(Method, result=int, repeatable=False, positional=("session_id",)):
    """Close a session, or all that have these labels, and delete what no fork needs; get how many were closed."""

    session_id: str | None = Field(None, description="The session.")
    labels: Labels = Field(default_factory=dict, description="Labels, all of which must match; instead of a session.")

    async def handle(self, caller: Caller, app: App) -> int:
        if (self.session_id is None) != bool(self.labels):
            raise InvalidParamsError(
                "session_id, labels: give one of them, to close a session, or all with the labels."
            )
        if self.session_id is None:
            return await app.sessions.close_all(caller.owner, self.labels)
        await app.sessions.close(self.session_id, caller.owner)
        return 1

    def log_fields(self, result: int) -> dict[str, Any]:
        return {"count": result} if self.labels else {}


class ListSessions(Method, result=list[Session]):
    """List the caller's sessions, sorted by session_id or the newest first."""

    labels: Labels = Field(default_factory=dict, description="Labels, all of which must match.")
    after: str = Field("", description="List the sessions after this session_id; default: from the first.")
    limit: Limit
    parent: str | None = Field(None, description="List the forks of this session only.")
    order: Literal["id", "-created"] = Field("id", description="By session_id, or by time of creation, newest first.")

    async def handle(self, caller: Caller, app: App) -> Any:
        wanted = [each for each in (made.wanted(self) for made in app.context.filters) if each is not None]

        newest_first = self.order == "-created"
        query = SessionQuery(caller.sees, self.labels, self.after, self.limit, self.parent, newest_first)
        if wanted:  # perhaps of all sessions only a few
            heavy = app.sessions.heavy_reader
            return await app.sessions.compute(lambda: heavy.list_sessions(query, wanted), caller.owner, "list")
        return await app.sessions.read(lambda reader: reader.list_sessions(query))


class Discover(Method, name="rpc.discover", result=dict[str, Json]):
    """Get the OpenRPC document of this server."""

    async def handle(self, caller: Caller, app: App) -> Fragment:  # noqa: ARG002 - a method's signature
        return app.document()


METHODS: tuple[type[Method], ...] = (
    CreateSession,
    ListToolpacks,
    ListFunctions,
    RunFunction,
    GetSession,
    GetEnvironment,
    DiffEnvironment,
    GetTrace,
    ForkSession,
    ResetSession,
    CloseSession,
    ListSessions,
    Discover,
)
