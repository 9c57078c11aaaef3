"""Committer: writes the changes of several operations to the store in one transaction.

If the store refuses a commit, or if the commit's outcome is unknown, the session's state becomes invalid. After that,
no operation that built on this state is committed or acknowledged.
"""

import time
from collections.abc import Callable, Sequence

from toolpack_server.base.errors import OverloadedError
from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.engine.state import CLOSED, SessionState
from toolpack_server.stores.base import Commit, SessionStore

TRIM_EVERY = 64  # number of a session's records between two trims of its history, because each trim costs a query

REFUSED = "Another worker has taken over the session; nothing was changed. Retry the call with the same call_id."
UNKNOWN = "It is unknown whether the call was stored. Retry it with the same call_id, or look for it in the trace."

Measure = Callable[[float, Sequence[Commit]], None]
"""Callback after a transaction, which receives its duration in seconds and its commits."""


class Committer:
    """Commits to the store and trims the history of sessions."""

    def __init__(self, store: SessionStore, settings: Settings, measure: Measure) -> None:
        self._store = store
        self._keep_versions, self._keep_bytes = settings.keep_versions, settings.keep_bytes
        self._measure = measure

    def commit(self, changes: Sequence[tuple[SessionState, Commit]]) -> Sequence[bool]:
        """Commit changes to sessions in order. If a change is refused, make its session's state invalid.

        After a fixed number of records or bytes, this also trims a session's history, which deletes old versions.

        Returns:
            For each change, whether it was stored.
        """
        _, commits = zip(*changes, strict=True)
        stored, refusal = self._commit(commits)
        for (state, commit), is_stored in zip(changes, stored, strict=True):
            if not is_stored:
                state.invalid = CLOSED if refusal == REFUSED and self._is_closed(commit.session_id) else refusal
            elif commit.record.index % TRIM_EVERY == TRIM_EVERY - 1 or state.untrimmed > self._keep_bytes:
                state.untrimmed = 0
                self._trim(commit.session_id)
        return stored

    def _commit(self, commits: Sequence[Commit]) -> tuple[Sequence[bool], str]:
        """Write commits. Return whether each commit was stored, and the error message for commits that weren't."""
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
        """Return whether a session was closed, which explains why its commit was refused."""
        try:
            return self._store.get(session_id) is None
        except Exception:  # noqa: BLE001 - the cause stays unknown, so the caller reports only the refused commit
            return False

    def _trim(self, session_id: str) -> None:
        try:
            self._store.trim(session_id, self._keep_versions, self._keep_bytes)
        except Exception:  # the next trim deletes the same versions
            log.exception("The history of a session could not be trimmed")
