"""HTTP for the benchmark: complete requests as bytes for `wrk`, and a small client for set-up and checks."""

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any

JSON = "application/json"
IDLE_SECONDS = 1.0  # reconnect after this time, because a server may close a connection that is idle for longer


def request_bytes(port: int, path: str, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a complete POST request with a JSON body."""
    text = json.dumps(body, separators=(",", ":"))
    fields = {"Host": f"127.0.0.1:{port}", "Content-Type": JSON, "Content-Length": len(text), **(headers or {})}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", text]).encode()


def jsonrpc(method: str, params: Any, request_id: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


class Client:
    """A client with one persistent connection.

    Args:
        port: The server's port.
        path: The path of every request.
        headers: Headers of every request.
    """

    def __init__(self, port: int, path: str, headers: Mapping[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._path = path
        self._headers = {"Content-Type": JSON, **(headers or {})}
        self._used_at = time.monotonic()

    def post(self, body: Any) -> tuple[Any, Mapping[str, str]]:
        """Send JSON, and return the JSON and the headers of the answer."""
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self._connection.close()
        self._connection.request("POST", self._path, json.dumps(body), self._headers)
        reply = self._connection.getresponse()
        text = reply.read()
        self._used_at = time.monotonic()
        if reply.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"HTTP {reply.status}: {text.decode(errors='replace')[:200]}")
        return (json.loads(text) if text else None), reply.headers

    def call(self, method: str, params: Any) -> Any:
        """Call a JSON-RPC method, and return its result."""
        reply, _ = self.post(jsonrpc(method, params))
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]


def status(port: int, path: str) -> int | None:
    """Return the HTTP status of a path, or None if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
