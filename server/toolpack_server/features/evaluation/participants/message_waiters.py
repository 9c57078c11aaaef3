"""Waiters for messages: the requests of participants that wait in `listen`.

A waiter is an asyncio event, so it occupies no thread and no queue entry. Each participant has at most one waiter, so a
second request ends the wait of the first. All methods run on the event loop.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from toolpack_server.sessions.hooks import Watcher


class Waiter:
    """A request of a participant that waits in `listen`. `MessageWaiters.waiter` creates it.

    Attributes:
        is_over: Whether the request must return now, even without a message.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._wake_event = asyncio.Event()

    def wake(self) -> None:
        self._wake_event.set()

    def end(self) -> None:
        self.is_over = True
        self.wake()

    async def wait(self, seconds: float) -> None:
        """Wait until `wake` is called, for at most `seconds`.

        If `wake` was called since the last wait, return at once.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._wake_event.wait()
        except TimeoutError:
            return
        self._wake_event.clear()


class MessageWaiters(Watcher):
    """The waiters of this worker. The server calls `changed` when a session might have a new message."""

    def __init__(self) -> None:
        self._waiters: dict[str, dict[str, Waiter]] = {}  # by session and participant
        self._draining = False

    def __len__(self) -> int:
        return sum(map(len, self._waiters.values()))

    @contextmanager
    def waiter(self, session_id: str, name: str) -> Iterator[Waiter]:
        """Yield a new waiter for a participant. If an earlier request of the participant waits, end its wait."""
        session_waiters = self._waiters.setdefault(session_id, {})
        if name in session_waiters:
            session_waiters[name].end()
        waiter = session_waiters[name] = Waiter()
        waiter.is_over = self._draining
        try:
            yield waiter
        finally:
            if session_waiters.get(name) is waiter:
                del session_waiters[name]
            if not session_waiters and self._waiters.get(session_id) is session_waiters:
                del self._waiters[session_id]

    @override
    def changed(self, session_id: str) -> None:
        for waiter in self._waiters.get(session_id, {}).values():
            waiter.wake()

    @override
    def draining(self) -> None:
        self._draining = True
        for session_waiters in self._waiters.values():
            for waiter in session_waiters.values():
                waiter.end()
