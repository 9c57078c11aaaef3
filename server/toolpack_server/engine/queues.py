"""Queues of sessions: the order of operations in each session, and their common commits.

Every session with work has a queue. Its operations run one after the other in order of arrival, each on the result of
the previous one. When no operation is ready, all results are committed together, and then sent to the callers.

If other processes can commit to the same sessions, a queue first acquires its session's lease. It releases the lease
with its last commit, or when other workers should get a turn. Queues change only under the lock of the threads, which
is held briefly and never during access to the store.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import (
    InternalError,
    MissingBlobError,
    OverloadedError,
    RequestError,
    SessionNotFoundError,
)
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.engine.commits import Committer, Measure
from toolpack_server.engine.jobs import Job, Operation, ThreadJob
from toolpack_server.engine.leases import HEARTBEAT_SECONDS, AcquireLeases, Leases
from toolpack_server.engine.pool_thread import interruptible
from toolpack_server.engine.session_clock import SessionClock
from toolpack_server.engine.state import CLOSED, Effect, SessionState
from toolpack_server.engine.threads import Threads
from toolpack_server.functions.leftovers import resumed, suspended
from toolpack_server.functions.steps import CoroutineResult, Steps, await_here
from toolpack_server.stores.base import Commit, Head, SessionStore

POLL_SECONDS = 0.005  # minimum delay between two attempts to acquire a lease; it grows with the job's waiting time
SLOW_POLL_SECONDS = 0.02
TURN_SECONDS = 0.5  # maximum time that a queue with work keeps its lease from other workers
YIELD_SECONDS = 0.025  # delay before the queue acquires the lease again, in which each waiting worker tries once
STOP_SECONDS = 2.0
CALL_BYTES = 16 * 1024  # memory of a waiting call, without its session's state
LEFT_BEHIND_MAX = 2  # number of a session's abandoned functions at which the session waits, until their own deadlines

AGAIN = "nothing was changed. Send it again."
CANCELLED = "The call was cancelled; nothing was changed."
HELD_UP = "A call of another session blocks the event loop of this async function; nothing was changed. Send it again."
NOT_KEPT = "The call before this one could not be kept; nothing was changed. Send it again."
NOT_THERE = "The store has lost the data on which the call was to run; nothing was changed. Send it again."
STOPPING = "The server is stopping; nothing was changed. Send it again, with its call_id."


class SessionJob(Job):
    """Job that runs an operation in its session's queue, and the operations that follow from `Effect.next`.

    These operations are the *links* of a *chain*. No other operation of the session runs between them, and they commit
    together. The caller receives the answer of its own operation after the last link. If a link before this operation
    fails, the operation also fails. If a link after it fails, the chain ends, but the answer stays the same.
    """

    def __init__(self, queues: "Queues", operation: Operation) -> None:
        super().__init__()
        self.kind, self.owner, self.lane = operation.kind, operation.owner, operation.lane
        self._queues = queues
        self.operation = operation
        self.trace = operation.trace
        self.state: SessionState | None = None
        self.commits: list[Commit] = []
        self.committed = False
        self._link = operation  # the operation that is running
        self._answered = False  # the caller's operation has ended, so its answer is known
        self._first_answer: Any = None
        self.is_chain = False
        self._steps: Steps[Effect] | None = None  # the remaining steps of the link
        self._left_work = False

    def work(self) -> Effect | None:
        """Enter the session, and run the operation up to its end or its next coroutine for a shared loop.

        Return None if the operation awaits a coroutine, or if another worker holds the session's lease.
        """
        call, steps, threads = self.call, self._steps, self._queues.threads
        result: CoroutineResult | None = None
        if call is not None and steps is not None:
            self.call, result = None, call.result
            resumed(left_work=self._left_work or call.left_work)
        elif steps is None:
            if self.operation.cancelled and not self._answered:
                raise OverloadedError(CANCELLED)
            if self.state is None:
                if self.trace is not None:
                    self.trace.runs()
                self.state = self._queues.enter(self.operation)
                if self.state is None:
                    return None
            steps = self._steps = self._link.steps(self.state, self.start_clock)
        try:
            awaiting, self.awaiting = self.awaiting, None  # a coroutine that a loop has returned unstarted
            if awaiting is not None:
                resumed(left_work=self._left_work)
            else:
                awaiting = next(steps) if result is None else steps.send(result)
            while not threads.may_share(self.kind, awaiting.function):
                awaiting = steps.send(await_here(awaiting, interruptible()))
        except StopIteration as end:
            self._steps = None
            effect: Effect = end.value
            return effect
        self.awaiting, self._left_work = awaiting, suspended()
        return None

    def weight(self) -> int:
        return CALL_BYTES + self.state.size() if self.state else 0

    def drop(self) -> None:
        if self.awaiting is not None:
            self.awaiting.coroutine.close()
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def why_missing(self, missing: MissingBlobError) -> RequestError:
        """Read the head again, and return the error: the session was closed, or the store has lost its newest data."""
        state, head = self.state, self._queues.head(self.operation.session_id)
        if state is None:
            return super().why_missing(missing)
        if head is None:
            state.invalid = CLOSED
            return SessionNotFoundError()
        if {*missing.args} & {*state.parts.values()} - {*head.parts.values()}:
            state.invalid = NOT_THERE
            return OverloadedError(NOT_THERE)
        return super().why_missing(missing)

    def start_clock(self, seconds: float, stuck_after: float = float("inf")) -> None:
        super().start_clock(seconds, stuck_after)
        # From here on, the watcher checks for cancellation. An operation that was cancelled earlier must not start.
        if self.operation.cancelled and not self._answered:
            raise OverloadedError(CANCELLED)

    def is_cancelled(self) -> bool:
        return self.operation.cancelled and not self._answered

    def complete(self, *, timed_out: bool) -> bool:
        return self._queues.leave(self, timed_out=timed_out)

    def ended(self) -> None:
        self._queues.resume(self)

    def ended_unheard(self) -> None:
        self.operation.ended_unheard()

    def waits_for_lease(self) -> bool:
        """Return whether the session couldn't be entered because another worker holds its lease."""
        return self.state is None and self._raised is None

    def apply_link(self, state: SessionState, effect: Effect, now: float) -> None:
        """Apply the effect of a link that isn't the last link, and prepare the next link."""
        commit = state.apply(effect, now, release=False)
        if commit is not None:
            self.commits.append(commit)
        if self._link is self.operation and effect.next is not self.operation and effect.record is not None:
            self._first_answer, self._answered = effect.answer, True
        self._link = effect.next
        self.is_chain = True
        self.arrived = time.monotonic()
        self.kind = self._link.kind
        self.deadline, self.stuck_from, self.coroutine_time = None, float("inf"), 0.0
        self.returned = None

    def apply(self, now: float, *, timed_out: bool, release: bool) -> None:
        """Apply the operation's result to the session's state, and add the commit.

        Args:
            now: The time by the session clock.
            release: Release the lease with the commit.
        """
        state = self.state
        if self.trace is not None:
            self.trace.has_run()
        if state is None or (self._raised is not None and not timed_out):
            self.error = self._raised
            return
        if timed_out and self.is_cancelled():  # without a record, because the caller has cancelled the operation
            self.error = OverloadedError(CANCELLED)
            return
        if timed_out and self.held_up:  # without a record, because a call of another session is the cause
            self.error = OverloadedError(HELD_UP)
            return
        try:
            effect: Effect = self._link.on_timeout(state) if timed_out else self.returned
            self.answer = effect.answer
            commit = state.apply(effect, now, release=release)
            if commit is not None:
                self.commits.append(commit)
        except RequestError as error:
            self.error = error
        except Exception:
            # The result might be half applied, so no operation may build on this state.
            log.exception("The result of a request could not be applied")
            self.error, state.invalid = InternalError(), NOT_KEPT

    def end_chain(self, *, timed_out: bool) -> None:
        """Set the answer of a chain, after `apply` of its last link."""
        if self._answered:
            if self.error is not None:
                log.warning("An operation after a call failed and waits for the session's next call: %s", self.error)
            self.answer, self.error = self._first_answer, None
        elif timed_out and self._link is not self.operation:
            self.error = self.operation.link_timeout_error(self.error)

    def settle(self) -> None:
        """Handle the outcome of the commit. If the session's state has become invalid, the answer becomes an error."""
        state = self.state
        if state is None:
            return
        if self.committed:
            for commit in self.commits:
                for blob_id in commit.blobs:
                    state.unstored.pop(blob_id, None)
                if commit.record.call_id is not None:
                    state.uncommitted.pop(commit.record.call_id, None)
        elif state.invalid and not isinstance(self.error, InternalError):
            # An operation without a commit is also refused, because its answer might come from the invalid state.
            closed = state.invalid == CLOSED
            self.error = SessionNotFoundError() if closed else OverloadedError(state.invalid)


