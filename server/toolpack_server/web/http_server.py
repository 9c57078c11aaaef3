"""uvicorn: its connections with limits, and of its server what it takes to end without losing anything.

uvicorn alone lets a silent or slow client keep a connection open forever, and closes connections on which a request may
be on its way. Both can be changed only through attributes that it doesn't document.

Only this file knows them, and `tests/test_packaging.py` compares those that it uses with those that uvicorn
has. A client has one time limit to send a request's headers, another for its body, and must keep reading the response.
The number of connections is limited, and so are the bytes of a request that aren't its body. While a request is being
answered, those behind it are kept as bytes and not parsed. A refusal has the same shape here as everywhere.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Protocol, TypeVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from toolpack_server.base.settings import Settings
from toolpack_server.web.bodies import is_handshake
from toolpack_server.web.connections import STATE, Connections
from toolpack_server.web.endpoints import CLIENT_ENDED
from toolpack_server.web.refusals import refusal, refused
from toolpack_server.web.transport import ResponseTransport

MAX_HEADER_BYTES = 64 * 1024
MAX_FRAMING_BYTES = 16 * 1024  # and as many as the body has: chunks of one byte have six times as many
PIECE_BYTES = 16 * 1024  # parsed between two looks at the limits
MIN_PIECE_BYTES = 256  # a piece with several empty lines is cut behind one, but isn't smaller: it may be a body
MAX_UNPARSED_BYTES = 64 * 1024  # that a connection keeps while a request is being answered; then it isn't read
EMPTY_LINE = b"\r\n\r\n"
CLOSE = (b"connection", b"close")


class Upgraded(Protocol):
    """What a connection becomes that no longer speaks HTTP, an `asyncio.Protocol`."""

    def data_received(self, data: bytes) -> None: ...

    def drain(self) -> None:
        """End as soon as whoever is being answered is."""

    def evict(self, reason: str) -> None:
        """End at once, to make room for another connection."""


U = TypeVar("U", bound=Upgraded)


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection, with limits."""

    settings: ClassVar[Settings]  # set by `limited_protocol`
    places: ClassVar[Connections]
    app_state: dict[str, Any]  # of which each request gets a copy
    url: bytes
    headers: list[tuple[bytes, bytes]]
    parser: Any
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(ResponseTransport(transport, self._is_unread))
        self.app_state = {**self.app_state, STATE: self}
        self._on_h11 = hasattr(self, "conn")
        self._phase: str | None = None
        self._running_cycle: Any = None
        self._counted: tuple[Any, str | None] = (None, None)
        self._body_bytes = self._other_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timed_phase: str | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unparsed = b""
        self._reading_paused = False  # because there is too much of it
        self._ended = False  # the client has closed its side
        self._reparsed_at: int | None = None  # where in a piece the rest begins behind a head that was parsed again
        self.upgraded: Upgraded | None = None
        self._expect("headers")
        self.places.opened(self)

    def switch(self, accepted: bytes, make: Callable[["LimitedProtocol", Any, float], U]) -> U:
        """Become what speaks another protocol, as the request asks that is being answered; get what it is from now on.

        Args:
            accepted: The head of the response, without the empty line.
            make: Gets this connection, its transport, and how many seconds a message has to arrive.
        """
        self._cancel()
        for cycle in {self._running_cycle, self.cycle} - {None}:
            cycle.disconnected = True  # it gets this answer and no other
        self.upgraded = made = make(self, self.transport, self.settings.receive_seconds)
        self.transport.write(accepted + b"\r\n")
        self.transport.set_protocol(made)
        self.transport.resume_reading()
        if self._unparsed:
            made.data_received(self._unparsed)
        if self.places.closing:
            made.drain()
        return made

    def evict(self, reason: str) -> None:
        """End at once, to make room for another connection; whoever is being answered loses the answer."""
        if self.upgraded is not None:
            self.upgraded.evict(reason)
        elif self.transport.get_write_buffer_size() or (self._in_request() and self.cycle.response_started):
            self.transport.abort()
        else:
            self._refuse(503, reason)
            self.transport.end()

    def cut_off(self) -> None:
        """End in the middle of a response that can't be completed."""
        for cycle in {self._running_cycle, self.cycle} - {None}:
            cycle.disconnected = True  # or uvicorn would say that the application has forgotten the rest
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.lingers:
            return
        if self._unparsed:
            data = self._unparsed + data
        phase, at = None, 0
        while at < len(data):
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete and self._holds_back(cycle):
                phase = None
                break
            piece = data[at : at + PIECE_BYTES]
            # Each request ends with an empty line or has one in it.
            if piece.count(EMPTY_LINE) > 1 and (end := piece.find(EMPTY_LINE, MIN_PIECE_BYTES)) >= 0:
                piece = piece[: end + len(EMPTY_LINE)]
            body_before = len(cycle.body) if cycle is not None else 0
            super().data_received(piece)
            if self._reparsed_at is not None:
                piece, self._reparsed_at = piece[: self._reparsed_at], None
            at += len(piece)
            if self.transport.is_closing():
                return
            phase = self._receiving()
            if phase is not None:
                self._count(len(piece), phase, cycle, body_before)
        self._unparsed = data[at:]
        if len(self._unparsed) > MAX_UNPARSED_BYTES:
            self._reading_paused = True
            self.transport.pause_reading()
        elif self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()
        self._expect_rest(phase)
        if self._ended and not self.eof_received():
            self.transport.close()

    def _count(self, size: int, phase: str, cycle: Any, body_before: int) -> None:
        """Refuse a request that consists of too much else than its body.

        Args:
            cycle: uvicorn's object for the last request before the piece.
            body_before: The size of what it held of its body.
        """
        if (self.cycle, phase) != self._counted:  # it has begun in this piece
            self._counted = self.cycle, phase
            self._body_bytes = self._other_bytes = 0
        if self.cycle is cycle:
            body = len(cycle.body) - body_before if cycle is not None else 0
            self._body_bytes += body
            self._other_bytes += size - body
        if phase == "headers" and self._other_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes: send fewer.")
        elif phase == "body" and self._other_bytes > self._body_bytes + MAX_FRAMING_BYTES:
            self._refuse(400, "The body has more framing than content: send it in larger chunks.")

    def on_response_complete(self) -> None:
        if self.transport.head:
            self.transport.flush()
        if self.transport.last:
            self.transport.close()
        super().on_response_complete()
        if not self.transport.is_closing():
            if self._unparsed or self._ended:
                self.data_received(b"")
            else:
                self._expect_rest(self._receiving())

    def eof_received(self) -> bool | None:
        """Allow a half-close after a complete request, to answer it; returning None closes the connection."""
        behind = self._unparsed or (self._on_h11 and self.conn.trailing_data[0])  # further requests
        if self._in_request() and (behind or self._receiving() is None):
            self._ended = True
            if not behind:
                self.cycle.keep_alive = False
            for cycle in {self._running_cycle, self.cycle} - {None}:
                cycle.scope[CLIENT_ENDED] = True
                cycle.message_event.set()  # `receive` returns, and whoever waits there can look
            return True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.closed(self)
        self._cancel()
        self.resume_writing()
        # Of pipelined requests, uvicorn marks only the last.
        if self._running_cycle is not None:
            self._running_cycle.disconnected = True
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg.rstrip('.')}: send HTTP/1.1.")

    def on_message_begin(self) -> None:
        # A callback of httptools, like the next two; h11 keeps this state itself.
        self._phase = "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._phase = "body"

    def on_message_complete(self) -> None:
        self._phase = None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def _should_upgrade(self) -> bool:
        # httptools takes the body of a request with the header Upgrade for another protocol; for uvicorn, such requests
        # go to `handle_websocket_upgrade`. But a handshake has no body, and is a request like any other.
        headers = dict(self.headers)
        return not self._on_h11 and b"upgrade" in headers and not is_handshake(self.scope["method"], headers)

    def handle_websocket_upgrade(self, *_event: Any) -> None:
        """Parse the head of a request again without the header Upgrade, which a server may ignore (RFC 9110, 7.8)."""
        handled: Any = sys.exception()  # httptools' `HttpParserUpgrade`, which says where the head has ended
        (self._reparsed_at,) = handled.args
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))
        self.parser = type(self.parser)(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        super().data_received(head)

    def _unsupported_upgrade_warning(self) -> None:
        # Replaces uvicorn's warning to install a WebSocket library. httptools reads nothing after this request.
        if not self._on_h11 and self.cycle is not None:
            self.cycle.keep_alive = False

    def _receiving(self) -> str | None:
        """Get which part of a request is incomplete: "headers", "body", or None."""
        if not self._on_h11:
            return self._phase
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "headers" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else None

    def _is_unread(self) -> bool:
        """Whether the body of the request that is answered hasn't arrived in full."""
        return self._receiving() == "body" and self._running_cycle in {None, self.cycle}

    def _holds_back(self, cycle: Any) -> bool:
        """Whether what comes next waits for an answer: the last request has arrived, or one before it is answered."""
        return self._running_cycle not in {None, cycle} or self._receiving() is None

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_rest(self, phase: str | None) -> None:
        """Limit the time in which the rest of a request comes, of which part it is; None if nothing is missing."""
        if phase is None:
            if self._timer is not None:
                self._cancel()
            # Data that belongs to no request, such as an empty line, has stopped uvicorn's own timer.
            if self.timeout_keep_alive_task is None and not self._in_request():
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._timer is None or self._timed_phase != phase:
            self._expect(phase)

    def _expect(self, phase: str) -> None:
        self._cancel()
        limits = self.settings
        seconds = limits.receive_seconds / (3 if phase == "headers" else 1)
        self._timed_phase = phase
        self._timer = self.loop.call_later(seconds, self._too_slow, phase, seconds)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_reader(self, left_before: int | None) -> None:
        """Close the connection if the client has read nothing for the body's time limit."""
        left = self.transport.get_write_buffer_size()
        if left_before is not None and left >= left_before:
            self.transport.abort()
            return
        self._reader_timer = self.loop.call_later(self.settings.receive_seconds, self._watch_reader, left)

    def _too_slow(self, phase: str, seconds: float) -> None:
        self._timer = None
        self._refuse(408, f"The request's {phase} did not come within {seconds:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self._receiving() == "body" and self.cycle is not None and self.cycle.response_started:
            self.transport.close()  # the response has begun, so no other can be sent
            return
        if self._in_request():
            self.cycle.disconnected = True  # it gets this answer and no other
            self.cycle.message_event.set()
        refused.write(status, message, client=self.transport.get_extra_info("peername"))
        body = refusal(status, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self.transport.last = True
        self.transport.close()


def limited_protocol(settings: Settings, places: Connections) -> type[asyncio.Protocol]:
    """Create the protocol class with these limits, on httptools if installed, else h11."""
    return type("LimitedProtocol", (LimitedProtocol,), {"settings": settings, "places": places})


class HttpServer(uvicorn.Server):
    """uvicorn's server: when it ends is for a subclass to say, here is how."""

    def __init__(self, app: ASGIApp, settings: Settings, places: Connections) -> None:
        config = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            http=limited_protocol(settings, places),
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        super().__init__(config)
        self._places = places

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Get what makes the event loop: uvloop's if that is installed."""
        return self.config.get_loop_factory()

    def connections(self) -> int:
        """Count the open connections, idle ones included."""
        return len(self.server_state.connections)

    def close_with_next_answer(self) -> None:
        """Close each connection with its next answer, which says so."""
        self._places.closing = True
        self.config.encoded_headers = self.server_state.default_headers = [CLOSE]
        connections: set[Any] = self.server_state.connections
        for connection in [*connections]:
            if connection.cycle is not None:  # it has got its headers before
                connection.cycle.default_headers = [CLOSE]
            if connection.upgraded is not None:
                connection.upgraded.drain()

    def stop_listening(self) -> None:
        for server in self.servers:
            server.close()

    async def accept_rest(self, listeners: list[socket.socket]) -> None:
        """Stop listening, after accepting the connections that clients take for open already."""
        accepted = []
        for listener in listeners:
            if listener.fileno() >= 0:
                with contextlib.suppress(OSError):
                    while True:
                        accepted.append(listener.accept()[0])
        self.stop_listening()
        for connection in accepted:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def cancel_requests(self) -> None:
        """Cancel the requests that are still being answered; each gets an answer that says so."""
        for task in [*self.server_state.tasks]:
            task.cancel()

    def requests(self) -> int:
        return len(self.server_state.tasks)

    async def end(self) -> None:
        connections: set[Any] = self.server_state.connections
        for connection in [*connections]:
            connection.shutdown()
            if connection.transport.lingers:  # its answer is sent; the loop ends before its timer
                connection.transport.abort()
        await self.lifespan.shutdown()

    def sockets(self) -> list[Any]:
        listening = [listener for server in getattr(self, "servers", ()) for listener in server.sockets]
        return listening + [each.transport.get_extra_info("socket") for each in self.server_state.connections]

    def _protocol(self) -> Any:
        state = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return self.config.http_protocol_class(**state)
