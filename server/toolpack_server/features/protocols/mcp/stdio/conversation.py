"""Conversation with one client: reads its messages in order, and runs its requests concurrently.

Every request gets one answer, unless the client cancels it. Besides answers, the server writes only progress
notifications, for requests that ask for progress.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from toolpack_server.features.protocols.mcp.messages import McpMessage, McpRefusedError
from toolpack_server.features.protocols.mcp.results import refusal_reply, too_long
from toolpack_server.features.protocols.mcp.stdio.lines import LineReader, LineWriter

PROGRESS_SECONDS = 2.0
MAX_UNANSWERED = 1000  # max running requests plus unread answers; at this number, no further line is read
UNANSWERED_DELAY_SECONDS = 0.02
LAST_SECONDS = 1.0  # time for writing the answers to requests that were cancelled at the end

ReadMessage = Callable[[bytes], Awaitable[McpMessage]]
"""Parses a line. Raises `McpRefusedError`."""

AnswerMessage = Callable[[McpMessage], Awaitable[bytes]]
"""Returns the answer to a request as one line. Cancelling the awaitable cancels the request."""


class StdioConversation:
    """Serves one client.

    Args:
        tells_progress: Whether to send progress notifications. False if `answer` already sends them.
    """

    def __init__(
        self,
        reader: LineReader,
        writer: LineWriter,
        read: ReadMessage,
        answer: AnswerMessage,
        *,
        tells_progress: bool,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._read = read
        self._answer = answer
        self._tells_progress = tells_progress
        self._running: dict[asyncio.Task[None], McpMessage] = {}

    async def hold(self, drain_seconds: float, on_timeout: Callable[[], object]) -> None:
        """Answer messages until the input ends or a signal arrives, then wait for the running requests.

        Args:
            drain_seconds: How long to wait for the running requests.
            on_timeout: Called after that time, to stop requests that are still running.
        """
        reading = asyncio.ensure_future(self._reader.for_each(self._take))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not possible outside the main thread
                loop.add_signal_handler(number, reading.cancel)
        with suppress(asyncio.CancelledError):
            await reading
        if self._running:
            _, late = await asyncio.wait([*self._running], timeout=drain_seconds)
            if late:
                on_timeout()
                await asyncio.wait(late, timeout=LAST_SECONDS)
        for task in [*self._running]:
            task.cancel()
        self._writer.close()

    async def _take(self, line: bytes | None) -> None:
        """Handle one line. A request continues to run as an asyncio task after this function returns."""
        while len(self._running) + self._writer.waiting() >= MAX_UNANSWERED:  # noqa: ASYNC110 - another thread writes
            await asyncio.sleep(UNANSWERED_DELAY_SECONDS)
        if line is None:
            self._writer.write(refusal_reply(too_long(self._reader.max_bytes)).body)
            return
        try:
            message = await self._read(line)
        except McpRefusedError as error:
            self._writer.write(refusal_reply(error).body)
            return
        if message.is_notification:
            if message.method == "notifications/cancelled":
                self._cancel(message.params.get("requestId"))
            return
        task = asyncio.ensure_future(self._respond(message))
        self._running[task] = message
        task.add_done_callback(self._running.pop)

    def _cancel(self, request_id: Any) -> None:
        """Cancel the running request with this id. Ids of different types, such as 1 and True, differ."""
        for task, message in [*self._running.items()]:
            if message.id == request_id and type(message.id) is type(request_id):
                task.cancel()

    async def _respond(self, message: McpMessage) -> None:
        """Write the answer to a request, and progress notifications until then. If cancelled, write no answer."""
        progress = asyncio.ensure_future(self._tell_progress(message)) if self._tells_progress else None
        try:
            self._writer.write(await self._answer(message))
        finally:
            if progress is not None:
                progress.cancel()

    async def _tell_progress(self, message: McpMessage) -> None:
        """Write a progress notification every few seconds, if the client asked for progress."""
        seconds = 0.0
        while message.progress(seconds) is not None:
            await asyncio.sleep(PROGRESS_SECONDS)
            seconds += PROGRESS_SECONDS
            self._writer.write(message.progress(seconds) or b"")
