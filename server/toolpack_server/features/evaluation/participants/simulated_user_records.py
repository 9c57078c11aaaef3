"""What a program that plays a participant leaves in the record: a model's turns, and that it has failed.

Only a client records it, never who is evaluated: a failure ends the session for all, and makes its verdicts
invalid. Neither changes an environment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.features.evaluation.episodes.messages import ALONE, RecordOperation
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.participants.results import FailureRecord, TurnRecord
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.results import PartFailure
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.record_kinds import Shown
from toolpack_server.sessions.repeatable_kind import RepeatableKind

MEMBERS = ("participant", "reason", "message", "metadata", "problem")


class _PlayedOperation(RecordOperation):
    """Records something of a participant, with the members of its record."""

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, members: Mapping[str, Any], call_id: str | None
    ) -> None:
        super().__init__(context, session_id, owner, dumps(members).decode(), call_id)
        self._members = members

    def asked(self) -> Sequence[Any]:
        return (self._members,)

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:  # noqa: ARG002
        if not self.context.addresses.of(state.session, self._members["participant"]).others:
            raise InvalidParamsError(ALONE)
        return Effect(True, {**self._members})


class TurnOperation(_PlayedOperation):
    """Records what a model was asked, or has answered, for a participant."""

    method = "add_turn"
    record_kind = "turn"


class FailureOperation(_PlayedOperation):
    """Records that a participant has failed, which ends the session for all."""

    method = "fail_participant"
    record_kind = "failure"

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        effect = super().change(state, start_clock)
        Episodes.of(self.context).check_open(state, "it is over already")
        return effect


class _PlayedKind(RepeatableKind):
    operation: type[_PlayedOperation]

    @override
    def repeat(
        self, context: SessionContext, session_id: str, owner: str, shown: Shown, call_id: str | None
    ) -> _PlayedOperation:
        members = {name: shown[name] for name in MEMBERS if name in shown}
        return self.operation(context, session_id, owner, members, call_id)


class TurnKind(_PlayedKind):
    """The record of a model's turn; a fork's path has those of its parent, with what they have used."""

    name = "turn"
    shape = TurnRecord
    title = "turn of {participant}"
    content = "problem"
    operation = TurnOperation


class FailureKind(_PlayedKind):
    """The record of a failure; a fork goes on, and may do better."""

    name = "failure"
    shape = FailureRecord
    title = "{participant} has failed: {reason}"
    content = "message"
    inherited = False
    operation = FailureOperation

    @override
    def failure(self, shown: Shown) -> PartFailure:
        return {"by": shown["participant"], "reason": shown["reason"], "message": shown["message"]}
