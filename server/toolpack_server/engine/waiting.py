"""Waiting calls: calls of async functions that await on shared event loops, one loop for each function.

A waiting call needs memory but no thread, so a worker can have many of them. A job leaves the waiting jobs under the
lock of the threads. The thread that removes the job decides the outcome: a pool thread continues the job, or the
watcher answers it at its deadline.

A function uses a shared loop from its first call on. The watcher *blames* a function that blocks the loop or computes
on it. The function's later calls, and calls that haven't started, then run in threads. Calls that have started stay on
the loop. A *step* is the code that runs between two awaits. While a step of one call blocks the loop, the deadlines of
the other calls are extended. If this step has missed its own deadline and can't be interrupted, the loop is abandoned,
and its calls are refused without any change.

A job is in one of these states:

    _waiting   its coroutine runs or awaits on the function's loop, and the job isn't answered
    taken      the coroutine has ended, and a thread continues the job with the coroutine's result
    _ending    the deadline came first: the watcher has answered the job, and cancels its coroutine every second until
               the coroutine ends; the thread that then takes the job only cleans up
    given back the function was blamed before the coroutine started: the job enters its lane, then runs on a thread

The coroutine can end at the same moment as the deadline passes. `take` and `take_over` both remove the job from
`_waiting` under the lock, so only the first of them has an effect.
"""

import asyncio
import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from toolpack_server.base.logger import log
from toolpack_server.engine.interruption import InterruptibleThread
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.pace import LOOK_SECONDS, Pace
from toolpack_server.functions.shared_loop import SharedCall, SharedLoop
from toolpack_server.functions.steps import Awaiting

BLOCKED_LOOKS = 10  # number of the watcher's checks of one step that count as one block of the loop
BLOCKED_TIMES = 4  # number of blocks, minus the calls without a block, at which a function is blamed
# Interruptions of a step after its deadline, one every BLOCKED_LOOKS, after which the step's loop is abandoned.
INTERRUPTIONS = 20
COMPUTED_SECONDS = 0.03  # minimum CPU time of a step that counts as computing
AGAIN_SECONDS = 1.0  # time between two cancellations of a coroutine that doesn't end


