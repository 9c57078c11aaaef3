"""The order of work on sessions, and its commits: the only file that locks and commits.

Every session with something to do has a mailbox. Its jobs run one after the other, in order of arrival, each on what
the one before it left; what several jobs, of any sessions, have done by then is committed at once, and only then
answered. Where a commit is refused, whatever was built upon it is void too.

Where other processes may commit to the same sessions, a mailbox first claims its session's lease and gives it back
with its last commit, or when others should have their turn.

The rule: a job owns its session's cached state while it runs; mailboxes change under the lock of the threads alone.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from server.errors import OverloadedError, SessionNotFoundError
from server.jobs import InternalError, SessionJob, Task
from server.leases import BEAT_SECONDS, Leases
from server.session_cache import CLOSED, CachedSession, SessionCache
from server.settings import Settings
from server.stores import SessionStore
from server.threads import Job, Threads

log = logging.getLogger("toolpack_server")

TRIM_EVERY = 64
POLL_SECONDS = 0.005  # how soon a lease is asked for again; for those that have waited long, less often
SLOW_POLL_SECONDS = 0.02
TURN_SECONDS = 0.5  # how long a mailbox that never drains keeps its lease from other workers
YIELD_SECONDS = 0.025  # long enough for all that poll to ask once
STOP_SECONDS = 2.0

REFUSED = "Another worker has taken the session over; nothing was changed. Send the call again, with its call_id."
VOID = "The call before this one could not be kept; nothing was changed. Send it again."
UNKNOWN = "It is not known whether the call was kept: send it again with its call_id, or look for it in the trace."


class _Mailbox:
    """The jobs that wait for one session.

    Attributes:
        jobs: Those that haven't started.
        running: One of them is on its way through a thread.
        unfinished: How many are completed and wait for their commit.
        entry: The session's state as the last job left it, committed or not.
        closing: The lease goes back with the last commit, so nothing starts before that is through.
        turn_began: Since when the session has been worked on without a pause, on the monotonic clock.
        parked_until: Others have their turn, or the lease; when to ask for it, on the monotonic clock.
    """

    __slots__ = ("closing", "entry", "jobs", "parked_until", "running", "turn_began", "unfinished")

    def __init__(self) -> None:
        self.jobs: deque[SessionJob] = deque()
        self.running = False
        self.unfinished = 0
        self.entry: CachedSession | None = None
        self.closing = False
        self.turn_began = time.monotonic()
        self.parked_until: float | None = None


class _Claim(Job):
    """Takes the leases of several sessions, then lets the jobs start that wait for them."""

    def __init__(self, leases: Leases, threads: Threads, entries: Sequence[CachedSession], jobs: Sequence[Job]) -> None:
        self._leases = leases
        self._threads = threads
        self._entries = entries
        self._jobs = jobs

    def run(self) -> None:
        """Take them. Where that fails, each job finds out for itself."""
        try:
            self._leases.claim(self._entries)
        except OverloadedError:
            pass
        except Exception:
            log.exception("Leases could not be taken")

    def complete(self) -> bool:
        """See `Job.complete`."""
        for job in self._jobs:
            self._threads.submit(job)
        return False


class Mailboxes:
    """All mailboxes of a worker, with the threads that empty them.

    Args:
        store: Where commits go.
        settings: Limits and retention.
    """

    def __init__(self, store: SessionStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self.cache = SessionCache(settings.cache_bytes)
        self.threads = Threads(self._finish)
        self._lock = self.threads.lock
        self._boxes: dict[str, _Mailbox] = {}
        self._arrived: list[SessionJob] = []
        self._came_alone = False
        self.waiting = 0
        self._leases = Leases(store)
        self._stopped = threading.Event()
        self._keeper = threading.Thread(target=self._keep_time, name="leases", daemon=True)
        self._keeper.start()

    def submit(self, job: SessionJob) -> None:
        """Put a job into its session's mailbox; one for which there is no room gets an `OverloadedError`.

        Jobs that come in one turn of the event loop go to the threads together, at its end: the thread that leads then
        finds them all, and the loop gets through its turn without sharing the interpreter with it. Where one came
        alone the last time, the next that finds all quiet goes at once.
        """
        self._arrived.append(job)
        if len(self._arrived) > 1:
            return
        if self._came_alone and not self._boxes:
            self._admit()
        else:
            job.loop.call_soon(self._admit)

    def _admit(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._came_alone = len(arrived) == 1
        started: list[SessionJob] = []
        with self._lock:
            for job in arrived:
                box = self._boxes.get(job.session_id)
                if box is None:
                    box = self._boxes[job.session_id] = _Mailbox()
                settings = self._settings
                if box.entry is not None and job.owner not in {None, box.entry.session.owner}:
                    # Answered at once, as for a session that doesn't exist: another's must neither wait nor fill it.
                    job.error = SessionNotFoundError()
                    job.deliver()
                    continue
                if len(box.jobs) >= settings.max_waiting_per_session or self.waiting >= settings.max_waiting:
                    self._discard_if_done(job.session_id, box)
                    job.error = OverloadedError("Too many calls wait already; nothing was changed. Send it later.")
                    job.deliver()
                    continue
                box.jobs.append(job)
                self.waiting += 1
                started += self._take_next(box)
            if self._store.shared:
                started = self._claim_together(started)
            for job in started:
                self.threads.submit(job)

    def _claim_together(self, jobs: list[SessionJob]) -> list[SessionJob]:
        """Take the leases of several sessions in one step of the store, then start their jobs; get the other jobs."""
        entries: dict[str, CachedSession] = {}
        for job in jobs:
            entry = self.cache.get(job.session_id)
            if entry is None or entry.broken or self._boxes[job.session_id].entry is not None:
                continue
            if job.owner in {None, entry.session.owner}:
                entries[job.session_id] = entry
        if len(entries) < 2:  # noqa: PLR2004 - one job takes its lease itself
            return jobs
        for session_id, entry in entries.items():
            self._boxes[session_id].entry = entry
        waiting = [job for job in jobs if job.session_id in entries]
        self.threads.submit(_Claim(self._leases, self.threads, [*entries.values()], waiting))
        return [job for job in jobs if job.session_id not in entries]

    def drop(self, session_ids: Iterable[str]) -> None:
        """Forget what is cached of sessions that were closed."""
        with self._lock:
            for session_id in session_ids:
                box = self._boxes.get(session_id)
                for entry in (box.entry if box else None, self.cache.get(session_id)):
                    if entry is not None:
                        entry.broken = CLOSED
                self.cache.drop(session_id)

    def is_idle(self) -> bool:
        """Whether there is nothing to wait for: no session has anything to do, or it is too late for that."""
        return not (self._boxes or self._arrived) or self._stopped.is_set()

    def stop(self) -> None:
        """Stop the threads, and give back all leases: what still runs now will not be committed."""
        self.threads.stop()
        with self._lock:
            for session_id, box in self._boxes.items():
                if box.entry is not None and box.entry.leased:
                    self._leases.give_back(session_id, box.entry.epoch)
        self._stopped.set()
        self._keeper.join(STOP_SECONDS)

    def enter(self, job: SessionJob) -> CachedSession | None:
        """Get the state of a job's session as of its turn; None where the session's lease has to be waited for.

        Raises:
            SessionNotFoundError: There is no such session, it has expired, or it is another's.
        """
        box = self._boxes[job.session_id]
        entry = box.entry
        if entry is None or entry.broken:
            entry = self.cache.get(job.session_id)
        if entry is None or entry.broken or entry.expires_at <= time.time():
            found = self._store.get(job.session_id)
            if found is None:
                raise SessionNotFoundError
            if entry is None or entry.broken:
                entry = CachedSession(*found)
            entry.expires_at = found[0].expires_at  # which another worker may have renewed
        if entry.expires_at <= time.time() or job.owner not in {None, entry.session.owner}:
            raise SessionNotFoundError
        box.entry = entry
        if self._store.shared and not entry.leased:
            self._leases.claim([entry])
            if entry.broken:
                raise SessionNotFoundError
        return entry if entry.leased or not self._store.shared else None

    def _start_next(self, box: _Mailbox) -> None:
        for job in self._take_next(box):
            self.threads.submit(job)

    def _take_next(self, box: _Mailbox) -> list[SessionJob]:
        """Take a mailbox's next job, if it may start, to be submitted now."""
        if box.running or box.closing or not box.jobs or box.parked_until is not None:
            return []
        if box.unfinished and box.jobs[0].alone:
            return []
        box.running = True
        self.waiting -= 1
        return [box.jobs.popleft()]

    def completed(self, job: SessionJob) -> bool:
        """Move a job's session on, unless its lease has to be waited for; called under the lock."""
        box = self._boxes[job.session_id]
        box.running = False
        now = time.monotonic()
        if job.entry is None and job.error is None:  # the lease is somebody else's
            box.parked_until = now + min(max(POLL_SECONDS, (now - job.arrived) / 50), SLOW_POLL_SECONDS)
            box.jobs.appendleft(job)
            self.waiting += 1
            return False
        box.unfinished += 1
        leased = box.entry is not None and box.entry.leased
        box.closing = leased and (not box.jobs or now - box.turn_began > TURN_SECONDS)
        if job.entry is not None:
            try:
                job.commit = job.settle(job.entry, release=box.closing)
            except Exception:
                log.exception("A call could not be settled")
                job.error, job.entry.broken = InternalError(), VOID
        self._start_next(box)
        return True

    def _finish(self, tasks: list[Any]) -> None:
        """Commit what jobs have done, then answer them."""
        done = [task for task in tasks if isinstance(task, SessionJob)]
        self._commit([job for job in done if job.commit is not None])
        with self._lock:
            for job in done:
                self._leave(job)
        by_loop: dict[asyncio.AbstractEventLoop, list[Task]] = {}
        for task in tasks:
            by_loop.setdefault(task.loop, []).append(task)
        for loop, answered in by_loop.items():
            _answer(loop, answered)

    def _commit(self, jobs: list[SessionJob]) -> None:
        sound = [job for job in jobs if job.entry is not None and not job.entry.broken]
        why = REFUSED
        try:
            kept = self._store.commit([job.commit for job in sound if job.commit]) if sound else []
        except Exception as error:
            kept, why = [False] * len(sound), UNKNOWN
            if isinstance(error, OverloadedError):
                why = str(error)
            else:
                log.exception("A commit failed")
        for job, was_kept in zip(sound, kept, strict=True):
            entry, commit = job.entry, job.commit
            if entry is None or commit is None:
                continue
            job.kept = was_kept
            if not was_kept:
                entry.broken = why
            elif commit.record.index % TRIM_EVERY == TRIM_EVERY - 1:
                self._trim(job.session_id)

    def _trim(self, session_id: str) -> None:
        try:
            self._store.trim(session_id, self._settings.keep_versions, self._settings.keep_bytes)
        except Exception:  # the next trim makes up for it
            log.exception("The history of a session could not be trimmed")

    def _leave(self, job: SessionJob) -> None:
        """Count a job as finished; called under the lock."""
        box, entry = self._boxes[job.session_id], job.entry
        box.unfinished -= 1
        if entry is not None and job.kept and job.commit is not None:
            entry.uncommitted.pop(job.commit.record.call_id or "", None)
        elif entry is not None and entry.broken and not isinstance(job.error, InternalError):
            job.error = SessionNotFoundError() if entry.broken == CLOSED else OverloadedError(entry.broken)
        if not box.unfinished and not box.running:
            self._pause(job, box)

    def _pause(self, job: SessionJob, box: _Mailbox) -> None:
        """Let go of a session whose jobs are all committed, unless more wait for this worker's turn."""
        entry = box.entry
        if entry is not None and entry.leased and (box.closing or entry.broken or not box.jobs):
            if not (job.kept and job.commit is not None and job.commit.release):
                self._leases.give_back(job.session_id, entry.epoch)
            entry.leased = False
        if entry is not None and entry.broken:
            self.cache.drop(job.session_id)
            box.entry = None
        elif entry is not None:
            self.cache.put(entry)
        now = time.monotonic()
        if box.closing and box.jobs and now - box.turn_began > TURN_SECONDS:
            box.turn_began = box.parked_until = now + YIELD_SECONDS
        box.closing = False
        self._start_next(box)
        self._discard_if_done(job.session_id, box)

    def _discard_if_done(self, session_id: str, box: _Mailbox) -> None:
        if not (box.jobs or box.running or box.unfinished):
            del self._boxes[session_id]

    def _keep_time(self) -> None:
        """Refuse what has waited too long; show that this worker lives; ask again for leases."""
        shared = self._store.shared
        while not self._stopped.wait(POLL_SECONDS if shared else BEAT_SECONDS):
            if shared:
                self._leases.keep_up(self._boxes.__contains__)
            with self._lock:
                now = time.monotonic()
                for session_id, box in list(self._boxes.items()):
                    if box.parked_until is not None and now >= box.parked_until:
                        box.parked_until = None
                    self._expire_waiting(box, now)
                    self._start_next(box)
                    self._discard_if_done(session_id, box)
        if shared:
            self._leases.keep_up(self._boxes.__contains__)

    def _expire_waiting(self, box: _Mailbox, now: float) -> None:
        limit = self._settings.queue_timeout_seconds
        while box.jobs and now - box.jobs[0].arrived > limit:
            job = box.jobs.popleft()
            self.waiting -= 1
            job.error = OverloadedError(
                f"The call waited {limit:g} s for its session; nothing was changed. Send it again."
            )
            _answer(job.loop, [job])


def _answer(loop: asyncio.AbstractEventLoop, tasks: list[Task]) -> None:
    try:
        loop.call_soon_threadsafe(_deliver, tasks)
    except RuntimeError:  # the loop is closed: nobody waits any more
        log.debug("%d answers had no receiver", len(tasks))


def _deliver(tasks: list[Task]) -> None:
    for task in tasks:
        task.deliver()
