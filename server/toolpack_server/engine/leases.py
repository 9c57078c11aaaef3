"""Leases: which worker may commit to a session that several processes could commit to.

A lease only keeps workers from doing each other's work. A commit is safe because it names the record before
it, which the store compares, so a mistake here costs time and never data. No clocks of two machines are compared: a
worker adds to its heartbeat in the store, and whoever waits for its lease watches that number on its own clock. Where
a supervisor has seen a worker end, another worker says so in the store, and nobody waits.
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
DEAD_SECONDS = 5.0
# The most that one look counts: while the store, or the worker that looks, stood still, no heartbeat could be seen.
LOOK_SECONDS = 0.25
ASK_SECONDS = 1.0  # how long a worker waits for a lease before it asks the holder for it, and then asks again
ASKED = 10_000  # sessions that a worker remembers having waited for


class Leases:
    """The gate to sessions: acquires and releases leases if the store is shared, else lets everybody through."""

    def __init__(self, store: SessionStore) -> None:
        self.required = store.shared
        self._store = cast("SharedStore", store)  # is asked for leases only if they are required
        self.holder = secrets.token_hex(8)  # by which the store knows this worker
        # By holder: its heartbeat, when that was looked at last, and for how many seconds it was seen to stand still.
        self._watched: dict[str, tuple[int, float, float]] = {}
        self._asks: dict[str, float] = {}  # session -> when to ask for its lease
        self._lock = threading.Lock()  # of the dictionaries
        self._unreleased: dict[str, int | None] = {}  # session -> epoch; None if it isn't known
        self._ended: set[str] = set()  # other workers, of which the store isn't told yet
        self._last_heartbeat = float("-inf")
        self._reachable = True

    def acquire(self, states: Sequence[SessionState]) -> None:
        """Acquire the leases of sessions, and with each the session's head; `leased` then says which were given.

        A session that is gone becomes invalid. Blocks, so no lock may be held.

        Raises:
            OverloadedError: The store can't be used.
        """
        if not self.required:
            for state in states:
                state.leased = True
            return
        by_id = {state.session.id: state for state in states}
        try:
            claimed = self._claim([*by_id])
        except OverloadedError:
            with self._lock:  # the store may have given them
                self._unreleased.update(dict.fromkeys(by_id))
            raise
        with self._lock:
            for session_id, found in claimed.items():
                state = by_id[session_id]
                if found is None:
                    state.invalid = CLOSED
                elif isinstance(found, Head):
                    self._unreleased.pop(session_id, None)  # that was an earlier epoch
                    self._asks.pop(session_id, None)
                    state.follow(found)
                    state.holder, state.leased = self.holder, True

    def _claim(self, session_ids: Sequence[str]) -> dict[str, Head | Lease | None]:
        claimed = dict(zip(session_ids, self._store.claim(session_ids, self.holder), strict=True))
        dead = {id_: lease for id_, lease in claimed.items() if isinstance(lease, Lease) and self._is_dead(lease)}
        if dead:
            taken = self._store.claim([*dead], self.holder, {*dead.values()})
            claimed.update(zip(dead, taken, strict=True))
        for session_id, found in claimed.items():
            if isinstance(found, Lease) and self._is_time_to_ask(session_id):
                with suppress(OverloadedError):
                    self._store.ask(session_id, found.holder)
        return claimed

    def _is_time_to_ask(self, session_id: str) -> bool:
        """Whether a lease has been waited for so long that its holder may not know that it has it.

        The release of a lease is lost if the store loses its newest data, or the answer to `claim`.
        """
        now = time.monotonic()
        with self._lock:
            if len(self._asks) > ASKED:
                self._asks.clear()
            due = now >= self._asks.setdefault(session_id, now + ASK_SECONDS)
            if due:
                self._asks[session_id] = now + ASK_SECONDS
        return due

    def release(self, state: SessionState, *, committed: bool = False) -> None:
        """Release the lease of a session; if the last commit hasn't done so, the store is told soon.

        Where a commit was refused, or its outcome isn't known, the store may have lost its newest data: then a later
        lease of this worker has the same epoch, and must not be released in place of this one.
        """
        if not self.required or not state.leased:
            return
        state.leased = False
        if not committed:
            with self._lock:
                self._unreleased[state.session.id] = None if state.invalid else state.epoch

    def holder_ended(self, holder: str) -> None:
        """Note that another worker has ended; the store is told soon, so that nobody waits for its leases."""
        with self._lock:
            self._ended.add(holder)

    def end(self) -> None:
        """Tell the store that this worker ends: nobody waits for its leases, and nothing is kept of it."""
        if self.required:
            with suppress(Exception):  # the store may be closed already; then its leases end as those of a dead worker
                self._store.holder_ended(self.holder)

    def keep_up(self, is_busy: Callable[[str], bool]) -> None:
        """Send a heartbeat if one is due, and tell the store which leases were released; called again and again.

        In a session that `is_busy` this worker has something to do, so it will acquire the lease itself.
        """
        if not self.required:
            return
        try:
            if time.monotonic() - self._last_heartbeat >= HEARTBEAT_SECONDS:
                asked = self._store.heartbeat(self.holder)
                self._last_heartbeat = time.monotonic()
                with self._lock:
                    for session_id in asked:
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
        with self._lock:
            unreleased = list(self._unreleased.items())
        for session_id, epoch in unreleased:
            if epoch is None and is_busy(session_id):
                continue
            if epoch is None:
                self._release_if_held(session_id)
            else:
                self._store.release(session_id, self.holder, epoch)
            with self._lock:
                if self._unreleased.get(session_id, -1) == epoch:
                    del self._unreleased[session_id]

    def _release_if_held(self, session_id: str) -> None:
        # By its epoch: if this worker acquires the lease meanwhile, it keeps it.
        found = self._store.get(session_id)
        if found is not None:
            self._store.release(session_id, self.holder, found[1].epoch)

    def _is_dead(self, lease: Lease) -> bool:
        """Look at a lease's holder once more; say whether it has shown no heartbeat for long enough."""
        now = time.monotonic()
        with self._lock:
            heartbeat, looked, still = self._watched.get(lease.holder, (None, now, 0.0))
            still = still + min(now - looked, LOOK_SECONDS) if heartbeat == lease.heartbeat else 0.0
            self._watched[lease.holder] = lease.heartbeat, now, still
        return still > DEAD_SECONDS


class AcquireLeases(Job):
    """Acquires the leases of several sessions in one step; if that fails, each job finds out for itself."""

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
