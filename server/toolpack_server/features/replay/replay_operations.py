"""Operations of a replay, one for each kind of record.

Each is derived from the operation that created the original record, so all its checks apply. It also stores the new
record, which the replay compares with the original. A call that can't be run again also gets a record, so that the
later records keep their indexes. That record contains this server's error, not a copy of the original error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from toolpack_server.base.errors import CrashedError, TooLargeError, shown
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.functions.steps import Steps
from toolpack_server.jsonio.strict import dumps
from toolpack_server.sessions.calls import CallOperation, CallRequest, CancelCallOperation, failed, timed_out
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.resets import ResetOperation
from toolpack_server.stores.base import Record

_OWN = {"index", "kind", "version", "started_at", "duration_ms"}  # not copied: the new record has its own


class ReplayOperation(SessionOperation):
    """An operation that keeps the record that it created, for the comparison.

    Attributes:
        created: The record that this operation created, or that the first request created if this request is a retry.
            None until the operation has run.
    """

    created: Record | None = None

    @override
    def record(self, state: SessionState, change: Effect) -> Record:
        self.created = super().record(state, change)
        return self.created

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Any:
        self.created = record
        return super().repeated(record, shown, private)


class ReplayReset(ReplayOperation, ResetOperation):
    """A reset that runs again."""


class ReplayCall(ReplayOperation, CallOperation):
    """A call that runs again."""

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Outcome:
        outcome: Outcome = super().repeated(record, shown, private)
        # The outcome of a repeated request lacks the nested results, which the replay compares.
        outcome.nested = [dumps(each["result"]) for each in shown.get("nested", ()) if each["error"] is None]
        return outcome


class SkippedCall(ReplayCall):
    """A call that doesn't run again, because its outcome depended on the machine. Its record contains the same failure.

    Args:
        request: The call. Its timeout is the duration of the original call.
        failure: The failure of the original call, `DEADLINE` or `CRASHED`.
    """

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, request: CallRequest, failure: Failure
    ) -> None:
        super().__init__(context, session_id, owner, request)
        self._failure = failure

    @override
    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        # A call that fails before its function starts, for example because the function is unknown, can run again.
        if self.outcome is not None or not self.plan.toolpack:
            return (yield from super().changing(state, start_clock))
        outcome = timed_out(self.plan) if self._failure is Failure.DEADLINE else self._lost()
        return self._effect(outcome, self.plan.timeout_seconds)

    def _lost(self) -> Outcome:
        """Return the outcome of a call whose function ended its process."""
        error = CrashedError(
            f"`{self.plan.function}` ended its process in the original call, so the replay didn't run it; nothing has "
            "changed."
        )
        return failed(self.plan, CallFailure.of(error, Failure.CRASHED, keep_cause=False))


class ReplayCancelledCall(ReplayCall, CancelCallOperation):
    """A call that its client cancelled. It doesn't run again. Its new record is also that of a cancelled call."""


class CopyOperation(SessionOperation):
    """Commits a copy of a record of a kind that can't be repeated, so that later records keep their indexes.

    It changes no environment.
    """

    method = kind = "replay_session"
    late = "A record could not be copied in time; nothing has changed."

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, record: Mapping[str, Any], call_id: str | None
    ) -> None:
        super().__init__(context, session_id, owner, call_id)
        self.record_kind = record["kind"]
        self._shown = {name: value for name, value in record.items() if name not in _OWN | {"call_id"}}
        self._seconds = record["duration_ms"] / 1000

    @override
    def prepare(self, state: SessionState) -> float:
        size, max_bytes = len(dumps(self._shown)), self.context.settings.max_record_bytes
        if size > max_bytes:
            raise TooLargeError(
                f"A record of the kind {shown(self.record_kind)!r} has {size} bytes; {max_bytes} are allowed."
            )
        return super().prepare(state)

    @override
    def asked(self) -> Sequence[Any]:
        return (self._shown,)

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Return None, because no caller uses the result."""

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        return Effect(None, {**self._shown}, seconds=self._seconds)
