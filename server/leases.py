"""Who may commit to a session that several processes could commit to, as one worker sees it.

The rule: a lease only keeps workers from doing each other's work; what makes a commit safe is its epoch, which the
store compares. So a mistake here costs time and never data, and no clocks of two machines are compared: a worker adds
to its beat in the store, and whoever waits for its lease watches that number on its own clock.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from server.errors import OverloadedError
from server.session_cache import CLOSED, CachedSession
from server.stores import Head, Lease, SessionStore

log = logging.getLogger("toolpack_server")

BEAT_SECONDS = 1.0
DEAD_SECONDS = 5.0
# The most that one look counts: where the store itself stood still, or the one who looks, others could show no beat.
LOOK_SECONDS = 0.25


class _Watch:
    """How long a worker's beat has been seen to stand still."""

    __slots__ = ("beat", "looked", "still")

    def __init__(self, beat: int, now: float) -> None:
        self.beat = beat
        self.looked = now
        self.still = 0.0


class Leases:
    """The leases that this worker takes, gives back and waits for.

    Args:
        store: Where they stand.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._holder = secrets.token_hex(8)
        self._watched: dict[str, _Watch] = {}
        self._lock = threading.Lock()  # of the two dictionaries
        self._unreleased: dict[str, int | None] = {}
        self._beaten = float("-inf")
        self._reachable = True

    def claim(self, entries: Sequence[CachedSession]) -> None:
        """Take the leases of sessions, and with each where the session stands; `leased` then says which were given.

        A session that is gone is marked as broken.

        Raises:
            OverloadedError: The store can't be used.
        """
        by_id = {entry.session.id: entry for entry in entries}
        try:
            claimed = self._claim([*by_id])
        except OverloadedError:
            with self._lock:
                self._unreleased.update(dict.fromkeys(by_id))  # they may have been given, and the answer lost
            raise
        with self._lock:
            for session_id, head in claimed.items():
                entry = by_id[session_id]
                if head is None:
                    entry.broken = CLOSED
                elif isinstance(head, Head):
                    self._unreleased.pop(session_id, None)  # that was an earlier epoch
                    entry.follow(head)
                    entry.leased = True

    def _claim(self, session_ids: Sequence[str]) -> dict[str, Head | Lease | None]:
        claimed = dict(zip(session_ids, self._store.claim(session_ids, self._holder), strict=True))
        dead = {id_: lease for id_, lease in claimed.items() if isinstance(lease, Lease) and self._is_dead(lease)}
        if dead:
            taken = self._store.claim([*dead], self._holder, {*dead.values()})
            claimed.update(zip(dead, taken, strict=True))
        return claimed

    def give_back(self, session_id: str, epoch: int) -> None:
        """Give a lease back as soon as the store can be told; one that went with a commit needn't be."""
        with self._lock:
            self._unreleased[session_id] = epoch

    def keep_up(self, is_busy: Callable[[str], bool]) -> None:
        """Tell the store which leases were given back, and that this worker lives; called again and again.

        Args:
            is_busy: Whether this worker has something to do in a session, so will claim it itself.
        """
        try:
            if time.monotonic() - self._beaten >= BEAT_SECONDS:
                self._store.beat(self._holder)
                self._beaten = time.monotonic()
            if self._unreleased:
                self._release(is_busy)
        except Exception as error:
            if self._reachable:
                log.warning("The store can't be told that this worker lives: %s", error)
                log.debug("That came of this", exc_info=True)
            self._reachable = False
        else:
            self._reachable = True

    def _release(self, is_busy: Callable[[str], bool]) -> None:
        with self._lock:
            unreleased = list(self._unreleased.items())
        for session_id, epoch in unreleased:
            if epoch is not None:
                self._store.release(session_id, epoch)
            elif is_busy(session_id):
                continue
            else:
                self._release_if_held(session_id)
            with self._lock:
                if self._unreleased.get(session_id, -1) == epoch:
                    del self._unreleased[session_id]

    def _release_if_held(self, session_id: str) -> None:
        (claimed,) = self._store.claim([session_id], self._holder)
        if isinstance(claimed, Head):
            self._store.release(session_id, claimed.epoch)

    def _is_dead(self, lease: Lease) -> bool:
        """Look at a lease's holder once more; say whether its beat has stood still for long enough."""
        now = time.monotonic()
        with self._lock:
            watch = self._watched.get(lease.holder)
            if watch is None or watch.beat != lease.beat:
                self._watched[lease.holder] = _Watch(lease.beat, now)
                return False
            watch.still += min(now - watch.looked, LOOK_SECONDS)
            watch.looked = now
            return watch.still > DEAD_SECONDS
