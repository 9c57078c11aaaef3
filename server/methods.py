"""The JSON-RPC methods: their parameters, their results, and what they ask of the sessions.

The rule: a parameter's type and description stand in its class here and nowhere else; validation, positional order and
the OpenRPC document all come from it.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from server.calls import CallRequest
from server.execution import Outcome
from server.function_formats import FORMATS
from server.sessions import SessionManager
from server.strict_json import Fragment, dumps

MAX_TTL_SECONDS = 10 * 365 * 86_400
MAX_COUNT = 2**53 - 1  # what every store, and every reader of JSON, counts exactly

SessionId = Annotated[str, Field(description="The session.")]
Version = Annotated[int, Field(ge=0, le=MAX_COUNT, description="A version of the session.")]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Labels = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=4096)]], Field(max_length=64)
]
TtlSeconds = Annotated[
    float | None,
    Field(
        None,
        gt=0,
        le=MAX_TTL_SECONDS,
        allow_inf_nan=False,
        description="How long it lives after its last call, in seconds.",
    ),
]
Limit = Annotated[int, Field(100, ge=1, le=1000, description="How many to get at most.")]
Format = Literal["native", "openai", "anthropic", "gemini", "mcp"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request.

    Attributes:
        owner: The name whose token it carries, "" where there are no tokens.
        agent_key: What an agent has instead: the secret part of its address, which implies its session.
    """

    owner: str = ""
    agent_key: str | None = None


class Params(BaseModel):
    """Parameters of a method, in their positional order."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


P = TypeVar("P", bound=Params)


class AgentListFunctions(Params):
    """List the session's functions, in registration order."""

    format: Format = Field("native", description="Whose way of describing functions to use.")


class ListFunctions(Params):
    """List a session's functions, in registration order; without a session, all that are loaded."""

    session_id: str | None = Field(None, description="The session.")
    format: Format = Field("native", description="Whose way of describing functions to use.")


class AgentRunFunction(Params):
    """Run a function on the session's environment."""

    function: str = Field(description="The function's name.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description='Its arguments. One that is exactly {"$call": {"function": …, "args": {…}}} is run first '
        "and replaced by its result.",
    )
    raise_on_error: bool = Field(False, description="Answer a failed call with a JSON-RPC error, not in the envelope.")
    call_id: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None,
        description="An id made by whoever may send the call again: what is recorded is answered, "
        "and nothing run twice.",
    )
    expected_version: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="Refuse the call unless the session is at this version."
    )
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="A shorter deadline than the function's own, in seconds."
    )


class RunFunction(AgentRunFunction):
    """Run a function on a session's environment: atomic, in order of arrival, and once for each call_id."""

    session_id: SessionId
    function: str = Field(description="The function's name.")


class CreateSession(Params):
    """Create a session: a private world made of toolpacks."""

    toolpacks: list[str] | None = Field(None, description="Names of toolpacks; default: all that are not opt_in.")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Options by toolpack.")
    environment: dict[str, Any] = Field(
        default_factory=dict, description="JSON by toolpack that replaces its initial environment."
    )
    ttl_seconds: TtlSeconds
    labels: Labels = Field(default_factory=dict, description="Labels to find it by.")


class GetSession(Params):
    """Describe a session."""

    session_id: SessionId


class GetEnvironment(Params):
    """Get the JSON of a session's environments, by toolpack."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")
    pointer: str = Field("", description="JSON Pointer (RFC 6901) to the part that is wanted.")


class DiffEnvironment(Params):
    """Get the JSON Patch (RFC 6902) that leads from one version's environments to another's."""

    session_id: SessionId
    from_version: Version = Field(0, description="The version to start from.")
    to_version: Version | None = Field(None, description="The version to arrive at; default: the current one.")


class GetTrace(Params):
    """Get a session's records, in order."""

    session_id: SessionId
    after: int = Field(-1, ge=-1, le=MAX_COUNT, description="The index of the last record that is known already.")
    limit: Limit


