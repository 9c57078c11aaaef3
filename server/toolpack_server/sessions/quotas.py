"""Quotas: how many bytes a session and an owner may store.

All stored data counts towards the quota. What is stored is asked of the store now and then, and estimated in
between; nothing is refused before the store has been asked again. Where several workers add to what an owner stores,
each goes beyond the limit by `OWN_SHARE` of it at most.
"""

import threading
import time
from dataclasses import dataclass

from toolpack_server.base.errors import TooLargeError
from toolpack_server.base.settings import Settings
from toolpack_server.engine.state import SessionState
from toolpack_server.stores.base import SessionStore

RECOUNT_SECONDS = 10.0
RECOUNT_FULL_SECONDS = 1.0  # where the estimate is above the limit
RECOUNT_SHARE = 0.01  # of the time, at most, is spent on counting
OWN_SHARE = 0.01  # of an owner's limit that a worker adds before it looks what others have added


@dataclass(slots=True)
class _Count:
    """What an owner stores, as estimated; what the store has said last, when that was, and how long it took."""

    stored: int
    counted: int
    at: float
    took: float


class Quotas:
    def __init__(self, store: SessionStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._counts: dict[str, _Count] = {}
        self._lock = threading.Lock()  # of the dictionary

    def check_session(self, state: SessionState, more: int, *, at_least: bool = False) -> None:
        """Check that a session, and its owner, may store more bytes.

        Args:
            at_least: It is checked again when their number is known.

        Raises:
            TooLargeError: They may not.
        """
        allowed = self._settings.max_session_bytes
        if state.stored + more > allowed:
            found = self._store.get(state.session.id)
            state.stored = found[1].size if found else 0
            if state.stored + more > allowed:
                raise TooLargeError(
                    f"the session stores {state.stored} bytes already, and this call would add {more}; {allowed} are "
                    "allowed. Nothing was changed or recorded: continue in a new session."
                )
        self.check_owner(state.session.owner, more, at_least=at_least)

    def check_owner(self, owner: str, more: int, *, at_least: bool = False) -> None:
        """Check that an owner may store more bytes, and count them unless it is checked again; raises as above."""
        allowed = self._settings.max_owner_bytes
        count = self._count(owner, RECOUNT_SECONDS)
        if count.stored - count.counted > allowed * OWN_SHARE:
            count = self._recounted(owner)
        if count.stored + more > allowed:
            count = self._count(owner, RECOUNT_FULL_SECONDS)
        if count.stored + more > allowed:
            raise TooLargeError(
                f"this owner stores {count.stored} bytes already, and this would add {more}; {allowed} are allowed. "
                "Nothing was changed: close some sessions first."
            )
        if not at_least:
            count.stored += more

    def _count(self, owner: str, seconds: float) -> _Count:
        """Get what an owner stores; the store is asked again after so many seconds."""
        now = time.monotonic()
        with self._lock:
            count = self._counts.get(owner)
        if count is None or now - count.at > max(seconds, count.took / RECOUNT_SHARE):
            count = self._recounted(owner)
        return count

    def _recounted(self, owner: str) -> _Count:
        began = time.monotonic()
        stored = self._store.stored_bytes(owner)
        count = _Count(stored, stored, began, time.monotonic() - began)
        with self._lock:
            self._counts[owner] = count
        return count
