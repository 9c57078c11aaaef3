"""Core methods, in the order of the OpenRPC document.

A method passes the owner to the operation on a session: `caller.owner` if it changes the session, `caller.sees` if it
only reads. Methods that aren't about sessions and their functions belong to features.
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
from toolpack_server.protocol.results import (
    ChangesSummary,
    Envelope,
    Export,
    FunctionList,
    Json,
    Record,
    Session,
    ToolpackDescription,
)
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.sessions.reader import SessionQuery, SessionReader

MAX_LOGGED_FORKS = 10


def envelope(outcome: Outcome) -> Fragment:
    """Return the outcome of a call as JSON with `result` and `error`."""
    if outcome.failure is not None:
        return Fragment(b'{"result":"","error":%b}' % dumps(outcome.failure.text))
    return Fragment(b'{"result":%b,"error":null}' % (outcome.result or b'""'))


class CreateSession(SessionRequest, Method, result=Session, positional=("toolpacks",)):
    """Create a session: private environments of the chosen toolpacks."""

    async def handle(self, caller: Caller, app: App) -> Session:
        return await app.sessions.create(caller.owner, self)

    def log_fields(self, result: Session) -> dict[str, Any]:
        return {"session": shown_id(result["session_id"]), "toolpacks": ",".join(result["toolpacks"])}


class ListToolpacks(Method, result=list[ToolpackDescription]):
    """List the loaded toolpacks with their options, environments and functions."""

    async def handle(self, caller: Caller, app: App) -> Fragment:
        return await app.listings.toolpacks(caller.owner)


class ListFunctions(
    Method,
    result=FunctionList,
    agents="List the session's functions, in registration order.",
    positional=("session_id",),
):
    """List a session's functions in registration order. Without a session, list all loaded functions."""

    session_id: str | None = Field(None, description="The session. Default: all loaded functions.")
    format: Format = Field("native", description="Format of the function descriptions.")

    async def handle(self, caller: Caller, app: App) -> Fragment:
        listed = await app.listings.functions(caller, self.session_id, self.format)
        return Fragment(b'{"result":%b,"error":null}' % listed)


class RunFunction(
    Method, result=Envelope, agents="Run a function on the session's environment.", positional=("kwargs",)
):
    """Run a function on a session's environment. Calls are atomic, run one at a time, and run once per call_id."""

    session_id: SessionId
    function: str = Field(description="Name of the function.")
    kwargs: Arguments = Field(
        default_factory=dict,
        description="Arguments of the function: an object, or its JSON text as in a model's tool call. A value that is "
        'exactly {"$call": {"function": …, "args": {…}}} is a nested call. It runs first; its result replaces it.',
    )
    raise_on_error: bool = Field(
        False, description="If the call fails, return a JSON-RPC error. Default: an envelope that contains the error."
    )
    call_id: Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID)] | None = Field(
        None,
        description="Idempotency key, chosen by the client, to retry the call safely. If a call with this key is "
        "recorded, its result is returned and nothing runs.",
    )
    expected_version: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="Refuse the call unless the session is at this version. Default: any version."
    )
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Timeout of the call in seconds. It can only shorten the function's own timeout."
    )

    async def handle(self, caller: Caller, app: App) -> Fragment:
        kwargs, problem = self.kwargs, None  # `problem` makes the call fail, so that the agent learns of its mistake
        if type(kwargs) is not dict:  # models often write the arguments as JSON text
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
    """Return the description of a session."""

    session_id: SessionId

    async def handle(self, caller: Caller, app: App) -> Session:
        return await app.sessions.read(lambda reader: reader.describe(self.session_id, caller.sees))