class ForkSession(Params):
    """Create sessions that start from a version of this one."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")
    count: int = Field(1, ge=1, le=1000, description="How many to create.")
    labels: Labels | None = Field(None, description="Their labels; default: this session's.")
    ttl_seconds: TtlSeconds


class ResetSession(Params):
    """Commit a new version whose content is that of an older one."""

    session_id: SessionId
    version: Version = Field(0, description="The older version.")


class CloseSession(Params):
    """Close a session and forget all of it."""

    session_id: SessionId


class CloseSessions(Params):
    """Close all sessions that carry these labels."""

    labels: Annotated[Labels, Field(min_length=1)] = Field(description="The labels, all of which must match.")


class ListSessions(Params):
    """List the caller's sessions, by session_id."""

    labels: Labels = Field(default_factory=dict, description="Labels, all of which must match.")
    after: str = Field("", description="The session_id of the last one that is known already.")
    limit: Limit


class ExportSession(Params):
    """Get an exact snapshot of a session, for a client that has the same classes and trusts the server."""

    session_id: SessionId
    version: Version | None = Field(None, description="The version; default: the current one.")


class Discover(Params):
    """Get the OpenRPC document of this server."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its name, its parameters' class, and what answers it."""

    name: str
    params: type[Params]
    answer: Callable[[Caller, Any], Awaitable[Any]]

    @property
    def summary(self) -> str:
        """One sentence that says what it does."""
        return (self.params.__doc__ or "").strip()


