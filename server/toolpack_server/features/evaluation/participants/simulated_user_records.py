"""Records of a simulated user: the turns of the model that plays it, and its failure.

Only a client can add these records. The evaluated agent must not, because a failure ends the session for all
participants and makes its verdicts invalid. The records change no environment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.features.evaluation.episodes.messages import NO_OTHERS, RecordOperation
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.participants.results import FailureRecord, TurnRecord
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.results import PartFailure
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.record_kinds import Shown
from toolpack_server.sessions.repeatable_kind import RepeatableKind

MEMBERS = ("participant", "reason", "message", "metadata", "problem")


class _ParticipantOperation(RecordOperation):
    """Adds a record about a participant.

    Args:
        members: The fields that only this kind of record has. Fields of all records, such as `index`, are added later.
    """

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, members: Mapping[str, Any], call_id: str | None
    ) -> None:
        super().__init__(context, session_id, owner, dumps(members).decode(), call_id)
        self._members = members

    def asked(self) -> Sequence[Any]:
        return (self._members,)

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:  # noqa: ARG002
        if not self.context.addresses.of(state.session, self._members["participant"]).others:
            raise InvalidParamsError(NO_OTHERS)
        return Effect(True, {**self._members})


class TurnOperation(_ParticipantOperation):
    """Records a turn of a model that plays a participant."""

    method = "add_turn"
    record_kind = "turn"


class FailureOperation(_ParticipantOperation):
    """Records a participant's failure, which ends the session for all participants."""

    method = "fail_participant"
    record_kind = "failure"

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        effect = super().change(state, start_clock)
        Episodes.of(self.context).check_open(state, "no failure can be recorded")
        return effect


class _ParticipantKind(RepeatableKind):
    """Base class of the two record kinds. A replay repeats the record by running its operation again."""

    operation: type[_ParticipantOperation]

    @override
    def repeat(
        self, context: SessionContext, session_id: str, owner: str, shown: Shown, call_id: str | None
    ) -> _ParticipantOperation:
        members = {name: shown[name] for name in MEMBERS if name in shown}
        return self.operation(context, session_id, owner, members, call_id)


class TurnKind(_ParticipantKind):
    """The record of a model's turn. A fork inherits the turns of its parent, with their token counts."""

    name = "turn"
    shape = TurnRecord
    title = "turn of {participant}"
    content = "problem"
    operation = TurnOperation


class FailureKind(_ParticipantKind):
    """The record of a failure. A fork doesn't inherit the failure, so the fork can continue."""

    name = "failure"
    shape = FailureRecord
    title = "{participant} has failed: {reason}"
    content = "message"
    inherited = False
    operation = FailureOperation

    @override
    def failure(self, shown: Shown) -> PartFailure:
        return {"by": shown["participant"], "reason": shown["reason"], "message": shown["message"]}
