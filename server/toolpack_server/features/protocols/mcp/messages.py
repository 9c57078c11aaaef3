"""MCP messages: parsing, the era of a message, and its required fields.

A message of the modern era (2026-07-28) contains its version and the client's capabilities in `_meta`. A client of the
legacy era (2025-11-25 and earlier) sends `initialize` first. One address accepts messages of both eras.

The functions have no side effects. They refuse an invalid message with `McpRefusedError` and the reason.
"""

from dataclasses import dataclass
from typing import Any

from toolpack_server.base.errors import InternalSignal, shown
from toolpack_server.jsonio.strict import dumps
from toolpack_server.rpc.codes import ERROR_INVALID_PARAMS, ERROR_INVALID_REQUEST, Described

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
VERSIONS = (MODERN, *LEGACY)

HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CALL_ID_KEY = "toolpack-server/call_id"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"


INITIALIZE = "initialize"
TASKS = "io.modelcontextprotocol/tasks"  # the extension for handles of long calls
TASK_METHODS = "tasks/"  # prefix of the names of its methods
# The parameter that modern clients repeat in a header, by method.
NAMING = {
    "tools/call": "name",
    "prompts/get": "name",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


class McpRefusedError(InternalSignal):
    """Raised to refuse an MCP message.

    Attributes:
        described: The code, message and data of the error.
        malformed: Whether the message violates the protocol.
        request_id: The id of the request, for the answer.
    """

    def __init__(self, described: Any, *, malformed: bool = True, request_id: Any = None) -> None:
        super().__init__(described[1])
        self.described, self.malformed, self.request_id = described, malformed, request_id


@dataclass(frozen=True, slots=True)
class McpMessage:
    """A request or a notification from a client."""

    id: str | int | None  # None for a notification
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]  # `_meta` of the parameters
    header_version: str | None  # the version in the HTTP header
    modern: bool  # whether the message belongs to the modern era
    named: Any  # the name or id in the parameters that modern clients repeat in a header

    @property
    def is_notification(self) -> bool:
        return self.id is None

    @property
    def accepts_handles(self) -> bool:
        """Whether the client accepts a handle (see `handles`) as the answer to a call that takes long."""
        if not self.modern:
            return False
        extensions = self.meta[CAPABILITIES_KEY].get("extensions")
        return isinstance(extensions, dict) and TASKS in extensions

    def progress(self, seconds: float) -> bytes | None:
        """Return the notification that the request is still running, or None if the client didn't ask for progress."""
        token = self.meta.get("progressToken")
        if not isinstance(token, str) and type(token) is not int:
            return None
        subject = self.params.get("name") if self.method == "tools/call" else self.method
        params = {
            "progressToken": token,
            "progress": round(seconds, 3),
            "message": f"{shown(str(subject))}: no result after {seconds:.0f} s; still running or in the queue",
        }
        return dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def check_meta(self) -> None:
        """Raise `McpRefusedError` if a modern message lacks its version or the client's capabilities."""
        if not isinstance(self.meta.get(VERSION_KEY), str):
            raise self.refusal(_invalid(f"`_meta` needs {VERSION_KEY}, a string: {MODERN!r}."))
        if not isinstance(self.meta.get(CAPABILITIES_KEY), dict):
            raise self.refusal(_invalid(f"`_meta` needs {CAPABILITIES_KEY}, an object; {{}} is enough."))

    def check_version(self) -> None:
        """Raise `McpRefusedError` if the server doesn't support the version of the message."""
        if self.method == INITIALIZE and not self.modern:  # its handler negotiates the version
            return
        version = self.meta[VERSION_KEY] if self.modern else self.header_version
        # A modern message needs the modern version. A legacy message can omit the header, or name any version there.
        if version == MODERN if self.modern else version is None or version in VERSIONS:
            return
        text = f"Version {shown(str(version))!r} of MCP is not supported here: use one of {', '.join(VERSIONS)}."
        if version in LEGACY:
            text = f"Version {version} of MCP has no version in `_meta`: use {MODERN}, or begin with initialize."
        data = {"supported": list(VERSIONS), "requested": shown(str(version))}
        raise self.refusal((UNSUPPORTED_VERSION, text, data))

    def refusal(self, described: Described) -> McpRefusedError:
        """Return the error that refuses this message, with its id."""
        return McpRefusedError(described, request_id=self.id)


def read_message(value: Any, header_version: str | None = None) -> McpMessage:
    """Return the message in parsed JSON.

    Raises:
        McpRefusedError: The JSON isn't a message.
    """
    if isinstance(value, list):
        raise _no_request("MCP has no batches: send one message at a time.")
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise _no_request('A message must be an object with "jsonrpc": "2.0".')
    message_id = value.get("id")
    if "id" in value and not (isinstance(message_id, str) or type(message_id) is int):
        raise _no_request('The "id" of a request must be a string or an integer.')
    if not isinstance(value.get("method"), str):
        raise _no_request(
            'A message must have a "method", a string: this server sends no requests, so it expects no responses.',
            message_id,
        )
    params = value.get("params", {})
    if not isinstance(params, dict):
        raise _no_request('The "params" of a message must be an object.', message_id)
    meta = params.get("_meta")
    meta = {} if meta is None else meta
    if not isinstance(meta, dict):
        raise McpRefusedError(_invalid("`_meta` must be an object."), request_id=message_id)
    method = value["method"]
    modern = VERSION_KEY in meta or (header_version == MODERN and method != INITIALIZE)
    named = params.get(NAMING[method]) if method in NAMING else None
    return McpMessage(message_id, method, params, meta, header_version, modern, named)


def _no_request(detail: str, message_id: Any = None) -> McpRefusedError:
    return McpRefusedError(
        (ERROR_INVALID_REQUEST, f"Invalid Request: {detail}", {"detail": detail}), request_id=message_id
    )


def _invalid(detail: str) -> Described:
    return ERROR_INVALID_PARAMS, f"Invalid params: {detail}", {"detail": detail}
