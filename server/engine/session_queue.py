"""The queue of one session.

The rule: it decides nothing but whether the next operation may start.
"""

import time
from collections import deque

from server.engine.jobs import Operation, SessionJob
from server.engine.state import SessionState

SLOW_POLL_SECONDS = 0.02


class SessionQueue:
    """The operations that wait for one session.

    Attributes:
        jobs: Those that haven't started.
        running: One of them is running.
        unfinished: How many have run and wait for their commit.
        state: The session's state as the last operation left it, committed or not.
        left_behind: A job that has passed its deadline and still runs; the next one waits for its end.
        closing: The lease is released with the last commit, so nothing starts before that has ended.
        turn_began: Since when the session has been worked on without a pause, on the monotonic clock.
        parked_until: When to ask for the lease again, on the monotonic clock; None if it needn't be waited for.
    """

    __slots__ = ("closing", "jobs", "left_behind", "parked_until", "running", "state", "turn_began", "unfinished")

    def __init__(self) -> None:
        self.jobs: deque[SessionJob] = deque()
        self.running = False
        self.unfinished = 0
        self.state: SessionState | None = None
        self.left_behind: SessionJob | None = None
        self.closing = False
        self.turn_began = time.monotonic()
        self.parked_until: float | None = None

    def is_empty(self) -> bool:
        """Whether nothing needs to be known of the session any more."""
        return not (self.has_work() or self.left_behind)

    def has_work(self) -> bool:
        """Whether the session has something to do."""
        return bool(self.jobs or self.running or self.unfinished)

    def expire(self, now: float, before: float) -> list[SessionJob]:
        """Note what needn't be waited for any longer, and let the jobs go that arrived before a time."""
        if self.parked_until is not None and now >= self.parked_until:
            self.parked_until = None
        if self.left_behind is not None and now > self.left_behind.stuck_from:
            self.left_behind = None  # it counts as stuck now
        expired = []
        while self.jobs and self.jobs[0].arrived < before:
            expired.append(self.jobs.popleft())
        return expired

    def park(self, job: SessionJob, now: float, seconds: float) -> None:
        """Put a job back that waits for the session's lease, to ask for it again after so many seconds or some more."""
        self.parked_until = now + min(max(seconds, (now - job.arrived) / 50), SLOW_POLL_SECONDS)
        self.jobs.appendleft(job)

    def cancel(self, operation: Operation) -> int:
        """Let the job of an operation go, if it waits here, and get the number of those that have gone."""
        waiting = [job for job in self.jobs if job.operation is operation]
        for job in waiting:
            self.jobs.remove(job)
        return len(waiting)

    def take_next(self) -> SessionJob | None:
        """Take the next operation, which is to be started now; None if there is none that may start."""
        if not self.jobs or self.running or self.closing or self.parked_until is not None:
            return None
        if self.left_behind is not None or (self.unfinished and self.jobs[0].operation.after_commits):
            return None
        self.running = True
        return self.jobs.popleft()
