"""The threads on which calls run: leader and followers, after Schmidt's pattern of that name.

One thread leads: it takes one job after the other, runs it itself, and when nothing more is ready hands all that is
done to `finish` at once, so that many calls share one commit. No job waits for a thread to wake up. When a job takes
longer than a tick, the next thread takes the lead and the first just brings its own job to an end.

The rule: a job's work happens in `run` and touches nothing shared; what it means for others happens in `complete` or
`overrun`, exactly one of which is called, briefly and under this file's lock. A thread whose job overran its deadline
has lost its claim: whatever it still does reaches nobody.
"""

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue

from server.functions_runtime import close_loop, wake_loop

log = logging.getLogger("toolpack_server")

TICK_SECONDS = 0.005
QUIET_TICKS = 200
BATCH = 64
# How long a thread may keep the interpreter while others want it. Calls are brief, and lose a third of their speed when
# they take it from each other; but beside a function that computes each wait lasts that long, and a call has several.
SLICE_SECONDS = 0.001
THIN_SLICE_SECONDS = 0.000005
COMPUTES = 0.01  # of a tick on the processor: even a function that computes gets little where calls take turns with it


class Interrupted(BaseException):
    """Raised inside a function that has overrun its deadline, to end it; nobody ever sees it."""


class Job:
    """Something to do in a thread, with an optional deadline.

    Attributes:
        deadline: When, on the monotonic clock, the job is given up; None while no clock runs.
    """

    deadline: float | None = None

    def run(self) -> None:
        """Do the work. Must not raise."""
        raise NotImplementedError

    def complete(self) -> bool:
        """Take over what `run` has done, and say if the job is done; if not, it is submitted again some time.

        Called under the lock: brief, and must not raise.
        """
        return True

    def overrun(self) -> None:
        """Give the job up: it has missed its deadline. Called under the lock: brief, and must not raise."""


class Threads:
    """Runs jobs.

    Args:
        finish: Gets the jobs that are completed or overrun, in that order, in batches; one batch at a time. Must not
            raise.
        most: How many threads there may be.
    """

    def __init__(self, finish: Callable[[list[Job]], None], most: int = 256) -> None:
        self._finish = finish
        self._most = most
        self.lock = threading.Lock()
        self._followers = threading.Condition(self.lock)
        self._idle = 0
        self._ready: SimpleQueue[Job | None] = SimpleQueue()
        self._done: list[Job] = []
        self._leader: _Worker | None = None
        self._workers: set[_Worker] = set()
        self.stuck: set[_Worker] = set()
        self._stopped = False
        self._stir = threading.Event()
        self._slice_seconds = 0.0
        self._slice(SLICE_SECONDS)
        self._start_worker()
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
        self._stir.set()

    def stuck_threads(self) -> int:
        """Count the threads that are still in a function that was given up."""
        return len(self.stuck)

    def _start_worker(self) -> None:
        worker = _Worker(self)
        worker.thread.start()
        self._workers.add(worker)

    def _work(self, worker: "_Worker") -> None:
        while self._take_lead(worker):
            while self._leader is worker and not self._stopped:
                job = self._next_job()
                if job is None:
                    continue
                worker.begin(job)
                if not self._stir.is_set():
                    self._stir.set()
                job.run()
                if not self._complete(worker, job):
                    return

    def _take_lead(self, worker: "_Worker") -> bool:
        with self.lock:
            while self._leader is not None and not self._stopped:
                self._idle += 1
                self._followers.wait()
                self._idle -= 1
            if not self._stopped:
                self._leader = worker
            return not self._stopped

    def _next_job(self) -> Job | None:
        """Get the next job; or, where none is ready or enough are done, finish those and get None."""
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

    def _complete(self, worker: "_Worker", job: Job) -> bool:
        """Claim a job's work, unless its deadline has; say whether this thread goes on."""
        with self.lock:
            if worker.lost:
                return False
            worker.end()
            if job.complete():
                self._done.append(job)
            if self._leader is not worker:
                self._ready.put(None)  # wake the leader, for it may have nothing else to do
            return True

    def _watch(self) -> None:
        quiet = 0
        while not self._stopped:
            time.sleep(TICK_SECONDS)
            # First, so that a job which begins from here on sets it again: none is missed.
            self._stir.clear()
            with self.lock:
                busy = [worker for worker in self._workers if worker.job is not None]
                try:
                    self._look_at(busy)
                except RuntimeError:  # no thread can be started now; the next look tries again
                    log.exception("The system allows no more threads")
            quiet = 0 if busy or self._stir.is_set() else quiet + 1
            # Not at once: waking it up again would cost each of a row of lone calls more than the ticks do.
            if quiet > QUIET_TICKS and not self._stopped:
                self._stir.wait()

    def _slice(self, seconds: float) -> None:
        if seconds != self._slice_seconds:
            self._slice_seconds = seconds
            sys.setswitchinterval(seconds)

    def _look_at(self, busy: "list[_Worker]") -> None:
        now = time.monotonic()
        slow = [worker for worker in busy if now - worker.since > TICK_SECONDS]
        computing = [worker.computes() for worker in (*slow, *self.stuck)]
        self._slice(THIN_SLICE_SECONDS if any(computing) else SLICE_SECONDS)
        for worker in busy:
            if worker is self._leader and now - worker.since > TICK_SECONDS:
                self._depose()
            deadline = worker.job.deadline if worker.job else None
            if deadline is not None and now > deadline:
                self._give_up(worker)

    def _depose(self) -> None:
        if self._idle or len(self._workers) < self._most:
            self._replace_leader()

    def _replace_leader(self) -> None:
        if self._idle:
            self._followers.notify()
        else:
            self._start_worker()
        self._leader = None

    def _bury(self, worker: "_Worker") -> None:
        """Go on without a thread that has ended."""
        with self.lock:
            self._workers.discard(worker)
            self.stuck.discard(worker)
            if self._leader is worker and not self._stopped:
                self._replace_leader()

    def _give_up(self, worker: "_Worker") -> None:
        job = worker.job
        if job is None:
            return
        if self._leader is worker:
            self._replace_leader()
        worker.lost = True
        self._workers.discard(worker)
        self.stuck.add(worker)
        job.overrun()
        self._done.append(job)
        self._ready.put(None)
        worker.interrupt()


