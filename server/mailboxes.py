"""The order of work on sessions, and its commits: the only file that locks and commits.

Every session with something to do has a mailbox. Its jobs run one after the other, in order of arrival, each on what
the one before it left; what several jobs, of any sessions, have done by then is committed at once, and only then
answered. Where a commit is refused, whatever was built upon it is void too.

Where other processes may commit to the same sessions, a mailbox first claims its session's lease and gives it back
with its last commit. Whoever has to wait for a lease watches its holder's beat on its own clock.

The rule: a job owns its session's cached state while it runs; mailboxes change under the lock of the threads alone.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from server.errors import OverloadedError, RequestError, SessionNotFoundError, StateDamagedError
from server.session_cache import CachedSession, SessionCache
from server.settings import Settings
from server.stores import Commit, Lease, MissingBlobError, SessionStore
from server.threads import Job, Threads

log = logging.getLogger("toolpack_server")

TRIM_EVERY = 64
BEAT_SECONDS = 1.0
DEAD_SECONDS = 5.0
LEASE_POLL_SECONDS = 0.005


class InternalError(Exception):
    """Something that should not happen did; the log has it, the caller gets this sentence."""

    def __init__(self) -> None:
        super().__init__("The server failed to do this, and has logged why.")


class Task(Job):
    """A job that somebody waits for.

    Attributes:
        answer: What the waiter gets.
        error: The exception that the waiter gets instead.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the work, and keep what comes of it."""
        try:
            self.work()
        except (RequestError, asyncio.CancelledError) as error:
            self.error = error
        except MissingBlobError:
            self.error = StateDamagedError("A snapshot of the session is missing from the store: restore it, or reset the session.")
        except Exception:
            log.exception("A request failed")
            self.error = InternalError()

    def work(self) -> None:
        """Do the work; may raise."""
        raise NotImplementedError

    def deliver(self) -> None:
        """Answer the waiter, if there still is one; called on the event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class SessionJob(Task):
    """A job that has its turn in a session's mailbox.

    Attributes:
        alone: It reads the store for what earlier jobs have done, so it starts after their commits.
        entry: The session's cached state, from `run` on.
        commit: What is to be committed; made when the job is completed.
    """

    alone = False

    def __init__(self, mailboxes: "Mailboxes", session_id: str, owner: str | None) -> None:
        super().__init__()
        self.mailboxes = mailboxes
        self.session_id = session_id
        self.owner = owner
        self.arrived = time.monotonic()
        self.entry: CachedSession | None = None
        self.commit: Commit | None = None

    def work(self) -> None:
        """Enter the session, then do what there is to do in it."""
        self.entry = self.mailboxes.enter(self)
        if self.entry is not None:
            self.work_in(self.entry)

    def work_in(self, entry: CachedSession) -> None:
        """Do the work; may raise. What is kept of it is said by `settle`."""
        raise NotImplementedError

    def settle(self, entry: CachedSession, *, release: bool) -> Commit | None:
        """Move the session's cached state on, and get what is to be committed."""
        raise NotImplementedError

    def complete(self) -> bool:
        """See `Job.complete`."""
        return self.mailboxes.completed(self)

    def overrun(self) -> None:
        """See `Job.overrun`."""
        self.give_up()
        self.mailboxes.completed(self)

    def give_up(self) -> None:
        """Replace what the job was to do by what its overrunning means."""
        raise NotImplementedError


