"""Thread pool for jobs, with the leader/followers pattern (Schmidt), and the watcher of the jobs' deadlines.

One thread leads. It takes the ready jobs one after the other and runs them itself, so that no job waits for a thread
switch. When no job is ready, the leader passes all complete jobs to `finish`, so that many jobs share one commit.
Another thread takes the lead before the leader starts a job that isn't known to be quick, or when a job takes longer
than a tick. From then on, the former leader only finishes its job. Lanes limit the number of these slow jobs. A quick
job that comes alone needs no leader, because the event loop's thread runs it; see `loop_driver`.

A job works in `run`, which accesses no shared data. It changes shared data in `complete`, which is called once, under
this module's lock, and must be fast. A thread whose job has missed its deadline is *disowned*: its results are ignored.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.engine.jobs import Job, deliver
from toolpack_server.engine.lanes import Backlog, Lanes
from toolpack_server.engine.loop_driver import LoopDriver
from toolpack_server.engine.pace import LOOK_SECONDS, QUICK_SECONDS, Pace
from toolpack_server.engine.pool_thread import SECOND_LOOK, PoolThread
from toolpack_server.engine.waiting import Waiting
from toolpack_server.functions.leftovers import leftover_threads

TICK_SECONDS = LOOK_SECONDS  # time between two checks by the watcher
QUIET_TICKS = 200  # ticks without a running job after which the watcher sleeps until the next job
IDLE_SECONDS = 10.0  # time after which an idle thread exits
BATCH = 64  # number of complete jobs at which they are finished, even if other jobs are ready
LONE_JOBS_MIN = 4  # number of jobs in a row that came alone, after which the event loop's thread runs the next such job


class Threads:
    """Runs jobs on a pool of threads.

    Attributes:
        backlog: The number of waiting jobs; changed under the lock.

    Args:
        finish: Called with batches of complete jobs in order, one batch at a time. It must not raise. When it returns,
            the callers of the jobs are answered.
        capacity: See `Lanes`.
    """

    def __init__(self, finish: Callable[[list[Job]], None], settings: Settings, capacity: int | None = None) -> None:
        self._finish = finish
        self._pace = Pace()
        self.backlog = Backlog()
        self._lanes = Lanes(settings, self._pace, self.backlog, capacity)
        self.lock = threading.Lock()
        self._followers = threading.Condition(self.lock)
        self._finishing = threading.Lock()
        self._process = os.getpid()
        self._driver: LoopDriver | None = None
        self._lone_jobs = 0  # number of jobs in a row that came alone
        self._look_for_cancelled = False
        self._idle = 0  # number of threads that wait to lead
        self._ready: SimpleQueue[Job | None] = SimpleQueue()  # None is no job, but only wakes the leader
        self._waiting = Waiting(self._ready.put, self._pace)
        self._done: list[Job] = []
        self._leader: PoolThread | None = None
        # The loop's driver adds threads without the lock. So don't iterate over this set, but over a copy (`[*…]`).
        self._threads: set[PoolThread] = set()
        self._stuck: set[PoolThread] = set()  # threads with a job that was left behind; some don't count as stuck yet
        self._stopped = False
        self._wake = threading.Event()
        self._start_thread(self._work)
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def drive(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> LoopDriver:
        """Return a driver of the event loop. The thread of the loop also runs jobs that come alone."""
        self._driver = LoopDriver(self._start_thread, self._run_alone, loop_factory)
        return self._driver

    def submit(self, job: Job) -> None:
        """Run a job as soon as possible. Jobs start in order of submission."""
        self._ready.put(job)

    def submit_arrived(self, jobs: Sequence[Job], *, alone: bool) -> None:
        """Run those jobs from this turn of the event loop that can start now.

        Args:
            alone: Only one job arrived in this turn, and no session had any work.
        """
        self._lone_jobs = self._lone_jobs + 1 if alone else 0
        if self._lone_jobs > LONE_JOBS_MIN and jobs and self._driver is not None and self._pace.is_quick(jobs[0].kind):
            self._driver.run_next(jobs[0])
        else:
            self._start(jobs)

    def stop(self) -> list[Job]:
        """Stop the threads after their current jobs. Return the unfinished jobs; some are still running."""
        self._stopped = True
        next_job = self._driver.take_back() if self._driver else None
        with self.lock:
            unfinished = self._lanes.expire(float("inf")) + self._done + ([next_job] if next_job else [])
            self._done = []
            for thread in [*self._threads]:
                if thread.job is not None:
                    unfinished.append(thread.job)
                    thread.disowned = True
            while not self._ready.empty():
                job = self._ready.get()
                if job is not None:
                    unfinished.append(job)
            unfinished += self._waiting.take_all()
            self._followers.notify_all()
        self._ready.put(None)
        self._wake.set()
        return unfinished

    def expire(self, before: float) -> list[Job]:
        """Remove and return the jobs in lanes that arrived before a time. Call this under the lock."""
        expired = self._lanes.expire(before)
        for job in expired:  # a job that waited for a slot to compute already holds a slot in the functions' lane
            self._start(self._lanes.leave(job))
        return expired

    def stuck_threads(self) -> int:
        """Return the number of stuck threads.

        These are threads that run a function after the function's own deadline, and threads that functions left
        running.
        """
        now = time.monotonic()
        stuck = sum(thread.is_stuck(now) for thread in list(self._stuck)) + self._waiting.stuck(now)
        return stuck + leftover_threads()

    def waiting_calls(self) -> tuple[int, int]:
        """Return the number of calls that wait on shared loops, and their estimated memory in bytes."""
        return len(self._waiting), self._lanes.waiting_bytes()

    def look_for_cancelled(self) -> None:
        """Make the watcher check the waiting calls, because one was cancelled."""
        self._look_for_cancelled = True

    def may_share(self, kind: str, function: str) -> bool:
        """Return whether a call can await an async function's coroutine on the shared loop instead of on its thread."""
        return not self._stopped and self._pace.may_share(kind, function)

    def _start_thread(self, work: Callable[[PoolThread], None]) -> None:
        thread = PoolThread(work, self._discard)
        thread.start()
        self._threads.add(thread)

    # What a thread does

    def _work(self, thread: PoolThread) -> None:
        """Lead and follow until the pool stops, the thread is no longer needed, or its job has missed its deadline."""
        while self._take_lead(thread):
            while self._leader is thread and not self._stopped:
                job = self._next_job()
                if job is None:
                    continue
                if not self._may_run(job):
                    del job
                    continue
                self._run(thread, job)
                if not self._complete(thread, job):
                    return
                del job  # free the job's objects, because the next job might arrive much later
                if self._leader is not thread:
                    self._ready.put(None)  # wake the leader, so that it finishes this job even if no other job arrives

    def _may_run(self, job: Job) -> bool:
        """Take the slots that a job needs to start or continue. Return False if the job must wait or has ended.

        If the job isn't known to be quick, first pass the lead to another thread.
        """
        if job.call is not None:
            return self._take_back(job)
        if job.lane is None or self._pace.is_quick(job.kind):
            return True
        with self.lock:
            entered = self._lanes.enter(job)
            self._start(self._lanes.freed())
            if entered and not self._lanes.awaits(job):  # an awaiting job only starts and ends on this thread
                try:
                    self._replace_leader()
                except RuntimeError:  # no thread can start now, so the watcher tries again
                    log.exception("The system allows no more threads")
        return entered

    def _run_alone(self, thread: PoolThread, job: Job) -> list[Job]:
        """Run and finish a job that came alone, and return the jobs to answer. Called on the event loop's thread."""
        self._run(thread, job)
        return self._finish_done() if self._complete(thread, job) else []

    def _run(self, thread: PoolThread, job: Job) -> None:
        """Wake the watcher, then run a job on this thread, without a lock."""
        if job.awaiting is not None:  # a shared loop has returned the job unstarted
            self._waiting.go_on(job)
        thread.begin(job)
        # Check the event before setting it, because setting it acquires a lock, which would slow down each quick job.
        if not self._wake.is_set():
            self._wake.set()
        job.run()
        if os.getpid() != self._process:  # a process forked by the function also returns here
            os._exit(0)

    def _take_lead(self, thread: PoolThread) -> bool:
        """Wait for the lead and take it. Return False if this thread must exit."""
        with self.lock:
            while self._leader is not None and not self._stopped:
                self._idle += 1
                woken = self._followers.wait(IDLE_SECONDS)
                self._idle -= 1
                # The last idle thread doesn't exit. If a wait timed out just before its thread was notified, there is
                # no leader, so the thread takes the lead.
                if not woken and self._idle and self._leader is not None:
                    return False
            if not self._stopped:
                self._leader = thread
            return not self._stopped

    def _next_job(self) -> Job | None:
        """Return the next job. If no job is ready, or `BATCH` jobs are complete, finish these and return None."""
        if self._done:
            # Callers are waiting for the commit, so don't wait for the next job.
            if len(self._done) < BATCH:
                try:
                    return self._ready.get_nowait()
                except Empty:
                    pass
            deliver(self._finish_done())
            return None
        return self._ready.get()

    def _finish_done(self) -> list[Job]:
        """Finish and return all complete jobs.

        Only one thread at a time does this, so that commits keep their order.
        """
        with self._finishing:
            # Take the jobs under `_finishing`, to include jobs completed while another thread finished its batch.
            with self.lock:
                batch, self._done = self._done, []
            self._finish(batch)
        return batch

    def _take_back(self, job: Job) -> bool:
        """Continue a job after the end of its coroutine.

        If the watcher has already answered the job, clean up and return False.
        """
        with self.lock:
            if self._waiting.take(job):
                self._pace.record_run(job.kind, job.awaited_seconds, 0.0)
                return True
            self._start(self._lanes.leave(job))
            job.ended()
        job.drop()
        return False

    def _let_wait(self, thread: PoolThread, job: Job) -> bool:
        """Move a job to the waiting calls, unless its deadline has passed. Return whether this thread continues."""
        with self.lock:
            if not thread.disowned:
                thread.job = None
                self._start(self._lanes.wait(job))
                if self._pace.record_handover(job.kind, self._waiting.begin(job), job.weight()):
                    self._start(self._lanes.release(job.kind))
                if not self._wake.is_set():
                    self._wake.set()
                return True
        job.drop()
        return False

    def _complete(self, thread: PoolThread, job: Job) -> bool:
        """Complete a job, unless the watcher has completed it at its deadline. Return whether this thread continues."""
        if job.awaiting is not None:
            return self._let_wait(thread, job)
        with self.lock:
            if thread.disowned:
                return False
            now = time.monotonic()
            thread.job = None
            # The duration says nothing about the job's kind if only the last part of the job ran here
            # (`coroutine_time`), or if the job was answered without running, like a repeated call (no deadline).
            if job.lane is not None and not job.coroutine_time and job.deadline is not None:
                seconds = now - thread.since
                self._pace.record_run(job.kind, seconds, 0.0 if seconds < QUICK_SECONDS else thread.used_processor())
            if job.in_lane:
                self._start(self._lanes.leave(job))
            # If the process was suspended, the deadline might have passed without the watcher noticing.
            if job.complete(timed_out=job.is_over(now)):
                self._done.append(job)
            return True

    # What the watcher does

    def _watch(self) -> None:
        """Check all running jobs once per tick, until the stop.

        After some ticks without a job, sleep until the next.
        """
        quiet = 0
        while not self._stopped:
            time.sleep(TICK_SECONDS)
            # Clear the event before the check: a job that starts from here on sets it again, so no job is missed.
            self._wake.clear()
            with self.lock:
                busy = [thread for thread in [*self._threads] if thread.job is not None]
                try:
                    self._look_at(busy)
                except RuntimeError:  # no thread can start now, so the next check tries again
                    log.exception("The system allows no more threads")
                self._look_at_waiting()
            self._waiting.look()
            quiet = 0 if busy or self._wake.is_set() or len(self._waiting) else quiet + 1
            # Don't sleep at once: if single calls arrive in a row, waking this thread for each call costs more than the
            # ticks.
            if quiet > QUIET_TICKS and not self._stopped:
                self._wake.wait()

    def _look_at(self, busy: list[PoolThread]) -> None:
        """Check the running jobs: end them at their deadlines, and give slots to slow jobs. Called under the lock."""
        now = time.monotonic()
        if self._driver is not None:
            self._driver.look(now, TICK_SECONDS)
        # Use `sum`, because `any` would skip threads: `computes` measures the time since its last call, so it must be
        # called for each thread in each tick.
        computing = sum(thread.computes(TICK_SECONDS) for thread in self._stuck) > 0
        for thread in busy:
            thread.looks += 1
            if thread.looks >= SECOND_LOOK:
                computing |= thread.computes(TICK_SECONDS)
                self._look_at_slow(thread)
            if thread.job is not None and thread.job.is_over(now):
                self._time_out(thread, thread.job)
        self._pace.share_interpreter(computing=computing)

    def _look_at_waiting(self) -> None:
        """Answer the waiting calls that missed their deadlines. Start calls on threads if their function was blamed."""
        look_for_cancelled, self._look_for_cancelled = self._look_for_cancelled, False
        for job in self._waiting.take_over(time.monotonic(), look_for_cancelled=look_for_cancelled):
            job.left_behind = True
            job.complete(timed_out=True)
            self._done.append(job)
            self._ready.put(None)
        for job in self._waiting.give_back():
            self._start(self._lanes.leave(job))
            self._start([job])

    def _look_at_slow(self, thread: PoolThread) -> None:
        """Update the lanes and statistics with a slow job. If its thread leads, pass the lead to another thread.

        The thread keeps the lead only if no other thread is idle and the maximum number of threads is running.
        """
        job = thread.job
        if job is not None:
            self._start(self._lanes.occupy(job, *thread.watched()))
        if self._leader is thread and (self._idle or len(self._threads) < self._lanes.max_threads):
            self._replace_leader()

    def _time_out(self, thread: PoolThread, job: Job) -> None:
        """Complete a job at its deadline and disown its thread, which exits when the job ends."""
        # This step is first, because only this step can fail: nothing has changed then, and the next check tries again.
        if self._leader is thread:
            self._replace_leader()
        thread.disowned = job.left_behind = True  # before `complete`, which reads `left_behind`
        # Stop counting the thread towards the maximum number, because an endless loop would otherwise block other jobs.
        self._threads.discard(thread)
        self._stuck.add(thread)
        self._start(self._lanes.leave_behind(job))
        job.complete(timed_out=True)
        self._done.append(job)
        self._ready.put(None)  # wake the leader, which finishes the job
        thread.interruptible.interrupt()  # last, because the answer must not depend on whether the function ends

    # What threads and the watcher do, under the lock

    def _start(self, jobs: Sequence[Job]) -> None:
        """Make jobs ready."""
        for job in jobs:
            self._ready.put(job)

    def _replace_leader(self) -> None:
        """Take the lead from a thread, so that an idle thread or a new thread takes it.

        Raises:
            RuntimeError: The system allows no more threads. The thread keeps the lead.
        """
        if self._idle:
            self._followers.notify()
        else:
            self._start_thread(self._work)
        self._leader = None  # after the start, because this can fail; the other thread reads `_leader` under the lock

    def _discard(self, thread: PoolThread) -> None:
        """Forget a thread that exits, free its job's slots, and resume the session that might wait for the job."""
        with self.lock:
            self._threads.discard(thread)
            self._stuck.discard(thread)
            if thread.disowned and thread.job is not None:
                self._start(self._lanes.leave(thread.job))
                thread.job.ended()
            if self._leader is thread and not self._stopped:
                self._replace_leader()
