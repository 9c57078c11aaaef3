"""The calls whose coroutines wait on shared loops, a loop for each function.

Whoever takes a job out of those that wait, under the lock of the threads, decides what becomes of it: the
thread that goes on with it, or the watcher at its deadline.

A function may share a loop from its first call on. The watcher blames one that blocks the loop or computes there: its
later calls run in threads, and so do those that haven't begun. Calls that have begun stay on the loop. Their clocks
stand while a step of another call keeps it. If that step has passed its own deadline and can't be interrupted, the loop
is given up, and they are refused: nothing has changed.

A job is in one of these places:

    _waiting   its coroutine runs or awaits on the loop of its function; nobody has answered it
    taken      the coroutine has ended: a thread has the job, and goes on with what it returned
    _ending    its deadline was faster: the watcher has answered it, and its coroutine is cancelled, every second
               anew, until it ends; who then takes the job learns that there is nothing left to do
    given back its function was blamed before it began: it goes to its lane, and then runs on a thread

Both that end the waiting may come at the same moment. The lock lets one be first: `take` and `take_over` both remove
the job from `_waiting`, and whoever finds it gone leaves it to the other.
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

BLOCKED_LOOKS = 10  # of the watcher at one step, until the step counts as one that blocks, and for each further time
BLOCKED_TIMES = 4  # more than there were calls without such a step, until a function is blamed
INTERRUPTIONS = 20  # of a step that has passed its deadline, one after BLOCKED_LOOKS, until its loop is given up
COMPUTED_SECONDS = 0.03  # of the processor in one step, until it counts as one that computes
AGAIN_SECONDS = 1.0  # until a coroutine that doesn't end is cancelled again


class Waiting:
    """Calls that wait; `settled` gets each whose coroutine has ended, on the loop's thread."""

    def __init__(self, settled: Callable[[Job], None], pace: Pace) -> None:
        self._settled = settled
        self._pace = pace
        self._loops: dict[str, SharedLoop] = {}
        # With their entries in `_deadlines`, and for how long the loop was kept from them before.
        self._waiting: dict[Job, tuple[SharedLoop, list[Any], float]] = {}
        self._blocked: Counter[str] = Counter()  # how often a function's steps blocked, less calls without such steps
        self._given_up: set[SharedLoop] = set()
        self._ending: dict[Job, tuple[SharedLoop, float]] = {}  # answered already, with when to cancel them again
        self._deadlines: list[list[Any]] = []  # a heap: the time, a number, and the job, unless it has ended
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ending)

    def stuck(self, now: float) -> int:
        """Count the calls that have passed their own deadlines and don't end."""
        return sum(job.stuck_from < now and not job.held_up for job in list(self._ending))

    # Called under the lock

    def begin(self, job: Job) -> str:
        """Let a job wait for its coroutine; return the function that made it."""
        awaiting = job.awaiting
        if awaiting is None or job.deadline is None:
            raise RuntimeError("the job has no coroutine, or no deadline")
        loop = self._loops.get(awaiting.function)
        if loop is None:
            loop = self._loops[awaiting.function] = SharedLoop(InterruptibleThread())

        def done(call: SharedCall) -> None:
            began, job.settled_at = job.settled_at, time.monotonic()
            job.awaited_seconds = job.settled_at - began
            self._settled(job)
            if not call.kept and self._blocked[awaiting.function] > 0:
                self._blocked[awaiting.function] -= 1
            if call.used_threads:
                self.blame(awaiting.function, "hands work to threads")

        job.awaiting = None
        job.call = SharedCall(awaiting.coroutine, done, job.context)
        job.settled_at = time.monotonic()
        self._push(job, loop, loop.kept)
        try:
            loop.begin(job.call)
        except RuntimeError:  # the next one tries again
            log.exception("The system allows no more threads")
        return awaiting.function

    def _push(self, job: Job, loop: SharedLoop, kept: float) -> None:
        entry = [job.deadline, next(self._numbers), job]
        self._waiting[job] = loop, entry, kept
        heapq.heappush(self._deadlines, entry)

    def give_back(self) -> list[Job]:
        """Take the jobs out whose functions were blamed before their coroutines began."""
        given_back = []
        for function, loop in self._loops.items():
            if self._pace.is_blamed(function) and (calls := loop.give_back()):
                jobs = {job.call: job for job in self._waiting}
                for call in calls:
                    job = jobs.get(call)
                    if job is None:  # the server stops
                        call.coroutine.close()
                        continue
                    self._waiting.pop(job)[1][2] = None
                    job.call, job.awaiting = None, Awaiting(function, call.coroutine)
                    given_back.append(job)
        return given_back

    def go_on(self, job: Job) -> None:
        """Let the clock of a job go on that was given back and has a thread now."""
        if job.awaiting is not None and job.deadline is not None:
            job.deadline += time.monotonic() - job.settled_at

    def _catch_up(self, job: Job) -> float:
        """Move a job's deadline by the time for which others have kept its loop; return that time."""
        loop, _, before = self._waiting[job]
        if job.call is None or job.deadline is None:
            return 0.0
        lost = loop.kept - job.call.kept - before
        job.deadline += lost
        return lost

    def take(self, job: Job) -> bool:
        """Take a job out to go on with it; get False if it was answered meanwhile, and has ended now."""
        if job not in self._waiting:
            self._ending.pop(job, None)
            return False
        self._catch_up(job)
        self._waiting.pop(job)[1][2] = None
        if job.deadline is not None:
            job.deadline += time.monotonic() - job.settled_at
        return True

    def take_all(self) -> list[Job]:
        """Take all jobs out that wait, and end the loops: the threads stop."""
        jobs, self._waiting = [*self._waiting], {}
        for loop in self._loops.values():
            loop.end()
        return jobs

    def take_over(self, now: float, *, look_for_cancelled: bool) -> list[Job]:
        """Take those out that have passed their deadlines, or were cancelled; their coroutines are cancelled."""
        over: list[Job] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            job = heapq.heappop(self._deadlines)[2]
            if job in self._waiting:
                loop, _, before = self._waiting[job]
                before += self._catch_up(job)
                if job.is_over(now):
                    over.append(job)
                else:
                    self._push(job, loop, before)
        for job, (loop, _, _) in [*self._waiting.items()] if self._given_up else ():
            if loop in self._given_up:
                job.held_up = True
                over.append(job)
        if look_for_cancelled:
            over += [job for job in self._waiting if job.is_cancelled()]
        taken = []
        for job in over:
            # Not once its coroutine has returned: what that has left may swallow its cancellation, and never end.
            ended = job.call is None or job.call.ended
            if job in self._waiting and not ended and (job.held_up or job.is_over(now)):
                self._ending[job] = self._waiting.pop(job)[0], now
                taken.append(job)
        for job, (loop, at) in self._ending.items():
            if at <= now:
                self._ending[job] = loop, now + AGAIN_SECONDS
                call = job.call
                if call is not None:
                    call.cancelled = True  # at once: the loop may be kept by its step
                    loop.call_soon_threadsafe(call.cancel)
        return taken

    # Called by the watcher, without the lock

    def look(self) -> None:
        """Look at all loops, and blame the functions whose steps block or compute."""
        for function, loop in list(self._loops.items()):
            looks, used, call = loop.look()
            if used >= COMPUTED_SECONDS:
                self.blame(function, "has computed without awaiting")
            if looks and looks % BLOCKED_LOOKS == 0:
                loop.keep(call)
                to_be_ended = call is not None and call.cancelled
                self._blocked[function] += used < looks * LOOK_SECONDS / 2
                if self._blocked[function] >= BLOCKED_TIMES or to_be_ended:
                    self.blame(function, "has blocked without awaiting")
                if call is not None and to_be_ended:
                    _interrupt(loop, call)
                    call.interrupted += 1
                    if call.interrupted >= INTERRUPTIONS:
                        self._given_up.add(loop)

    def blame(self, function: str, why: str) -> None:
        if self._pace.blame(function):
            level = logging.INFO if why == "hands work to threads" else logging.WARNING
            log.log(level, "The async function %s %s: its calls run in threads from now on.", function, why)


def _interrupt(loop: SharedLoop, call: SharedCall) -> None:
    """Raise `Interrupted` in a step that has passed its deadline; asyncio makes it the end of that step's task."""
    thread, block = loop.thread, loop.block
    if thread is None or thread.ident is None or not isinstance(block, InterruptibleThread):
        return
    # Asked at the last moment: the step may just have ended, and the exception must not hit another call's.
    block.interrupt(thread.ident, lambda: getattr(asyncio.current_task(loop), "call", None) is call)
