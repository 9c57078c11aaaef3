"""Minimal MCP client for the checks.

It speaks version 2025-06-18 over Streamable HTTP, because every MCP server still accepts this version.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from toolpack_conformance.target import ACCEPT, Failed, Target, check_response, parse_json

VERSION = "2025-06-18"
_NOTHING: Mapping[str, str] = {}


class McpClient:
    """An MCP client for one path of the server.

    Attributes:
        greeting: The server's result of `initialize`.
        notified: The response to `notifications/initialized`.
    """

    def __init__(self, target: Target, path: str, version: str = VERSION) -> None:
        self._target, self._path, self._number = target, path, 0
        self._headers = {**ACCEPT}
        client = {"name": "conform", "version": "1"}
        opening = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
        self.greeting = self.ask("initialize", opening)
        self._headers["MCP-Protocol-Version"] = self.greeting.get("protocolVersion", VERSION)
        self.notified = self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def post(self, message: Any, headers: Mapping[str, str] = _NOTHING) -> httpx.Response:
        """Send a message, or bytes that needn't be a valid message, and return the HTTP response."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        response = self._target.post(body, self._path, headers={**self._headers, **headers})
        if "mcp-session-id" in response.headers:
            self._headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
        return response

    def end(self) -> httpx.Response:
        """End the MCP session by a DELETE request."""
        return self._target.post(b"", self._path, headers=self._headers, http_method="DELETE")

    def reply(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        request_id: int | str | None = None,
        headers: Mapping[str, str] = _NOTHING,
    ) -> dict[str, Any]:
        """Send a request and return the response, which the server can also send as a server-sent event."""
        self._number += 1
        request_id = self._number if request_id is None else request_id
        response = self.post({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}, headers)
        reply: dict[str, Any] = _answer(response, request_id)
        check_response(reply, request_id)
        return reply

    def ask(
        self, method: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] = _NOTHING
    ) -> dict[str, Any]:
        """Send a request that must succeed, and return its result."""
        reply = self.reply(method, params, headers=headers)
        if "error" in reply:
            raise Failed(f"MCP's {method} returned an error: {reply['error']}")
        result: dict[str, Any] = reply["result"]
        return result

    def code(self, method: str, params: Mapping[str, Any] | None = None) -> int | None:
        """Send a request and return the error's code, or None if the response isn't an error."""
        code: int | None = self.reply(method, params).get("error", {}).get("code")
        return code

    def call(self, name: str, arguments: Mapping[str, Any], **members: Any) -> dict[str, Any]:
        """Call a tool, and return the result. `members` are further parameters of the request."""
        return self.ask("tools/call", {"name": name, "arguments": arguments, **members})


def _answer(response: httpx.Response, request_id: Any) -> Any:
    """Return the JSON-RPC response in an HTTP response, which can be an event stream."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return parse_json(response)
    # The data of an event can consist of several lines. An empty line ends the event.
    for event in response.text.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].lstrip() for line in event.split("\n") if line.startswith("data:"))
        if data:
            try:
                message = json.loads(data)
            except ValueError:
                raise Failed("an event of a stream isn't JSON") from None
            if isinstance(message, dict) and message.get("id") == request_id and "method" not in message:
                return message
    raise Failed("a stream ended without the response")
