"""The agent's answer: the operation that records the answer, and its kind of record.

A session accepts one answer. A fork doesn't inherit its parent's answer, so it accepts its own.
"""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from toolpack_server.base.errors import AnsweredError, InvalidParamsError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.features.evaluation.episodes.messages import RecordOperation
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS
from toolpack_server.features.evaluation.tasks.results import AnswerRecord
from toolpack_server.protocol.senders import CLIENT
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.record_kinds import Shown
from toolpack_server.sessions.repeatable_kind import RepeatableKind


class AnswerOperation(RecordOperation):
    """Records the agent's answer. This ends the agent's part."""

    method = "submit_answer"
    record_kind = "answer"

    def __init__(
        self,
        context: SessionContext,
        session_id: str,
        owner: str,
        answer: str,
        by: str = CLIENT,
        call_id: str | None = None,
    ) -> None:
        super().__init__(context, session_id, owner, answer, call_id)
        self.by = by
        self._episodes = Episodes.of(context)

    def asked(self) -> Sequence[Any]:
        return (self._text,)

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:  # noqa: ARG002
        """Record the answer.

        An equal second answer without a call_id counts as a retry, so it succeeds without another record.

        Raises:
            InvalidParamsError: The session has no task, or the caller isn't allowed to answer.
            AnsweredError: The session has another answer, or has ended.
        """
        episodes, feature_options = self._episodes, self.facts.recipe.feature_options
        if "task" not in feature_options and PARTICIPANTS not in feature_options:
            raise InvalidParamsError("The session has no task, so it takes no answer: create a session with a task.")
        shared, is_agent = PARTICIPANTS in feature_options, self.by != CLIENT  # shared: by several participants
        # An agent and a client might use the same call_id for different requests. So a record with a call_id also
        # stores `by`, and neither takes the other's request for a retry.
        by = {"by": self.by} if shared or (is_agent and self.call_id is not None) else {}
        if shared and is_agent and not self.context.addresses.of(state.session, self.by).answers:
            raise InvalidParamsError("You can't submit the answer of this session: another participant does that.")
        ending = episodes.ending(self.session_id, episodes.progress(state))
        if ending is None:
            return Effect(True, {"answer": self._text, **by})
        if ending.failure:
            raise AnsweredError(f"{str(ending).capitalize()}, so it takes no answer: reset the session, or fork it.")
        if ending.answer == self._text and self.call_id is None:
            return Effect(True)
        raise AnsweredError("Another answer was submitted before: fork the session, or reset it to an earlier version.")


class AnswerKind(RepeatableKind):
    """Record kind of the agent's answer. Forks don't inherit answers."""

    name = "answer"
    shape = AnswerRecord
    content = "answer"
    inherited = False

    @override
    def repeat(
        self,
        context: SessionContext,
        session_id: str,
        owner: str,
        shown: Shown,
        call_id: str | None,
    ) -> AnswerOperation:
        """Return the operation that submits the record's answer again, for a replay."""
        return AnswerOperation(context, session_id, owner, shown["answer"], shown.get("by", CLIENT), call_id)

    def answer(self, shown: Shown) -> str:
        text: str = shown["answer"]
        return text

    def add_to_trajectory(self, messages: list[dict[str, Any]], shown: Shown) -> None:
        message = {"role": "assistant", "content": shown["answer"]}
        if messages[-1:] != [message]:  # the agent often submits its last message as the answer
            messages.append(message)
