"""Pool thread: a thread that runs jobs, with measurements of its current job.

The thread doesn't choose its jobs: `threads.py` passes in the function that it runs.
"""

import threading
import time
from collections.abc import Callable

from toolpack_server.base.errors import Interrupted
from toolpack_server.base.logger import log
from toolpack_server.engine.interruption import Interruptible
from toolpack_server.engine.jobs import Job
from toolpack_server.functions.coroutines import close_loop

# Minimum share of CPU time of a thread that computes. It is small, because calls take turns with such a thread.
COMPUTES = 0.01

CLOCK_SECONDS = 0.001  # maximum age of the CPU time at a job's start; reading it takes 4 µs
SECOND_LOOK = 2  # at this look of the watcher, a job has run for longer than a tick


class PoolThread:
    """A thread and its current job.

    Args:
        work: The thread's function.
        ended: Called when the thread ends.
    """

    def __init__(self, work: Callable[["PoolThread"], None], ended: Callable[["PoolThread"], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(work, ended), name="calls", daemon=True)
        self.job: Job | None = None
        self.since = 0.0  # when the job began, on the monotonic clock
        self.disowned = False  # the job was taken away at its deadline or at the stop: the thread ends after it
        self.interruptible = Interruptible()
        self._used = 0.0  # CPU time of the thread in seconds, as `computes` last read it
        self._used_before = 0.0  # CPU time at the start of the job, or shortly before
        self._read_at = float("-inf")  # time of that reading, on the monotonic clock
        self.looks = 0  # number of the watcher's looks at the job
        self._used_at_first = 0.0  # CPU time at the watcher's second look

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: The system allows no more threads.
        """
        self._thread.start()

    def _run(self, work: Callable[["PoolThread"], None], ended: Callable[["PoolThread"], None]) -> None:
        """Run `work` on the new thread, whatever it raises, then report the thread's end."""
        here.block = self.interruptible
        try:
            work(self)
        except Interrupted:  # the job has missed its deadline, so the thread ends
            pass
        except BaseException:
            log.exception("A thread for calls has ended")
        finally:
            ended(self)
            close_loop()

    def begin(self, job: Job) -> None:
        """Make a job the current one, and start its measurements."""
        self.since = now = time.monotonic()
        if now - self._read_at > CLOCK_SECONDS:
            self._read_at, self._used_before = now, time.thread_time()
        self.looks = 0
        self.job = job  # last: from here on, the watcher looks at the job

    def used_processor(self) -> float:
        """Return the CPU time of the job in seconds, at most `CLOCK_SECONDS` too much. Call this on its thread."""
        return time.thread_time() - self._used_before

    def is_stuck(self, now: float) -> bool:
        """Return whether the job is still running after `Job.stuck_from`, the function's own deadline."""
        return self.job is not None and self.job.stuck_from < now

    def computes(self, seconds: float) -> bool:
        """Return whether the thread has used the CPU in the `seconds` since the last call of this method."""
        if self._thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):  # macOS lacks the function
            return True
        before, self._used = self._used, time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))
        if self.looks == SECOND_LOOK:
            self._used_at_first = self._used
        return self._used - before > COMPUTES * seconds

    def watched(self) -> tuple[int, float]:
        """Return the number of looks since the watcher first called `computes`, and the job's CPU time since then."""
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
    """Return this thread's `Interruptible`. Other threads can interrupt the code in its `with` block at a deadline."""
    return here.block
