"""The thread that runs the event loop, and between two of its runs a job that came alone.

To wake another thread for such a job, and to be woken by it, would take longer than most calls. So the loop stops, its
thread runs and finishes the job, and runs the loop again. Should that take longer than a tick, another thread runs the
loop from then on, and the first one just brings the job to its end.

Whoever has the token runs the loop. While a job runs, the token lies in a list, and `list.pop` gives it to
exactly one thread: the one that has finished the job, or one that was started because that takes long.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from toolpack_server.base.errors import Interrupted
from toolpack_server.engine.jobs import Job, deliver, deliver_here
from toolpack_server.engine.pool_thread import PoolThread

WAKE_SECONDS = 1.0  # if the system hands a signal to another thread, its handler runs when the main thread wakes up


class LoopDriver:
    """Runs an event loop; `run_job` finishes a job on the thread that asks, and returns whose waiters to answer."""

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
        """Run the loop, on other threads, until a coroutine has ended, or raises. Handles signals meanwhile."""
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
        """Run a job as soon as this turn of the loop is over; called on the loop."""
        self._job = job
        self.loop.stop()

    def take_back(self) -> Job | None:
        """Get the job that was to be run next, so that it isn't; called on the loop."""
        job, self._job = self._job, None
        return job

    def look(self, now: float, seconds: float) -> None:
        """Let another thread run the loop if a job keeps this one for long; `RuntimeError` if none can be started."""
        if self._token and now - self._since > seconds:
            self._start_thread(self._drive)

    def _drive(self, thread: PoolThread) -> None:
        done: Sequence[Job] = ()
        next_job: Job | None = None
        while self._take_token():
            # Before the loop runs, on its own thread: no wake-up is needed.
            deliver_here(done)
            done, next_job = (), None  # with all that they have worked with: the next ones may be long in coming
            if thread.disowned:  # its job has passed its deadline: it must get no other
                self._token.append(None)
                self._start_thread(self._drive)
                return
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - `SystemExit`, which `run` raises again
                self._failure = error
            if self._main.done() or self._failure is not None:
                self._ended.set()
                return
            next_job = self.take_back()
            self._since = time.monotonic()
            self._token.append(None)
            try:
                done = self._run_job(thread, next_job) if next_job else ()
            except Interrupted:
                done = ()
        deliver(done)  # another thread runs the loop by now

    def _take_token(self) -> bool:
        try:
            self._token.pop()
        except IndexError:
            return False
        return True
