"""Requests of one sort that are done together with those that wait at the same time, as when a crowd creates sessions.

None waits for others to come. A thread that is free takes all that wait, up to a number. If what it does with
them is refused, each is done alone, so that none fails because of another one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from toolpack_server.base.errors import DeadlineError
from toolpack_server.engine.jobs import ThreadJob

MOST = 256  # at once

R = TypeVar("R")


class Batcher(Generic[R]):
    """Requests of one sort.

    Args:
        work: Does requests, in a thread, and gets the answer to each, in their order. One whose answer is an exception
            is refused; all are, if it raises.
        known: What is known if the deadline is missed, at the end of a sentence.
    """

    def __init__(
        self,
        submit: Callable[[ThreadJob], object],
        work: Callable[[Sequence[R]], Sequence[Any]],
        timeout_seconds: float,
        known: str,
    ) -> None:
        self._submit = submit
        self._work = work
        self.timeout_seconds = timeout_seconds
        self.known = known
        self._waiting: deque[_Asked] = deque()
        self._coming = False  # an errand that takes what waits

    def do(self, request: R) -> asyncio.Future[Any]:
        """Do a request; await its answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._come()
        return answer

    def _come(self) -> None:
        if self._waiting and not self._coming:
            self._coming = True
            self._submit(_BatchJob(self, self._do_waiting))

    def _do_waiting(self, batch: "_BatchJob") -> Sequence[Any]:
        self._take(batch)
        if self._waiting:
            batch.loop.call_soon_threadsafe(self._come)
        return self._do(batch)

    def _do(self, batch: "_BatchJob") -> Sequence[Any]:
        return self._work([request for request, _ in batch.asked])

    def _take(self, batch: "_BatchJob") -> None:
        self._coming = False  # first: what comes from here on may be overlooked
        while self._waiting and len(batch.asked) < MOST:
            batch.asked.append(self._waiting.popleft())

    def answer(self, batch: "_BatchJob") -> None:
        """Answer the requests that were done together; called on the event loop."""
        if not batch.asked:  # it was refused before it began
            self._take(batch)
        answers = batch.answer if batch.error is None else [batch.error] * len(batch.asked)
        for asked, answer in zip(batch.asked, answers, strict=True):
            _, future = asked
            if not isinstance(answer, Exception):
                if not future.done():  # otherwise nobody waits any more
                    future.set_result(answer)
            elif len(batch.asked) > 1 and not isinstance(answer, DeadlineError):
                self._submit(_BatchJob(self, self._do, asked))
            elif not future.done():
                future.set_exception(answer)


_Asked = tuple[Any, asyncio.Future[Any]]
"""A request, and what its answer is awaited with."""


class _BatchJob(ThreadJob):
    """Requests that are done together; the first of them may be known before it begins."""

    def __init__(self, batcher: Batcher[Any], work: Callable[["_BatchJob"], Sequence[Any]], *asked: _Asked) -> None:
        super().__init__(lambda: work(self), batcher.timeout_seconds, known=batcher.known)
        self._batcher = batcher
        self.asked = [*asked]

    def deliver(self) -> None:
        self._batcher.answer(self)
