"""HTTP responses, and the body of those to requests that never reach JSON-RPC.

The rule: every refusal has a body of the same shape that says what to do.
"""

from starlette.types import Send

from server.jsonio.strict import dumps

NO_CONTENT, UNAUTHORIZED, UNAVAILABLE = 204, 401, 503
PIECE_BYTES = 2**20


def refusal(status: int, message: str) -> bytes:
    """Get the response body for a request that never reached JSON-RPC."""
    error = {"code": -32000, "message": message, "data": {"status": status}}
    return dumps({"jsonrpc": "2.0", "id": None, "error": error})


async def send_response(
    send: Send, status: int, body: bytes, media_type: bytes = b"application/json", request_id: bytes | None = None
) -> None:
    """Send a complete response."""
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", media_type)]
    if status == NO_CONTENT:
        headers = []
    if status == UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if request_id is not None:
        headers.append((b"x-request-id", request_id))
    if status == UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # In pieces, each of which waits until the client has read enough of those before it.
    sent = 0
    while len(body) - sent > PIECE_BYTES:
        await send({"type": "http.response.body", "body": body[sent : sent + PIECE_BYTES], "more_body": True})
        sent += PIECE_BYTES
    await send({"type": "http.response.body", "body": body[sent:]})
