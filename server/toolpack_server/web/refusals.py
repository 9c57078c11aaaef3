"""HTTP responses, in particular refusals of requests that don't reach JSON-RPC.

The body of every refusal has the same form and says what to do.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from starlette.responses import Response
from starlette.types import Scope, Send

from toolpack_server.base.errors import HttpRefusedError
from toolpack_server.jsonio.strict import dumps
from toolpack_server.observability.log import event
from toolpack_server.rpc.codes import ERROR_OF_SERVER

NO_CONTENT = 204
HINTS = {401: [(b"www-authenticate", b"Bearer")], 503: [(b"retry-after", b"1")]}  # additional headers, by status
PIECE_BYTES = 2**20
PATHS = {"/rpc", "/healthz", "/readyz", "/metrics", "/openrpc.json"}
MAX_LINES = 100  # max lines per second, so that a flood of requests doesn't fill the log


JSON_HEADERS = ((b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"))
"""Headers of a response with a body. They keep a browser from displaying the body as a page."""


def refusal(status: int, message: str) -> bytes:
    """Return the response body for a request that didn't reach JSON-RPC."""
    error = {"code": ERROR_OF_SERVER, "message": message, "data": {"status": status}}
    return dumps({"jsonrpc": "2.0", "id": None, "error": error})


def refusal_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal as a Starlette response, with `headers` after the usual headers."""
    hints = {name.decode(): value.decode() for name, value in HINTS.get(status, ())}
    all_headers = {"content-type": "application/json", **hints, **(headers or {})}
    return Response(refusal(status, message), status, all_headers)


async def send_response(
    send: Send,
    status: int,
    body: bytes,
    request_id: bytes | None = None,
    extra: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Send a complete response, with the headers `extra` after the usual headers."""
    headers = [(b"content-length", b"%d" % len(body))]
    if body:
        headers += JSON_HEADERS
    if status == NO_CONTENT:
        headers = []
    if request_id is not None:
        headers.append((b"x-request-id", request_id))
    headers += (*HINTS.get(status, ()), *extra)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if len(body) <= PIECE_BYTES:
        await send({"type": "http.response.body", "body": body})
    else:
        await send_body(send, body)


async def send_body(send: Send, body: bytes | memoryview) -> None:
    """Send the body of a response in pieces. Each waits until the client has read enough of the previous pieces."""
    offset = 0
    while len(body) - offset > PIECE_BYTES:
        await send({"type": "http.response.body", "body": body[offset : offset + PIECE_BYTES], "more_body": True})
        offset += PIECE_BYTES
    await send({"type": "http.response.body", "body": body[offset:]})


async def refuse(send: Send, error: HttpRefusedError, scope: Scope, request_id: bytes | None = None) -> None:
    """Log a refusal and send its response."""
    refused.write(error.status, str(error), scope)
    await send_response(send, error.status, refusal(error.status, str(error)), request_id=request_id)


class RefusalLog:
    """Log of refused requests, with at most `MAX_LINES` lines per second. Further lines are counted."""

    def __init__(self) -> None:
        # The parts of agents' paths before the key. The log shows only these parts and the paths in `PATHS`.
        self.key_routes: Iterable[str] = ()
        self._second = 0
        self._lines = 0

    def write(self, status: int, reason: str, scope: Scope | None = None, client: object = None) -> None:
        """Write a line, or count it at the limit. The caller passes the client's address if there is no scope."""
        second = int(time.monotonic())
        if second != self._second:
            omitted, self._second, self._lines = self._lines - MAX_LINES, second, 0
            if omitted > 0:
                event("refused", logging.WARNING, count=omitted, reason="Too many refused requests to log each one.")
        self._lines += 1
        if self._lines > MAX_LINES:
            return
        method = path = None
        if scope is not None:
            client, method, path = scope.get("client"), scope["method"], self._shown(scope["path"])
        address = client[0] if isinstance(client, tuple | list) and client else None
        event("refused", logging.WARNING, status=status, method=method, path=path, client=address, reason=reason)

    def _shown(self, path: str) -> str:
        """Return the part of a path that can be logged, because agents' paths and unknown paths might contain a key."""
        if path in PATHS:
            return path
        return next((f"{route}/…" for route in self.key_routes if path.startswith(f"{route}/")), "…")


refused = RefusalLog()
