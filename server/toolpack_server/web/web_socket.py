"""WebSocket (RFC 6455) after its handshake: a connection on which each message is a request.

The limits for a request also apply to a message. Its bytes are counted while they arrive, its time limit is that of a
body, and at most `READ_AHEAD` bytes are parsed ahead. Frames are parsed a few at a time, and the number of frames
without text is limited. Compression is never accepted, so no message is larger than the bytes that were sent.

The parser is `wsproto`, because it returns the pieces of a message as they arrive; `websockets` collects the whole
message. `wsproto` also leaves the connection to this module, so the limits of HTTP connections apply.
"""

import asyncio
import base64
import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import ProtocolError

from toolpack_server.base.errors import HttpRefusedError
from toolpack_server.rpc.in_flight import Reservation

READ_AHEAD = 64 * 1024  # max bytes that are parsed and not yet read by the endpoint
PIECE_COST = 128  # bytes of memory per piece, in addition to its text
MAX_FRAMING_BYTES = 2**21  # max memory of a message's pieces, in addition to its max size
FRAMES_PER_TURN = 32  # max frames parsed in one iteration of the event loop
MAX_EMPTY_FRAMES = 1000  # max pings, pongs and empty frames; text and the server's own pings reset the count
PING_SECONDS = 20.0  # interval of pings; a client that sends nothing until the next ping counts as gone
MAX_REASON = 123  # max bytes of a close frame's reason
VERSION = b"13"
HANDSHAKE_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3

NORMAL, NOT_TEXT, POLICY, TOO_LARGE, FAULT, RESTARTS, LATER = 1000, 1003, 1008, 1009, 1011, 1012, 1013
"""Codes for closing a WebSocket, from RFC 6455 and its registry."""

RESTART = "The server stops or restarts: connect again in a moment."


class SwitchedConnection(Protocol):
    """The HTTP connection that a WebSocket took over. It still counts as a connection."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class SocketRefusedError(HttpRefusedError):
    """Raised to refuse a message and close its WebSocket with a code."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(status, message)
        self.code = code