class CallFailedError(Exception):
    """A call failed that was to be answered with an error: `outcome` says how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


# Gets the session's id, the owner, the call, its outcome (None if it was refused) and the seconds that it took.
Observe = Callable[[str, str | None, CallRequest, Outcome | None, float], None]


def envelope(outcome: Outcome) -> Fragment:
    """Write the envelope of a call."""
    if outcome.result is not None:
        return Fragment(b'{"result":%b,"error":null}' % outcome.result)
    return Fragment(b'{"result":"","error":%b}' % dumps(outcome.error))


class Methods:
    """The methods, bound to the sessions that they work on.

    Args:
        sessions: The sessions.
        document: Makes the OpenRPC document.
        observe: Is told of every call that ends.
    """

    def __init__(
        self, sessions: SessionManager, document: Callable[[], Fragment], observe: Observe | None = None
    ) -> None:
        self._sessions = sessions
        self._observe = observe
        self._document = document
        self._listings: dict[tuple[tuple[str, ...], str], Fragment] = {}

    def all(self) -> list[Method]:
        """Get the methods of `/rpc`."""
        return [
            Method("create_session", CreateSession, self.create_session),
            Method("list_functions", ListFunctions, self.list_functions),
            Method("run_function", RunFunction, self.run_function),
            Method("get_session", GetSession, self.get_session),
            Method("get_environment", GetEnvironment, self.get_environment),
            Method("diff_environment", DiffEnvironment, self.diff_environment),
            Method("get_trace", GetTrace, self.get_trace),
            Method("fork_session", ForkSession, self.fork_session),
            Method("reset_session", ResetSession, self.reset_session),
            Method("close_session", CloseSession, self.close_session),
            Method("close_sessions", CloseSessions, self.close_sessions),
            Method("list_sessions", ListSessions, self.list_sessions),
            Method("export_session", ExportSession, self.export_session),
            Method("rpc.discover", Discover, self.discover),
        ]

    def agents(self) -> list[Method]:
        """Get the methods of an agent's address, where the session is implied."""
        return [
            Method("list_functions", AgentListFunctions, self.list_functions),
            Method("run_function", AgentRunFunction, self.run_function),
        ]

    async def _session(self, caller: Caller, params: Any) -> tuple[Any, str | None]:
        """Get the session that a request is about, and the owner that it must have; an agent's key stands for both."""
        if caller.agent_key is None:
            return params.session_id, caller.owner
        return await self._sessions.agent_session(caller.agent_key), None

    async def run_function(self, caller: Caller, params: AgentRunFunction) -> Fragment:
        """Run a function; see `RunFunction`."""
        session_id, owner = await self._session(caller, params)
        request = CallRequest(
            params.function, params.kwargs, params.call_id, params.expected_version, params.timeout_seconds
        )
        if self._observe is None:
            outcome = await self._sessions.run_function(session_id, owner, request)
        else:
            outcome = await self._observed(session_id, owner, request)
        if params.raise_on_error and outcome.error is not None:
            raise CallFailedError(outcome)
        return envelope(outcome)

    async def _observed(self, session_id: str, owner: str | None, request: CallRequest) -> Outcome:
        began = time.perf_counter()
        outcome: Outcome | None = None
        try:
            outcome = await self._sessions.run_function(session_id, owner, request)
        finally:
            if self._observe is not None:
                self._observe(session_id, owner, request, outcome, time.perf_counter() - began)
        return outcome

    async def list_functions(self, caller: Caller, params: ListFunctions | AgentListFunctions) -> Fragment:
        """List functions; see `ListFunctions`."""
        session_id, owner = await self._session(caller, params)
        catalog = self._sessions.catalog
        if session_id is None:
            toolpacks = tuple(catalog.toolpacks)
        else:
            toolpacks = await self._sessions.toolpacks(session_id, owner)
        listing = self._listings.get((toolpacks, params.format))
        if listing is None:
            describe = FORMATS[params.format]
            functions = [f for name in toolpacks for f in catalog.toolpacks[name].functions.values()]
            result = dumps([describe(function) for function in functions])
            listing = self._listings[toolpacks, params.format] = Fragment(b'{"result":%b,"error":null}' % result)
        return listing

    async def create_session(self, caller: Caller, params: CreateSession) -> Any:
        """See `CreateSession`."""
        return await self._sessions.create(
            caller.owner, params.toolpacks, params.options, params.environment, params.ttl_seconds, params.labels
        )

    async def get_session(self, caller: Caller, params: GetSession) -> Any:
        """See `GetSession`."""
        return await self._sessions.get(params.session_id, caller.owner)

    async def get_environment(self, caller: Caller, params: GetEnvironment) -> Any:
        """See `GetEnvironment`."""
        return await self._sessions.environment(params.session_id, caller.owner, params.version, params.pointer)

    async def diff_environment(self, caller: Caller, params: DiffEnvironment) -> Any:
        """See `DiffEnvironment`."""
        return await self._sessions.diff(params.session_id, caller.owner, params.from_version, params.to_version)

    async def get_trace(self, caller: Caller, params: GetTrace) -> Any:
        """See `GetTrace`."""
        return await self._sessions.trace(params.session_id, caller.owner, params.after, params.limit)

    async def fork_session(self, caller: Caller, params: ForkSession) -> Any:
        """See `ForkSession`."""
        return await self._sessions.fork(
            params.session_id, caller.owner, params.version, params.count, params.labels, params.ttl_seconds
        )

    async def reset_session(self, caller: Caller, params: ResetSession) -> Any:
        """See `ResetSession`."""
        return await self._sessions.reset(params.session_id, caller.owner, params.version)

    async def close_session(self, caller: Caller, params: CloseSession) -> bool:
        """See `CloseSession`."""
        await self._sessions.close(params.session_id, caller.owner)
        return True

    async def close_sessions(self, caller: Caller, params: CloseSessions) -> int:
        """See `CloseSessions`."""
        return await self._sessions.close_all(caller.owner, params.labels)

    async def list_sessions(self, caller: Caller, params: ListSessions) -> Any:
        """See `ListSessions`."""
        return await self._sessions.list_sessions(caller.owner, params.labels, params.after, params.limit)

    async def export_session(self, caller: Caller, params: ExportSession) -> Any:
        """See `ExportSession`."""
        return await self._sessions.export(params.session_id, caller.owner, params.version)

    async def discover(self, caller: Caller, params: Discover) -> Fragment:  # noqa: ARG002 - a method's signature
        """See `Discover`."""
        return self._document()
