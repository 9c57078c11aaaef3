"""The transport of a connection: what a response's bytes go through on their way to the socket.

An answer that is given before its request has arrived is the last one of its connection. It says so, and the
rest of the request is dropped without being parsed: not even a refusal's reader can make the server work.
"""

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_SECONDS = 2.0  # long enough for a client that still sends to find the answer
CLOSES = b"connection: close\r\n"


class ResponseTransport:
    """A transport that sends a response's head together with its body: one system call, not two."""

    def __init__(self, transport: Any, is_unread: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_unread = is_unread  # whether the body of the request that is answered hasn't arrived in full
        self.head = b""  # of a response, kept until its body is written or there is none
        self.last = False  # the response that is being written is the last one
        self.lingers = False  # the last response is written; what still arrives is to be dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data; keep a final response's head until its body is written, in the same turn of the event loop."""
        if self.lingers:
            return
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
        """Send what is buffered, and close.

        With unread bytes in the socket, closing it at once would destroy the response before the client has read it
        (RFC 9112, section 9.6). So the client has some time to see that this side is closed.
        """
        if self.lingers:
            return
        self.flush()
        if self.last and not self._transport.is_closing() and self._transport.can_write_eof():
            self.lingers = True
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection, of which the event loop hears later
                self._transport.abort()
                return
            self._transport.resume_reading()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def end(self) -> None:
        """Close without waiting for the client, after sending what is buffered."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send a head that is kept: the answer to HEAD has nothing behind it."""
        if self.head:
            self.write(b"")
