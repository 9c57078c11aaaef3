"""Waiters for messages: the requests of participants that wait in `listen`.

A waiter is an asyncio event; it occupies no thread and no queue entry. Each participant has at most one waiter, so a
second request ends the first. All methods run on the event loop.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from toolpack_server.sessions.hooks import Watcher


class Waiter:
    """A request that waits for a message.

    Attributes:
        is_over: Whether the request must return now, even without a message.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        self.is_over = True
        self.wake()

    async def wait(self, seconds: float) -> None:
        """Wait until `wake` is called, for at most `seconds`.

        If `wake` was called since the last wait, return at once.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()


class MessageWaiters(Watcher):
    """The waiters of this worker."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Waiter]] = {}  # by session and participant
        self._draining = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def waiter(self, session_id: str, name: str) -> Iterator[Waiter]:
        """Yield a new waiter for a participant. If an earlier request of the participant waits, end its wait."""
        of_session = self._waiting.setdefault(session_id, {})
        if name in of_session:
            of_session[name].end()
        waiter = of_session[name] = Waiter()
        waiter.is_over = self._draining
        try:
            yield waiter
        finally:
            if of_session.get(name) is waiter:
                del of_session[name]
            if not of_session and self._waiting.get(session_id) is of_session:
                del self._waiting[session_id]

    @override
    def changed(self, session_id: str) -> None:
        for waiter in self._waiting.get(session_id, {}).values():
            waiter.wake()

    @override
    def draining(self) -> None:
        self._draining = True
        for of_session in self._waiting.values():
            for waiter in of_session.values():
                waiter.end()
