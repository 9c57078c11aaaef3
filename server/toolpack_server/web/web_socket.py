"""A WebSocket (RFC 6455), from the end of its handshake on: a connection whose messages are requests.

A message has the limits of a request. Its bytes are counted as they arrive, it has the time of a body to do
so, and of what comes behind it no more is read than a read-ahead. Frames are parsed a few at a time, and those that
carry no message are limited in number. `wsproto` parses, because it hands out the pieces of a message as they come,
where `websockets` keeps them until the message is whole; and it leaves the connection here, so that the limits of
HTTP's connections hold for it. Compression isn't agreed on: no message is larger than what was sent.
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

READ_AHEAD = 64 * 1024  # bytes that are parsed before somebody reads them
PIECE_COST = 128  # bytes that a piece takes in memory besides its text
FRAMING_BYTES = 2**21  # that the pieces of a message may take so, besides what it may be large
FRAMES_PER_TURN = 32  # that are parsed in a turn of the event loop
MAX_EMPTY_FRAMES = 1000  # pings, pongs and frames without text, between two with text or in the time of a ping
PING_SECONDS = 20.0  # a client that is silent for longer, and doesn't answer a ping for as long, is gone
MAX_REASON = 123  # bytes of a close frame's reason
VERSION = b"13"
ACCEPTING = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3

NORMAL, NOT_TEXT, POLICY, TOO_LARGE, FAULT, RESTARTS, LATER = 1000, 1003, 1008, 1009, 1011, 1012, 1013
"""Why a server closes a WebSocket, by the codes of RFC 6455 and their registry."""

RESTART = "The server stops or restarts: connect again in a moment."


class Switched(Protocol):
    """The connection that a WebSocket has taken over, which still counts it."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class SocketRefusedError(HttpRefusedError):
    """Refuses a message, and closes its WebSocket with a code."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(status, message)
        self.code = code


def accept_handshake(headers: Mapping[bytes, bytes]) -> bytes:
    """Get the response to a handshake.

    Raises:
        HttpRefusedError: It is none.
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
    token = base64.b64encode(hashlib.sha1(key + ACCEPTING, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n" % token
    )


class WebSocket(asyncio.Protocol):
    """A WebSocket, whose messages are text, one at a time.

    Attributes:
        answers: Whether a message is being answered, so that a server that drains waits for it.
    """

    def __init__(self, connection: Switched, transport: Any, body_seconds: float) -> None:
        self._connection = connection
        self._transport = transport
        self._body_seconds = body_seconds
        self._loop = asyncio.get_running_loop()
        self._frames = Connection(ConnectionType.SERVER)
        self._pieces: deque[tuple[str, int, bool]] = deque()  # text, its bytes, whether the message ends with it
        self._unread = 0  # bytes
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = self._drains = False
        self._next_turn: asyncio.Handle | None = None  # in which the rest of what was read is parsed
        self._empty_frames = 0  # since the last one with text, or the last ping
        self._ends = False  # no further message is taken
        self._heard = True
        self.answers = False
        self._ping = self._loop.call_later(PING_SECONDS, self._keep_alive)

    # What its endpoint does

    async def arrival(self) -> bool:
        """Wait until a message begins to arrive; False if none will."""
        while not self._pieces and not self._ends:
            self._more.clear()
            await self._more.wait()
        return bool(self._pieces)

    async def message(self, reservation: Reservation, most: int) -> bytes | None:
        """Read the message that has begun to arrive; None if its rest never will.

        Raises:
            HttpRefusedError: It is too large, too slow, or there is no memory for it.
        """
        try:
            async with asyncio.timeout(self._body_seconds):
                return await self._read(reservation, most)
        except TimeoutError:
            raise SocketRefusedError(
                408, POLICY, f"The message did not come within {self._body_seconds:g} s."
            ) from None

    async def _read(self, reservation: Reservation, most: int) -> bytes | None:
        texts: list[str] = []
        size = 0
        while await self.arrival():
            text, of_piece, last = self._pieces.popleft()
            texts.append(text)
            size += of_piece
            self._unread -= of_piece + PIECE_COST
            held = size + PIECE_COST * len(texts)
            if max(size, held - FRAMING_BYTES) > most:
                why = f"The message is larger than {most} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES."
                raise SocketRefusedError(413, TOO_LARGE, why)
            self._parse_on()
            if last:
                return "".join(texts).encode()
            reservation.grow_to(held)
        return None

    async def send(self, text: str) -> None:
        """Send a message, and wait until the client has read enough of those before."""
        if not self._ends:
            self._send(TextMessage(data=text))
            await asyncio.sleep(0)  # messages that have come together take turns with those of other clients
            await self._writable.wait()

    async def left(self) -> None:
        """Wait until the client has closed it, or the connection."""
        await self._gone.wait()

    def answered(self) -> None:
        """Say that the message is answered; a server that stops closes it now."""
        self.answers = False
        if self._drains:
            self.close(RESTARTS, RESTART)

    def drain(self) -> None:
        """Close it, as soon as the message that is being answered is."""
        self._drains = True
        if not self.answers:
            self.close(RESTARTS, RESTART)

    def close(self, code: int, reason: str = "") -> None:
        """Say why, and close; a client that still sends has a moment to read it. What hasn't begun never will."""
        self._pieces.clear()
        if self._end(code, reason):
            self._transport.last = True
            self._transport.close()

    def evict(self, reason: str) -> None:
        """Close it at once, to make room for another connection."""
        self._pieces.clear()
        unread = self._transport.get_write_buffer_size()
        self._end(LATER, reason)
        if unread:  # whoever doesn't read would hold it open
            self._transport.abort()
        else:
            self._transport.end()

    # What the transport does

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if not self._ends:
            self._frames.receive_data(data)
            if self._next_turn is None:
                self._parse()

    def _parse(self) -> None:
        """Take some of the frames that have arrived. Until all are taken, in later turns, nothing more is read."""
        self._next_turn = None
        frames = self._frames.events()
        for _ in range(FRAMES_PER_TURN):
            if self._ends or not self._takes_more():
                break
            event = next(frames, None)
            if event is None:
                self._pause(False)
                return
            self._take(event)
        self._pause(True)
        self._parse_on()

    def _parse_on(self) -> None:
        """Take more frames in the next turn of the event loop, if there may be some."""
        if self._paused and self._next_turn is None and not self._ends and self._takes_more():
            self._next_turn = self._loop.call_soon(self._parse)

    def _takes_more(self) -> bool:
        return self._unread <= READ_AHEAD and self._writable.is_set()

    def _pause(self, paused: bool) -> None:
        if paused != self._paused and not self._transport.is_closing():
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _take(self, event: Event) -> None:
        self._empty_frames += 1
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
        elif isinstance(event, CloseConnection):  # what the client said, or a frame that isn't one
            self._gone.set()
            self._end(event.code, event.reason or "")
            self._transport.last = True
            self._transport.close()
        if self._empty_frames > MAX_EMPTY_FRAMES:
            self.close(POLICY, "There are too many frames without a message: send fewer pings.")

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause(True)  # pings are answered, too
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._writable.set()
        self._connection.resume_writing()
        self._parse_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._end(NORMAL, "")
        self._writable.set()
        self._connection.connection_lost(exc)

    def _end(self, code: int, reason: str) -> bool:
        """Take no further message, and send why; False if that was done before."""
        if self._ends:
            return False
        cut = reason.encode()[:MAX_REASON].decode(errors="ignore")
        self._send(CloseConnection(code=code, reason=cut or None))
        self._ends = True
        self._ping.cancel()
        self._more.set()
        return True

    def _send(self, event: Event) -> None:
        if self._transport.is_closing():
            return
        try:
            self._transport.write(self._frames.send(event))
        except ProtocolError:  # it is closed
            return

    def _keep_alive(self) -> None:
        if not self._heard and not self._paused and self._writable.is_set():
            self._end(FAULT, "No pong came.")
            self._transport.abort()
            return
        self._heard = False
        self._empty_frames = 0
        self._ping = self._loop.call_later(PING_SECONDS, self._keep_alive)
        self._send(Ping(payload=b""))
