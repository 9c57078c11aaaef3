"""Commits: what several operations have done goes into the store in one transaction.

The rule: a commit that was refused, or whose outcome isn't known, makes the session's state invalid, so that nothing
that was built upon it is committed or acknowledged.
"""

import logging
from collections.abc import Sequence

from server.engine.jobs import SessionJob
from server.engine.state import CLOSED
from server.errors import OverloadedError
from server.settings import Settings
from server.stores.base import Commit, SessionStore

log = logging.getLogger("toolpack_server")

TRIM_EVERY = 64

REFUSED = "Another worker has taken the session over; nothing was changed. Send the call again, with its call_id."
UNKNOWN = "It is not known whether the call was kept: send it again with its call_id, or look for it in the trace."


class Committer:
    """Commits to the store and trims the history of sessions.

    Args:
        store: The store.
        settings: How much history is kept.
    """

    def __init__(self, store: SessionStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def commit(self, jobs: Sequence[SessionJob]) -> None:
        """Commit what jobs have done, in their order; each then says if its commit is in the store."""
        valid = [(job, job.commit) for job in jobs if job.commit and job.state and not job.state.invalid]
        if not valid:
            return
        kept, why = self._commit([commit for _, commit in valid])
        for (job, commit), was_kept in zip(valid, kept, strict=True):
            job.committed = was_kept
            state = job.state
            if state is None:
                continue
            if not was_kept:
                state.invalid = CLOSED if why == REFUSED and self._is_closed(commit.session_id) else why
            elif commit.record.index % TRIM_EVERY == TRIM_EVERY - 1 or state.untrimmed > self._settings.keep_bytes:
                state.untrimmed = 0
                self._trim(commit.session_id)

    def _commit(self, commits: Sequence[Commit]) -> tuple[Sequence[bool], str]:
        """Commit, and say for each commit whether it was kept, and why the others were not."""
        try:
            return self._store.commit(commits), REFUSED
        except OverloadedError as error:
            return [False] * len(commits), str(error)
        except Exception:
            log.exception("A commit failed")
            return [False] * len(commits), UNKNOWN

    def _is_closed(self, session_id: str) -> bool:
        """Whether a session doesn't exist any more, so that a commit was refused for that."""
        try:
            return self._store.get(session_id) is None
        except Exception:  # noqa: BLE001 - then it isn't known
            return False

    def _trim(self, session_id: str) -> None:
        try:
            self._store.trim(session_id, self._settings.keep_versions, self._settings.keep_bytes)
        except Exception:  # the next trim deletes what this one should have
            log.exception("The history of a session could not be trimmed")
