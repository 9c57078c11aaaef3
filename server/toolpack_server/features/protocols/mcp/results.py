"""The answers to MCP's messages as JSON: results of tools, and errors with their codes.

Pure. A result that is JSON text already is never parsed.
"""

from enum import Enum
from importlib.metadata import version
from typing import Any, NamedTuple

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.execution.call import Outcome
from toolpack_server.features.protocols.mcp.messages import McpMessage, McpRefusedError
from toolpack_server.jsonio.strict import dumps, has_inexact_integer
from toolpack_server.rpc.codes import (
    ERROR_INVALID_REQUEST,
    ERROR_METHOD_NOT_FOUND,
    STANDARD,
    Described,
    describe,
    error_reply,
)

CODE_SHIFT = -1000  # MCP keeps -32000 to -32099 for itself

SERVER_INFO = dumps({"name": "toolpack-server", "title": "Toolpack Server", "version": version("toolpack-server")})
CACHE = b',"ttlMs":60000,"cacheScope":"private"'
NO_CACHE = b',"ttlMs":0,"cacheScope":"private"'
_MODERN = b',"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":%b}' % SERVER_INFO


class McpPath(TypedDict):
    """`mcp_path` is for whoever speaks MCP."""

    mcp_path: str


class Fault(Enum):
    """Errors that say more than their code: the message breaks the protocol, or asks for what isn't there."""

    MALFORMED = "malformed"
    NO_METHOD = "no method"
    NO_SESSION = "no session"


class McpReply(NamedTuple):
    """The answer to a message."""

    body: bytes  # JSON; empty for a notification
    fault: Fault | None = None  # what is wrong beyond the error in the body


def success(message: McpMessage, members: bytes) -> McpReply:
    """Get the answer with a result, whose members are JSON without the braces."""
    end = _MODERN if message.modern else b""
    return McpReply(b'{"jsonrpc":"2.0","id":%b,"result":{%b%b}}' % (dumps(message.id), members, end))


def tool_result(outcome: Outcome) -> bytes:
    """Get the members of a tool's result; the agent can react to an error in it."""
    if outcome.result is None:
        return tool_error(outcome.failure.text if outcome.failure else "")
    text = outcome.result
    if outcome.content:
        return b'"content":%b,"isError":false' % text
    shape = text[:1]
    if shape != b'"':  # a string is its own text, everything else its JSON
        text = dumps(text.decode())
    structured = _structured(outcome.result) if shape == b"{" else b""
    return b'"content":[{"type":"text","text":%b}]%b,"isError":false' % (text, structured)


def tool_value(value: Any) -> bytes:
    """Get the members of a tool's result from a JSON value."""
    text = value if isinstance(value, str) else dumps(value).decode()
    structured = _structured(text.encode()) if isinstance(value, dict) else b""
    return b'"content":[{"type":"text","text":%b}]%b,"isError":false' % (dumps(text), structured)


def _structured(text: bytes) -> bytes:
    """Return the member with an object itself; none if clients would round an integer in it: the text is exact."""
    return b"" if has_inexact_integer(text) else b',"structuredContent":%b' % text


def tool_error(text: str) -> bytes:
    return b'"content":[{"type":"text","text":%b}],"isError":true' % dumps(text)


def failure(message: McpMessage, error: Exception) -> McpReply:
    if isinstance(error, McpRefusedError):
        return refusal_reply(error)
    described = shifted(describe(error))
    fault = Fault.NO_METHOD if described[0] == ERROR_METHOD_NOT_FOUND and message.modern else None
    if isinstance(error, SessionNotFoundError):
        fault = Fault.NO_SESSION
    return McpReply(error_reply(message.id, *described), fault)


def too_long(max_bytes: int) -> McpRefusedError:
    detail = f"The message is larger than {max_bytes} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES."
    return McpRefusedError((ERROR_INVALID_REQUEST, f"Invalid Request: {detail}", {"detail": detail}))


def refusal_reply(error: McpRefusedError) -> McpReply:
    fault = Fault.MALFORMED if error.malformed else None
    return McpReply(error_reply(error.request_id, *error.described), fault)


def shifted(described: Described) -> Described:
    """Get an error as MCP carries it: clients show the message alone, and MCP has taken some codes for itself."""
    code, message, data = described
    if code in STANDARD:
        return code, f"{message}: {data['detail']}", data
    return code + CODE_SHIFT, message, data


def no_method(message: McpMessage, known: Any) -> McpReply:
    """Get the answer to a request for a method that its era doesn't have here."""
    detail = f"There is no method {message.method[:200]!r} here: {', '.join(known)}."
    described = (ERROR_METHOD_NOT_FOUND, f"Method not found: {detail}", {"detail": detail})
    return McpReply(error_reply(message.id, *described), Fault.NO_METHOD if message.modern else None)
