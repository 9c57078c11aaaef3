"""What is recorded of an episode besides calls: messages of the conversation, and the agent's answer.

The rule: a note changes no environment and no version. It is refused before it is recorded, or kept.
"""

import time
from typing import Any

from server.engine.jobs import StartClock
from server.engine.state import Result, SessionState, added_bytes
from server.errors import AnsweredError, DeadlineError, InvalidParamsError, TooLargeError
from server.sessions.context import SessionContext
from server.sessions.episodes import Progress, with_progress
from server.sessions.records import request_digest
from server.times import timestamp


class _Note:
    """An operation that leaves a record and changes nothing else; see `Operation`."""

    after_commits = True
    cancelled = False
    kind = "note"

    def __init__(self, context: SessionContext, session_id: str, owner: str) -> None:
        self.session_id = session_id
        self.owner = owner
        self._context = context

    def _begin(self, state: SessionState, start_clock: StartClock, text: str) -> Progress | None:
        """Start the clock, check what is to be noted, and get how far the agent is."""
        context = self._context
        seconds, most = context.settings.timeout_seconds, context.settings.max_record_bytes
        context.keep_alive(state, seconds)
        start_clock(seconds)
        context.check(state)
        size = len(text.encode("utf-8", "replace"))
        if size > most:
            raise TooLargeError(
                f"The text has {size} bytes; {most} are allowed: shorten it, or raise TOOLPACK_MAX_RECORD_BYTES."
            )
        return context.episodes.progress(state)

    def _noted(
        self,
        state: SessionState,
        progress: Progress | None,
        note: dict[str, Any],
        private: dict[str, Any] | None = None,
    ) -> Result:
        shown = {
            "index": state.index + 1,
            **note,
            "version": state.version,
            "started_at": timestamp(time.time()),
            "duration_ms": 0.0,
        }
        record = self._context.records.write(self.session_id, shown, with_progress(private, progress))
        self._context.room.check_session(state, added_bytes(record, {}))
        return Result(True, record, progress=progress)

    def on_timeout(self, state: SessionState) -> Result:  # noqa: ARG002 - an operation's signature
        """Refuse it."""
        seconds = self._context.settings.timeout_seconds
        raise DeadlineError(f"The request took longer than {seconds:g} s; nothing has changed.")


class MessageOperation(_Note):
    """Records a message of the conversation, once for each call_id."""

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, role: str, content: str, call_id: str | None
    ) -> None:
        super().__init__(context, session_id, owner)
        self._message = {"role": role, "content": content}
        self._call_id = call_id

    def run(self, state: SessionState, start_clock: StartClock) -> Result:
        """Record it, unless that was done before."""
        context, call_id = self._context, self._call_id
        progress = self._begin(state, start_clock, self._message["content"])
        private = None
        if call_id is not None:
            private = {"digest": request_digest("add_message", self._message)}
            record = context.store.record_of_call(self.session_id, call_id)
            if record is not None:
                context.records.read_repeated(self.session_id, record, private["digest"])
                return Result(True)
        sent = {"call_id": call_id} if call_id else {}
        return self._noted(state, progress, {"kind": "message", **sent, **self._message}, private)


class AnswerOperation(_Note):
    """Records the agent's answer, which ends its part."""

    def __init__(self, context: SessionContext, session_id: str, owner: str, answer: str) -> None:
        super().__init__(context, session_id, owner)
        self._answer = answer

    def run(self, state: SessionState, start_clock: StartClock) -> Result:
        """Record it; the same answer again is no other."""
        progress = self._begin(state, start_clock, self._answer)
        if progress is None:
            raise InvalidParamsError("The session has no task, so it takes no answer: create one with a task.")
        before = self._context.episodes.answer(self.session_id, progress)
        if before == self._answer:
            return Result(True)
        if before is not None:
            raise AnsweredError("Another answer was submitted before: reset the session, or fork it, to answer anew.")
        progress = progress._replace(answered=state.index + 1)
        return self._noted(state, progress, {"kind": "answer", "answer": self._answer})
