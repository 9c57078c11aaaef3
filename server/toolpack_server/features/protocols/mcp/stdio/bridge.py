"""Carries a client's messages to a session on a server, with the headers of their era.

A call happens once, whatever happens to the connection: each gets a call_id, if the client gave none, and is
sent again with it until it is answered, the server stays away, or it is overloaded again and again. Calls are sent one
after the other, so that they run in the order in which they came. Nothing that the server sends is trusted to end.
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
from urllib.parse import urlsplit

from toolpack_server.base.errors import OverloadedError, SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.protocols.mcp.headers import encoded
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

AWAY_SECONDS = 15.0  # how long a server that doesn't answer is asked again
PAUSE_SECONDS = 0.2
SILENCE_SECONDS = 30.0  # a server that runs gives a sign of life every two
STREAM_SECONDS = 3600.0  # for an answer, however many signs of life come before it
RETRIES = 4  # of what the server has refused for now
OVERLOADED = CODES[OverloadedError] + CODE_SHIFT
REQUESTS = 16  # at the same time; calls go one by one
ACCEPT = "application/json, text/event-stream"


class Bridge:
    """The way to a session on a server, by its `mcp_path`.

    Args:
        emit: Called with each message other than the answer, in any thread.
        max_bytes: The most that an answer, or a line of an event stream, may have.
    """

    def __init__(self, url: str, emit: Callable[[bytes], object], max_bytes: int) -> None:
        parts = urlsplit(url)
        before, _, key = parts.path.rpartition("/")
        if parts.scheme not in {"http", "https"} or not parts.hostname or not before.endswith("/mcp") or not key:
            raise SettingsError("--url is not of the form http://host:port/mcp/<key>: give a session's mcp_path.")
        self._parts = parts
        self._emit = emit
        self._max_bytes = max_bytes
        self._exchanges: set[BridgedRequest] = set()  # those that run
        self._closed = False
        self._turn = asyncio.Lock()
        self._version: str | None = None  # that initialize has agreed on
        self._threads = ThreadPoolExecutor(REQUESTS, "bridge")

    async def answer(self, message: McpMessage) -> bytes:
        """Get a server's answer to a request; cancelled, close its connection, which cancels modern ones."""
        if message.method != "tools/call":
            return await self._carried(message)
        message.meta.setdefault(CALL_ID_KEY, secrets.token_hex(16))
        message.params["_meta"] = message.meta
        async with self._turn:
            return await self._carried(message)

    def close(self) -> None:
        """Give up what runs: Python waits for its threads before it ends."""
        self._closed = True
        for exchange in [*self._exchanges]:
            exchange.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _carried(self, message: McpMessage) -> bytes:
        exchange = BridgedRequest(
            self._parts, self._headers(message), _body(message), message.id, self._emit, self._max_bytes
        )
        loop = asyncio.get_running_loop()
        self._exchanges.add(exchange)
        try:
            reply = await loop.run_in_executor(self._threads, exchange.run)
        except asyncio.CancelledError:
            exchange.cancel()
            raise
        finally:
            self._exchanges.discard(exchange)
        if reply is None:
            text = f"{self._parts.netloc} can't be reached: is the server running? Send the request again."
            if self._closed:
                text = f"The input ended before {self._parts.netloc} had answered."
            return error_reply(message.id, ERROR_INTERNAL_ERROR, f"Internal error: {text}", {"detail": text})
        if message.method == "initialize":
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._version = loads(reply)["result"]["protocolVersion"]
        return reply

    def _headers(self, message: McpMessage) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": ACCEPT}
        if not message.modern:
            return headers | ({"MCP-Protocol-Version": self._version} if self._version else {})
        headers |= {"MCP-Protocol-Version": encoded(message.meta[VERSION_KEY]), "Mcp-Method": encoded(message.method)}
        name = message.named
        if isinstance(name, str):
            headers["Mcp-Name"] = encoded(name)
        return headers