class _Worker:
    """One thread, the job that it is at, and as a context manager the part of it that may be interrupted."""

    def __init__(self, threads: Threads) -> None:
        self.thread = threading.Thread(target=self._run, args=(threads,), name="calls", daemon=True)
        self.job: Job | None = None
        self.since = 0.0
        self.lost = False
        self._used = 0.0
        self._lock = threads.lock
        self._in_function = False

    def _run(self, threads: Threads) -> None:
        _current.worker = self
        try:
            threads._work(self)  # noqa: SLF001 - this class is a part of that one
        except Interrupted:
            pass
        except BaseException:
            log.exception("A thread for calls has ended")
        finally:
            threads._bury(self)  # noqa: SLF001 - likewise
            close_loop()

    def begin(self, job: Job) -> None:
        self.since = time.monotonic()
        self.job = job

    def end(self) -> None:
        self.job = None

    def computes(self) -> bool:
        """Whether the thread has used the processor since this was asked last; called under the lock."""
        if self.thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):  # macOS doesn't tell
            return True
        before, self._used = self._used, time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))
        return self._used - before > COMPUTES * TICK_SECONDS

    def __enter__(self) -> None:
        with self._lock:
            if self.lost:
                raise Interrupted
            self._in_function = True

    def __exit__(self, *_exception: object) -> None:
        # Looked at before the lock is taken: a thread with an interruption on its way should not come near it.
        if self.lost:
            raise Interrupted
        with self._lock:
            self._in_function = False

    def interrupt(self) -> None:
        """End the function, if the interpreter gets to say so; called under the lock."""
        if self._in_function and self.thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident), ctypes.py_object(Interrupted))
            wake_loop(self.thread.ident)


class _Current(threading.local):
    worker: _Worker | None = None


_current = _Current()


def interruptible() -> AbstractContextManager[None]:
    """Get the context manager that surrounds what may be interrupted in the job that this thread is at."""
    return _current.worker or nullcontext()
