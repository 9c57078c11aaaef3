"""Checks of request headers, and the reader of bodies, which limits the bytes in memory.

The bytes of a body count against the memory limit of requests (`rpc.in_flight`) from the time when they are announced
or arrive, until the request is answered. After parsing, the memory of the parsed values counts instead. A request over
a limit is refused, if possible before its body is read.
"""

import asyncio
from collections.abc import Mapping

from starlette.types import Receive, Scope

from toolpack_server.base.errors import HttpRefusedError
from toolpack_server.rpc.in_flight import Reservation

SECURITY_HEADERS = (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"transfer-encoding")
HEADERS = "toolpack_server.headers"  # key in a request's scope: its headers by name, the last value if a name repeats
MAX_LENGTH_DIGITS = 20  # max digits of Content-Length
NOT_READY = "The server is starting or stopping: send the request again in a moment."
SMALL_BYTES = 1024  # a body up to this size counts only if it arrives in several pieces


def check_headers(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Refuse a request that repeats a security header, or that contains two headers for its length.

    A proxy in front of the server might have checked the other copy of the header.
    """
    if len(headers) < len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        duplicated = next((name for name in SECURITY_HEADERS if names.count(name) > 1), None)
        if duplicated is not None:
            raise HttpRefusedError(400, f"The header {duplicated.decode()} is duplicated: send it once.")
    length = headers.get(b"content-length")
    if length is not None:
        if b"transfer-encoding" in headers:
            raise HttpRefusedError(400, "The request has both Content-Length and Transfer-Encoding: send one of them.")
        if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
            raise HttpRefusedError(400, "The header Content-Length is not a number of bytes: correct it.")


def has_no_body(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers


def is_handshake(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request asks for a WebSocket. Upgrades to other protocols are ignored (RFC 9110, 7.8)."""
    options = [option.strip() for option in headers.get(b"connection", b"").lower().split(b",")]
    is_upgrade = b"upgrade" in options and headers.get(b"upgrade", b"").lower() == b"websocket"
    return is_upgrade and method == "GET" and has_no_body(headers)


def no_memory(text: str) -> HttpRefusedError:
    """Return the error for a request with a body that would exceed the memory limit."""
    return HttpRefusedError(503, text)


async def read_body(headers: dict[bytes, bytes], receive: Receive, reservation: Reservation, max_bytes: int) -> bytes:
    """Return a request's body, and reserve memory for it while it arrives.

    Raises:
        HttpRefusedError: The content type isn't JSON, the body is too large, or the client left or the server stops
            before the whole body has arrived.
    """
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise HttpRefusedError(415, "Send the header Content-Type: application/json.")
    too_large = f"The body is larger than {max_bytes} bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES."
    announced = int(headers.get(b"content-length", b"0"))
    if announced > max_bytes:
        raise HttpRefusedError(413, too_large)
    if announced > SMALL_BYTES:
        reservation.grow_to(announced)
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        try:
            message = await receive()
        except asyncio.CancelledError:  # the server stops now
            raise HttpRefusedError(503, NOT_READY) from None
        if message["type"] == "http.disconnect":
            raise HttpRefusedError(400, "The body was cut off.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise HttpRefusedError(413, too_large)
        more = message.get("more_body", False)
        if more:  # a complete body is counted when it is parsed
            reservation.grow_to(size)
    return b"".join(chunks)
