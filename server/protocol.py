"""HTTP connections with limits: uvicorn's own protocol, which a silent or half-speaking client could hold for ever.

The rule: whoever connects has a set time to send the headers of a request, and another to send its body; there are at
most so many connections; and a refusal has the same shape here as everywhere.
"""

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from server.settings import Settings
from server.strict_json import dumps

MAX_HEADER_BYTES = 64 * 1024


def refusal(status: int, message: str) -> bytes:
    """Write the body that answers what never reached JSON-RPC."""
    error = {"code": -32000, "message": message, "data": {"status": status}}
    return dumps({"jsonrpc": "2.0", "id": None, "error": error})


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection.

    Attributes:
        settings: The limits; set by `limited_protocol`.
    """

    settings: ClassVar[Settings]

    def connection_made(self, transport: Any) -> None:
        """Take a connection, if there is room for it."""
        super().connection_made(transport)
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.settings.max_connections:
            self._refuse(503, f"The server has {self.settings.max_connections} connections already: try again later.")
            return
        self._expect("headers", self.settings.header_timeout_seconds)

    def data_received(self, data: bytes) -> None:
        """Take in what came, and see what has to come next, and until when."""
        super().data_received(data)
        if not self._in_request():
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes: send fewer.")
                return
            # A request's headers have begun, or the one before is answered and uvicorn's own timer runs.
            if self._timer is None and self.cycle is not None and not self._is_idle():
                self._expect("headers", self.settings.header_timeout_seconds)
            return
        self._header_bytes = 0
        if self.cycle.more_body:
            if self._timer is None or self._expected == "headers":
                self._expect("body", self.settings.body_timeout_seconds)
        else:
            self._cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timer."""
        self._cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, f"{msg.rstrip('.')}: send HTTP/1.1.")

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_idle(self) -> bool:
        return self.timeout_keep_alive_task is not None

    def _expect(self, what: str, seconds: float) -> None:
        self._cancel()
        self._expected = what
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_slow, what, seconds)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self, what: str, seconds: float) -> None:
        self._timer = None
        self._refuse(408, f"The request's {what} did not come within {seconds:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
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
