"""MCP methods, which run the session's method for a message and build the answer.

`tools/call` uses the same code as `run_function` at the agent path, so both see the same world. The caller determines
the session; session ids in a message are ignored.
"""

from collections.abc import Awaitable, Callable

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.protocols.mcp.handles import Handles
from toolpack_server.features.protocols.mcp.messages import (
    CALL_ID_KEY,
    LEGACY,
    TASKS,
    VERSION_KEY,
    VERSIONS,
    McpMessage,
    McpRefusedError,
    read_message,
)
from toolpack_server.features.protocols.mcp.prompts import PROMPTS, Prompts
from toolpack_server.features.protocols.mcp.results import (
    CACHE,
    NO_CACHE,
    SERVER_INFO,
    McpReply,
    call_result,
    failure,
    no_method,
    success,
    tool_error,
)
from toolpack_server.features.protocols.mcp.tools import Tools
from toolpack_server.jsonio.strict import dumps
from toolpack_server.observability.trace_context import TRACEPARENT, accept_trace_members
from toolpack_server.observability.tracing import RequestOrigin, request_origin
from toolpack_server.protocol.parameters import MAX_CALL_ID
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import ERROR_INVALID_REQUEST, ERROR_PARSE_ERROR, describe
from toolpack_server.rpc.jsonrpc import Reserve, reply_too_large
from toolpack_server.rpc.method import App
from toolpack_server.sessions.calls import CallRequest

NESTED = {"$call"}
EXTENSIONS = b',"extensions":{"%b":{}}' % TASKS.encode()

CheckHeaders = Callable[[McpMessage], None]
"""Checks a modern message against its HTTP headers. Raises `McpRefusedError`."""

McpHandler = Callable[[Caller, McpMessage], Awaitable[bytes]]


