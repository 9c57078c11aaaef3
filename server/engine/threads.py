"""The threads on which jobs run: leader and followers, after Schmidt's pattern of that name.

One thread leads. It takes one job after the other and runs it itself. When no more are ready, it hands all that are
done to `finish` at once, so that many jobs share one commit and no job waits for a thread to wake up. When a job takes
longer than a tick, another thread takes the lead and the first just brings its own job to an end.

The rule: a job does its work in `run`, which touches nothing shared. What follows for others happens in `complete`,
called exactly once, briefly and under this module's lock. A thread whose job has passed its deadline has lost its
claim: whatever it still does reaches nobody.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any

from server.coroutines import close_loop
from server.engine.interruption import Interruptible
from server.errors import Interrupted

log = logging.getLogger("toolpack_server")

TICK_SECONDS = 0.005
QUIET_TICKS = 200
BATCH = 64
# How long a thread may keep the interpreter while others want it. Calls are brief, and lose a third of their speed if
# they take it from each other. Beside a function that computes, however, each wait lasts that long, and a call has
# several.
SLICE_SECONDS = 0.001
SHORT_SLICE_SECONDS = 0.000005
COMPUTES = 0.01  # of a tick on the processor: even a function that computes gets little while calls take turns with it


class Job:
    """Something to do on a thread, with an optional deadline.

    Attributes:
        deadline: When, on the monotonic clock, the job has taken too long; None while no clock runs.
    """

    deadline: float | None = None

    def run(self) -> None:
        """Do the work. Must not raise."""
        raise NotImplementedError

    def complete(self, *, timed_out: bool) -> bool:
        """Take over what `run` has done, and say if the job is done; if not, it is submitted again at some time.

        Called under the lock: brief, and must not raise.

        Args:
            timed_out: The deadline has passed: what `run` does or has done doesn't count.
        """
        raise NotImplementedError


class Threads:
    """Runs jobs.

    Args:
        finish: Gets the jobs that are complete, in that order, in batches; one batch at a time. Must not raise.
        max_threads: How many threads there may be.

    Attributes:
        lock: The lock under which jobs are completed.
    """

    def __init__(self, finish: Callable[[list[Any]], None], max_threads: int = 256) -> None:
        self._finish = finish
        self._max_threads = max_threads
        self.lock = threading.Lock()
        self._followers = threading.Condition(self.lock)
        self._idle = 0
        self._ready: SimpleQueue[Job | None] = SimpleQueue()
        self._done: list[Job] = []
        self._leader: _PoolThread | None = None
        self._threads: set[_PoolThread] = set()
        self._stuck: set[_PoolThread] = set()
        self._stopped = False
        self._wake = threading.Event()
        self._slice_seconds = 0.0
        self._set_slice(SLICE_SECONDS)
        self._start_thread()
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def submit(self, job: Job) -> None:
        """Run a job as soon as possible; jobs start in the order in which they were submitted."""
        self._ready.put(job)

    def stop(self) -> None:
        """Let the threads end once they are idle."""
        self._stopped = True
        with self.lock:
            self._followers.notify_all()
        self._ready.put(None)
        self._wake.set()

    def stuck_threads(self) -> int:
        """Count the threads that are still in a function that has passed its deadline."""
        return len(self._stuck)

    def _start_thread(self) -> None:
        thread = _PoolThread(self)
        thread.thread.start()
        self._threads.add(thread)

    def work(self, thread: "_PoolThread") -> None:
        """Lead and follow, until the threads are stopped or a job on this one has passed its deadline."""
        while self._take_lead(thread):
            while self._leader is thread and not self._stopped:
                job = self._next_job()
                if job is None:
                    continue
                thread.begin(job)
                if not self._wake.is_set():
                    self._wake.set()
                job.run()
                if not self._complete(thread, job):
                    return

    def _take_lead(self, thread: "_PoolThread") -> bool:
        with self.lock:
            while self._leader is not None and not self._stopped:
                self._idle += 1
                self._followers.wait()
                self._idle -= 1
            if not self._stopped:
                self._leader = thread
            return not self._stopped

    def _next_job(self) -> Job | None:
        """Get the next job; if none is ready or enough are done, finish those and get None."""
        if self._done:
            if len(self._done) < BATCH:
                try:
                    return self._ready.get_nowait()
                except Empty:
                    pass
            with self.lock:
                batch, self._done = self._done, []
            self._finish(batch)
            return None
        return self._ready.get()

    def _complete(self, thread: "_PoolThread", job: Job) -> bool:
        """Claim a job as done, unless its deadline was faster; say whether this thread goes on."""
        with self.lock:
            if thread.lost:
                return False
            thread.job = None
            if job.complete(timed_out=False):
                self._done.append(job)
            if self._leader is not thread:
                self._ready.put(None)  # wake the leader, which may have nothing else to do
            return True

    def _watch(self) -> None:
        quiet = 0
        while not self._stopped:
            time.sleep(TICK_SECONDS)
            # First, so that a job which begins from here on sets it again: none is missed.
            self._wake.clear()
            with self.lock:
                busy = [thread for thread in self._threads if thread.job is not None]
                try:
                    self._look_at(busy)
                except RuntimeError:  # no thread can be started now; the next look tries again
                    log.exception("The system allows no more threads")
            quiet = 0 if busy or self._wake.is_set() else quiet + 1
            # Not at once: waking this thread again would cost each of a row of lone calls more than the ticks do.
            if quiet > QUIET_TICKS and not self._stopped:
                self._wake.wait()

    def _set_slice(self, seconds: float) -> None:
        if seconds != self._slice_seconds:
            self._slice_seconds = seconds
            sys.setswitchinterval(seconds)

    def _look_at(self, busy: "list[_PoolThread]") -> None:
        now = time.monotonic()
        slow = [thread for thread in busy if now - thread.since > TICK_SECONDS]
        computing = [thread.computes() for thread in (*slow, *self._stuck)]
        self._set_slice(SHORT_SLICE_SECONDS if any(computing) else SLICE_SECONDS)
        for thread in busy:
            if thread is self._leader and now - thread.since > TICK_SECONDS:
                self._pass_lead_on()
            deadline = thread.job.deadline if thread.job else None
            if deadline is not None and now > deadline:
                self._time_out(thread)

    def _pass_lead_on(self) -> None:
        if self._idle or len(self._threads) < self._max_threads:
            self._replace_leader()

    def _replace_leader(self) -> None:
        if self._idle:
            self._followers.notify()
        else:
            self._start_thread()
        self._leader = None

    def discard(self, thread: "_PoolThread") -> None:
        """Go on without a thread that has ended."""
        with self.lock:
            self._threads.discard(thread)
            self._stuck.discard(thread)
            if self._leader is thread and not self._stopped:
                self._replace_leader()

    def _time_out(self, thread: "_PoolThread") -> None:
        job = thread.job
        if job is None:
            return
        if self._leader is thread:
            self._replace_leader()
        thread.lost = True
        self._threads.discard(thread)
        self._stuck.add(thread)
        job.complete(timed_out=True)
        self._done.append(job)
        self._ready.put(None)
        thread.interruptible.interrupt()


class _PoolThread:
    """One thread, and the job that it is at.

    Attributes:
        thread: The thread.
        job: The job that it is at.
        since: Since when, on the monotonic clock.
        lost: That job has passed its deadline, so the thread has lost its claim and ends after the job.
        interruptible: Surrounds what may be interrupted.
    """

    def __init__(self, threads: Threads) -> None:
        self.thread = threading.Thread(target=self._run, args=(threads,), name="calls", daemon=True)
        self.job: Job | None = None
        self.since = 0.0
        self.lost = False
        self.interruptible = Interruptible()
        self._used = 0.0

    def _run(self, threads: Threads) -> None:
        _current.interruptible = self.interruptible
        try:
            threads.work(self)
        except Interrupted:
            pass
        except BaseException:
            log.exception("A thread for calls has ended")
        finally:
            threads.discard(self)
            close_loop()

    def begin(self, job: Job) -> None:
        self.since = time.monotonic()
        self.job = job

    def computes(self) -> bool:
        """Whether the thread has used the processor since this was asked last; called under the lock."""
        if self.thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):  # macOS doesn't tell
            return True
        before, self._used = self._used, time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))
        return self._used - before > COMPUTES * TICK_SECONDS


class _Current(threading.local):
    interruptible: Interruptible | None = None


_current = _Current()


def interruptible() -> AbstractContextManager[object]:
    """Get the context manager that surrounds what may be interrupted in the job that this thread is at."""
    return _current.interruptible or nullcontext()
