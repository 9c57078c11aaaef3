"""An HTTP transport whose every wait ends when its request's time is over, however the server trickles its answer.

Httpx's timeouts are for one read each, so a byte now and then keeps a request alive for ever. Here the time
of a request is one, set by the thread that sends it, and each read and write gets what is left of it.
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
_ENDED = getattr(select, "POLLRDHUP", select.POLLIN)  # only Linux tells an end from an answer


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Bound the requests that this thread sends in the block."""
    _request.ends = time.monotonic() + seconds
    yield


def _left() -> float:
    left: float = _request.ends - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the answer doesn't end in time")
    return left


class _BoundedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - what is left is shorter
        return self._stream.read(max_bytes, _left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        self._stream.write(buffer, _left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - as above
    ) -> httpcore.NetworkStream:
        return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, _left()))

    def get_extra_info(self, info: str) -> Any:
        """Get what the stream says of itself; `is_readable`, which is asked of idle connections: whether it has ended.

        One that a thread has just been given is idle until its request begins. If its answer came while it was asked
        for something to read, another thread took it for one that has ended, and closed it ("Bad file descriptor").
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
        return _BoundedStream(self._backend.connect_tcp(host, port, _left(), local_address, socket_options))


def bounded_transport() -> httpx.BaseTransport:
    """Get a transport for requests that are sent `within` a time, by several threads."""
    # It closes idle connections neither for their age nor their number, as another thread may just have been given one.
    transport = httpx.HTTPTransport(limits=httpx.Limits(max_connections=100, keepalive_expiry=None))
    transport._pool._network_backend = _BoundedBackend()  # noqa: SLF001 - there is no other way
    return transport