@dataclass(eq=False, slots=True)
class SessionQueue:
    """The waiting operations of one session. The queue decides whether the next operation can start."""

    turn_began: float  # start of the current run of operations without a pause, on the monotonic clock
    jobs: deque[SessionJob] = field(default_factory=deque)
    running: bool = False
    unfinished: int = 0  # number of operations that have run and wait for their commit
    state: SessionState | None = None  # the state after the last operation, committed or not
    left_behind: tuple[SessionJob, ...] = ()  # abandoned jobs that still run, before their functions' own deadlines
    closing: bool = False  # the last commit releases the lease, so no operation starts before this commit has ended
    parked_until: float | None = None  # time of the next attempt to acquire the lease

    def is_empty(self) -> bool:
        """Return whether the queue can be deleted."""
        return not (self.jobs or self.running or self.unfinished or self.left_behind)

    def has_work(self) -> bool:
        return bool(self.jobs or self.running or self.unfinished)

    def take_next(self) -> SessionJob | None:
        """Remove and return the next job, or return None if it must not start now."""
        if not self.jobs or self.running or self.closing or self.parked_until is not None:
            return None
        if len(self.left_behind) >= LEFT_BEHIND_MAX or (self.unfinished and self.jobs[0].operation.after_commits):
            return None
        self.running = True
        return self.jobs.popleft()

    def park(self, job: SessionJob, now: float) -> None:
        """Put back a job that waits for the session's lease. The delay grows with the job's waiting time."""
        self.parked_until = now + min(max(POLL_SECONDS, (now - job.arrived) / 50), SLOW_POLL_SECONDS)
        self.jobs.appendleft(job)

    def cancel(self, operation: Operation) -> int:
        before = len(self.jobs)
        self.jobs = deque(job for job in self.jobs if job.operation is not operation)
        return before - len(self.jobs)

    def expire(self, now: float, before: float) -> list[SessionJob]:
        """Remove and return the jobs that arrived before a time. Also end the queue's delays that are over."""
        if self.parked_until is not None and now >= self.parked_until:
            self.parked_until = None
        if self.left_behind:  # after its function's own deadline, a job counts as stuck, and the session continues
            self.left_behind = tuple(job for job in self.left_behind if now <= job.stuck_from)
        expired = []
        while self.jobs and self.jobs[0].arrived < before:
            expired.append(self.jobs.popleft())
        return expired


