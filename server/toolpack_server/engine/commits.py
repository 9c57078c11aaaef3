"""Commits: what several operations have done goes into the store in one transaction.

A commit that was refused, or whose outcome isn't known, makes the session's state invalid, so that nothing
that was built upon it is committed or acknowledged.
"""

import time
from collections.abc import Callable, Sequence

from toolpack_server.base.errors import OverloadedError
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.engine.state import CLOSED, SessionState
from toolpack_server.stores.base import Commit, SessionStore

TRIM_EVERY = 64  # records: to look for old versions costs a query

REFUSED = "Another worker has taken the session over; nothing was changed. Send the call again, with its call_id."
UNKNOWN = "It is not known whether the call was kept: send it again with its call_id, or look for it in the trace."

Measure = Callable[[float, Sequence[Commit]], None]
"""Called with the seconds that the store has taken, and the commits."""


class Committer:
    """Commits to the store and trims the history of sessions."""

    def __init__(self, store: SessionStore, settings: Settings, measure: Measure) -> None:
        self._store = store
        self._keep_versions, self._keep_bytes = settings.keep_versions, settings.keep_bytes
        self._measure = measure

    def commit(self, changes: Sequence[tuple[SessionState, Commit]]) -> Sequence[bool]:
        """Commit changes of sessions, in their order; get for each whether it is in the store."""
        _, commits = zip(*changes, strict=True)
        kept, why = self._commit(commits)
        for (state, commit), is_kept in zip(changes, kept, strict=True):
            if not is_kept:
                state.invalid = CLOSED if why == REFUSED and self._is_closed(commit.session_id) else why
            elif commit.record.index % TRIM_EVERY == TRIM_EVERY - 1 or state.untrimmed > self._keep_bytes:
                state.untrimmed = 0
                self._trim(commit.session_id)
        return kept

    def _commit(self, commits: Sequence[Commit]) -> tuple[Sequence[bool], str]:
        """Commit; say which commits were kept, and why the others were not."""
        began = time.perf_counter()
        try:
            return self._store.commit(commits), REFUSED
        except OverloadedError as error:
            return [False] * len(commits), str(error)
        except Exception:
            log.exception("A commit failed")
            return [False] * len(commits), UNKNOWN
        finally:
            self._measure(time.perf_counter() - began, commits)

    def _is_closed(self, session_id: str) -> bool:
        try:
            return self._store.get(session_id) is None
        except Exception:  # noqa: BLE001 - then it isn't known
            return False

    def _trim(self, session_id: str) -> None:
        try:
            self._store.trim(session_id, self._keep_versions, self._keep_bytes)
        except Exception:  # the next trim deletes what this one should have
            log.exception("The history of a session could not be trimmed")