class GetEnvironment(Method, result=Json | Export):
    """Return a session's environments by toolpack, as JSON or as an exact snapshot."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version. Default: the current one.")
    pointer: str = Field("", description="JSON Pointer (RFC 6901) to the part to return. Default: everything.")
    after: str | None = Field(
        None, description="Return the rows after this key. Only if the pointer names a table in a database."
    )
    limit: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Maximum number of rows. Only if the pointer names a table in a database. Default: 100 with "
        "`after`. Without both, the whole table, or only its number of rows if it is large.",
    )
    format: Literal["json", "snapshot"] = Field(
        "json",
        description="`snapshot` returns the exact environments as bytes, for a client that has the same classes and "
        "trusts the server.",
    )

    async def handle(self, caller: Caller, app: App) -> Json | Export:
        if self.format == "snapshot":
            if self.pointer or self.after is not None or self.limit is not None:
                raise InvalidParamsError("pointer, after, limit: a snapshot always has everything: omit them.")
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
    """Return the JSON Patch (RFC 6902) between the environments of two versions, of one session or two."""

    session_id: SessionId
    from_version: Version | None = Field(
        None, description="The version to start from. Default: 0, or the current one with to_session_id."
    )
    to_version: Version | None = Field(None, description="The version to end with. Default: the current one.")
    to_session_id: str | None = Field(None, description="The session to end with. Default: the same session.")
    text_diffs: bool = Field(False, description="Show changed text files as unified diffs.")

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


class SummarizeChanges(Method, result=ChangesSummary):
    """Count the changes between the environments of two versions of a session, and return the first ones."""

    session_id: SessionId
    from_version: Version = Field(0, description="The version to start from.")
    to_version: Version | None = Field(None, description="The version to end with. Default: the current one.")
    limit: int = Field(3, ge=0, le=1000, description="Maximum number of changes to return.")

    async def handle(self, caller: Caller, app: App) -> ChangesSummary:
        changes = await app.sessions.read(
            lambda reader: reader.diff(self.session_id, caller.sees, self.from_version, self.to_version), caller.owner
        )
        return {"total": len(changes), "changes": changes[: self.limit]}


class GetTrace(Method, result=list[Record]):
    """Return a session's records, in order."""

    session_id: SessionId
    after: int = Field(
        -1,
        ge=-1,
        le=MAX_COUNT,
        description="Return the records after this index. With `path`, it is the position on the path. Default: from "
        "the first record.",
    )
    limit: Limit
    path: bool = Field(
        False,
        description="Return only the path: the records that led to the current version, including those of the "
        "sessions from which this session was forked.",
    )

    async def handle(self, caller: Caller, app: App) -> Any:

        def read(reader: SessionReader) -> Any:
            read = reader.path if self.path else reader.trace
            return read(self.session_id, caller.sees, self.after, self.limit)

        return await app.sessions.read(read)


class ForkSession(ForkRequest, Method, result=list[Session]):
    """Create sessions that start from a version of this session."""

    async def handle(self, caller: Caller, app: App) -> list[Session]:
        return await app.sessions.fork(caller.owner, self)

    def log_fields(self, result: list[Session]) -> dict[str, Any]:
        names = [shown_id(session["session_id"]) for session in result]
        parent = result[0]["parent"]
        return {
            "version": parent and parent["version"],
            "count": len(names),
            "forks": ",".join(names[:MAX_LOGGED_FORKS]) + "…" * (len(names) > MAX_LOGGED_FORKS),
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
    """Close a session, or all sessions with these labels. Delete data that no fork needs. Return their number."""

    session_id: str | None = Field(None, description="The session.")
    labels: Labels = Field(
        default_factory=dict, description="Instead of session_id: close the sessions that have all these labels."
    )

    async def handle(self, caller: Caller, app: App) -> int:
        if (self.session_id is None) != bool(self.labels):
            raise InvalidParamsError(
                "session_id, labels: pass one of them: session_id closes one session, labels close all that have them."
            )
        if self.session_id is None:
            return await app.sessions.close_all(caller.owner, self.labels)
        await app.sessions.close(self.session_id, caller.owner)
        return 1

    def log_fields(self, result: int) -> dict[str, Any]:
        return {"count": result} if self.labels else {}


class ListSessions(Method, result=list[Session]):
    """List the caller's sessions, sorted by session_id or by creation time."""

    labels: Labels = Field(default_factory=dict, description="List only the sessions that have all these labels.")
    after: str = Field("", description="List the sessions after this session_id. Default: from the first session.")
    limit: Limit
    parent: str | None = Field(None, description="List only the forks of this session.")
    order: Literal["id", "-created"] = Field(
        "id", description="`id` sorts by session_id, `-created` by creation time, newest first."
    )

    async def handle(self, caller: Caller, app: App) -> Any:
        predicates = [each for each in (hook.predicate(self) for hook in app.context.filters) if each is not None]

        newest_first = self.order == "-created"
        query = SessionQuery(caller.sees, self.labels, self.after, self.limit, self.parent, newest_first)
        if predicates:  # slow, because it might have to read all sessions to find a few
            heavy = app.sessions.heavy_reader
            return await app.sessions.compute(lambda: heavy.list_sessions(query, predicates), caller.owner, "list")
        return await app.sessions.read(lambda reader: reader.list_sessions(query))


class Discover(Method, name="rpc.discover", result=dict[str, Json]):
    """Return the OpenRPC document of this server."""

    async def handle(self, caller: Caller, app: App) -> Fragment:  # noqa: ARG002 - the signature of all methods
        return app.document()


METHODS: tuple[type[Method], ...] = (
    CreateSession,
    ListToolpacks,
    ListFunctions,
    RunFunction,
    GetSession,
    GetEnvironment,
    DiffEnvironment,
    SummarizeChanges,
    GetTrace,
    ForkSession,
    ResetSession,
    CloseSession,
    ListSessions,
    Discover,
)