def accept_handshake(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the response to a handshake.

    Raises:
        HttpRefusedError: The request isn't a valid handshake.
    """
    key = headers.get(b"sec-websocket-key", b"")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16  # noqa: PLR2004 - bytes, by the RFC
    except ValueError:
        is_key = False
    if headers.get(b"sec-websocket-version") != VERSION or not is_key:
        raise HttpRefusedError(
            426, "This path is a WebSocket: send a handshake of version 13, with Sec-WebSocket-Key, by GET."
        )
    token = base64.b64encode(hashlib.sha1(key + HANDSHAKE_GUID, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n" % token
    )


class WebSocket(asyncio.Protocol):
    """A WebSocket with text messages. Its endpoint reads and answers one message at a time.

    Attributes:
        is_answering: Whether a message is being answered. A server that drains waits until the answer has been sent.
    """

    def __init__(self, connection: SwitchedConnection, transport: Any, body_seconds: float) -> None:
        self._connection = connection
        self._transport = transport
        self._body_seconds = body_seconds
        self._loop = asyncio.get_running_loop()
        self._frames = Connection(ConnectionType.SERVER)
        self._pieces: deque[tuple[str, int, bool]] = deque()  # text, its size in bytes, whether it ends a message
        self._unread = 0  # bytes
        self._more = asyncio.Event()
        self._client_left = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = self._is_draining = False
        self._next_turn: asyncio.Handle | None = None  # parses further bytes in the next loop iteration
        self._empty_frames = 0  # number since the last frame with text, or the last ping
        self._has_ended = False  # True if no further message is accepted
        self._was_active = True
        self.is_answering = False
        self._ping = self._loop.call_later(PING_SECONDS, self._keep_alive)

    # Called by its endpoint

    async def arrival(self) -> bool:
        """Wait until a message begins to arrive. Return False if no further message will arrive."""
        while not self._pieces and not self._has_ended:
            self._more.clear()
            await self._more.wait()
        return bool(self._pieces)

    async def message(self, reservation: Reservation, max_bytes: int) -> bytes | None:
        """Read the message that has begun to arrive. Return None if its rest won't arrive.

        Raises:
            HttpRefusedError: The message is too large or too slow, or would exceed the memory limit.
        """
        try:
            async with asyncio.timeout(self._body_seconds):
                return await self._read(reservation, max_bytes)
        except TimeoutError:
            raise SocketRefusedError(
                408, POLICY, f"The message did not come within {self._body_seconds:g} s."
            ) from None

    async def _read(self, reservation: Reservation, max_bytes: int) -> bytes | None:
        """Collect the pieces of a message as they arrive, without a time limit. Otherwise like `message`."""
        texts: list[str] = []
        size = 0
        while await self.arrival():
            text, piece_size, last = self._pieces.popleft()
            texts.append(text)
            size += piece_size
            self._unread -= piece_size + PIECE_COST
            memory = size + PIECE_COST * len(texts)
            if max(size, memory - MAX_FRAMING_BYTES) > max_bytes:
                reason = f"The message is larger than {max_bytes} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES."
                raise SocketRefusedError(413, TOO_LARGE, reason)
            self._schedule_parsing()
            if last:
                return "".join(texts).encode()
            reservation.grow_to(memory)
        return None

    async def send(self, text: str) -> None:
        """Send a message, and wait until the client has read enough of the previous messages."""
        if not self._has_ended:
            self._send(TextMessage(data=text))
            await asyncio.sleep(0)  # let other clients have a turn between messages that arrived together
            await self._writable.wait()

    async def left(self) -> None:
        """Wait until the client has closed the WebSocket or the connection."""
        await self._client_left.wait()

    def answered(self) -> None:
        """Mark the message as answered. If the server is draining, close the WebSocket."""
        self.is_answering = False
        if self._is_draining:
            self.close(RESTARTS, RESTART)

    def drain(self) -> None:
        """Close the WebSocket after the message that is being answered, or now."""
        self._is_draining = True
        if not self.is_answering:
            self.close(RESTARTS, RESTART)

    def close(self, code: int, reason: str = "") -> None:
        """Send a code and a reason, and close. A client that still sends has a moment to read them.

        Messages that wait are dropped.
        """
        self._pieces.clear()
        if self._end(code, reason):
            self._transport.last = True
            self._transport.close()

    def evict(self, reason: str) -> None:
        """Close the WebSocket at once, because a new connection needs its space."""
        self._pieces.clear()
        unread = self._transport.get_write_buffer_size()
        self._end(LATER, reason)
        if unread:  # a client that doesn't read would keep the connection open
            self._transport.abort()
        else:
            self._transport.end()

    # Called by the transport

    def data_received(self, data: bytes) -> None:
        self._was_active = True
        if not self._has_ended:
            self._frames.receive_data(data)
            if self._next_turn is None:
                self._parse()

    def _parse(self) -> None:
        """Parse some of the received frames. The connection is paused until later iterations have parsed the rest."""
        self._next_turn = None
        frames = self._frames.events()
        for _ in range(FRAMES_PER_TURN):
            if self._has_ended or not self._can_parse():
                break
            event = next(frames, None)
            if event is None:
                self._pause(False)
                return
            self._handle_frame(event)
        self._pause(True)
        self._schedule_parsing()

    def _schedule_parsing(self) -> None:
        """Parse further frames in the next iteration of the event loop, if some are left and there is room."""
        if self._paused and self._next_turn is None and not self._has_ended and self._can_parse():
            self._next_turn = self._loop.call_soon(self._parse)

    def _can_parse(self) -> bool:
        return self._unread <= READ_AHEAD and self._writable.is_set()

    def _pause(self, paused: bool) -> None:
        """Stop or resume reading from the socket. While it is paused, the operating system slows the client down."""
        if paused != self._paused and not self._transport.is_closing():
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _handle_frame(self, event: Event) -> None:
        """Store a piece of a message for the endpoint, or answer a control frame. Close after too many empty frames."""
        self._empty_frames += 1  # reset below if the frame has text or ends a message
        if isinstance(event, TextMessage):
            size = len(event.data.encode())
            if size or event.message_finished:
                self._empty_frames = 0
                self._unread += size + PIECE_COST
                self._pieces.append((event.data, size, event.message_finished))
                self._more.set()
        elif isinstance(event, BytesMessage):
            self.close(NOT_TEXT, "Messages are text: send JSON.")
        elif isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, CloseConnection):  # the client sent a close frame, or wsproto found an invalid frame
            self._client_left.set()
            self._end(event.code, event.reason or "")
            self._transport.last = True
            self._transport.close()
        if self._empty_frames > MAX_EMPTY_FRAMES:
            self.close(POLICY, "There are too many frames without a message: send fewer pings.")

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause(True)  # because wsproto would also answer pings
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._writable.set()
        self._connection.resume_writing()
        self._schedule_parsing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_left.set()
        self._end(NORMAL, "")
        self._writable.set()
        self._connection.connection_lost(exc)

    def _end(self, code: int, reason: str) -> bool:
        """Accept no further message, and send the reason. Return False if this was done before."""
        if self._has_ended:
            return False
        cut = reason.encode()[:MAX_REASON].decode(errors="ignore")
        self._send(CloseConnection(code=code, reason=cut or None))
        self._has_ended = True
        self._ping.cancel()
        self._more.set()
        return True

    def _send(self, event: Event) -> None:
        """Send a frame. Do nothing if the connection or the WebSocket is closing."""
        if self._transport.is_closing():
            return
        try:
            self._transport.write(self._frames.send(event))
        except ProtocolError:  # the WebSocket is closed
            return

    def _keep_alive(self) -> None:
        """Send a ping, or close the connection if the client has sent nothing since the previous one."""
        if not self._was_active and not self._paused and self._writable.is_set():
            self._end(FAULT, "The client didn't answer a ping.")
            self._transport.abort()
            return
        self._was_active = False
        self._empty_frames = 0
        self._ping = self._loop.call_later(PING_SECONDS, self._keep_alive)
        self._send(Ping(payload=b""))