class Mcp:
    """Reads and answers MCP messages."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._tools = Tools(app.sessions, app.context.addresses)
        self._sessions = app.sessions
        self._parser = app.parser
        self._max_bytes = app.settings.max_reply_bytes
        self._prompts = Prompts(app.sessions)
        common: dict[str, McpHandler] = {
            "tools/list": self._list,
            "tools/call": self._call,
            PROMPTS[0]: self._list_prompts,
            PROMPTS[1]: self._prompts.get,
        }
        self._legacy = {"initialize": self._initialize, "ping": self._ping, **common}
        self._handles = Handles(app)
        self._modern = {
            "server/discover": self._discover,
            **common,
            "tasks/get": self._get_task,
            "tasks/update": self._handles.update,
            "tasks/cancel": self._handles.cancel,
        }

    async def read(
        self, body: bytes, name: str, reserve: Reserve | None = None, header_version: str | None = None
    ) -> McpMessage:
        """Return the message in a body.

        Args:
            name: The owner for whom the body is parsed.
            reserve: Called with the estimated memory of the parsed body, in bytes.
            header_version: The version of MCP in the HTTP header, if there is one.

        Raises:
            McpRefusedError: The message is invalid or exceeds a limit.
        """
        try:
            value, size = await self._parser.parse(body, name)
        except Exception as error:  # noqa: BLE001 - `describe` logs unknown exceptions
            code, message, data = describe(error)
            if code not in {ERROR_PARSE_ERROR, ERROR_INVALID_REQUEST}:
                code, message, data = ERROR_INVALID_REQUEST, "Invalid Request", {"detail": message}
            raise McpRefusedError((code, f"{message}: {data['detail']}", data)) from None
        if reserve is not None:
            reserve(size)
        return read_message(value, header_version)

    async def answer(self, caller: Caller, message: McpMessage, check: CheckHeaders | None = None) -> McpReply:
        """Answer a request. `check` compares it with its HTTP headers, and is None if the transport has no headers."""
        if TRACEPARENT in message.meta:
            accept_trace_members(message.meta)
        try:
            if message.modern:
                message.check_meta()
                if check is not None:
                    check(message)
            message.check_version()
            handlers = self._modern if message.modern else self._legacy
            handler = handlers.get(message.method)
            if handler is None:
                return no_method(message, handlers)
            if message.method in PROMPTS and not await self._prompts.messages(caller):
                return no_method(message, [name for name in handlers if name not in PROMPTS])
            reply = success(message, await handler(caller, message))
        except Exception as error:  # noqa: BLE001 - unknown exceptions are logged and become internal errors
            return failure(message, error)
        if len(reply.body) > self._max_bytes:
            return failure(message, reply_too_large(len(reply.body), self._max_bytes))
        return reply

    async def _toolpacks(self, caller: Caller) -> tuple[str, ...]:
        """Find the session and renew its TTL. Return the names of its toolpacks."""
        return await self._sessions.toolpacks(caller.session_id or "", caller.owner)

    async def notified(self, caller: Caller) -> None:
        """Renew the TTL of the session of a client that has sent a notification."""
        if caller.session_id is not None:
            await self._toolpacks(caller)

    async def _initialize(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `initialize` with the client's version, or with the newest legacy version if that isn't supported."""
        # `initialize` doesn't renew the TTL, because the session must expire soon if the client sends nothing else.
        await self._sessions.toolpacks(caller.session_id or "", caller.owner, renew=False)
        requested = message.params.get("protocolVersion")
        version = requested if requested in LEGACY else LEGACY[0]
        introduction = await self._prompts.introduction(caller, renew=False)
        return b'"protocolVersion":"%b",%b,"serverInfo":%b' % (version.encode(), introduction, SERVER_INFO)

    async def _ping(self, _caller: Caller, _message: McpMessage) -> bytes:
        return b""

    async def _discover(self, caller: Caller, _message: McpMessage) -> bytes:
        await self._toolpacks(caller)
        introduction = await self._prompts.introduction(caller, EXTENSIONS)
        return b'"supportedVersions":%b,%b%b' % (dumps(VERSIONS), introduction, CACHE)

    async def _list(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `tools/list`. Modern clients also learn whether the list stays the same, so that they can cache it."""
        if message.params.get("cursor") is not None:
            raise InvalidParamsError("There is one page of tools: omit the cursor.")
        functions = await self._app.listings.functions(caller, caller.session_id, "mcp")
        tools = await self._tools.with_tools(caller, functions)
        if not message.modern:
            return b'"tools":%b' % tools
        address = await self._sessions.address(caller.session_id or "", caller.owner, caller.address)
        return b'"tools":%b%b' % (tools, CACHE if address.view is None or address.view.lasts else NO_CACHE)

    async def _list_prompts(self, _caller: Caller, message: McpMessage) -> bytes:
        return self._prompts.list(message) + (CACHE if message.modern else b"")

    async def _call(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `tools/call`: run a feature's tool or a function. If the client accepts handles, it can get one."""
        name, call_id = _name_and_call_id(message)
        arguments, problem = message.params.get("arguments"), None
        if type(arguments) is not dict:
            arguments, problem = await self._app.parser.arguments(arguments, caller.owner)
        request = CallRequest(name, arguments, dumps(arguments), call_id, problem=problem, by=caller.address)
        if tool := await self._tools.find(caller, name):
            return await self._tools.use(tool, caller, request)
        for argument, value in arguments.items():  # clients of `run_function` can write a call as an argument
            if type(value) is dict and value.keys() == NESTED:
                await self._toolpacks(caller)
                return tool_error(
                    f"ValidationError: argument `{argument[:200]}` is a nested call, which MCP doesn't support: call "
                    f"that function first, then pass its result."
                )
        if self._sessions.tracer is not None:
            _store_asker(message)
        if message.modern and problem is None and message.accepts_handles:
            answer = await self._handles.call(caller, request)
            return answer if isinstance(answer, bytes) else call_result(answer, message.id)
        outcome = await self._sessions.call(caller.session_id or "", caller.owner, request)
        return call_result(outcome, message.id)

    async def _get_task(self, caller: Caller, message: McpMessage) -> bytes:
        if self._sessions.tracer is not None:
            _store_asker(message)
        return await self._handles.get(caller, message)


def _store_asker(message: McpMessage) -> None:
    """Store the message that requests a call, for the tracer."""
    version = message.meta.get(VERSION_KEY) or message.header_version or ""
    request_origin.set(RequestOrigin("mcp", message.method, message.id, version))


def _name_and_call_id(message: McpMessage) -> tuple[str, str | None]:
    """Return the tool's name and the call_id of a `tools/call`."""
    name, call_id = message.params.get("name"), message.meta.get(CALL_ID_KEY)
    if not isinstance(name, str):
        raise InvalidParamsError("`name` must be the name of a tool, a string.")
    if call_id is not None and not (isinstance(call_id, str) and 1 <= len(call_id) <= MAX_CALL_ID):
        raise InvalidParamsError(f"`_meta` has {CALL_ID_KEY}, which must be a string of 1 to {MAX_CALL_ID} characters.")
    return name, call_id
