"""Messages of MCP: which of the two eras one belongs to, and what must be in it.

A message of the modern era (2026-07-28) carries its version and the client's capabilities in `_meta`; the legacy era
(2025-11-25 and before) begins with `initialize`. Both come to the same address, message by message.

Pure. A message that is refused raises an error, which says why.
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
NAMING = ("tools/call", "prompts/get")  # the methods with a name


class McpRefusedError(InternalSignal):
    """A message of MCP is refused, the request with this id; `malformed`: it breaks the protocol."""

    def __init__(self, described: Any, *, malformed: bool = True, request_id: Any = None) -> None:
        super().__init__(described[1])
        self.described, self.malformed, self.request_id = described, malformed, request_id


@dataclass(frozen=True, slots=True)
class McpMessage:
    """A request or a notification."""

    id: str | int | None  # None for a notification
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]  # `_meta` of the parameters
    header_version: str | None  # that came beside it; None if none did
    modern: bool  # it belongs to the modern era

    @property
    def is_notification(self) -> bool:
        return self.id is None

    @property
    def named(self) -> Any:
        """What the request names, which modern clients repeat as a header."""
        return self.params.get("name") if self.method in NAMING else None

    def progress(self, seconds: float) -> bytes | None:
        """Get the notification that the request still runs, after so many seconds; None if the client wants none."""
        token = self.meta.get("progressToken")
        if not isinstance(token, str) and type(token) is not int:
            return None
        doing = self.params.get("name") if self.method == "tools/call" else self.method
        params = {
            "progressToken": token,
            "progress": round(seconds, 3),
            "message": f"{shown(str(doing))}: no result after {seconds:.0f} s; still running, or waiting for its turn",
        }
        return dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def check_meta(self) -> None:
        if not isinstance(self.meta.get(VERSION_KEY), str):
            raise self.refusal(_invalid(f"`_meta` needs {VERSION_KEY}, a string: {MODERN!r}."))
        if not isinstance(self.meta.get(CAPABILITIES_KEY), dict):
            raise self.refusal(_invalid(f"`_meta` needs {CAPABILITIES_KEY}, an object; {{}} is enough."))

    def check_version(self) -> None:
        if self.method == INITIALIZE and not self.modern:  # whose body says which version is wanted
            return
        asked = self.meta[VERSION_KEY] if self.modern else self.header_version
        if asked == MODERN if self.modern else asked is None or asked in VERSIONS:
            return
        text = f"Version {shown(str(asked))!r} of MCP is not supported here: use one of {', '.join(VERSIONS)}."
        if asked in LEGACY:
            text = f"Version {asked} of MCP has no version in `_meta`: use {MODERN}, or begin with initialize."
        raise self.refusal((UNSUPPORTED_VERSION, text, {"supported": list(VERSIONS), "requested": shown(str(asked))}))

    def refusal(self, described: Described) -> McpRefusedError:
        return McpRefusedError(described, request_id=self.id)


def read_message(value: Any, header_version: str | None = None) -> McpMessage:
    """Read a message from parsed JSON, or raise `McpRefusedError`."""
    if isinstance(value, list):
        raise _no_request("MCP has no batches: send one message at a time.")
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise _no_request('A message must be an object with "jsonrpc": "2.0".')
    message_id = value.get("id")
    if "id" in value and not (isinstance(message_id, str) or type(message_id) is int):
        raise _no_request('The "id" of a request must be a string or an integer.')
    if not isinstance(value.get("method"), str):
        raise _no_request(
            'A message must have a "method", a string: this server sends no requests to answer.', message_id
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
    return McpMessage(message_id, method, params, meta, header_version, modern)


def _no_request(detail: str, message_id: Any = None) -> McpRefusedError:
    return McpRefusedError(
        (ERROR_INVALID_REQUEST, f"Invalid Request: {detail}", {"detail": detail}), request_id=message_id
    )


def _invalid(detail: str) -> Described:
    return ERROR_INVALID_PARAMS, f"Invalid params: {detail}", {"detail": detail}
