"""Quotas: limits on the bytes that a session and an owner can store.

All stored data counts. The store counts the bytes at intervals. Between two counts, a worker adds the bytes of its own
commits to the last count, but doesn't know those of other workers. So each worker can exceed an owner's limit by
`OWN_SHARE` of the limit. Before a worker refuses a request, it makes sure that the count is recent.
"""

import threading
import time
from dataclasses import dataclass

from toolpack_server.base.errors import TooLargeError
from toolpack_server.base.settings import Settings
from toolpack_server.engine.state import SessionState
from toolpack_server.stores.base import SessionStore

RECOUNT_SECONDS = 10.0
RECOUNT_FULL_SECONDS = 1.0  # maximum age of a count before a request is refused
RECOUNT_SHARE = 0.01  # maximum share of the time for counting, so an owner with much data is counted less often
OWN_SHARE = 0.01  # share of an owner's limit that a worker can add before the store counts again


@dataclass(slots=True)
class _Count:
    """Estimate of an owner's bytes, based on the last count by the store."""

    stored: int  # estimated bytes
    counted: int
    counted_at: float  # start of the count, on the monotonic clock
    seconds: float  # duration of the count


class Quotas:
    """Checks the quotas of sessions and owners."""

    def __init__(self, store: SessionStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._counts: dict[str, _Count] = {}
        self._lock = threading.Lock()  # protects `_counts`

    def check_session(self, state: SessionState, added: int, *, at_least: bool = False) -> None:
        """Check that a session and its owner are allowed to store `added` more bytes.

        Args:
            state: The state of the session.
            added: The number of bytes.
            at_least: Whether `added` is only a minimum. The caller then checks again when it knows the exact number.

        Raises:
            TooLargeError: A quota is exceeded.
        """
        max_bytes = self._settings.max_session_bytes
        if state.stored + added > max_bytes:
            entry = self._store.get(state.session.id)
            state.stored = entry[1].size if entry else 0
            if state.stored + added > max_bytes:
                raise TooLargeError(
                    f"the session stores {state.stored} bytes already, and this call would add {added}; {max_bytes} "
                    "are allowed. Nothing was changed or recorded: continue in a new session."
                )
        self.check_owner(state.session.owner, added, at_least=at_least)

    def check_owner(self, owner: str, added: int, *, at_least: bool = False) -> None:
        """Check that an owner is allowed to store `added` more bytes.

        Args:
            owner: The owner.
            added: The number of bytes, which this method adds to the estimate.
            at_least: Whether `added` is only a minimum, which this method doesn't add to the estimate yet.

        Raises:
            TooLargeError: The quota is exceeded.
        """
        max_bytes = self._settings.max_owner_bytes
        count = self._count(owner, RECOUNT_SECONDS)
        if count.stored - count.counted > max_bytes * OWN_SHARE:
            count = self._recount(owner)
        if count.stored + added > max_bytes:
            count = self._count(owner, RECOUNT_FULL_SECONDS)
        if count.stored + added > max_bytes:
            raise TooLargeError(
                f"this owner stores {count.stored} bytes already, and this would add {added}; {max_bytes} are allowed. "
                "Nothing was changed: close some sessions first."
            )
        if not at_least:
            count.stored += added

    def _count(self, owner: str, seconds: float) -> _Count:
        """Return the estimate of an owner's bytes. The store counts again if the last count is older than `seconds`."""
        now = time.monotonic()
        with self._lock:
            count = self._counts.get(owner)
        if count is None or now - count.counted_at > max(seconds, count.seconds / RECOUNT_SHARE):
            count = self._recount(owner)
        return count

    def _recount(self, owner: str) -> _Count:
        """Make the store count the bytes of an owner, and return a new estimate."""
        began = time.monotonic()
        stored = self._store.stored_bytes(owner)
        count = _Count(stored, stored, began, time.monotonic() - began)
        with self._lock:
            self._counts[owner] = count
        return count
