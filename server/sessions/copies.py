"""A record that is copied from another session, because what it tells of can't be run again.

The rule: it changes no environment. It keeps its place in the trace, so that the records after it have the same index
as those that they repeat.
"""

import time
from collections.abc import Mapping
from typing import Any

from server.engine.jobs import StartClock
from server.engine.state import Result, SessionState, added_bytes
from server.errors import DeadlineError
from server.sessions.context import SessionContext
from server.sessions.episodes import after_record, with_progress
from server.times import timestamp


class CopyOperation:
    """Commits a copy of a record; see `Operation`."""

    after_commits = False
    cancelled = False
    kind = "replay_session"

    def __init__(self, context: SessionContext, session_id: str, owner: str, shown: Mapping[str, Any]) -> None:
        self.session_id = session_id
        self.owner = owner
        self._context = context
        self._shown = shown

    def run(self, state: SessionState, start_clock: StartClock) -> Result:
        """Write the record; the answer is None."""
        context, seconds = self._context, self._context.settings.timeout_seconds
        context.keep_alive(state, seconds)
        start_clock(seconds)
        context.check(state)
        own = {"index": state.index + 1, "version": state.version, "started_at": timestamp(time.time())}
        call_id = {"call_id": None} if "call_id" in self._shown else {}
        progress = context.episodes.progress(state)
        if progress is not None:
            progress = after_record(progress, {**self._shown, **own})
        shown = {**self._shown, **call_id, **own}
        record = context.records.write(self.session_id, shown, with_progress(None, progress))
        context.room.check_session(state, added_bytes(record, {}))
        return Result(None, record, progress=progress)

    def on_timeout(self, state: SessionState) -> Result:  # noqa: ARG002 - an operation's signature
        """Refuse it."""
        raise DeadlineError("A record could not be copied in time; nothing has changed.")
