"""The queues of sessions: who has the next turn, and what is committed together.

Every session with something to do has a queue. Its operations run one after the other, in order of arrival, each on
what the one before it left. When no more are ready, what operations of all sessions have done is committed at once, and
only then answered.

If other processes may commit to the same sessions, a queue first acquires its session's lease, and releases it with its
last commit or when other workers should have their turn.

The rule: queues change under the lock of the threads alone, which is held briefly and never while the store is asked.
"""

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import Any

from server.engine.cache import SessionCache
from server.engine.commits import Committer
from server.engine.jobs import Errand, Operation, SessionJob, Task, refuse
from server.engine.lanes import Lanes
from server.engine.leases import HEARTBEAT_SECONDS, AcquireTogether, Leases
from server.engine.session_queue import SessionQueue
from server.engine.state import CLOSED, SessionState
from server.engine.state_loader import StateLoader
from server.engine.threads import Threads
from server.errors import OverloadedError, SessionNotFoundError
from server.settings import Settings
from server.stores.base import SessionStore

POLL_SECONDS = 0.005  # how soon a lease is asked for again; less often for operations that have waited long
TURN_SECONDS = 0.5  # how long a queue that is never empty keeps its lease from other workers
YIELD_SECONDS = 0.025  # long enough for all that poll to ask once
STOP_SECONDS = 2.0
MANY = 4  # jobs that came one by one: then the next will, too

AGAIN = "nothing was changed. Send it again."
STOPPING = "The server is stopping; nothing was changed. Send it again, with its call_id."


