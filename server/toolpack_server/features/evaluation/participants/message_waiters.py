"""Who waits for something to be said.

A wait is a future: it takes no thread and no place in a queue. Each address has one; a second ends the first.
All of this runs on the event loop.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from toolpack_server.sessions.hooks import Watcher


class Wait:
    """One that waits.

    Attributes:
        is_over: It is to be answered, whatever there is.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        self.is_over = True
        self.wake()

    async def until_woken(self, seconds: float) -> None:
        """Wait until it is woken, or was since the last time; for so many seconds at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()


class MessageWaiters(Watcher):
    """Those that wait at the addresses of this worker."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Wait]] = {}  # by session and name
        self._draining = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def one(self, session_id: str, name: str) -> Iterator[Wait]:
        """Begin to wait at an address; whoever waits there is answered."""
        of_session = self._waiting.setdefault(session_id, {})
        if name in of_session:
            of_session[name].end()
        wait = of_session[name] = Wait()
        wait.is_over = self._draining
        try:
            yield wait
        finally:
            if of_session.get(name) is wait:
                del of_session[name]
            if not of_session and self._waiting.get(session_id) is of_session:
                del self._waiting[session_id]

    @override
    def changed(self, session_id: str) -> None:
        for wait in self._waiting.get(session_id, {}).values():
            wait.wake()

    @override
    def draining(self) -> None:
        self._draining = True
        for of_session in self._waiting.values():
            for wait in of_session.values():
                wait.end()
