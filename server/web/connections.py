"""HTTP connections with limits: uvicorn's own protocol, which a silent or half-speaking client could hold for ever.

The rule: whoever connects has a set time to send the headers of a request, another to send its body, and must go on
reading the answer; there are at most so many connections; and a refusal has the same shape here as everywhere.
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
    """A transport that sends the head of an answer together with what follows: one system call, not two.

    Args:
        transport: The transport that sends.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data, or keep it until more comes if it is the head of an answer; the body follows in the same turn."""
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._flush()
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what was kept, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection.

    Attributes:
        settings: The limits; set by `limited_protocol`.
    """

    settings: ClassVar[Settings]

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request's headers, or refuse the connection."""
        super().connection_made(JoiningTransport(transport))
        self._phase: str | None = None
        self._got_on = False
        self._running: Any = None
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._expected: str | None = None
        self._reader: asyncio.TimerHandle | None = None
        if len(self.connections) > self.settings.max_connections:
            self._refuse(503, f"The server has {self.settings.max_connections} connections already: try again later.")
            return
        self._expect("headers")

    def data_received(self, data: bytes) -> None:
        """Take in data, and wait for what must follow."""
        self._got_on = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._header_bytes = 0 if self._got_on or self._receiving() is None else self._header_bytes + len(data)
        if self._header_bytes > MAX_HEADER_BYTES and not hasattr(self, "conn"):
            self._refuse(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes: send fewer.")
        else:
            self._expect_rest()

    def on_response_complete(self) -> None:
        """Go on with what was sent before the answer."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_rest()

    def eof_received(self) -> bool | None:
        """Let a client that has sent everything close its side and wait for the answer; None closes the connection."""
        if self._in_request() and self._receiving() is None:
            self.cycle.keep_alive = False
            return True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget all timers."""
        self._cancel()
        self.resume_writing()
        # Where requests were sent in a row, uvicorn tells only the last of them.
        if self._running is not None:
            self._running.disconnected = True
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to watch whether the client reads."""
        super().pause_writing()
        self._watch_reader(None)

    def resume_writing(self) -> None:
        """Stop watching: it does."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, f"{msg.rstrip('.')}: send HTTP/1.1.")

    def on_message_begin(self) -> None:
        """See httptools, as for the next three; h11 is asked instead."""
        self._phase = "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """See httptools."""
        super().on_headers_complete()
        self._phase, self._got_on = "body", True

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._phase = None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        # No logging, for it advises to install something. httptools reads nothing after this request.
        if not hasattr(self, "conn") and self.cycle is not None:
            self.cycle.keep_alive = False

    def _receiving(self) -> str | None:
        """Get the part of a request that has begun to arrive and isn't complete."""
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
        """Wait for the rest of a request that has begun to arrive."""
        phase = self._receiving()
        if phase is None:
            self._cancel()
            # It was answered before its body was here, which has stopped uvicorn's own timer.
            if not self._in_request() and not self._is_idle():
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._timer is None or self._expected != phase:
            self._expect(phase)

    def _expect(self, what: str) -> None:
        self._cancel()
        limits = self.settings
        seconds = limits.header_timeout_seconds if what == "headers" else limits.body_timeout_seconds
        self._expected = what
        self._timer = self.loop.call_later(seconds, self._too_slow, what, seconds)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_reader(self, left_before: int | None) -> None:
        """Cut off a client that has read nothing of a long answer for as long as a body may take."""
        left = self.transport.get_write_buffer_size()
        if left_before is not None and left >= left_before:
            self.transport.abort()
            return
        self._reader = self.loop.call_later(self.settings.body_timeout_seconds, self._watch_reader, left)

    def _too_slow(self, what: str, seconds: float) -> None:
        self._timer = None
        self._refuse(408, f"The request's {what} did not come within {seconds:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self._receiving() == "body" and self.cycle is not None and self.cycle.response_started:
            self.transport.close()  # it has its answer already
            return
        body = refusal(status, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self.transport.close()


def limited_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """Make the protocol class with these limits, on h11 or httptools as uvicorn finds them."""
    return type("LimitedProtocol", (LimitedProtocol,), {"settings": settings})
