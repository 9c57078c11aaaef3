"""Transport of a connection, between the HTTP protocol and the socket.

If a request is answered before it has arrived in full, the response is the last on its connection. It contains the
header `connection: close`, and the rest of the request is dropped unparsed. So a client whose request was refused can't
cause further work.
"""

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_SECONDS = 2.0  # time that a client that is still sending has to read the response
CLOSES = b"connection: close\r\n"


class ResponseTransport:
    """A transport that sends a response's head together with its body, in one system call instead of two."""

    def __init__(self, transport: Any, is_unread: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_unread = is_unread  # returns whether the answered request's body hasn't arrived in full
        self.head = b""  # headers of a response, which wait for its body
        self.last = False  # whether the response that is being written is the last one
        self.lingers = False  # whether the last response is written, so that further data is dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data. The headers of a final response wait for its body, which follows in the same loop iteration."""
        if self.lingers:
            return
        # The head of a final response, because a status of 1xx announces another response.
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self.flush()
            self.last = self._is_unread()
            if self.last and CLOSES not in data.lower():
                data = data.removesuffix(b"\r\n") + CLOSES + b"\r\n"
            self.head = data
        elif self.head:
            head, self.head = self.head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Send the buffered data and close.

        If a socket with unread bytes is closed at once, the client can lose the response (RFC 9112, section 9.6). So
        after the last response only this side is closed at first, and the socket `LINGER_SECONDS` later.
        """
        if self.lingers:
            return
        self.flush()
        if self.last and not self._transport.is_closing() and self._transport.can_write_eof():
            self.lingers = True
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection, which the event loop will notice later
                self._transport.abort()
                return
            self._transport.resume_reading()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def end(self) -> None:
        """Send the buffered data and close without waiting for the client."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send headers that wait for a body, because the response to a HEAD request has no body."""
        if self.head:
            self.write(b"")
