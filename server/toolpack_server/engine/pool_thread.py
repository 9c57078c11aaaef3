"""One thread for jobs.

It knows its own job and nothing of the other threads; what it should do comes from `threads.py`.
"""

import threading
import time
from collections.abc import Callable

from toolpack_server.base.errors import Interrupted
from toolpack_server.base.logger import log
from toolpack_server.engine.interruption import Interruptible
from toolpack_server.engine.jobs import Job
from toolpack_server.functions.coroutines import close_loop

# Of a period on the processor: even a function that computes gets little while calls take turns with it.
COMPUTES = 0.01

CLOCK_SECONDS = 0.001  # that the processor's time at the beginning of a job may be old: to ask for it takes 4 µs
SECOND_LOOK = 2  # of the watcher at a job: it runs for longer than a tick


class PoolThread:
    """A worker thread and the job it is running."""

    def __init__(self, work: Callable[["PoolThread"], None], ended: Callable[["PoolThread"], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(work, ended), name="calls", daemon=True)
        self.job: Job | None = None
        self.since = 0.0  # when the job began, on the monotonic clock
        self.disowned = False  # the job was taken from it, at its deadline or at the end: it gets no other, and ends
        self.interruptible = Interruptible()
        self._used = 0.0  # of the processor's time, in seconds
        self._used_before = 0.0  # when the job began, or just before
        self._asked = float("-inf")  # when that was, on the monotonic clock
        self.looks = 0  # of the watcher at the job
        self._used_at_first = 0.0  # when the watcher first asked what the job does

    def start(self) -> None:
        """Start it; a `RuntimeError` says that the system allows no more threads."""
        self._thread.start()

    def _run(self, work: Callable[["PoolThread"], None], ended: Callable[["PoolThread"], None]) -> None:
        here.block = self.interruptible
        try:
            work(self)
        except Interrupted:
            pass
        except BaseException:
            log.exception("A thread for calls has ended")
        finally:
            ended(self)
            close_loop()

    def begin(self, job: Job) -> None:
        self.since = now = time.monotonic()
        if now - self._asked > CLOCK_SECONDS:
            self._asked, self._used_before = now, time.thread_time()
        self.looks = 0
        self.job = job

    def used_processor(self) -> float:
        """Get how long, in seconds, the job has computed, and at most `CLOCK_SECONDS` more; asked on its thread."""
        return time.thread_time() - self._used_before

    def is_stuck(self, now: float) -> bool:
        """Whether its job has passed its deadline by more than callers can bring about."""
        return self.job is not None and self.job.stuck_from < now

    def computes(self, seconds: float) -> bool:
        """Whether the thread has used the processor in these seconds, since this was asked last."""
        if self._thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):  # macOS doesn't tell
            return True
        before, self._used = self._used, time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))
        if self.looks == SECOND_LOOK:
            self._used_at_first = self._used
        return self._used - before > COMPUTES * seconds

    def watched(self) -> tuple[int, float]:
        """Get how often the watcher has looked since it first asked `computes`, and how long the job has computed."""
        return self.looks - SECOND_LOOK, self._used - self._used_at_first


class _InterruptibleHere(threading.local):
    """A context manager around what may be interrupted, on whichever thread it is used."""

    def __init__(self) -> None:  # called by each thread that uses it
        self.block = Interruptible()

    def __enter__(self) -> None:
        self.block.__enter__()

    def __exit__(self, *exception: object) -> None:
        self.block.__exit__(*exception)


here = _InterruptibleHere()


def interruptible() -> Interruptible:
    """Get the context manager around what may be interrupted in the job that this thread is running."""
    return here.block
