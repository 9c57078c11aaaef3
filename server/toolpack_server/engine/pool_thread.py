"""Pool thread: a thread that runs jobs, with measurements of its current job.

The thread doesn't choose its jobs. `threads.py` passes in the thread's function, which chooses them.
"""

import threading
import time
from collections.abc import Callable

from toolpack_server.base.errors import Interrupted
from toolpack_server.base.logger import log
from toolpack_server.engine.interruption import Interruptible
from toolpack_server.engine.jobs import Job
from toolpack_server.functions.coroutines import close_loop

# Minimum share of CPU time of a thread that computes. It is small, because other calls take turns with this thread.
COMPUTES = 0.01

CLOCK_SECONDS = 0.001  # maximum age of the CPU time that is used as a job's start value, because reading it takes 4 µs
SECOND_LOOK = 2  # at this check by the watcher, a job has certainly run for longer than a tick


class PoolThread:
    """A thread and its current job.

    Args:
        work: The thread's function.
        ended: Called when the thread exits.
    """

    def __init__(self, work: Callable[["PoolThread"], None], ended: Callable[["PoolThread"], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(work, ended), name="calls", daemon=True)
        self.job: Job | None = None
        self.since = 0.0  # start of the job, on the monotonic clock
        self.disowned = False  # the thread lost its job at the deadline or at the stop, and exits when the job ends
        self.interruptible = Interruptible()
        self._used = 0.0  # CPU time of the thread in seconds, as `computes` last read it
        self._used_before = 0.0  # CPU time of the thread at the start of the job, or shortly before
        self._read_at = float("-inf")  # time when `_used_before` was read, on the monotonic clock
        self.looks = 0  # number of times that the watcher has checked the job
        self._used_at_first = 0.0  # CPU time of the thread at the watcher's second check

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: The system allows no more threads.
        """
        self._thread.start()

    def _run(self, work: Callable[["PoolThread"], None], ended: Callable[["PoolThread"], None]) -> None:
        """Run `work` on the new thread, and then report the thread's exit, even if `work` raises."""
        here.block = self.interruptible
        try:
            work(self)
        except Interrupted:  # the job has missed its deadline, so the thread exits
            pass
        except BaseException:
            log.exception("A thread for calls has ended")
        finally:
            ended(self)
            close_loop()

    def begin(self, job: Job) -> None:
        """Make a job the thread's current job, and start its measurements."""
        self.since = now = time.monotonic()
        if now - self._read_at > CLOCK_SECONDS:
            self._read_at, self._used_before = now, time.thread_time()
        self.looks = 0
        self.job = job  # last, because from here on the watcher checks the job

    def used_processor(self) -> float:
        """Return the CPU time of the job in seconds, up to `CLOCK_SECONDS` too high. Call this on the job's thread."""
        return time.thread_time() - self._used_before

    def is_stuck(self, now: float) -> bool:
        """Return whether the job is still running after `Job.stuck_from`, the function's own deadline."""
        return self.job is not None and self.job.stuck_from < now

    def computes(self, seconds: float) -> bool:
        """Return whether the thread has computed since the last call of this method, `seconds` ago."""
        if self._thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):  # macOS lacks the function
            return True
        before, self._used = self._used, time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))
        if self.looks == SECOND_LOOK:
            self._used_at_first = self._used
        return self._used - before > COMPUTES * seconds

    def watched(self) -> tuple[int, float]:
        """Return the number of checks since the watcher first called `computes`, and the job's CPU time since then."""
        return self.looks - SECOND_LOOK, self._used - self._used_at_first


class _InterruptibleHere(threading.local):
    """Context manager around interruptible code, with one `Interruptible` for each thread."""

    def __init__(self) -> None:  # `threading.local` calls this once on each thread
        self.block = Interruptible()

    def __enter__(self) -> None:
        self.block.__enter__()

    def __exit__(self, *exception: object) -> None:
        self.block.__exit__(*exception)


here = _InterruptibleHere()


def interruptible() -> Interruptible:
    """Return this thread's `Interruptible`. At a deadline, other threads can interrupt the code in its `with` block."""
    return here.block