class _Mailbox:
    """The jobs that wait for one session.

    Attributes:
        jobs: Those that haven't started.
        running: One of them is on its way through a thread.
        unfinished: How many are completed and wait for their commit.
        closing: The lease goes back with the last commit, so nothing starts before that is through.
        parked_until: The lease is somebody else's; when to ask again, on the monotonic clock.
    """

    __slots__ = ("closing", "jobs", "parked_until", "running", "unfinished")

    def __init__(self) -> None:
        self.jobs: deque[SessionJob] = deque()
        self.running = False
        self.unfinished = 0
        self.closing = False
        self.parked_until: float | None = None


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
        self.waiting = 0
        self.holder = secrets.token_hex(8)
        self._watched: dict[str, tuple[Lease, float]] = {}
        self._unreleased: dict[str, int] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._keep_time, name="leases", daemon=True).start()

    def submit(self, job: SessionJob) -> None:
        """Put a job into its session's mailbox.

        Raises:
            OverloadedError: Too much waits already.
        """
        with self._lock:
            box = self._boxes.get(job.session_id)
            if box is None:
                box = self._boxes[job.session_id] = _Mailbox()
            if len(box.jobs) >= self._settings.max_waiting_per_session or self.waiting >= self._settings.max_waiting:
                raise OverloadedError("Too many calls wait already; nothing was changed. Send it again later.")
            box.jobs.append(job)
            self.waiting += 1
            self._start_next(box)

    def drop(self, session_ids: Iterable[str]) -> None:
        """Forget what is cached of sessions that were closed."""
        with self._lock:
            for session_id in session_ids:
                entry = self.cache.get(session_id)
                if entry is not None:
                    entry.broken = True
                    self.cache.drop(session_id)

    def is_idle(self) -> bool:
        """Whether no session has anything to do."""
        return not self._boxes

    def stop(self) -> None:
        """Stop the threads."""
        self._stopped.set()
        self.threads.stop()

    def enter(self, job: SessionJob) -> CachedSession | None:
        """Get the state of a job's session as of its turn; None where the session's lease has to be waited for.

        Raises:
            SessionNotFoundError: There is no such session, it has expired, or it is another's.
        """
        session_id = job.session_id
        entry = self.cache.get(session_id)
        if entry is None or entry.broken or (self._store.shared and entry.expires_at <= time.time()):
            found = self._store.get(session_id)
            if found is None:
                raise SessionNotFoundError
            entry = CachedSession(*found)
        if entry.expires_at <= time.time() or job.owner not in {None, entry.session.owner}:
            raise SessionNotFoundError
        if self._store.shared and not entry.leased and not self._claim(entry):
            return None
        return entry

    def _claim(self, entry: CachedSession) -> bool:
        session_id = entry.session.id
        lease, since = self._watched.get(session_id, (None, 0.0))
        dead = lease if time.monotonic() - since > DEAD_SECONDS else None
        claimed = self._store.claim(session_id, self.holder, dead)
        if isinstance(claimed, Lease):
            if claimed != lease:
                self._watched[session_id] = claimed, time.monotonic()
            return False
        self._watched.pop(session_id, None)
        entry.follow(claimed)
        entry.leased = True
        return True

    def _start_next(self, box: _Mailbox) -> None:
        if box.running or box.closing or not box.jobs or box.parked_until is not None:
            return
        if box.unfinished and box.jobs[0].alone:
            return
        box.running = True
        self.waiting -= 1
        self.threads.submit(box.jobs.popleft())

    def completed(self, job: SessionJob) -> bool:
        """Move a job's session on, unless its lease has to be waited for; called under the lock."""
        box = self._boxes[job.session_id]
        box.running = False
        entry = job.entry
        if entry is None and job.error is None:  # the lease is somebody else's
            box.parked_until = time.monotonic() + LEASE_POLL_SECONDS
            box.jobs.appendleft(job)
            self.waiting += 1
            return False
        box.unfinished += 1
        box.closing = not box.jobs
        if entry is not None:
            try:
                job.commit = job.settle(entry, release=box.closing and entry.leased)
            except Exception:
                log.exception("A call could not be settled")
                job.error, entry.broken = InternalError(), True
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
            try:
                loop.call_soon_threadsafe(_deliver, answered)
            except RuntimeError:  # the loop is closed: nobody waits any more
                log.debug("%d answers had no receiver", len(answered))

    def _commit(self, jobs: list[SessionJob]) -> None:
        sound = [job for job in jobs if job.entry is not None and not job.entry.broken]
        try:
            kept = self._store.commit([job.commit for job in sound if job.commit]) if sound else []
        except Exception as error:
            if not isinstance(error, OverloadedError):
                log.exception("A commit failed")
            kept = [False] * len(sound)
        for job, was_kept in zip(sound, kept, strict=True):
            entry, commit = job.entry, job.commit
            if entry is None or commit is None:
                continue
            if not was_kept:
                entry.broken = True
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
        if entry is not None:
            if entry.broken:
                self.cache.drop(job.session_id)
                if not isinstance(job.error, InternalError):
                    job.error = OverloadedError("The session was taken over or could not be committed; nothing was changed.")
                if entry.leased:
                    self._unreleased[job.session_id] = entry.epoch
            elif job.commit is not None:
                entry.uncommitted.pop(job.commit.record.call_id or "", None)
            if not entry.broken and not isinstance(job.error, SessionNotFoundError):
                self.cache.put(entry)
        if not box.unfinished and not box.running:
            if box.closing and entry is not None and entry.leased:
                if job.commit is None or entry.broken:
                    self._unreleased[job.session_id] = entry.epoch
                entry.leased = False
            box.closing = False
            if box.jobs:
                self._start_next(box)
            else:
                del self._boxes[job.session_id]

    def _keep_time(self) -> None:
        """Refuse what has waited too long; show that this worker lives; ask again for leases."""
        beaten = 0.0
        while not self._stopped.wait(LEASE_POLL_SECONDS if self._store.shared else BEAT_SECONDS):
            now = time.monotonic()
            try:
                self._release_leases()
                if self._store.shared and now - beaten >= BEAT_SECONDS:
                    self._store.beat(self.holder)
                    beaten = now
            except Exception:
                log.exception("The store could not be told that this worker lives")
            with self._lock:
                for session_id, box in list(self._boxes.items()):
                    if box.parked_until is not None and now >= box.parked_until:
                        box.parked_until = None
                    self._expire_waiting(session_id, box, now)
                    self._start_next(box)

    def _release_leases(self) -> None:
        while self._unreleased:
            session_id, epoch = next(iter(self._unreleased.items()))
            self._store.release(session_id, epoch)
            if self._unreleased.get(session_id) == epoch:
                del self._unreleased[session_id]

    def _expire_waiting(self, session_id: str, box: _Mailbox, now: float) -> None:
        limit = self._settings.queue_timeout_seconds
        while box.jobs and now - box.jobs[0].arrived > limit:
            job = box.jobs.popleft()
            self.waiting -= 1
            job.error = OverloadedError(f"The call waited {limit:g} s for its session; nothing was changed. Send it again.")
            job.loop.call_soon_threadsafe(job.deliver)
        if not (box.jobs or box.running or box.unfinished):
            del self._boxes[session_id]


def _deliver(tasks: list[Task]) -> None:
    for task in tasks:
        task.deliver()