class Queues:
    """All queues of a worker, with the threads that empty them.

    Args:
        store: Where commits go.
        settings: Limits and retention.

    Attributes:
        cache: The states of the sessions that were used last.
        threads: The threads.
        lanes: The lanes of their jobs.
    """

    def __init__(self, store: SessionStore, settings: Settings) -> None:
        self._settings = settings
        self._limit = f"{settings.queue_timeout_seconds:g} s"
        self.cache = SessionCache(settings.cache_bytes)
        self.lanes = Lanes(settings)
        self.threads = Threads(self._finish, self.lanes)
        self._waiting = 0
        self._lock = self.threads.lock
        self._queues: dict[str, SessionQueue] = {}
        self._arrived: list[SessionJob] = []
        self._lone = 0  # how many jobs have come one by one, each when nothing else was to be done
        self._leases = Leases(store)
        self._committer = Committer(store, settings)
        self._loader = StateLoader(store, self.cache, self._leases)
        self._stopped = threading.Event()
        self._keeper = threading.Thread(target=self._keep_time, name="leases", daemon=True)
        self._keeper.start()

    def run(self, operation: Operation) -> asyncio.Future[Any]:
        """Run an operation when its turn has come; await its answer, which comes once everything is committed.

        Awaiting raises `RequestError` if the operation was refused, and nothing has changed.
        """
        job = SessionJob(self, operation, self.lanes.functions)
        if not self._is_refused(job):
            self._enqueue(job)
        return job.future

    def cancel(self, operation: Operation) -> None:
        """Give an operation up: it leaves its queue, or ends as if its deadline had passed; see `Operation`."""
        operation.cancelled = True
        with self._lock:
            queue = self._queues.get(operation.session_id)
            if queue is not None:
                self._waiting -= queue.cancel(operation)
                self._start_next(operation.session_id, queue)

    def do(self, errand: Errand) -> asyncio.Future[Any]:
        """Do an errand, which waits for no session; await its answer. Awaiting may raise `RequestError`."""
        if not self._is_refused(errand):
            self.threads.submit(errand)
        return errand.future

    def _is_refused(self, task: Task) -> bool:
        """Refuse what comes when the threads have stopped: nobody would ever run it."""
        if self._stopped.is_set():
            task.error = OverloadedError(STOPPING)
            task.deliver()
        return self._stopped.is_set()

    def _enqueue(self, job: SessionJob) -> None:
        """Put a job into its session's queue.

        Jobs that come in one turn of the event loop go to the threads together, at its end: the leading thread then
        finds all of them, and the event loop finishes its turn without sharing the interpreter with it. If the last one
        came alone, the next that finds everything quiet goes at once; after some, it needs no thread of its own.
        """
        self._arrived.append(job)
        if len(self._arrived) > 1:
            return
        if self._lone and not self._queues:
            self._admit()
        else:
            job.loop.call_soon(self._admit)

    def _admit(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._lone = self._lone + 1 if len(arrived) == 1 and not self._queues else 0
        started: list[SessionJob] = []
        with self._lock:
            for job in arrived:
                job.error = self._refusal(job)
                if job.error is not None:
                    job.deliver()
                    continue
                queue = self._queues.get(job.operation.session_id)
                if queue is None:
                    queue = self._queues[job.operation.session_id] = SessionQueue()
                queue.jobs.append(job)
                next_job = queue.take_next()
                if next_job is None:
                    self._waiting += 1
                else:
                    started.append(next_job)
            if self._leases.required:
                started = self._acquire_together(started)
            for job in started:
                self.threads.submit(job, alone=self._lone > MANY)

    def _refusal(self, job: SessionJob) -> Exception | None:
        """Say why a job may not wait for its session."""
        queue = self._queues.get(job.operation.session_id)
        state = queue.state if queue else None
        if state is not None and job.operation.owner != state.session.owner:
            # Answered at once, as for a session that doesn't exist: it must neither wait nor fill another's queue.
            return SessionNotFoundError()
        settings = self._settings
        in_session = len(queue.jobs) if queue else 0
        if in_session >= settings.max_waiting_per_session or self.waiting() >= settings.max_waiting:
            return OverloadedError("Too many calls wait already; nothing was changed. Send it later.")
        return None

    def _acquire_together(self, jobs: list[SessionJob]) -> list[SessionJob]:
        """Acquire the leases of several sessions in one step of the store, then start their jobs; get the others."""
        states: dict[str, SessionState] = {}
        for job in jobs:
            operation = job.operation
            state = self.cache.get(operation.session_id)
            if state is None or state.invalid or self._queues[operation.session_id].state is not None:
                continue
            if operation.owner == state.session.owner:
                states[operation.session_id] = state
        if len(states) < 2:  # noqa: PLR2004 - a single job acquires its lease itself
            return jobs
        for session_id, state in states.items():
            self._queues[session_id].state = state
        together = [job for job in jobs if job.operation.session_id in states]
        self.threads.submit(AcquireTogether(self._leases, self.threads, [*states.values()], together))
        return [job for job in jobs if job.operation.session_id not in states]

    def forget(self, session_ids: Iterable[str]) -> None:
        """Forget what is known of sessions that were closed."""
        with self._lock:
            for session_id in session_ids:
                queue = self._queues.get(session_id)
                for state in (queue.state if queue else None, self.cache.get(session_id)):
                    if state is not None:
                        state.invalid = CLOSED
                self.cache.discard(session_id)

    def waiting(self) -> int:
        """Count the operations and reads that haven't started."""
        return self._waiting + self.lanes.waiting

    def is_idle(self) -> bool:
        """Whether there is nothing to wait for: no session has anything to do, or the threads have stopped."""
        queues = list(self._queues.values())
        return self._stopped.is_set() or not (self._arrived or any(queue.has_work() for queue in queues))

    def stop(self) -> None:
        """Stop the threads, refuse whatever hasn't been committed, and release all leases; called on the event loop."""
        if self._stopped.is_set():
            return
        unfinished: list[Any] = [*self._arrived, *self.threads.stop()]
        with self._lock:
            for queue in self._queues.values():
                unfinished += queue.jobs
                if queue.state is not None:
                    self._leases.release(queue.state)
        for task in unfinished + [job for each in unfinished if isinstance(each, AcquireTogether) for job in each.jobs]:
            if isinstance(task, Task):
                task.error = OverloadedError(STOPPING)
                task.deliver()
        self._stopped.set()
        self._keeper.join(STOP_SECONDS)

    def enter(self, operation: Operation) -> SessionState | None:
        """See `Turns.enter`."""
        return self._loader.load(self._queues[operation.session_id], operation)

    def leave(self, job: SessionJob, *, timed_out: bool) -> bool:
        """See `Turns.leave`."""
        queue = self._queues[job.operation.session_id]
        queue.running = False
        now = time.monotonic()
        if not timed_out and job.waits_for_lease():
            queue.park(job, now, POLL_SECONDS)
            self._waiting += 1
            return False
        queue.unfinished += 1
        if job.left_behind and job.stuck_from > now:
            queue.left_behind = job
        leased = self._leases.required and queue.state is not None and queue.state.leased
        queue.closing = leased and (not queue.jobs or now - queue.turn_began > TURN_SECONDS)
        job.apply(timed_out=timed_out, release=queue.closing)
        self._start_next(job.operation.session_id, queue)
        return True

    def resume(self, job: SessionJob) -> None:
        """See `Turns.resume`."""
        queue = self._queues.get(job.operation.session_id)
        if queue is not None and queue.left_behind is job:
            queue.left_behind = None
            self._start_next(job.operation.session_id, queue)

    def _start_next(self, session_id: str, queue: SessionQueue) -> None:
        """Start the next operation of a session, or forget a queue that has nothing to do any more."""
        job = queue.take_next()
        if job is not None:
            self._waiting -= 1
            self.threads.submit(job)
        elif queue.is_empty():
            del self._queues[session_id]

    def _finish(self, tasks: list[Task]) -> None:
        """Commit what jobs have done."""
        jobs = [task for task in tasks if isinstance(task, SessionJob)]
        self._committer.commit(jobs)
        with self._lock:
            for job in jobs:
                job.settle()
                queue = self._queues[job.operation.session_id]
                queue.unfinished -= 1
                if not queue.unfinished and not queue.running:
                    self._pause(job, queue)

    def _pause(self, last: SessionJob, queue: SessionQueue) -> None:
        """Put the state of a session back whose jobs are all committed; release its lease unless more jobs wait."""
        state = queue.state
        if state is not None and (queue.closing or state.invalid or not queue.jobs):
            released = last.committed and last.commit is not None and last.commit.release
            self._leases.release(state, committed=released)
        if state is not None and state.invalid:
            self.cache.discard(last.operation.session_id)
            queue.state = None
        elif state is not None:
            self.cache.put(state)
        now = time.monotonic()
        if queue.closing and queue.jobs and now - queue.turn_began > TURN_SECONDS:
            queue.turn_began = queue.parked_until = now + YIELD_SECONDS
        queue.closing = False
        self._start_next(last.operation.session_id, queue)

    def _keep_time(self) -> None:
        """Refuse what has waited too long; send heartbeats; ask for leases again."""
        while not self._stopped.wait(POLL_SECONDS if self._leases.required else HEARTBEAT_SECONDS):
            self._leases.keep_up(self._queues.__contains__)
            with self._lock:
                now = time.monotonic()
                for session_id, queue in list(self._queues.items()):
                    for job in queue.expire(now, now - self._settings.queue_timeout_seconds):
                        self._waiting -= 1
                        refuse(job, f"The call waited {self._limit} for its session; {AGAIN}")
                    self._start_next(session_id, queue)
                self._expire_unstarted(now)
        self._leases.keep_up(self._queues.__contains__)

    def _expire_unstarted(self, now: float) -> None:
        """Refuse what has waited too long for a thread."""
        for task in self.threads.expire(now - self._settings.queue_timeout_seconds):
            if isinstance(task, SessionJob):
                queue = self._queues[task.operation.session_id]
                queue.running = False
                self._start_next(task.operation.session_id, queue)
            if isinstance(task, Task):
                refuse(task, f"The request waited {self._limit} for a thread; {AGAIN}")
