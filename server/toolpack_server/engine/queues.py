"""The queues of sessions: who has the next turn, and what is committed together.

Every session with something to do has a queue. Its operations run one after the other, in order of arrival, each on
what the one before it left. When no more are ready, what operations of all sessions have done is committed at once, and
only then answered.

If other processes may commit to the same sessions, a queue first acquires its session's lease, and releases it with its
last commit or when other workers should have their turn.

Queues change under the lock of the threads alone, which is held briefly and never while the store is asked.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from toolpack_server.functions.steps import CoroutineResult, Steps, settle
from toolpack_server.stores.base import Commit, Head, SessionStore

POLL_SECONDS = 0.005  # how soon a lease is asked for again; less often for operations that have waited long
SLOW_POLL_SECONDS = 0.02
TURN_SECONDS = 0.5  # how long a queue that is never empty keeps its lease from other workers
YIELD_SECONDS = 0.025  # long enough for all that poll to ask once
STOP_SECONDS = 2.0
CALL_BYTES = 16 * 1024  # that a call which waits takes, beside its session's state
MOST_LEFT_BEHIND = 2  # functions of a session that were given up before their own deadlines; then it waits for one

AGAIN = "nothing was changed. Send it again."
CANCELLED = "The call was cancelled; nothing was changed."
HELD_UP = "A call of another session blocks the event loop of this async function; nothing was changed. Send it again."
NOT_KEPT = "The call before this one could not be kept; nothing was changed. Send it again."
NOT_THERE = "The store has lost what the call was to begin with; nothing was changed. Send it again."
STOPPING = "The server is stopping; nothing was changed. Send it again, with its call_id."


class SessionJob(Job):
    """An operation in its session's queue."""

    def __init__(self, queues: "Queues", operation: Operation) -> None:
        super().__init__()
        self.kind, self.owner, self.lane = operation.kind, operation.owner, operation.lane
        self._queues = queues
        self.operation = operation
        self.trace = operation.trace
        self.state: SessionState | None = None
        self.commit: Commit | None = None
        self.committed = False
        self._steps: Steps[Effect] | None = None  # those that are still to be done
        self._left_work = False

    def work(self) -> Effect | None:
        """Enter the session, then run the operation there; None if another worker holds the session's lease.

        It does the next steps, until they end, or there is a coroutine to be awaited elsewhere.
        """
        call, steps, threads = self.call, self._steps, self._queues.threads
        settled: CoroutineResult | None = None
        if call is not None and steps is not None:
            self.call, settled = None, call.settled
            resumed(left_work=self._left_work or call.left_work)
        elif steps is None:
            if self.operation.cancelled:
                raise OverloadedError(CANCELLED)
            if self.trace is not None:
                self.trace.runs()
            self.state = self._queues.enter(self.operation)
            if self.state is None:
                return None
            steps = self._steps = self.operation.steps(self.state, self.start_clock)
        try:
            awaiting, self.awaiting = self.awaiting, None  # one that a loop has given back
            if awaiting is not None:
                resumed(left_work=self._left_work)
            else:
                awaiting = next(steps) if settled is None else steps.send(settled)
            while not threads.may_share(self.kind, awaiting.function):
                awaiting = steps.send(settle(awaiting, interruptible()))
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
        """Read the head again: the session may have been closed, or the store may have lost its newest data."""
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
        # From here on the watcher looks; what was cancelled before it did must not begin.
        if self.operation.cancelled:
            raise OverloadedError(CANCELLED)

    def is_cancelled(self) -> bool:
        return self.operation.cancelled

    def complete(self, *, timed_out: bool) -> bool:
        return self._queues.leave(self, timed_out=timed_out)

    def ended(self) -> None:
        self._queues.resume(self)

    def waits_for_lease(self) -> bool:
        """Whether the session couldn't be entered because another worker holds its lease."""
        return self.state is None and self._raised is None

    def apply(self, now: float, *, timed_out: bool, release: bool) -> None:
        """Move the session's state on by the operation's result, and note what to commit; `release` ends the lease.

        Args:
            now: By the session clock.
        """
        state = self.state
        if self.trace is not None:
            self.trace.has_run()
        if state is None or (self._raised is not None and not timed_out):
            self.error = self._raised
            return
        if timed_out and self.is_cancelled():  # no record: whoever has cancelled it wants nothing of it
            self.error = OverloadedError(CANCELLED)
            return
        if timed_out and self.held_up:  # nor is what another session's call did a fact of this session
            self.error = OverloadedError(HELD_UP)
            return
        try:
            effect: Effect = self.operation.on_timeout(state) if timed_out else self._returned
            self.answer = effect.answer
            self.commit = state.apply(effect, now, release=release)
        except RequestError as error:
            self.error = error
        except Exception:
            # The state may have moved on by half of the result, so nothing may build upon it.
            log.exception("The result of a request could not be applied")
            self.error, state.invalid = InternalError(), NOT_KEPT

    def settle(self) -> None:
        """Take over how the commit has ended: where the session's state has become invalid, the answer is an error."""
        state = self.state
        if state is None:
            return
        if self.committed and self.commit is not None:
            for blob_id in self.commit.blobs:
                state.unstored.pop(blob_id, None)
            if self.commit.record.call_id is not None:
                state.uncommitted.pop(self.commit.record.call_id, None)
        elif state.invalid and not isinstance(self.error, InternalError):
            # Also if there was nothing to commit: the answer may have been read from what is void now.
            closed = state.invalid == CLOSED
            self.error = SessionNotFoundError() if closed else OverloadedError(state.invalid)


