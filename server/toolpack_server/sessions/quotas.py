"""Quotas: limits on the bytes that a session and an owner may store.

All stored data counts. The store counts the bytes at intervals, and the number is estimated in between. A request is
refused only after a recent count. With several workers, each may exceed the owner's limit by at most `OWN_SHARE` of it.
"""

import threading
import time
from dataclasses import dataclass

from toolpack_server.base.errors import TooLargeError
from toolpack_server.base.settings import Settings
from toolpack_server.engine.state import SessionState
from toolpack_server.stores.base import SessionStore

RECOUNT_SECONDS = 10.0
RECOUNT_FULL_SECONDS = 1.0  # if the estimate is above the limit
RECOUNT_SHARE = 0.01  # maximum share of the time that is spent on counting
OWN_SHARE = 0.01  # share of an owner's limit that a worker adds before it counts again


@dataclass(slots=True)
class _Count:
    """Estimated bytes of an owner, and the result, time and duration of the last count."""

    stored: int
    counted: int
    at: float
    took: float


class Quotas:
    """Checks of the quotas."""

    def __init__(self, store: SessionStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._counts: dict[str, _Count] = {}
        self._lock = threading.Lock()  # protects the dictionary

    def check_session(self, state: SessionState, added: int, *, at_least: bool = False) -> None:
        """Check that a session and its owner may store `added` more bytes.

        Args:
            at_least: The number is a minimum. The caller checks again when it knows the number.

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
        """Check that an owner may store `added` more bytes, and add them to the estimate unless `at_least` is set.

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
        """Return the count of an owner's bytes. The store counts again if the last count is older than `seconds`."""
        now = time.monotonic()
        with self._lock:
            count = self._counts.get(owner)
        if count is None or now - count.at > max(seconds, count.took / RECOUNT_SHARE):
            count = self._recount(owner)
        return count

    def _recount(self, owner: str) -> _Count:
        began = time.monotonic()
        stored = self._store.stored_bytes(owner)
        count = _Count(stored, stored, began, time.monotonic() - began)
        with self._lock:
            self._counts[owner] = count
        return count
