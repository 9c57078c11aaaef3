"""A conversation with one client: its messages in order, its requests side by side.

Every request gets one answer, unless the client has cancelled it. Nothing else is ever written, but the
progress of requests that ask for it.
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
MAX_UNANSWERED = 1000  # requests that run, and answers that the client hasn't read; then no further line is taken
UNANSWERED_PAUSE_SECONDS = 0.02
LAST_SECONDS = 1.0  # for the answers to what was given up

ReadMessage = Callable[[bytes], Awaitable[McpMessage]]
"""Reads a message from a line; raises `McpRefusedError`."""

AnswerMessage = Callable[[McpMessage], Awaitable[bytes]]
"""Answers a request with one line; cancelled, it gives the request up."""


class StdioConversation:
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
        self._tells_progress = tells_progress  # here, and not by `answer`
        self._running: dict[asyncio.Task[None], McpMessage] = {}

    async def hold(self, drain_seconds: float, on_timeout: Callable[[], object]) -> None:
        """Answer until the input ends or a signal comes, then finish what runs; `on_timeout` ends what is late."""
        reading = asyncio.ensure_future(self._reader.each(self._take))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError, RuntimeError, ValueError):  # this isn't the main thread
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
        """Take one line: its request runs on when this returns."""
        while len(self._running) + self._writer.waiting() >= MAX_UNANSWERED:  # noqa: ASYNC110 - another thread writes
            await asyncio.sleep(UNANSWERED_PAUSE_SECONDS)
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
        for task, message in [*self._running.items()]:
            if message.id == request_id and type(message.id) is type(request_id):
                task.cancel()

    async def _respond(self, message: McpMessage) -> None:
        progress = asyncio.ensure_future(self._tell_progress(message)) if self._tells_progress else None
        try:
            self._writer.write(await self._answer(message))
        finally:
            if progress is not None:
                progress.cancel()

    async def _tell_progress(self, message: McpMessage) -> None:
        seconds = 0.0
        while message.progress(seconds) is not None:
            await asyncio.sleep(PROGRESS_SECONDS)
            seconds += PROGRESS_SECONDS
            self._writer.write(message.progress(seconds) or b"")
