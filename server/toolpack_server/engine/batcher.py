"""Batcher: handles all waiting requests of one sort together, for example requests for new sessions.

One transaction for many requests is faster than many transactions. A request never waits for further requests, because
a free thread at once takes all waiting requests, up to a maximum. If the batch is refused, each request is handled
alone, so that no request fails because of another request.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from toolpack_server.base.errors import DeadlineError
from toolpack_server.engine.jobs import ThreadJob

BATCH_MAX = 256  # maximum number of requests in one batch

R = TypeVar("R")


class Batcher(Generic[R]):
    """Queue of requests of one sort that are handled in batches.

    Args:
        submit: Runs a job on a thread.
        work: Handles requests in a thread and returns their answers in order. To refuse a request, it returns an
            exception as the answer. To refuse all requests, it raises the exception.
        effect_text: The end of the error message after a missed deadline, which says whether the requests might have
            taken effect.
    """

    def __init__(
        self,
        submit: Callable[[ThreadJob], object],
        work: Callable[[Sequence[R]], Sequence[Any]],
        timeout_seconds: float,
        effect_text: str,
    ) -> None:
        self._submit = submit
        self._work = work
        self.timeout_seconds = timeout_seconds
        self.effect_text = effect_text
        self._waiting: deque[_Waiter] = deque()
        self._is_scheduled = False  # True: a submitted job will take the waiting requests

    def do(self, request: R) -> asyncio.Future[Any]:
        """Submit a request, and return a future for its answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._submit(_BatchJob(self, self._do_waiting))

    def _do_waiting(self, batch: "_BatchJob") -> Sequence[Any]:
        """Handle the waiting requests, on a thread. If there are more than a batch holds, schedule another batch."""
        self._take(batch)
        if self._waiting:
            batch.loop.call_soon_threadsafe(self._schedule)
        return self._do(batch)

    def _do(self, batch: "_BatchJob") -> Sequence[Any]:
        return self._work([request for request, _ in batch.waiters])

    def _take(self, batch: "_BatchJob") -> None:
        """Move the waiting requests to a batch, up to the maximum."""
        # Reset the flag before the loop: a request that arrives too late for the loop must schedule another batch.
        self._is_scheduled = False
        while self._waiting and len(batch.waiters) < BATCH_MAX:
            batch.waiters.append(self._waiting.popleft())

    def answer(self, batch: "_BatchJob") -> None:
        """Answer the requests in a batch. Call this on the event loop."""
        if not batch.waiters:  # the job was refused before it started
            self._take(batch)
        answers = batch.answer if batch.error is None else [batch.error] * len(batch.waiters)
        for waiter, answer in zip(batch.waiters, answers, strict=True):
            _, future = waiter
            if not isinstance(answer, Exception):
                if not future.done():  # it is done if the caller has cancelled it
                    future.set_result(answer)
            # Don't retry after a missed deadline: the caller has waited long enough, and the batch might have taken
            # effect.
            elif len(batch.waiters) > 1 and not isinstance(answer, DeadlineError):
                self._submit(_BatchJob(self, self._do, waiter))
            elif not future.done():
                future.set_exception(answer)


_Waiter = tuple[Any, asyncio.Future[Any]]
"""A request, and the future for its answer."""


class _BatchJob(ThreadJob):
    """Job that handles a batch: the requests that are waiting when it starts, or a single request to retry."""

    def __init__(self, batcher: Batcher[Any], work: Callable[["_BatchJob"], Sequence[Any]], *waiters: _Waiter) -> None:
        super().__init__(lambda: work(self), batcher.timeout_seconds, effect_text=batcher.effect_text)
        self._batcher = batcher
        self.waiters = [*waiters]

    def deliver(self) -> None:
        self._batcher.answer(self)
