"""HTTP transport with one timeout for a whole request.

The timeouts of httpx apply to single reads, so a server that sends a byte now and then could keep a request alive
forever. Here the sending thread sets one deadline per request. Each read and write can take only the remaining time.
"""

import select
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

_request = threading.local()
_ENDED = getattr(select, "POLLRDHUP", select.POLLIN)  # only Linux distinguishes a closed connection from data


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the time of the requests that this thread sends in the block.

    Each thread must use this before it sends a request through `bounded_transport`.
    """
    _request.ends = time.monotonic() + seconds
    yield


def _seconds_left() -> float:
    """Return the time until the deadline of this thread's request. Raise `ReadTimeout` if the deadline has passed."""
    left: float = _request.ends - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the response didn't end in time")
    return left


class _BoundedStream(httpcore.NetworkStream):
    """Connection whose reads and writes end at the deadline of the thread that uses it."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline replaces it
        return self._stream.read(max_bytes, _seconds_left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        self._stream.write(buffer, _seconds_left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - as above
    ) -> httpcore.NetworkStream:
        return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, _seconds_left()))

    def get_extra_info(self, info: str) -> Any:
        """Return information on the stream. For `is_readable`, return whether the server has closed the connection.

        The pool checks `is_readable` of idle connections, and closes a readable connection because its server has
        closed it. But a connection that a thread has just acquired counts as idle until the thread sends its request.
        If data counted as readable, another thread could close this connection ("Bad file descriptor").
        """
        if info != "is_readable":
            return self._stream.get_extra_info(info)
        number = self._stream.get_extra_info("socket").fileno()
        if number < 0:
            return True
        poll = select.poll()
        poll.register(number, _ENDED)
        return bool(poll.poll(0))


class _BoundedBackend(httpcore.NetworkBackend):
    """Opens connections with a deadline."""

    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - as above
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _BoundedStream(self._backend.connect_tcp(host, port, _seconds_left(), local_address, socket_options))


def bounded_transport() -> httpx.BaseTransport:
    """Return a transport for requests that several threads send `within` a time limit."""
    # Idle connections aren't closed for their age or number, because a thread might just have acquired one.
    transport = httpx.HTTPTransport(limits=httpx.Limits(max_connections=100, keepalive_expiry=None))
    transport._pool._network_backend = _BoundedBackend()  # noqa: SLF001 - httpx offers no public way
    return transport
