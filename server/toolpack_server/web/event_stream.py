"""Server-sent events: an answer with signs of life, for a request that may take long.

`EventStream` begins only if the answer takes long: one that comes soon costs no more than a timer. `stream_response`
begins at once. Each event waits until the client has read enough of those before it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

from toolpack_server.web.refusals import send_body

LINE_BREAKS = "\x85\u2028\u2029"  # that JSON allows in a string
SIGN_OF_LIFE = b": still running\n\n"
SIGN_SECONDS = 2.0  # until the first sign of life, and between two

MESSAGE = "message"  # the name of an event that has an answer

_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would keep signs of life back
}


def event(name: str, data: bytes) -> bytes:
    """Return an event with JSON, or a text of one line.

    JSON escapes all line breaks but three, at which clients in Python may end a line.
    """
    for character in LINE_BREAKS:
        data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def stream_response(events: AsyncIterator[bytes]) -> Response:
    """Return a response that begins at once."""
    return StreamingResponse(events, headers=_HEADERS)


async def signs_of_life(work: asyncio.Future[object], seconds: float) -> AsyncIterator[bytes]:
    """Yield a sign of life every so many seconds until the work has ended."""
    while not (await asyncio.wait({work}, timeout=seconds))[0]:
        yield SIGN_OF_LIFE


class EventStream:
    """The answer to one request, from which on it takes long.

    Args:
        headers: Headers of the response, besides those of an event stream.
        sign: Makes a sign of life; gets the seconds since the request came.
        on_left: Called if the client closes the connection before the answer is there.
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
        """End the stream with the answer; get False if it hasn't begun, so that the answer is to be sent as it is."""
        self._timer.cancel()
        self._on_left = None
        if self._signs is None or self._answered is None:
            return False
        self._answered.set()
        await self._signs
        await send_body(self._send, event(MESSAGE, answer))
        return True

    def _begin(self) -> None:
        self._answered = asyncio.Event()
        self._signs = self._loop.create_task(self._live(self._answered))

    async def _live(self, answered: asyncio.Event) -> None:
        """Send the head, then signs of life until the answer is there or the client has left."""
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
        """Wait until the connection is lost, which shows when a sign of life can't be delivered."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_left = True
        if self._on_left is not None:  # the answer isn't there yet
            self._on_left()