@dataclass(eq=False, slots=True)
class SessionQueue:
    """The operations that wait for one session. It decides nothing but whether the next one may start."""

    # Since when the session has been worked on without a pause, on the monotonic clock.
    turn_began: float
    jobs: deque[SessionJob] = field(default_factory=deque)
    running: bool = False
    unfinished: int = 0  # how many have run and wait for their commit
    state: SessionState | None = None  # as the last operation left it, committed or not
    # Those that were given up before their own deadlines, and still run.
    left_behind: tuple[SessionJob, ...] = ()
    closing: bool = False  # the lease is released with the last commit, so nothing starts before that has ended
    parked_until: float | None = None  # when to ask for the lease again

    def is_empty(self) -> bool:
        """Whether nothing needs to be known of the session any more."""
        return not (self.jobs or self.running or self.unfinished or self.left_behind)

    def has_work(self) -> bool:
        return bool(self.jobs or self.running or self.unfinished)

    def take_next(self) -> SessionJob | None:
        if not self.jobs or self.running or self.closing or self.parked_until is not None:
            return None
        if len(self.left_behind) >= MOST_LEFT_BEHIND or (self.unfinished and self.jobs[0].operation.after_commits):
            return None
        self.running = True
        return self.jobs.popleft()

    def park(self, job: SessionJob, now: float) -> None:
        """Put a job back that waits for the session's lease, to ask for it again soon, later if it has waited long."""
        self.parked_until = now + min(max(POLL_SECONDS, (now - job.arrived) / 50), SLOW_POLL_SECONDS)
        self.jobs.appendleft(job)

    def cancel(self, operation: Operation) -> int:
        waiting = [job for job in self.jobs if job.operation is operation]
        for job in waiting:
            self.jobs.remove(job)
        return len(waiting)

    def expire(self, now: float, before: float) -> list[SessionJob]:
        """Note what needn't be waited for any longer, and let the jobs go that arrived before a time."""
        if self.parked_until is not None and now >= self.parked_until:
            self.parked_until = None
        if self.left_behind:  # after its own deadline it counts as stuck
            self.left_behind = tuple(job for job in self.left_behind if now <= job.stuck_from)
        expired = []
        while self.jobs and self.jobs[0].arrived < before:
            expired.append(self.jobs.popleft())
        return expired