class Waiting:
    """The waiting calls of a worker.

    Args:
        coroutine_ended: Called with a job, on the loop's thread, when the job's coroutine has ended.
    """

    def __init__(self, coroutine_ended: Callable[[Job], None], pace: Pace) -> None:
        self._coroutine_ended = coroutine_ended
        self._pace = pace
        self._loops: dict[str, SharedLoop] = {}
        # By job: its loop, its entry in `_deadlines`, and the loop's blocked seconds that its deadline already
        # includes.
        self._waiting: dict[Job, tuple[SharedLoop, list[Any], float]] = {}
        self._blocked: Counter[str] = Counter()  # by function: blocks by its steps, minus its calls without a block
        self._given_up: set[SharedLoop] = set()  # abandoned loops
        self._ending: dict[Job, tuple[SharedLoop, float]] = {}  # answered jobs, with the time of the next cancellation
        self._deadlines: list[list[Any]] = []  # heap of [time, number, job]; the job is None if it no longer waits
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ending)

    def stuck(self, now: float) -> int:
        """Return the number of calls that have missed their functions' own deadlines but don't end."""
        return sum(job.stuck_from < now and not job.held_up for job in list(self._ending))

    # Called under the lock

    def begin(self, job: Job) -> str:
        """Start the coroutine of a job on its function's loop. Return the function's name."""
        awaiting = job.awaiting
        if awaiting is None or job.deadline is None:
            raise RuntimeError("the job has no coroutine, or no deadline")
        loop = self._loops.get(awaiting.function)
        if loop is None:
            loop = self._loops[awaiting.function] = SharedLoop(InterruptibleThread())

        def done(call: SharedCall) -> None:
            """Handle the end of the coroutine, on the loop's thread."""
            began, job.coroutine_time = job.coroutine_time, time.monotonic()
            job.awaited_seconds = job.coroutine_time - began
            self._coroutine_ended(job)
            if not call.blocked_seconds and self._blocked[awaiting.function] > 0:  # a call without a block
                self._blocked[awaiting.function] -= 1
            if call.used_threads:
                self.blame(awaiting.function, "hands work to threads")

        job.awaiting = None
        job.call = SharedCall(awaiting.coroutine, done, job.context)
        job.coroutine_time = time.monotonic()
        self._push(job, loop, loop.blocked_seconds)
        try:
            loop.begin(job.call)
        except RuntimeError:  # the next call tries to start the loop's thread again
            log.exception("The system allows no more threads")
        return awaiting.function

    def _push(self, job: Job, loop: SharedLoop, blocked_before: float) -> None:
        """Make a job wait on a loop until its deadline, which already includes the loop's `blocked_before` seconds."""
        entry = [job.deadline, next(self._numbers), job]  # the number orders entries with the same deadline
        self._waiting[job] = loop, entry, blocked_before
        heapq.heappush(self._deadlines, entry)

    def give_back(self) -> list[Job]:
        """Remove and return the jobs whose function was blamed before their coroutine started."""
        given_back = []
        for function, loop in self._loops.items():
            if self._pace.is_blamed(function) and (calls := loop.give_back()):
                jobs = {job.call: job for job in self._waiting}
                for call in calls:
                    job = jobs.get(call)
                    if job is None:  # the server is stopping
                        call.coroutine.close()
                        continue
                    self._waiting.pop(job)[1][2] = None  # the entry stays in the heap, but without the job
                    job.call, job.awaiting = None, Awaiting(function, call.coroutine)
                    given_back.append(job)
        return given_back

    def go_on(self, job: Job) -> None:
        """Extend the deadline of a job that a loop has returned, by the time for which the job waited for a thread."""
        if job.awaiting is not None and job.deadline is not None:
            job.deadline += time.monotonic() - job.coroutine_time

    def _catch_up(self, job: Job) -> float:
        """Extend a job's deadline by the time that other calls have newly blocked its loop. Return this time."""
        loop, _, before = self._waiting[job]
        if job.call is None or job.deadline is None:
            return 0.0
        lost = loop.blocked_seconds - job.call.blocked_seconds - before
        job.deadline += lost
        return lost

    def take(self, job: Job) -> bool:
        """Remove a job after the end of its coroutine, so that it can continue.

        Return False if the watcher has already answered the job.
        """
        if job not in self._waiting:
            self._ending.pop(job, None)
            return False
        self._catch_up(job)
        self._waiting.pop(job)[1][2] = None  # the entry stays in the heap until its time, but without the job
        if job.deadline is not None:  # the time from the coroutine's end to now isn't the function's fault
            job.deadline += time.monotonic() - job.coroutine_time
        return True

    def take_all(self) -> list[Job]:
        """Remove and return all waiting jobs, and end the loops, because the threads stop."""
        jobs, self._waiting = [*self._waiting], {}
        for loop in self._loops.values():
            loop.end()
        return jobs

    def take_over(self, now: float, *, look_for_cancelled: bool) -> list[Job]:
        """Remove and return the jobs that missed their deadlines or were cancelled, and cancel their coroutines.

        Args:
            look_for_cancelled: Also check all jobs for a cancellation, which takes longer.
        """
        over: list[Job] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            job = heapq.heappop(self._deadlines)[2]
            if job in self._waiting:
                loop, _, before = self._waiting[job]
                before += self._catch_up(job)
                if job.is_over(now):
                    over.append(job)
                else:  # the deadline was extended, because other calls have blocked the loop
                    self._push(job, loop, before)
        for job, (loop, _, _) in [*self._waiting.items()] if self._given_up else ():
            if loop in self._given_up:
                job.held_up = True
                over.append(job)
        if look_for_cancelled:
            over += [job for job in self._waiting if job.is_cancelled()]
        taken = []
        for job in over:
            # Don't cancel after the coroutine has returned: tasks that it left might swallow the cancellation, so that
            # the call would never end.
            ended = job.call is None or job.call.ended
            if job in self._waiting and not ended and (job.held_up or job.is_over(now)):
                self._ending[job] = self._waiting.pop(job)[0], now
                taken.append(job)
        for job, (loop, at) in self._ending.items():  # also earlier jobs, because coroutines can swallow a cancellation
            if at <= now:
                self._ending[job] = loop, now + AGAIN_SECONDS
                call = job.call
                if call is not None:
                    # Set this now, because `look` reads it, and the loop runs the callback late if the call blocks it.
                    call.cancelled = True
                    loop.call_soon_threadsafe(call.cancel)
        return taken

    # Called by the watcher, without the lock

    def look(self) -> None:
        """Check all loops, and blame the functions with steps that block or compute."""
        for function, loop in list(self._loops.items()):
            looks, used, call = loop.look()
            if used >= COMPUTED_SECONDS:
                self.blame(function, "has computed without awaiting")
            if looks and looks % BLOCKED_LOOKS == 0:
                loop.add_blocked_time(call)
                to_be_ended = call is not None and call.cancelled
                # A step that used the CPU for half of the time isn't counted as a block: it computes, as checked above.
                self._blocked[function] += used < looks * LOOK_SECONDS / 2
                if self._blocked[function] >= BLOCKED_TIMES or to_be_ended:
                    self.blame(function, "has blocked without awaiting")
                if call is not None and to_be_ended:
                    _interrupt(loop, call)
                    call.interrupted += 1
                    if call.interrupted >= INTERRUPTIONS:
                        self._given_up.add(loop)

    def blame(self, function: str, why: str) -> None:
        """Make the calls of a function run in threads from now on, and log why."""
        if self._pace.blame(function):
            level = logging.INFO if why == "hands work to threads" else logging.WARNING
            log.log(level, "The async function %s %s: its calls run in threads from now on.", function, why)


def _interrupt(loop: SharedLoop, call: SharedCall) -> None:
    """Raise `Interrupted` in a step that has missed its deadline. In asyncio, this ends the step's task."""
    thread, block = loop.thread, loop.block
    if thread is None or thread.ident is None or not isinstance(block, InterruptibleThread):
        return
    # Check the current task at the last moment, because the exception must not reach the step of another call.
    block.interrupt(thread.ident, lambda: getattr(asyncio.current_task(loop), "call", None) is call)
