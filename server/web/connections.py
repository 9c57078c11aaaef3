"""Limits on HTTP connections: uvicorn alone lets a silent or slow client keep one open forever.

The rule: a client has one time limit to send a request's headers, another for its body, and must keep reading the
response. The number of connections is limited. A refusal has the same shape here as everywhere.
"""

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from server.settings import Settings
from server.web.refusals import refusal

MAX_HEADER_BYTES = 64 * 1024


class JoiningTransport:
    """A transport that sends a response's head together with its body: one system call, not two.

    Args:
        transport: The transport to write to.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data; keep a final response's head until its body is written, in the same turn of the event loop."""
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._flush()
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what is buffered, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection, with limits.

    Attributes:
        settings: The limits; set by `limited_protocol`.
    """

    settings: ClassVar[Settings]

    def connection_made(self, transport: Any) -> None:
        """Start the time limit for a request's headers, or refuse the connection."""
        super().connection_made(JoiningTransport(transport))
        self._phase: str | None = None
        self._progressed = False
        self._running_cycle: Any = None
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timed_phase: str | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.settings.max_connections:
            self._refuse(503, f"The server has {self.settings.max_connections} connections already: try again later.")
            return
        self._expect("headers")

    def data_received(self, data: bytes) -> None:
        """Parse data, and start the time limit for what must follow."""
        self._progressed = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._header_bytes = 0 if self._progressed or self._receiving() is None else self._header_bytes + len(data)
        if self._header_bytes > MAX_HEADER_BYTES and not hasattr(self, "conn"):
            self._refuse(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes: send fewer.")
        else:
            self._expect_rest()

    def on_response_complete(self) -> None:
        """Continue with a pipelined request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_rest()

    def eof_received(self) -> bool | None:
        """Allow a half-close after a complete request, to answer it; returning None closes the connection."""
        if self._in_request() and self._receiving() is None:
            self.cycle.keep_alive = False
            return True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers and mark the running request as disconnected."""
        self._cancel()
        self.resume_writing()
        # Of pipelined requests, uvicorn marks only the last.
        if self._running_cycle is not None:
            self._running_cycle.disconnected = True
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start checking that the client reads."""
        super().pause_writing()
        self._watch_reader(None)

    def resume_writing(self) -> None:
        """Stop checking: it reads."""
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse data that isn't HTTP."""
        self._refuse(400, f"{msg.rstrip('.')}: send HTTP/1.1.")

    def on_message_begin(self) -> None:
        """A callback of httptools, like the next three; h11 keeps this state itself."""
        self._phase = "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A callback of httptools."""
        super().on_headers_complete()
        self._phase, self._progressed = "body", True

    def on_body(self, body: bytes) -> None:
        """A callback of httptools."""
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A callback of httptools."""
        self._phase = None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        # Replaces uvicorn's warning to install a WebSocket library. httptools reads nothing after this request.
        if not hasattr(self, "conn") and self.cycle is not None:
            self.cycle.keep_alive = False

    def _receiving(self) -> str | None:
        """Get which part of a request is incomplete: "headers", "body", or None."""
        if not hasattr(self, "conn"):
            return self._phase
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "headers" if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] else None

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_idle(self) -> bool:
        return self.timeout_keep_alive_task is not None

    def _expect_rest(self) -> None:
        """Start the time limit for the rest of an incomplete request."""
        phase = self._receiving()
        if phase is None:
            self._cancel()
            # It was answered before its body had arrived, which stopped uvicorn's own timer.
            if not self._in_request() and not self._is_idle():
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._timer is None or self._timed_phase != phase:
            self._expect(phase)

    def _expect(self, phase: str) -> None:
        self._cancel()
        limits = self.settings
        seconds = limits.header_timeout_seconds if phase == "headers" else limits.body_timeout_seconds
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
        self._reader_timer = self.loop.call_later(self.settings.body_timeout_seconds, self._watch_reader, left)

    def _too_slow(self, phase: str, seconds: float) -> None:
        self._timer = None
        self._refuse(408, f"The request's {phase} did not come within {seconds:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self._receiving() == "body" and self.cycle is not None and self.cycle.response_started:
            self.transport.close()  # the response has begun, so no other can be sent
            return
        body = refusal(status, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self.transport.close()


def limited_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """Create the protocol class with these limits, on httptools if installed, else h11."""
    return type("LimitedProtocol", (LimitedProtocol,), {"settings": settings})
