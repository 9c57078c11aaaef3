"""The operations of a replay: what is done again for each kind of record.

They are the operations of the records' own methods, with all their checks, and each notes the record that it
has made. A call that can't be run again has a record all the same, so that those after it keep their index. What such a
record says is this server's, whatever the one that is repeated says.
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
from toolpack_server.sessions.calls import CallOperation, CallRequest, failed, timed_out
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.resets import ResetOperation
from toolpack_server.stores.base import Record

_OWN = {"index", "kind", "version", "started_at", "duration_ms"}  # which each record has of its own


class Repeated(SessionOperation):
    """An operation that notes the record that it has made, now or when the same request came first."""

    made: Record | None = None

    @override
    def record(self, state: SessionState, change: Effect) -> Record:
        self.made = super().record(state, change)
        return self.made

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Any:
        self.made = record
        return super().repeated(record, shown, private)


class RepeatedReset(Repeated, ResetOperation):
    """A reset that is done again."""


class RepeatedCall(Repeated, CallOperation):
    """A call that is run again."""

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> Outcome:
        outcome: Outcome = super().repeated(record, shown, private)
        outcome.nested = [dumps(each["result"]) for each in shown.get("nested", ()) if each["error"] is None]
        return outcome


class UnrunCall(RepeatedCall):
    """A call that isn't run again, because what it did depended on the machine.

    Args:
        request: Its deadline is as long as the call took.
        failure: What has made it fail, `DEADLINE` or `CRASHED`.
    """

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, request: CallRequest, failure: Failure
    ) -> None:
        super().__init__(context, session_id, owner, request)
        self._failure = failure

    @override
    def changing(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        if self.outcome is not None or not self.plan.toolpack:  # it fails by itself
            return (yield from super().changing(state, start_clock))
        outcome = timed_out(self.plan) if self._failure is Failure.DEADLINE else self._lost()
        return self._effect(outcome, self.plan.timeout_seconds)

    def _lost(self) -> Outcome:
        error = CrashedError(
            f"`{self.plan.function}` ended its process in the call that is repeated here, so it isn't run; nothing has "
            "changed."
        )
        return failed(self.plan, CallFailure.of(error, Failure.CRASHED, keep_cause=False))


class CopyOperation(SessionOperation):
    """Commits a copy of a record that only keeps its place: its kind isn't repeatable. It changes no environment."""

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
        size, most = len(dumps(self._shown)), self.context.settings.max_record_bytes
        if size > most:
            raise TooLargeError(
                f"A record of the kind {shown(self.record_kind)!r} has {size} bytes; {most} are allowed."
            )
        return super().prepare(state)

    @override
    def asked(self) -> Sequence[Any]:
        return (self._shown,)

    @override
    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Nobody wants the answer."""

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        return Effect(None, {**self._shown}, seconds=self._seconds)
