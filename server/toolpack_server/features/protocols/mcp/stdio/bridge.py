"""Bridge from standard input and output to a session on a server, by HTTP.

A call is executed once, even if the connection breaks. The bridge adds a call_id if the client sent none. It repeats
the request with this call_id until the server answers, or has been unreachable or overloaded for too long. Calls are
sent one after the other, so they run in order. Answers are read with limits of size and time.
"""

import asyncio
import contextlib
import http.client
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs, urlsplit

from toolpack_server.base.errors import OverloadedError, SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.protocols.mcp.headers import encode
from toolpack_server.features.protocols.mcp.messages import (
    CALL_ID_KEY,
    VERSION_KEY,
    McpMessage,
    McpRefusedError,
    read_message,
)
from toolpack_server.features.protocols.mcp.results import CODE_SHIFT
from toolpack_server.features.protocols.mcp.stdio.conversation import StdioConversation
from toolpack_server.features.protocols.mcp.stdio.lines import LineReader, LineWriter
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.codes import CODES, ERROR_INTERNAL_ERROR, ERROR_PARSE_ERROR, error_reply

AWAY_SECONDS = 15.0  # how long to retry while the server is unreachable
DELAY_SECONDS = 0.2  # delay between two attempts
SILENCE_SECONDS = 30.0  # socket timeout; a running server sends a keep-alive every 2 s
STREAM_SECONDS = 3600.0  # time limit for an answer in an event stream, despite keep-alives
RETRIES = 4  # max retries of a request that an overloaded server refuses
OVERLOADED = CODES[OverloadedError] + CODE_SHIFT
MAX_REQUESTS = 16  # max requests at the same time; calls are sent one by one
ACCEPT = "application/json, text/event-stream"


class Bridge:
    """Sends messages to a session on a server.

    Args:
        url: The server's base URL followed by the session's `mcp_path`, or by `/mcp` with the name of a session.
        token: Bearer token for an address with a name. An `mcp_path` needs none.
        emit: Called with each notification that precedes an answer, in any thread.
        max_bytes: Maximum size of an answer, and of a line of an event stream.
    """

    def __init__(self, url: str, token: str | None, emit: Callable[[bytes], object], max_bytes: int) -> None:
        parts = urlsplit(url)
        before, _, key = parts.path.rstrip("/").rpartition("/")
        is_named = key == "mcp" and "session" in parse_qs(parts.query)
        if parts.scheme not in {"http", "https"} or not parts.hostname or not (is_named or before.endswith("/mcp")):
            raise SettingsError(
                "--url must have the form http://host:port/mcp?session=NAME, or http://host:port/mcp/<key> with a "
                "session's mcp_path."
            )
        self._parts = parts
        self._token = {"Authorization": f"Bearer {token}"} if token and is_named else {}
        self._emit = emit
        self._max_bytes = max_bytes
        self._requests: set[BridgedRequest] = set()  # running requests
        self._closed = False
        self._call_lock = asyncio.Lock()
        self._version: str | None = None  # negotiated by initialize
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, "bridge")

    async def answer(self, message: McpMessage) -> bytes:
        """Return the server's answer to a request.

        If the asyncio task is cancelled, the connection is closed, which cancels a modern request on the server.
        """
        if message.method != "tools/call":
            return await self._send(message)
        message.meta.setdefault(CALL_ID_KEY, secrets.token_hex(16))
        message.params["_meta"] = message.meta
        async with self._call_lock:
            return await self._send(message)

    def close(self) -> None:
        """Cancel the running requests, because Python waits for their threads before it exits."""
        self._closed = True
        for request in [*self._requests]:
            request.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, message: McpMessage) -> bytes:
        """Send a request on a thread and return the answer, or an error response if the server can't be reached."""
        request = BridgedRequest(
            self._parts, self._headers(message), _body(message), message.id, self._emit, self._max_bytes
        )
        loop = asyncio.get_running_loop()
        self._requests.add(request)
        try:
            reply = await loop.run_in_executor(self._threads, request.run)
        except asyncio.CancelledError:
            request.cancel()
            raise
        finally:
            self._requests.discard(request)
        if reply is None:
            text = f"{self._parts.netloc} can't be reached: is the server running? Send the request again."
            if self._closed:
                text = f"The input ended before {self._parts.netloc} answered."
            return error_reply(message.id, ERROR_INTERNAL_ERROR, f"Internal error: {text}", {"detail": text})
        if message.method == "initialize":
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._version = loads(reply)["result"]["protocolVersion"]
        return reply

    def _headers(self, message: McpMessage) -> dict[str, str]:
        """Return the HTTP headers of a message. MCP requires a modern message to repeat some of its fields there."""
        headers = {"Content-Type": "application/json", "Accept": ACCEPT, **self._token}
        if not message.modern:
            return headers | ({"MCP-Protocol-Version": self._version} if self._version else {})
        headers |= {"MCP-Protocol-Version": encode(message.meta[VERSION_KEY]), "Mcp-Method": encode(message.method)}
        name = message.named
        if isinstance(name, str):
            headers["Mcp-Name"] = encode(name)
        return headers