class Queues:
    """All queues of a worker, with its threads, leases and commits."""

    def __init__(self, store: SessionStore, settings: Settings, measure: Measure, capacity: int | None = None) -> None:
        self._store = store
        self._settings = settings
        self._limit = f"{settings.queue_timeout_seconds:g} s"
        self.cache = BoundedCache[str, SessionState](settings.cache_bytes, SessionState.size)
        self.threads = Threads(self._finish, settings, capacity)
        self._lock = self.threads.lock
        self._queues: dict[str, SessionQueue] = {}
        self._arrived: list[SessionJob] = []  # jobs of this turn of the event loop, on which alone the list is used
        self._came_alone = False  # the last job came alone, and no session had any work
        self._backlog = self.threads.backlog
        self._max_of_owner = settings.share(settings.max_waiting)
        self.leases = Leases(store)
        self.clock = SessionClock(store.count_time())
        self._committer = Committer(store, settings, measure)
        self._stopped = False
        self._end = threading.Event()
        self._keeper = threading.Thread(target=self._keep_time, name="leases", daemon=True)
        self._keeper.start()

    # Called on the event loop

    def run(self, operation: Operation) -> asyncio.Future[Any]:
        """Add an operation to its session's queue, and return a future for its answer, which is done after the commit.

        If the operation is refused, the future's exception is a `RequestError`, and nothing has changed.
        """
        job = SessionJob(self, operation)
        if self._stopped:
            job.refuse(OverloadedError(STOPPING))
        else:
            self._enqueue(job)
        return job.future

    def do(self, job: ThreadJob) -> asyncio.Future[Any]:
        """Run a job outside of sessions. Return the future for its answer; awaiting it can raise `RequestError`."""
        if self._stopped:  # no thread would run it
            job.refuse(OverloadedError(STOPPING))
        else:
            self.threads.submit(job)
        return job.future

    def cancel(self, operation: Operation) -> None:
        """Cancel an operation: remove it from its queue, or if it is running, end it like at a missed deadline."""
        operation.cancelled = True
        with self._lock:
            queue = self._queues.get(operation.session_id)
            if queue is not None:
                self._backlog.add(operation.owner, -queue.cancel(operation))
                self._start_next(operation.session_id, queue)
        self.threads.look_for_cancelled()

    def waiting(self) -> int:
        return self._backlog.total

    def busy(self) -> Sequence[str]:
        """Return the ids of the sessions that have a queue."""
        return [*self._queues]

    def is_idle(self) -> bool:
        """Return whether no session has work, or the threads have stopped."""
        queues = list(self._queues.values())
        return self._stopped or not (self._arrived or any(queue.has_work() for queue in queues))

    def stop(self) -> None:
        """Stop the threads, refuse all uncommitted jobs, and release all leases."""
        if self._stopped:
            return
        unfinished: list[Job] = [*self._arrived, *self.threads.stop()]
        with self._lock:
            for queue in self._queues.values():
                unfinished += queue.jobs
                if queue.state is not None:
                    self.leases.release(queue.state)
        for job in unfinished:
            job.refuse(OverloadedError(STOPPING))
        self._stopped = True
        self._end.set()
        self._keeper.join(STOP_SECONDS)

    def _enqueue(self, job: SessionJob) -> None:
        """Put a job into its session's queue.

        The jobs of one turn of the event loop are passed to the threads at its end, so that the leader doesn't compete
        with the loop for the interpreter. But a job that probably comes alone, like the last job, is passed on at once.
        """
        self._arrived.append(job)
        if len(self._arrived) > 1:
            return
        if self._came_alone and not self._queues:
            self._admit()
        else:
            job.loop.call_soon(self._admit)

    def _admit(self) -> None:
        """Put the jobs that have arrived into their sessions' queues, and start the jobs that can start now."""
        arrived, self._arrived = self._arrived, []
        # Read without the lock: if a queue is deleted meanwhile, the job only doesn't count as a job that came alone.
        quiet = not self._queues
        self._came_alone = quiet and len(arrived) == 1
        started: list[SessionJob] = []
        with self._lock:
            for job in arrived:
                queue = self._queues.get(job.operation.session_id)
                refusal = self._refusal(job, queue)
                if refusal is not None:
                    job.refuse(refusal)
                    continue
                if queue is None:
                    queue = self._queues[job.operation.session_id] = SessionQueue(time.monotonic())
                queue.jobs.append(job)
                next_job = queue.take_next()
                if next_job is None:
                    self._backlog.add(job.owner, 1)
                else:
                    started.append(next_job)
            if self.leases.required:
                started = self._acquire_leases(started)
            self.threads.submit_arrived(started, alone=self._came_alone)

    def _refusal(self, job: SessionJob, queue: SessionQueue | None) -> Exception | None:
        """Return the error for a job that must not wait, because too many jobs are waiting. None: the job can wait."""
        state = queue.state if queue else None
        if state is not None and job.operation.owner != state.session.owner:
            # Refuse at once, like for an unknown session, because the job must not fill another owner's queue.
            return SessionNotFoundError()
        settings, backlog, most = self._settings, self._backlog, self._max_of_owner
        in_session = len(queue.jobs) if queue else 0
        if in_session >= settings.max_waiting_per_session or backlog.total >= settings.max_waiting:
            return OverloadedError("Too many calls wait already; nothing was changed. Send it later.")
        if backlog.total >= most and backlog.of_owner[job.owner] >= most:
            return OverloadedError(f"{most} of your calls wait already; nothing was changed. Send it later.")
        return None

    def _acquire_leases(self, jobs: list[SessionJob]) -> list[SessionJob]:
        """Submit a job that acquires the leases of several sessions, then starts their jobs. Return the other jobs."""
        states: dict[str, SessionState] = {}
        for job in jobs:
            operation = job.operation
            state = self.cache.get(operation.session_id)
            # A session without a cached state must first be read. Its own job reads it and acquires the lease.
            if state is None or state.invalid or self._queues[operation.session_id].state is not None:
                continue
            if operation.owner == state.session.owner:
                states[operation.session_id] = state
        if len(states) < 2:  # noqa: PLR2004 - a single job acquires its lease itself
            return jobs
        for session_id, state in states.items():
            self._queues[session_id].state = state
        together = [job for job in jobs if job.operation.session_id in states]
        self.threads.submit(AcquireLeases(self.leases, [*states.values()], together, self.threads.submit))
        return [job for job in jobs if job.operation.session_id not in states]

    # Called on the job's thread, without a lock

    def enter(self, operation: Operation) -> SessionState | None:
        """Return the session's state, or None if another worker holds its lease.

        Raises:
            SessionNotFoundError: There is no such session, or it has another owner.
        """
        # No lock, because only the running job uses the queue's state. The store is read only if no state is cached.
        queue = self._queues[operation.session_id]
        state = queue.state
        if state is None or state.invalid:
            state = self.cache.get(operation.session_id)
        if state is None or state.invalid:
            stored = self._store.get(operation.session_id)
            if stored is None:
                raise SessionNotFoundError
            state = SessionState(*stored)
        if operation.owner != state.session.owner:
            raise SessionNotFoundError
        queue.state = state
        if not state.leased:
            self.leases.acquire([state])
            if state.invalid:
                raise SessionNotFoundError
        return state if state.leased else None

    def head(self, session_id: str) -> Head | None:
        """Read a session's head from the store. Return None if the session doesn't exist."""
        stored = self._store.get(session_id)
        return stored and stored[1]

    # Called under the lock

    def leave(self, job: SessionJob, *, timed_out: bool) -> bool:
        """Apply a job's result, and start the next job. Return False if the job will run again (lease, next link)."""
        queue = self._queues[job.operation.session_id]
        queue.running = False
        now = time.monotonic()
        if job.state is None and not timed_out and job.waits_for_lease():
            queue.park(job, now)
            self._backlog.add(job.owner, 1)
            return False
        effect: Effect | None = None if timed_out else job.returned
        if effect is not None and effect.next is not None and job.state is not None:
            job.apply_link(job.state, effect, now + self.clock.ahead)
            queue.running = True
            self.threads.submit(job)
            return False
        queue.unfinished += 1
        if job.left_behind and job.stuck_from > now:
            # The job was abandoned before its function's own deadline. With too many of these jobs, the session waits,
            # because a client could otherwise use up all threads of a worker.
            queue.left_behind += (job,)
        leased = self.leases.required and queue.state is not None and queue.state.leased
        queue.closing = leased and (not queue.jobs or now - queue.turn_began > TURN_SECONDS)
        job.apply(now + self.clock.ahead, timed_out=timed_out, release=queue.closing)
        if job.is_chain:
            job.end_chain(timed_out=timed_out)
        if queue.jobs:
            self._start_next(job.operation.session_id, queue)
        return True

    def resume(self, job: SessionJob) -> None:
        """Resume a session that might be waiting for an abandoned job, which has now ended."""
        queue = self._queues.get(job.operation.session_id)
        if queue is not None and job in queue.left_behind:
            queue.left_behind = tuple(other for other in queue.left_behind if other is not job)
            self._start_next(job.operation.session_id, queue)

    def _start_next(self, session_id: str, queue: SessionQueue) -> None:
        """Pass a queue's next job to the threads, if it can start now. Delete the queue if nothing is left in it."""
        job = queue.take_next() if queue.jobs else None
        if job is not None:
            self._backlog.add(job.owner, -1)
            self.threads.submit(job)
        elif queue.is_empty():
            del self._queues[session_id]

    def _pause(self, last: SessionJob, queue: SessionQueue) -> None:
        """Put a session's state into the cache after all its commits. Release its lease unless more jobs wait."""
        state = queue.state
        if self.leases.required and state is not None and (queue.closing or state.invalid or not queue.jobs):
            released = last.committed and last.commits[-1].release
            self.leases.release(state, committed=released)
        if state is not None and state.invalid:
            self.cache.pop(last.operation.session_id)
            queue.state = None
        elif state is not None:
            self.cache.put(state.session.id, state)
        now = time.monotonic()
        if queue.closing and queue.jobs and now - queue.turn_began > TURN_SECONDS:  # let other workers have a turn
            queue.turn_began = queue.parked_until = now + YIELD_SECONDS
        queue.closing = False
        self._start_next(last.operation.session_id, queue)

    # Called on other threads, which take the lock

    def _finish(self, jobs: list[Job]) -> None:
        """Commit the changes of complete jobs together, then settle the jobs."""
        session_jobs: list[SessionJob] = []
        changing: list[SessionJob] = []
        changes: list[tuple[SessionState, Commit]] = []
        for job in jobs:
            if isinstance(job, SessionJob):
                session_jobs.append(job)
                # Commit nothing that built on a state that an earlier batch has made invalid.
                if job.state is not None and job.commits and not job.state.invalid:
                    changing.append(job)
                    changes += zip(repeat(job.state), job.commits)
        began = time.time_ns()
        kept = self._committer.commit(changes) if changes else ()
        end = 0
        for job in changing:
            end += len(job.commits)
            job.committed = kept[end - 1]  # the last commit decides: after a refusal, later commits are also refused
            if job.trace is not None:
                job.trace.committed(began)
        with self._lock:
            for job in session_jobs:
                job.settle()
                queue = self._queues[job.operation.session_id]
                queue.unfinished -= 1
                if not queue.unfinished and not queue.running:
                    self._pause(job, queue)

    def forget(self, session_ids: Iterable[str]) -> None:
        """Make the states of closed sessions invalid, so that no operation uses them."""
        with self._lock:
            for session_id in session_ids:
                queue = self._queues.get(session_id)
                for state in (queue.state if queue else None, self.cache.get(session_id)):
                    if state is not None:
                        state.invalid = CLOSED
                self.cache.pop(session_id)

    def _keep_time(self) -> None:
        """Keep the leases up, and refuse jobs that have waited too long, until the stop. Runs on its own thread."""
        while not self._end.wait(POLL_SECONDS if self.leases.required else HEARTBEAT_SECONDS):
            self.leases.keep_up(self._queues.__contains__)
            with self._lock:
                now = time.monotonic()
                for session_id, queue in list(self._queues.items()):
                    for job in queue.expire(now, now - self._settings.queue_timeout_seconds):
                        self._backlog.add(job.owner, -1)
                        job.refuse(OverloadedError(f"The call waited {self._limit} for its session; {AGAIN}"))
                    self._start_next(session_id, queue)
                self._expire_in_lanes(now)
        self.leases.end()

    def _expire_in_lanes(self, now: float) -> None:
        """Refuse the jobs that have waited too long in a lane. Their sessions continue with the next job."""
        for job in self.threads.expire(now - self._settings.queue_timeout_seconds):
            if isinstance(job, SessionJob):
                job.drop()
                queue = self._queues[job.operation.session_id]
                queue.running = False
                if job.commits and job.state is not None:  # earlier links were applied, but won't be committed
                    job.state.invalid = NOT_KEPT
                self._start_next(job.operation.session_id, queue)
            job.refuse(OverloadedError(f"The request waited {self._limit} for {job.waits_for}; {AGAIN}"))
