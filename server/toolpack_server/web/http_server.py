"""uvicorn with limits for connections and with a shutdown that loses no request.

By itself, uvicorn lets a silent or slow client keep a connection open forever, and closes connections while a request
might be arriving. Both behaviours can be changed only through undocumented attributes. Only this module uses these
attributes, and `tests/test_packaging.py` checks that uvicorn still has them.

A client has one time limit for a request's headers, another for its body, and must keep reading the response. The
number of connections is limited, and so are the bytes of a request that aren't part of its body. While a request is
being answered, the requests after it stay unparsed bytes. Refusals have the same form as elsewhere in the server.
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
MAX_FRAMING_BYTES = 16 * 1024  # a body's framing can be larger than its content by this; one-byte chunks exceed it
PIECE_BYTES = 16 * 1024  # max bytes parsed before the limits are checked again
MIN_PIECE_BYTES = 256  # a piece is cut after the first empty line beyond these bytes, because a body can contain many
MAX_UNPARSED_BYTES = 64 * 1024  # max bytes that wait while a request is answered; beyond it, the socket isn't read
EMPTY_LINE = b"\r\n\r\n"
CLOSE = (b"connection", b"close")


class UpgradedProtocol(Protocol):
    """The `asyncio.Protocol` of a connection that switched from HTTP to another protocol."""

    def data_received(self, data: bytes) -> None: ...

    def drain(self) -> None:
        """Close the connection after the message that is being answered."""

    def evict(self, reason: str) -> None:
        """Close the connection at once, because a new one needs its space."""


U = TypeVar("U", bound=UpgradedProtocol)


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One HTTP connection, with limits. `limited_protocol` sets the class variables."""

    settings: ClassVar[Settings]
    connection_table: ClassVar[Connections]
    app_state: dict[str, Any]  # each request gets a copy
    url: bytes
    headers: list[tuple[bytes, bytes]]
    parser: Any
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def connection_made(self, transport: Any) -> None:
        """Count a new connection, and start the time limit for the headers of its first request."""
        super().connection_made(ResponseTransport(transport, self._is_unread))
        self.app_state = {**self.app_state, STATE: self}
        self._on_h11 = hasattr(self, "conn")  # otherwise the parser is httptools
        self._phase: str | None = None  # the part of a request that is arriving; see `_receiving`
        self._running_cycle: Any = None  # uvicorn's object for the request that is being answered
        self._counted: tuple[Any, str | None] = (None, None)  # the request and its part that `_count` counts
        self._body_bytes = self._other_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timed_phase: str | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unparsed = b""
        self._reading_paused = False  # True while too many bytes are unparsed
        self._ended = False  # whether the client has closed its side
        self._reparsed_at: int | None = None  # end of the headers in a piece, if these were parsed again
        self.upgraded: UpgradedProtocol | None = None
        self._expect("headers")
        self.connection_table.opened(self)

    def switch(self, accepted: bytes, make: Callable[["LimitedProtocol", Any, float], U]) -> U:
        """Switch to the protocol that the current request asks for, and return its object.

        From now on, that object receives the connection's data and events, and this object parses no further HTTP.

        Args:
            accepted: The response's headers, without the empty line after them.
            make: Creates the object from this connection, its transport, and the time limit of a message in seconds.
        """
        self._cancel()
        for cycle in {self._running_cycle, self.cycle} - {None}:
            cycle.disconnected = True  # uvicorn must send no further response
        self.upgraded = protocol = make(self, self.transport, self.settings.receive_seconds)
        self.transport.write(accepted + b"\r\n")
        self.transport.set_protocol(protocol)
        self.transport.resume_reading()
        if self._unparsed:
            protocol.data_received(self._unparsed)
        if self.connection_table.closing:
            protocol.drain()
        return protocol

    def evict(self, reason: str) -> None:
        """Close the connection at once, because a new one needs its space. A response that is being sent is cut off."""
        if self.upgraded is not None:
            self.upgraded.evict(reason)
        elif self.transport.get_write_buffer_size() or (self._in_request() and self.cycle.response_started):
            self.transport.abort()
        else:
            self._refuse(503, reason)
            self.transport.end()

    def cut_off(self) -> None:
        """Close the connection in the middle of a response that can't be completed."""
        for cycle in {self._running_cycle, self.cycle} - {None}:
            cycle.disconnected = True  # otherwise uvicorn would log that the application didn't complete the response
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse data in small pieces and check the limits after each. Data after a complete request waits unparsed."""
        if self.transport.lingers:
            return
        if self._unparsed:
            data = self._unparsed + data
        phase, at = None, 0
        while at < len(data):
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete and self._must_wait(cycle):
                phase = None
                break
            piece = data[at : at + PIECE_BYTES]
            # Each request contains an empty line, so a piece that is cut after an empty line ends at most one request.
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
        """Count the bytes of a request, and refuse it if too many aren't part of its body.

        Args:
            cycle: uvicorn's object for the last request before the piece.
            body_before: The number of bytes of that request's body that had arrived before the piece.
        """
        if (self.cycle, phase) != self._counted:  # the request or its body began in this piece
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
        """Close the connection after its last response, or parse the data that waited for this response."""
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
        """Keep the connection open for the response if the client closed its side after a complete request.

        Return True to keep it open, or None to close it.
        """
        further_requests = self._unparsed or (self._on_h11 and self.conn.trailing_data[0])
        if self._in_request() and (further_requests or self._receiving() is None):
            self._ended = True
            if not further_requests:
                self.cycle.keep_alive = False
            for cycle in {self._running_cycle, self.cycle} - {None}:
                cycle.scope[CLIENT_ENDED] = True
                cycle.message_event.set()  # makes `receive` return, so that a waiting endpoint can check the scope
            return True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count, stop its timers, and mark its requests as disconnected."""
        self.connection_table.closed(self)
        self._cancel()
        self.resume_writing()
        # uvicorn marks only the last of several pipelined requests.
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
        # httptools calls this and the next two methods. h11's parser keeps this state itself.
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
        # If a request contains the header Upgrade, httptools treats its body as another protocol. If this returns True,
        # uvicorn passes the request to `handle_websocket_upgrade`. A handshake has no body, so it is handled like any
        # request.
        headers = dict(self.headers)
        return not self._on_h11 and b"upgrade" in headers and not is_handshake(self.scope["method"], headers)

    def handle_websocket_upgrade(self, *_event: Any) -> None:
        """Parse a request's headers again without Upgrade, which a server is allowed to ignore (RFC 9110, 7.8)."""
        handled: Any = sys.exception()  # httptools' `HttpParserUpgrade`; its argument is the end of the headers
        (self._reparsed_at,) = handled.args
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))
        self.parser = type(self.parser)(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # uvicorn does the same
        super().data_received(head)

    def _unsupported_upgrade_warning(self) -> None:
        # Override uvicorn's warning about a missing WebSocket library. httptools parses nothing after this request, so
        # the connection must close after the response.
        if not self._on_h11 and self.cycle is not None:
            self.cycle.keep_alive = False

    def _receiving(self) -> str | None:
        """Return the part of the arriving request that is incomplete, "headers" or "body", or None if none is."""
        if not self._on_h11:
            return self._phase
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "headers" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else None

    def _is_unread(self) -> bool:
        """Return whether the body of the answered request hasn't arrived in full.

        The transport asks this when a response begins: the connection then closes after the response.
        """
        return self._receiving() == "body" and self._running_cycle in {None, self.cycle}

    def _must_wait(self, cycle: Any) -> bool:
        """Return whether further bytes must wait: the last request is complete, or an earlier one is unanswered."""
        return self._running_cycle not in {None, cycle} or self._receiving() is None

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_rest(self, phase: str | None) -> None:
        """Set the time limit for the missing part of a request, or remove it if no part is missing (None)."""
        if phase is None:
            if self._timer is not None:
                self._cancel()
            # Data outside a request, such as an empty line, stops uvicorn's own timer.
            if self.timeout_keep_alive_task is None and not self._in_request():
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._timer is None or self._timed_phase != phase:
            self._expect(phase)

    def _expect(self, phase: str) -> None:
        """Start the time limit for a request's headers or body. The limit for headers is a third of the body's."""
        self._cancel()
        limits = self.settings
        seconds = limits.receive_seconds / (3 if phase == "headers" else 1)
        self._timed_phase = phase
        self._timer = self.loop.call_later(seconds, self._too_slow, phase, seconds)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_reader(self, unread_before: int | None) -> None:
        """Close the connection if the client has read nothing for the body's time limit.

        Args:
            unread_before: The number of unread bytes at the previous check, or None at the first one.
        """
        unread = self.transport.get_write_buffer_size()
        if unread_before is not None and unread >= unread_before:
            self.transport.abort()
            return
        self._reader_timer = self.loop.call_later(self.settings.receive_seconds, self._watch_reader, unread)

    def _too_slow(self, phase: str, seconds: float) -> None:
        self._timer = None
        self._refuse(408, f"The request's {phase} did not come within {seconds:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        """Log and send a refusal, then close the connection."""
        if self.transport.is_closing():
            return
        if self._receiving() == "body" and self.cycle is not None and self.cycle.response_started:
            self.transport.close()  # part of the response was sent, so no refusal can be sent
            return
        if self._in_request():
            self.cycle.disconnected = True  # uvicorn must send no further response
            self.cycle.message_event.set()
        refused.write(status, message, client=self.transport.get_extra_info("peername"))
        body = refusal(status, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self.transport.last = True
        self.transport.close()


def limited_protocol(settings: Settings, connection_table: Connections) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits. It uses httptools if that is installed, otherwise h11."""
    return type("LimitedProtocol", (LimitedProtocol,), {"settings": settings, "connection_table": connection_table})


class HttpServer(uvicorn.Server):
    """uvicorn's server, with the steps of a graceful shutdown. A subclass decides when to take them."""

    def __init__(self, app: ASGIApp, settings: Settings, connection_table: Connections) -> None:
        config = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            http=limited_protocol(settings, connection_table),
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        super().__init__(config)
        self._connection_table = connection_table

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return the factory of the event loop, uvloop's if that is installed."""
        return self.config.get_loop_factory()

    def connections(self) -> int:
        """Return the number of open connections, including idle connections."""
        return len(self.server_state.connections)

    def close_with_next_answer(self) -> None:
        """Close each connection after its next response, which has `connection: close`."""
        self._connection_table.closing = True
        self.config.encoded_headers = self.server_state.default_headers = [CLOSE]
        connections: set[Any] = self.server_state.connections
        for connection in [*connections]:
            if connection.cycle is not None:  # it copied the default headers when the request arrived
                connection.cycle.default_headers = [CLOSE]
            if connection.upgraded is not None:
                connection.upgraded.drain()

    def stop_listening(self) -> None:
        """Close the listening sockets."""
        for server in self.servers:
            server.close()

    async def accept_rest(self, listeners: list[socket.socket]) -> None:
        """Stop listening, after accepting the connections that the system has established for clients."""
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
        """Cancel the requests that are still being answered. Each gets a response that says that the server stopped."""
        for task in [*self.server_state.tasks]:
            task.cancel()

    def requests(self) -> int:
        """Return the number of requests that are being answered."""
        return len(self.server_state.tasks)

    async def end(self) -> None:
        """Close all connections and shut down the application."""
        connections: set[Any] = self.server_state.connections
        for connection in [*connections]:
            connection.shutdown()
            if connection.transport.lingers:  # its response has been sent, and the loop ends before its timer fires
                connection.transport.abort()
        await self.lifespan.shutdown()

    def sockets(self) -> list[Any]:
        """Return the sockets of the server and of all its connections."""
        listeners = [listener for server in getattr(self, "servers", ()) for listener in server.sockets]
        connections = self.server_state.connections
        return listeners + [connection.transport.get_extra_info("socket") for connection in connections]

    def _protocol(self) -> Any:
        state = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return self.config.http_protocol_class(**state)