class BridgedRequest:
    """One request to the server, with retries. `run` blocks, so it needs a thread."""

    def __init__(
        self,
        parts: Any,
        headers: dict[str, str],
        body: bytes,
        request_id: Any,
        emit: Callable[[bytes], object],
        max_bytes: int,
    ) -> None:
        self._parts, self._headers, self._body = parts, headers, body
        self._id = request_id
        self._emit = emit
        self._max_bytes = max_bytes
        self._socket: socket.socket | None = None
        self._cancelled = threading.Event()

    def run(self) -> bytes | None:
        """Send the request until it is answered. Return None if the server is unreachable or `cancel` was called."""
        deadline, refusals = time.monotonic() + AWAY_SECONDS, 0
        while not self._cancelled.is_set():
            delay = DELAY_SECONDS
            try:
                reply = self._answer()
                retry_after = _retry_after(reply)
                if retry_after is None or refusals == RETRIES:
                    return reply
                delay = retry_after + DELAY_SECONDS * 2**refusals
                deadline, refusals = time.monotonic() + delay + AWAY_SECONDS, refusals + 1
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    return None
            self._cancelled.wait(delay)
        return None

    def cancel(self) -> None:
        """Cancel the request and close its connection. Thread-safe."""
        self._cancelled.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> bytes:
        """Send the request once and return the answer. Raise an exception of the connection if a retry might help."""
        parts = self._parts
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with contextlib.closing(kind(parts.hostname, parts.port, timeout=SILENCE_SECONDS)) as connection:
            connection.connect()
            self._socket = connection.sock  # for `cancel`; the connection drops its socket while the response is read
            if self._cancelled.is_set():
                raise OSError("the request was cancelled")
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("POST", path, self._body, self._headers)
            response = connection.getresponse()
            if response.status == http.client.SERVICE_UNAVAILABLE:
                raise OSError("the server is starting or stopping")
            if response.getheader("Content-Type", "").startswith("text/event-stream"):
                return self._read_stream(response)
            body = response.read(self._max_bytes + 1)
            if len(body) > self._max_bytes:
                return self._error(self._too_long())
            return self._check(body, response.status)

    def _read_stream(self, response: http.client.HTTPResponse) -> bytes:
        """Read an event stream up to the answer, and emit the notifications before it."""
        deadline = time.monotonic() + STREAM_SECONDS
        data = bytearray()  # a bytearray grows in place, so many short lines aren't slow
        while time.monotonic() < deadline:
            line = response.readline(self._max_bytes + 1)
            if not line:
                raise OSError("the stream ended without an answer")
            if len(line) + len(data) > self._max_bytes:
                return self._error(self._too_long())
            if line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line.strip() and data:
                message = _object(bytes(data))
                if self._is_answer(message):
                    return bytes(data)
                if "method" in message and "id" not in message and not self._cancelled.is_set():
                    self._emit(bytes(data))
                data.clear()
        return self._error(f"the server didn't answer within {STREAM_SECONDS:g} s.")

    def _check(self, body: bytes, status: int) -> bytes:
        """Return a body as one line if it answers this request, otherwise an error response."""
        reply = _object(body)
        if self._is_answer(reply):
            return dumps(reply) if b"\n" in body else body
        if status == http.client.UNAUTHORIZED:
            return self._error("the server requires a valid token: give one with --token, or as TOOLPACK_TOKEN.")
        if reply.get("id") is not None:
            return self._error("the server answered another request: is this the mcp_path of a session?")
        try:
            return self._error(reply["error"]["message"])
        except (KeyError, TypeError):
            return self._error(f"the server answered {status} without JSON-RPC: is this the mcp_path of a session?")

    def _is_answer(self, message: dict[str, Any]) -> bool:
        """Return whether a message answers this request. Ids of different types, such as 1 and 1.0, differ."""
        answer_id = message.get("id")
        same_id = answer_id == self._id and type(answer_id) is type(self._id)
        return same_id and ("result" in message or "error" in message)

    def _too_long(self) -> str:
        return f"the answer is longer than {self._max_bytes} bytes: ask for less, or raise TOOLPACK_MAX_BODY_BYTES."

    def _error(self, text: str) -> bytes:
        """Return an error response for the client, because the server sent no valid answer to the request."""
        described = f"{self._parts.netloc}: {text}"
        return error_reply(self._id, ERROR_INTERNAL_ERROR, described, {"detail": described})


def _body(message: McpMessage) -> bytes:
    return dumps({"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": message.params})


def _object(text: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Return an empty dict if the text isn't a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _retry_after(reply: bytes) -> float | None:
    """Return the delay in seconds that an overloaded server requests, or None if the server isn't overloaded."""
    if b"%d" % OVERLOADED not in reply:  # a quick check that saves parsing nearly all replies
        return None
    error = _object(reply).get("error")
    if not isinstance(error, dict) or error.get("code") != OVERLOADED:
        return None
    data = error.get("data")
    seconds = data.get("retry_after_seconds") if isinstance(data, dict) else None
    return min(float(seconds), AWAY_SECONDS) if isinstance(seconds, int | float) and seconds >= 0 else 0.0


async def carry(settings: Settings, url: str, token: str | None, source: int, sink: int) -> None:
    """Forward messages from the descriptor `source` to a server, and its answers to the descriptor `sink`."""
    writer = LineWriter(sink)
    bridge = Bridge(url, token, writer.offer, settings.max_reply_bytes)

    async def read(line: bytes) -> McpMessage:
        try:
            return read_message(loads(line))
        except ValueError as error:
            detail = f"The line is not JSON: {error}."
            raise McpRefusedError((ERROR_PARSE_ERROR, f"Parse error: {detail}", {"detail": detail})) from None

    reader = LineReader(source, settings.max_body_bytes)
    conversation = StdioConversation(reader, writer, read, bridge.answer, tells_progress=False)
    try:
        await conversation.hold(settings.drain_seconds, bridge.close)
    finally:
        bridge.close()
