"""Leases: the right of one worker to commit to a session, in a store that several workers share.

A lease only avoids duplicate work. Commits are safe without leases, because each commit names the session's previous
record, and the store compares this name. So an error in this module costs time but no data.

The clocks of two machines are never compared. Instead, each worker increases a number in the store, its *heartbeat*. A
worker that waits for a lease watches the heartbeat of the lease's holder. If the number doesn't change for some seconds
on the waiting worker's own clock, the holder counts as dead. If a supervisor notices that a worker has exited, another
worker reports this to the store at once, so that no worker waits for the leases of the exited worker.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from toolpack_server.base.errors import OverloadedError
from toolpack_server.base.logger import log
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.state import CLOSED, SessionState
from toolpack_server.stores.base import Head, Lease, SessionStore, SharedStore

HEARTBEAT_SECONDS = 1.0
DEAD_SECONDS = 5.0  # time without a heartbeat after which a holder counts as dead
# Maximum time that is counted between two checks of a heartbeat, because even a healthy holder seems dead while the
# store or the checking worker is suspended.
LOOK_SECONDS = 0.25
ASK_SECONDS = 1.0  # time between two requests to a lease's holder to release it
ASKS_MAX = 10_000  # maximum number of sessions in the table of these requests


class Leases:
    """Acquires and releases leases if the store is shared. Otherwise every lease is granted immediately."""

    def __init__(self, store: SessionStore) -> None:
        self.required = store.shared
        self._store = cast("SharedStore", store)  # if leases aren't required, its methods for leases aren't used
        self.holder = secrets.token_hex(8)  # id of this worker in the store
        # By holder: the heartbeat, the time of the last check, and the seconds without a new heartbeat.
        self._watched: dict[str, tuple[int, float, float]] = {}
        self._next_asks: dict[str, float] = {}  # session -> time of the next request for its lease
        self._lock = threading.Lock()  # guards the dictionaries
        self._unreleased: dict[str, int | None] = {}  # session -> epoch; None if the epoch is unknown
        self._ended: set[str] = set()  # exited workers that must still be reported to the store
        self._last_heartbeat = float("-inf")
        self._reachable = True

    def acquire(self, states: Sequence[SessionState]) -> None:
        """Acquire the leases of sessions, and update their states from the store.

        If a lease is granted, `leased` of its state becomes True. The state of a deleted session becomes invalid. This
        method blocks, so the caller must hold no lock.

        Raises:
            OverloadedError: The store is unavailable.
        """
        if not self.required:
            for state in states:
                state.leased = True
            return
        by_id = {state.session.id: state for state in states}
        try:
            claimed = self._claim([*by_id])
        except OverloadedError:
            with self._lock:  # the store might have granted the leases, so release them later
                self._unreleased.update(dict.fromkeys(by_id))
            raise
        with self._lock:
            for session_id, claim in claimed.items():
                state = by_id[session_id]
                if claim is None:
                    state.invalid = CLOSED
                elif isinstance(claim, Head):
                    self._unreleased.pop(session_id, None)  # drop the release of an earlier epoch: it isn't needed now
                    self._next_asks.pop(session_id, None)
                    state.follow(claim)
                    state.holder, state.leased = self.holder, True

    def _claim(self, session_ids: Sequence[str]) -> dict[str, Head | Lease | None]:
        """Claim the leases of sessions, including the leases of dead holders.

        Returns:
            For each session, its head if the lease was granted, the lease of another holder, or None if the session
            was deleted.
        """
        claimed = dict(zip(session_ids, self._store.claim(session_ids, self.holder), strict=True))
        dead = {id_: lease for id_, lease in claimed.items() if isinstance(lease, Lease) and self._is_dead(lease)}
        if dead:
            taken = self._store.claim([*dead], self.holder, {*dead.values()})
            claimed.update(zip(dead, taken, strict=True))
        for session_id, claim in claimed.items():
            if isinstance(claim, Lease) and self._is_time_to_ask(session_id):
                with suppress(OverloadedError):
                    self._store.ask(session_id, claim.holder)
        return claimed

    def _is_time_to_ask(self, session_id: str) -> bool:
        """Return whether to ask the holder of a session's lease to release it.

        A holder might not know that it holds the lease, because the response to its `claim` was lost, or because the
        store has lost its newest data, including the release. So the holder is asked, at most once per `ASK_SECONDS`.
        """
        now = time.monotonic()
        with self._lock:
            if len(self._next_asks) > ASKS_MAX:
                self._next_asks.clear()
            due = now >= self._next_asks.setdefault(session_id, now + ASK_SECONDS)
            if due:
                self._next_asks[session_id] = now + ASK_SECONDS
        return due

    def release(self, state: SessionState, *, committed: bool = False) -> None:
        """Release the lease of a session. `keep_up` soon sends the release to the store.

        If a commit was refused or has an unknown outcome, the store might have lost its newest data. In this case, a
        later lease of this worker can have the same epoch, and must not be released by mistake. So the epoch of the
        release is recorded as unknown.

        Args:
            committed: The last commit has already released the lease.
        """
        if not self.required or not state.leased:
            return
        state.leased = False
        if not committed:
            with self._lock:
                self._unreleased[state.session.id] = None if state.invalid else state.epoch

    def holder_ended(self, holder: str) -> None:
        """Handle the exit of another worker: report it to the store soon, so that no worker waits for its leases."""
        with self._lock:
            self._ended.add(holder)

    def end(self) -> None:
        """Report to the store that this worker exits, so that no worker waits for its leases."""
        if self.required:
            with suppress(Exception):  # if the store is closed, other workers treat this worker as dead after a while
                self._store.holder_ended(self.holder)

    def keep_up(self, is_busy: Callable[[str], bool]) -> None:
        """Send a heartbeat if it is due, and report released leases to the store. Called periodically.

        Args:
            is_busy: Returns whether this worker has work in a session. If so, it keeps the lease, although another
                worker asks for it.
        """
        if not self.required:
            return
        try:
            if time.monotonic() - self._last_heartbeat >= HEARTBEAT_SECONDS:
                requested = self._store.heartbeat(self.holder)  # the sessions whose leases other workers ask for
                self._last_heartbeat = time.monotonic()
                with self._lock:
                    for session_id in requested:
                        if not is_busy(session_id):
                            self._unreleased.setdefault(session_id, None)
            for holder in [*self._ended]:
                self._store.holder_ended(holder)
                self._ended.discard(holder)
            if self._unreleased:
                self._release(is_busy)
        except Exception as error:
            if self._reachable:
                log.warning("The store can't be told that this worker is alive: %s", error)
                log.debug("The cause was:", exc_info=True)
            self._reachable = False
        else:
            self._reachable = True

    def _release(self, is_busy: Callable[[str], bool]) -> None:
        """Report the released leases to the store. Access the store without holding the lock."""
        with self._lock:
            unreleased = list(self._unreleased.items())
        for session_id, epoch in unreleased:
            if epoch is None and is_busy(session_id):  # the lease might be in use now
                continue
            if epoch is None:
                self._release_if_held(session_id)
            else:
                self._store.release(session_id, self.holder, epoch)
            with self._lock:  # keep the entry if another thread has released a later lease meanwhile
                if self._unreleased.get(session_id, -1) == epoch:
                    del self._unreleased[session_id]

    def _release_if_held(self, session_id: str) -> None:
        """Release the lease of a session with the epoch that is in the store now.

        A lease that this worker acquires meanwhile gets another epoch, so it isn't released by mistake.
        """
        stored = self._store.get(session_id)
        if stored is not None:
            self._store.release(session_id, self.holder, stored[1].epoch)

    def _is_dead(self, lease: Lease) -> bool:
        """Check the heartbeat of a lease's holder. Return whether it has been unchanged for `DEAD_SECONDS`."""
        now = time.monotonic()
        with self._lock:
            heartbeat, looked, still = self._watched.get(lease.holder, (None, now, 0.0))
            still = still + min(now - looked, LOOK_SECONDS) if heartbeat == lease.heartbeat else 0.0
            self._watched[lease.holder] = lease.heartbeat, now, still
        return still > DEAD_SECONDS


class AcquireLeases(Job):
    """Job that acquires the leases of several sessions in one access to the store, and then starts the sessions' jobs.

    If this fails, each session's job acquires its own lease.
    """

    def __init__(
        self, leases: Leases, states: Sequence[SessionState], jobs: Sequence[Job], submit: Callable[[Job], None]
    ) -> None:
        super().__init__()
        self._leases = leases
        self._states = states
        self._jobs = jobs
        self._submit = submit

    def work(self) -> None:
        self._leases.acquire(self._states)

    def complete(self, *, timed_out: bool) -> bool:  # noqa: ARG002 - this job has no deadline
        for job in self._jobs:
            self._submit(job)
        return False  # no caller waits for this job's own answer

    def refuse(self, error: Exception) -> None:
        for job in self._jobs:
            job.refuse(error)
