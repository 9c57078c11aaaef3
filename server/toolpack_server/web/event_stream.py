"""Server-sent events: responses with keep-alives (*signs of life*), for requests that might take long.

A sign of life is a comment or an event that the server sends every few seconds until the answer is ready. It keeps
clients and proxies from closing the connection. If sending fails, the server knows that the client has left.

An `EventStream` begins only if the answer takes long, so a quick answer costs only a timer. A `stream_response` begins
at once. Each event waits until the client has read enough of the previous events.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

from toolpack_server.web.refusals import send_body

LINE_BREAKS = "\x85\u2028\u2029"  # the line breaks that JSON allows unescaped in a string
SIGN_OF_LIFE = b": still running\n\n"
SIGN_SECONDS = 2.0  # delay before the first sign of life and between two signs

MESSAGE = "message"  # name of the event with the answer

_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # otherwise nginx would buffer signs of life
}


def event(name: str, data: bytes) -> bytes:
    """Return an event with JSON or a single line of text as its data.

    Three line breaks are escaped here, because JSON leaves them unescaped and Python clients might split lines at them.
    """
    for character in LINE_BREAKS:
        data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def stream_response(events: AsyncIterator[bytes]) -> Response:
    """Return a response that begins at once."""
    return StreamingResponse(events, headers=_HEADERS)


async def signs_of_life(work: asyncio.Future[object], seconds: float) -> AsyncIterator[bytes]:
    """Yield a sign of life every `seconds` seconds until the work has ended."""
    while not (await asyncio.wait({work}, timeout=seconds))[0]:
        yield SIGN_OF_LIFE


class EventStream:
    """Response to one request. It becomes an event stream if the answer takes longer than `SIGN_SECONDS`.

    Args:
        headers: Further headers of the response, besides the usual headers of an event stream.
        sign: Function that returns a sign of life for the seconds since the request arrived.
        on_left: Called if the client closes the connection before the answer is ready.
    """

    def __init__(
        self,
        send: Send,
        receive: Receive,
        headers: list[tuple[bytes, bytes]],
        sign: Callable[[float], bytes],
        on_left: Callable[[], object],
    ) -> None:
        self._send, self._receive = send, receive
        self._headers = headers
        self._sign = sign
        self._on_left: Callable[[], object] | None = on_left
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._signs: asyncio.Task[None] | None = None
        self._answered: asyncio.Event | None = None
        self.client_left = False
        self._timer = self._loop.call_later(SIGN_SECONDS, self._begin)

    async def end(self, answer: bytes) -> bool:
        """End the stream with the answer. If it hasn't begun, return False: the caller must send a plain response."""
        self._timer.cancel()
        self._on_left = None  # from now on, a client that leaves no longer interrupts the work
        if self._signs is None or self._answered is None:
            return False
        self._answered.set()
        await self._signs
        await send_body(self._send, event(MESSAGE, answer))
        return True

    def _begin(self) -> None:
        self._answered = asyncio.Event()
        self._signs = self._loop.create_task(self._send_signs(self._answered))

    async def _send_signs(self, answered: asyncio.Event) -> None:
        """Send the headers, then signs of life until the answer is ready or the client has left."""
        headers = [*((name.encode(), value.encode()) for name, value in _HEADERS.items()), *self._headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        ends = {asyncio.create_task(self._watch()), asyncio.create_task(answered.wait())}
        try:
            while not answered.is_set() and not self.client_left:
                sign = self._sign(self._loop.time() - self._began)
                await self._send({"type": "http.response.body", "body": sign, "more_body": True})
                await asyncio.wait(ends, timeout=SIGN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _watch(self) -> None:
        """Wait until the connection is lost. The server notices a loss no later than at the next sign of life."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_left = True
        if self._on_left is not None:  # the answer isn't ready yet
            self._on_left()