class Queues:
    """All queues of a worker, with the threads that empty them."""

    def __init__(self, store: SessionStore, settings: Settings, measure: Measure, places: int | None = None) -> None:
        self._store = store
        self._settings = settings
        self._limit = f"{settings.queue_timeout_seconds:g} s"
        self.cache = BoundedCache[str, SessionState](settings.cache_bytes, SessionState.size)
        self.threads = Threads(self._finish, settings, places)
        self._lock = self.threads.lock
        self._queues: dict[str, SessionQueue] = {}
        self._arrived: list[SessionJob] = []  # in this turn of the event loop; only the event loop uses it
        self._came_alone = False  # the last one, and found nothing else to be done
        self._backlog = self.threads.backlog
        self._most_of_owner = settings.share(settings.max_waiting)
        self.leases = Leases(store)
        self.clock = SessionClock(store.count_time())
        self._committer = Committer(store, settings, measure)
        self._stopped = False
        self._end = threading.Event()
        self._keeper = threading.Thread(target=self._keep_time, name="leases", daemon=True)
        self._keeper.start()

    # Called on the event loop

    def run(self, operation: Operation) -> asyncio.Future[Any]:
        """Run an operation when its turn has come; await its answer, which comes once everything is committed.

        Awaiting raises `RequestError` if the operation was refused, and nothing has changed.
        """
        job = SessionJob(self, operation)
        if self._stopped:
            job.refuse(OverloadedError(STOPPING))
        else:
            self._enqueue(job)
        return job.future

    def do(self, errand: ThreadJob) -> asyncio.Future[Any]:
        """Do an errand, which waits for no session; await its answer. Awaiting may raise `RequestError`."""
        if self._stopped:  # nobody would ever run it
            errand.refuse(OverloadedError(STOPPING))
        else:
            self.threads.submit(errand)
        return errand.future

    def cancel(self, operation: Operation) -> None:
        """Cancel an operation: it leaves its queue, or ends as if its deadline had passed; see `Operation`."""
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
        """Get the ids of the sessions that have something to do."""
        return [*self._queues]

    def is_idle(self) -> bool:
        """Whether there is nothing to wait for: no session has anything to do, or the threads have stopped."""
        queues = list(self._queues.values())
        return self._stopped or not (self._arrived or any(queue.has_work() for queue in queues))

    def stop(self) -> None:
        """Stop the threads, refuse whatever hasn't been committed, and release all leases."""
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

        Jobs that come in one turn of the event loop go to the threads together, at its end: the leading thread then
        finds all of them, and the event loop finishes its turn without sharing the interpreter with it. If the last one
        came alone, the next that finds everything quiet most probably does, too: it goes at once.
        """
        self._arrived.append(job)
        if len(self._arrived) > 1:
            return
        if self._came_alone and not self._queues:
            self._admit()
        else:
            job.loop.call_soon(self._admit)

    def _admit(self) -> None:
        """Put the jobs that have arrived into the queues of their sessions, and start those that needn't wait."""
        arrived, self._arrived = self._arrived, []
        # Read without the lock: a queue that goes meanwhile only makes this job one that didn't come alone.
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
        state = queue.state if queue else None
        if state is not None and job.operation.owner != state.session.owner:
            # Answered at once, as for a session that doesn't exist: it must neither wait nor fill another's queue.
            return SessionNotFoundError()
        settings, backlog, most = self._settings, self._backlog, self._most_of_owner
        in_session = len(queue.jobs) if queue else 0
        if in_session >= settings.max_waiting_per_session or backlog.total >= settings.max_waiting:
            return OverloadedError("Too many calls wait already; nothing was changed. Send it later.")
        if backlog.total >= most and backlog.of_owner[job.owner] >= most:
            return OverloadedError(f"{most} of your calls wait already; nothing was changed. Send it later.")
        return None

    def _acquire_leases(self, jobs: list[SessionJob]) -> list[SessionJob]:
        """Acquire the leases of several sessions in one step of the store, then start their jobs; get the others."""
        states: dict[str, SessionState] = {}
        for job in jobs:
            operation = job.operation
            state = self.cache.get(operation.session_id)
            # Of a session that isn't known the state must be read first: its job does that, and acquires the lease.
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
        """Get the session's state, or raise `SessionNotFoundError`; None if another worker holds its lease."""
        # Nobody else uses the queue's state while its job runs; what is known already isn't asked of the store.
        queue = self._queues[operation.session_id]
        state = queue.state
        if state is None or state.invalid:
            state = self.cache.get(operation.session_id)
        if state is None or state.invalid:
            found = self._store.get(operation.session_id)
            if found is None:
                raise SessionNotFoundError
            state = SessionState(*found)
        if operation.owner != state.session.owner:
            raise SessionNotFoundError
        queue.state = state
        if not state.leased:
            self.leases.acquire([state])
            if state.invalid:
                raise SessionNotFoundError
        return state if state.leased else None

    def head(self, session_id: str) -> Head | None:
        """Read a session's head from the store; None if the session is gone."""
        found = self._store.get(session_id)
        return found and found[1]

    # Called under the lock

    def leave(self, job: SessionJob, *, timed_out: bool) -> bool:
        """Apply what a job has done and let the next one start; say if the job is done."""
        queue = self._queues[job.operation.session_id]
        queue.running = False
        now = time.monotonic()
        if job.state is None and not timed_out and job.waits_for_lease():
            queue.park(job, now)
            self._backlog.add(job.owner, 1)
            return False
        queue.unfinished += 1
        if job.left_behind and job.stuck_from > now:
            # Its caller has cancelled it, or shortened its deadline. With too many of them the session waits, so that
            # nobody can fill a worker with threads that are left behind by sending such calls over and over.
            queue.left_behind += (job,)
        leased = self.leases.required and queue.state is not None and queue.state.leased
        queue.closing = leased and (not queue.jobs or now - queue.turn_began > TURN_SECONDS)
        job.apply(now + self.clock.ahead, timed_out=timed_out, release=queue.closing)
        if queue.jobs:
            self._start_next(job.operation.session_id, queue)
        return True

    def resume(self, job: SessionJob) -> None:
        """Let a session go on that may wait for a job that was left behind and has ended."""
        queue = self._queues.get(job.operation.session_id)
        if queue is not None and job in queue.left_behind:
            queue.left_behind = tuple(other for other in queue.left_behind if other is not job)
            self._start_next(job.operation.session_id, queue)

    def _start_next(self, session_id: str, queue: SessionQueue) -> None:
        job = queue.take_next() if queue.jobs else None
        if job is not None:
            self._backlog.add(job.owner, -1)
            self.threads.submit(job)
        elif queue.is_empty():
            del self._queues[session_id]

    def _pause(self, last: SessionJob, queue: SessionQueue) -> None:
        """Put the state of a session back whose jobs are all committed; release its lease unless more jobs wait."""
        state = queue.state
        if self.leases.required and state is not None and (queue.closing or state.invalid or not queue.jobs):
            released = last.committed and last.commit is not None and last.commit.release
            self.leases.release(state, committed=released)
        if state is not None and state.invalid:
            self.cache.pop(last.operation.session_id)
            queue.state = None
        elif state is not None:
            self.cache.put(state.session.id, state)
        now = time.monotonic()
        if queue.closing and queue.jobs and now - queue.turn_began > TURN_SECONDS:
            queue.turn_began = queue.parked_until = now + YIELD_SECONDS
        queue.closing = False
        self._start_next(last.operation.session_id, queue)

    # Called on other threads, which take the lock

    def _finish(self, jobs: list[Job]) -> None:
        session_jobs: list[SessionJob] = []
        changing: list[SessionJob] = []
        changes: list[tuple[SessionState, Commit]] = []
        for job in jobs:
            if isinstance(job, SessionJob):
                session_jobs.append(job)
                # Of a state that an earlier batch has made invalid nothing is committed any more.
                if job.state is not None and job.commit is not None and not job.state.invalid:
                    changing.append(job)
                    changes.append((job.state, job.commit))
        began = time.time_ns()
        kept = self._committer.commit(changes) if changes else ()
        for job, is_kept in zip(changing, kept, strict=True):
            job.committed = is_kept
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
        with self._lock:
            for session_id in session_ids:
                queue = self._queues.get(session_id)
                for state in (queue.state if queue else None, self.cache.get(session_id)):
                    if state is not None:
                        state.invalid = CLOSED
                self.cache.pop(session_id)

    def _keep_time(self) -> None:
        while not self._end.wait(POLL_SECONDS if self.leases.required else HEARTBEAT_SECONDS):
            self.leases.keep_up(self._queues.__contains__)
            with self._lock:
                now = time.monotonic()
                for session_id, queue in list(self._queues.items()):
                    for job in queue.expire(now, now - self._settings.queue_timeout_seconds):
                        self._backlog.add(job.owner, -1)
                        job.refuse(OverloadedError(f"The call waited {self._limit} for its session; {AGAIN}"))
                    self._start_next(session_id, queue)
                self._expire_unstarted(now)
        self.leases.end()

    def _expire_unstarted(self, now: float) -> None:
        for job in self.threads.expire(now - self._settings.queue_timeout_seconds):
            if isinstance(job, SessionJob):
                job.drop()
                queue = self._queues[job.operation.session_id]
                queue.running = False
                self._start_next(job.operation.session_id, queue)
            job.refuse(OverloadedError(f"The request waited {self._limit} for {job.waits_for}; {AGAIN}"))