class BridgedRequest:
    """One request to a server, repeated until there is an answer."""

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
        """Send the request, in a thread, and get the answer; None if there is none."""
        deadline, refused = time.monotonic() + AWAY_SECONDS, 0
        while not self._cancelled.is_set():
            pause = PAUSE_SECONDS
            try:
                reply = self._answer()
                again_after = _again_after(reply)
                if again_after is None or refused == RETRIES:
                    return reply
                pause = again_after + PAUSE_SECONDS * 2**refused
                deadline, refused = time.monotonic() + pause + AWAY_SECONDS, refused + 1
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    return None
            self._cancelled.wait(pause)
        return None

    def cancel(self) -> None:
        """Close the connection, from any thread."""
        self._cancelled.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> bytes:
        parts = self._parts
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with contextlib.closing(kind(parts.hostname, parts.port, timeout=SILENCE_SECONDS)) as connection:
            connection.connect()
            self._socket = connection.sock  # which the connection forgets if it ends with the answer
            if self._cancelled.is_set():
                raise OSError("it was cancelled meanwhile")
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("POST", path, self._body, self._headers)
            response = connection.getresponse()
            if response.status == http.client.SERVICE_UNAVAILABLE:
                raise OSError("it starts or stops")
            if response.getheader("Content-Type", "").startswith("text/event-stream"):
                return self._last(response)
            body = response.read(self._max_bytes + 1)
            if len(body) > self._max_bytes:
                return self._wrong(self._too_long())
            return self._one_line(body, response.status)

    def _last(self, response: http.client.HTTPResponse) -> bytes:
        """Get the answer from an event stream, and let the messages before it out."""
        ends = time.monotonic() + STREAM_SECONDS
        data = bytearray()  # which grows in place, however short the lines are
        while time.monotonic() < ends:
            line = response.readline(self._max_bytes + 1)
            if not line:
                raise OSError("the stream has ended without an answer")
            if len(line) + len(data) > self._max_bytes:
                return self._wrong(self._too_long())
            if line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line.strip() and data:
                message = _object(bytes(data))
                if self._is_answer(message):
                    return bytes(data)
                if "method" in message and "id" not in message and not self._cancelled.is_set():
                    self._emit(bytes(data))
                data.clear()
        return self._wrong(f"it hasn't answered for {STREAM_SECONDS:g} s.")

    def _one_line(self, body: bytes, status: int) -> bytes:
        reply = _object(body)
        if self._is_answer(reply):
            return dumps(reply) if b"\n" in body else body
        if reply.get("id") is not None:
            return self._wrong("it has answered another request: is this the mcp_path of a session?")
        try:
            return self._wrong(reply["error"]["message"])
        except (KeyError, TypeError):
            return self._wrong(f"it answers {status}, and no JSON-RPC: is this the mcp_path of a session?")

    def _is_answer(self, message: dict[str, Any]) -> bool:
        of = message.get("id")
        return of == self._id and type(of) is type(self._id) and ("result" in message or "error" in message)

    def _too_long(self) -> str:
        return f"its answer is longer than {self._max_bytes} bytes: ask for less, or raise TOOLPACK_MAX_BODY_BYTES."

    def _wrong(self, text: str) -> bytes:
        """Get the answer to the client where the server's is none."""
        described = f"{self._parts.netloc}: {text}"
        return error_reply(self._id, ERROR_INTERNAL_ERROR, described, {"detail": described})


def _body(message: McpMessage) -> bytes:
    return dumps({"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": message.params})


def _object(text: bytes | str) -> dict[str, Any]:
    """Read a JSON object; an empty one if it isn't any."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _again_after(reply: bytes) -> float | None:
    """Get the seconds after which the server wants a request again that it has refused for now; None for an answer."""
    if b"%d" % OVERLOADED not in reply:
        return None
    error = _object(reply).get("error")
    if not isinstance(error, dict) or error.get("code") != OVERLOADED:
        return None
    data = error.get("data")
    seconds = data.get("retry_after_seconds") if isinstance(data, dict) else None
    return min(float(seconds), AWAY_SECONDS) if isinstance(seconds, int | float) and seconds >= 0 else 0.0


async def carry(settings: Settings, url: str, source: int, sink: int) -> None:
    """Carry the messages that come from one descriptor to a server, and its answers to another."""
    writer = LineWriter(sink)
    bridge = Bridge(url, writer.offer, settings.max_reply_bytes)

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
