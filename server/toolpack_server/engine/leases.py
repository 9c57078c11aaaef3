"""Leases: the right of one worker to commit to a session, in a store that several workers share.

A lease only avoids duplicate work. Commits are safe without it: a commit names the record before it, and the store
compares that name. So a mistake here costs time but no data. The clocks of two machines are never compared. Instead, a
worker increases a number in the store, its *heartbeat*. Another worker that waits for its lease watches the number: if
the number stands still for some seconds of the other worker's own clock, the holder is dead. If a supervisor has seen a
worker end, another worker tells the store at once, so that no worker waits for the leases of the ended one.
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
DEAD_SECONDS = 5.0  # without a heartbeat, until a holder counts as dead
# Maximum time that counts from one look to the next. While the store or the looking worker stands still, that worker
# sees no heartbeat of a healthy holder.
LOOK_SECONDS = 0.25
ASK_SECONDS = 1.0  # time between two requests to the holder of a lease
ASKS_MAX = 10_000  # sessions in the table of these requests


class Leases:
    """Acquires and releases leases if the store is shared. Otherwise all leases are granted at once."""

    def __init__(self, store: SessionStore) -> None:
        self.required = store.shared
        self._store = cast("SharedStore", store)  # used for leases only if they are required
        self.holder = secrets.token_hex(8)  # id of this worker in the store
        # By holder: heartbeat, time of the last look, and seconds without a new heartbeat.
        self._watched: dict[str, tuple[int, float, float]] = {}
        self._next_asks: dict[str, float] = {}  # session -> time of the next request for its lease
        self._lock = threading.Lock()  # guards the dictionaries
        self._unreleased: dict[str, int | None] = {}  # session -> epoch; None if the epoch is unknown
        self._ended: set[str] = set()  # ended workers that the store must still be told of
        self._last_heartbeat = float("-inf")
        self._reachable = True

    def acquire(self, states: Sequence[SessionState]) -> None:
        """Acquire the leases of sessions with the sessions' heads. `leased` of a state is True if it was granted.

        The state of a deleted session becomes invalid. This blocks, so the caller must hold no lock.

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
            with self._lock:  # the store may have granted them
                self._unreleased.update(dict.fromkeys(by_id))
            raise
        with self._lock:
            for session_id, claim in claimed.items():
                state = by_id[session_id]
                if claim is None:
                    state.invalid = CLOSED
                elif isinstance(claim, Head):
                    self._unreleased.pop(session_id, None)  # the release of an earlier epoch, which isn't needed now
                    self._next_asks.pop(session_id, None)
                    state.follow(claim)
                    state.holder, state.leased = self.holder, True

    def _claim(self, session_ids: Sequence[str]) -> dict[str, Head | Lease | None]:
        """Claim the leases of sessions, those of dead holders included.

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

        A holder may not know that it has the lease: the store has lost its newest data, and the release with it, or the
        answer to the holder's `claim` was lost. So it is asked, at most once in `ASK_SECONDS`.
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
        """Release the lease of a session. `keep_up` tells the store soon.

        After a commit that was refused or has an unknown outcome, the store may have lost its newest data. Then a later
        lease of this worker may have the same epoch, and must not be released by mistake. So the epoch is stored as
        unknown.

        Args:
            committed: The last commit has released the lease already.
        """
        if not self.required or not state.leased:
            return
        state.leased = False
        if not committed:
            with self._lock:
                self._unreleased[state.session.id] = None if state.invalid else state.epoch

    def holder_ended(self, holder: str) -> None:
        """Handle the end of another worker. The store is told soon, so that no worker waits for its leases."""
        with self._lock:
            self._ended.add(holder)

    def end(self) -> None:
        """Tell the store that this worker ends, so that no worker waits for its leases."""
        if self.required:
            with suppress(Exception):  # if the store is closed, its leases expire like those of a dead worker
                self._store.holder_ended(self.holder)

    def keep_up(self, is_busy: Callable[[str], bool]) -> None:
        """Send a heartbeat if one is due, and tell the store which leases were released. Called periodically.

        Args:
            is_busy: Returns whether this worker has work in a session; then it acquires the lease itself.
        """
        if not self.required:
            return
        try:
            if time.monotonic() - self._last_heartbeat >= HEARTBEAT_SECONDS:
                requested = self._store.heartbeat(self.holder)  # the sessions for which other workers ask
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
        """Tell the store which leases were released. The store is accessed without the lock."""
        with self._lock:
            unreleased = list(self._unreleased.items())
        for session_id, epoch in unreleased:
            if epoch is None and is_busy(session_id):  # the lease may be in use now
                continue
            if epoch is None:
                self._release_if_held(session_id)
            else:
                self._store.release(session_id, self.holder, epoch)
            with self._lock:  # another thread may have released a later lease meanwhile: then keep its entry
                if self._unreleased.get(session_id, -1) == epoch:
                    del self._unreleased[session_id]

    def _release_if_held(self, session_id: str) -> None:
        # Release the epoch that the store has now. A lease that this worker acquires meanwhile has another epoch.
        stored = self._store.get(session_id)
        if stored is not None:
            self._store.release(session_id, self.holder, stored[1].epoch)

    def _is_dead(self, lease: Lease) -> bool:
        """Check the heartbeat of a lease's holder. Return whether it has stood still long enough."""
        now = time.monotonic()
        with self._lock:
            heartbeat, looked, still = self._watched.get(lease.holder, (None, now, 0.0))
            still = still + min(now - looked, LOOK_SECONDS) if heartbeat == lease.heartbeat else 0.0
            self._watched[lease.holder] = lease.heartbeat, now, still
        return still > DEAD_SECONDS


class AcquireLeases(Job):
    """Job that acquires the leases of several sessions in one access to the store, and then starts the sessions' jobs.

    If it fails, each session's job acquires its lease itself.
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

    def complete(self, *, timed_out: bool) -> bool:  # noqa: ARG002 - it has no deadline
        for job in self._jobs:
            self._submit(job)
        return False

    def refuse(self, error: Exception) -> None:
        for job in self._jobs:
            job.refuse(error)
