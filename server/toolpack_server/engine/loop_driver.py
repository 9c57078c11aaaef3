"""Loop driver: runs the event loop and, on the same thread between two runs of the loop, a job that came alone.

A job comes alone if no session has any other work. Switching to another thread and back would take longer than most
calls. So the loop stops, its thread runs and finishes the job, and then runs the loop again. If the job takes longer
than a tick of the watcher, another thread takes over the loop, and the first thread only finishes the job.

The thread that holds the token runs the loop. While a job runs, the token is in a list. `list.pop` returns it to
exactly one thread: the thread that has finished the job, or a new thread that was started because the job takes long.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from toolpack_server.base.errors import Interrupted
from toolpack_server.engine.jobs import Job, deliver, deliver_here
from toolpack_server.engine.pool_thread import PoolThread

WAKE_SECONDS = 1.0  # interval between wake-ups of the main thread to handle signals that were sent to another thread


class LoopDriver:
    """Runs an event loop, and runs jobs between two runs of the loop.

    Args:
        start_thread: Starts a pool thread with a function.
        run_job: Runs and finishes a job on the current thread, and returns the jobs to answer.
        loop_factory: Creates the event loop; None: asyncio's default.
    """

    def __init__(
        self,
        start_thread: Callable[[Callable[[PoolThread], None]], None],
        run_job: Callable[[PoolThread, Job], Sequence[Job]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
    ) -> None:
        self._start_thread = start_thread
        self._run_job = run_job
        self._runner = asyncio.Runner(loop_factory=loop_factory)
        self.loop = self._runner.get_loop()
        self._main: asyncio.Future[Any] = self.loop.create_future()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._token: list[None] = []
        self._job: Job | None = None
        self._since = 0.0

    def run(self, main: Coroutine[Any, Any, object]) -> None:
        """Run the loop on other threads until a coroutine returns or raises. This thread meanwhile handles signals."""
        self._main = self.loop.create_task(main)
        self._main.add_done_callback(lambda _: self.loop.stop())
        self._since = time.monotonic()
        self._token.append(None)
        self._start_thread(self._drive)
        while not self._ended.wait(WAKE_SECONDS):
            pass
        self._runner.close()
        if self._failure is not None:
            raise self._failure
        self._main.result()

    def run_next(self, job: Job) -> None:
        """Run a job after this turn of the loop. Call this on the loop."""
        self._job = job
        self.loop.stop()

    def take_back(self) -> Job | None:
        """Unschedule the job that `run_next` scheduled, and return it. Call this on the loop."""
        job, self._job = self._job, None
        return job

    def look(self, now: float, seconds: float) -> None:
        """Start another thread for the loop if its thread has run a job for longer than `seconds`.

        The watcher calls this regularly.

        Raises:
            RuntimeError: The system allows no more threads.
        """
        # An empty list means that a thread is running the loop. If a thread takes the token meanwhile, the new thread
        # finds no token and exits.
        if self._token and now - self._since > seconds:
            self._start_thread(self._drive)

    def _drive(self, thread: PoolThread) -> None:
        """Run the loop, and the jobs between its runs, until another thread has taken the token."""
        done: Sequence[Job] = ()
        next_job: Job | None = None
        while self._take_token():
            # The loop isn't running, and this is its thread, so deliver without a wake-up.
            deliver_here(done)
            done, next_job = (), None  # free the jobs' objects, because the next job might arrive much later
            if thread.disowned:  # the thread's job has missed its deadline, so the thread must not run another job
                self._token.append(None)
                self._start_thread(self._drive)
                return
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - also `SystemExit`, because `run` raises it again
                self._failure = error
            if self._main.done() or self._failure is not None:
                self._ended.set()
                return
            next_job = self.take_back()
            self._since = time.monotonic()  # before the token is available, because `look` reads this time after it
            self._token.append(None)
            try:
                done = self._run_job(thread, next_job) if next_job else ()
            except Interrupted:
                done = ()
        deliver(done)  # with a wake-up, because another thread runs the loop now

    def _take_token(self) -> bool:
        """Take the token. Return False if another thread has it."""
        try:
            self._token.pop()
        except IndexError:
            return False
        return True
