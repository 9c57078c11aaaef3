"""Answers to MCP messages as JSON: results of tools, and errors with their codes.

The functions have no side effects. If a result is JSON text already, it is inserted without parsing.
"""

from enum import Enum
from importlib.metadata import version
from typing import Any, NamedTuple

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import Failure
from toolpack_server.features.protocols.mcp.messages import McpMessage, McpRefusedError
from toolpack_server.jsonio.strict import dumps, has_inexact_integer
from toolpack_server.rpc.codes import (
    ERROR_INVALID_PARAMS,
    ERROR_INVALID_REQUEST,
    ERROR_METHOD_NOT_FOUND,
    STANDARD,
    Described,
    describe,
    error_reply,
)

CODE_SHIFT = -1000  # added to this server's error codes, because MCP reserves -32000 to -32099

SERVER_INFO = dumps({"name": "toolpack-server", "title": "Toolpack Server", "version": version("toolpack-server")})
CACHE = b',"ttlMs":60000,"cacheScope":"private"'
NO_CACHE = b',"ttlMs":0,"cacheScope":"private"'
RESULT_TYPE = b'"resultType"'
COMPLETE = RESULT_TYPE + b':"complete"'
_META = b'"_meta":{"io.modelcontextprotocol/serverInfo":%b}' % SERVER_INFO
_COMPLETE = COMPLETE + b"," + _META


class McpPath(TypedDict):
    """`mcp_path` is the session's path for agents that speak MCP."""

    mcp_path: str


class Fault(Enum):
    """Errors for which a transport can use a special status: a protocol violation, or a missing method or session."""

    MALFORMED = "malformed"
    NO_METHOD = "no method"
    NO_SESSION = "no session"


class McpReply(NamedTuple):
    """The answer to a message."""

    body: bytes  # JSON; empty for a notification
    fault: Fault | None = None  # None for a result or any other error


def success(message: McpMessage, members: bytes) -> McpReply:
    """Return the answer with a result.

    Args:
        members: The JSON of the result's fields, without the braces. It begins with `resultType` if the result isn't
            complete.
    """
    if message.modern:
        end = _META if members.startswith(RESULT_TYPE) else _COMPLETE
        members = members + b"," + end if members else end
    return McpReply(b'{"jsonrpc":"2.0","id":%b,"result":{%b}}' % (dumps(message.id), members))


def call_result(outcome: Outcome, request_id: Any = None) -> bytes:
    """Return the fields of a call's result. A failed call is a result with `isError`, so that the agent can react.

    Raises:
        McpRefusedError: There is no such function.
    """
    failure, text = outcome.failure, outcome.result
    if failure is not None and failure.why is Failure.NOT_FOUND:
        described = ERROR_INVALID_PARAMS, failure.text, {"detail": failure.text}
        raise McpRefusedError(described, malformed=False, request_id=request_id)
    if text is None:
        return tool_error(failure.text if failure else "")
    if outcome.content:
        return b'"content":%b,"isError":false' % text
    shape = text[:1]
    structured = _structured(text) if shape == b"{" else b""
    if shape != b'"':  # a string is shown as it is, any other value as JSON
        text = dumps(text.decode())
    return b'"content":[{"type":"text","text":%b}]%b,"isError":false' % (text, structured)


def tool_value(value: Any) -> bytes:
    """Return the fields of a tool's result for a JSON value."""
    text = value if isinstance(value, str) else dumps(value).decode()
    structured = _structured(text.encode()) if isinstance(value, dict) else b""
    return b'"content":[{"type":"text","text":%b}]%b,"isError":false' % (dumps(text), structured)


def _structured(text: bytes) -> bytes:
    """Return the field `structuredContent`, or b"" if a client would round an integer in it."""
    return b"" if has_inexact_integer(text) else b',"structuredContent":%b' % text


def tool_error(text: str) -> bytes:
    """Return the fields of a tool's result that reports an error to the agent."""
    return b'"content":[{"type":"text","text":%b}],"isError":true' % dumps(text)


def failure(message: McpMessage, error: Exception) -> McpReply:
    """Return the answer to a request that raised an exception."""
    if isinstance(error, McpRefusedError):
        return refusal_reply(error)
    described = adapt_error(describe(error))
    fault = Fault.NO_METHOD if described[0] == ERROR_METHOD_NOT_FOUND and message.modern else None
    if isinstance(error, SessionNotFoundError):
        fault = Fault.NO_SESSION
    return McpReply(error_reply(message.id, *described), fault)


def too_long(max_bytes: int) -> McpRefusedError:
    """Return the error for a line that exceeds the size limit."""
    detail = f"The message is larger than {max_bytes} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES."
    return McpRefusedError((ERROR_INVALID_REQUEST, f"Invalid Request: {detail}", {"detail": detail}))


def refusal_reply(error: McpRefusedError) -> McpReply:
    """Return the answer to a message that was refused."""
    fault = Fault.MALFORMED if error.malformed else None
    return McpReply(error_reply(error.request_id, *error.described), fault)


def adapt_error(described: Described) -> Described:
    """Adapt an error to MCP: shift own codes, and add the detail to the message, because clients show nothing else."""
    code, message, data = described
    if code in STANDARD:
        return code, f"{message}: {data['detail']}", data
    return code + CODE_SHIFT, message, data


def no_method(message: McpMessage, methods: Any) -> McpReply:
    """Return the answer to a request for an unknown method. `methods` are the methods of its era."""
    detail = f"There is no method {message.method[:200]!r} here: use {', '.join(methods)}."
    described = (ERROR_METHOD_NOT_FOUND, f"Method not found: {detail}", {"detail": detail})
    return McpReply(error_reply(message.id, *described), Fault.NO_METHOD if message.modern else None)
