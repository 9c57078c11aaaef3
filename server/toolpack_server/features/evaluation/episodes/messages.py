"""Records of messages that a client adds, and of messages that participants send to each other.

A message changes neither the environments nor the session's version. Messages that a client adds are for evaluators and
trajectories; no participant receives them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError, TooLargeError, shown
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.episodes.results import MessageRecord
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.results import SaidMessage
from toolpack_server.protocol.senders import AGENT, CLIENT
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.record_kinds import Shown
from toolpack_server.sessions.repeatable_kind import RepeatableKind
from toolpack_server.stores.base import Record

NO_OTHERS = "The session has no other participant: create it with `participants`."


class RecordOperation(SessionOperation):
    """An operation that adds a record with a text and changes neither the environments nor the version."""

    after_commits = True
    is_told = True
    kind = "note"

    def __init__(
        self, context: SessionContext, session_id: str, owner: str, text: str, call_id: str | None = None
    ) -> None:
        super().__init__(context, session_id, owner, call_id)
        self._text = text

    def prepare(self, state: SessionState) -> float:
        """Refuse a text that is too long for a record. Otherwise prepare the operation as its base class does.

        Raises:
            TooLargeError: The text is too long.
        """
        size, max_bytes = self._size(), self.context.settings.max_record_bytes
        if size > max_bytes:
            raise TooLargeError(
                f"The text has {size} bytes; at most {max_bytes} are allowed: shorten it, or raise "
                "TOOLPACK_MAX_RESULT_BYTES."
            )
        return super().prepare(state)

    def _size(self) -> int:
        """Return the number of bytes that the record's own content takes."""
        return len(self._text.encode("utf-8", "replace"))

    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return True


class MessageOperation(RecordOperation):
    """Records a message that a client adds."""

    method = "add_message"
    record_kind = "message"

    def __init__(
        self,
        context: SessionContext,
        session_id: str,
        owner: str,
        role: str,
        content: str,
        call_id: str | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(context, session_id, owner, content, call_id)
        self._message: dict[str, Any] = {"role": role, "content": content}
        if metadata is not None:
            self._message["metadata"] = metadata

    @override
    def _size(self) -> int:
        metadata = self._message.get("metadata")
        return super()._size() + (0 if metadata is None else len(dumps(metadata)))

    def asked(self) -> Sequence[Any]:
        return (self._message,)

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:  # noqa: ARG002
        return Effect(True, {**self._message})


class SayOperation(MessageOperation):
    """Records a message that a participant sends.

    Args:
        by: The sender's name.
        to: The recipient's name. None: all other participants receive the message.
    """

    method = "say"

    def __init__(
        self,
        context: SessionContext,
        session_id: str,
        owner: str,
        text: str,
        call_id: str | None,
        *,
        by: str,
        to: str | None,
    ) -> None:
        super().__init__(context, session_id, owner, "assistant" if by == AGENT else "user", text, call_id)
        self.by = by
        self._to = to
        self._message |= {"by": by} if to is None else {"by": by, "to": to}

    @override
    def change(self, state: SessionState, start_clock: StartClock) -> Effect:
        """Record the message. Waiting recipients are notified after the commit, because `is_told` is set.

        Raises:
            InvalidParamsError: There is no other participant, or no participant with the recipient's name.
            AnsweredError: The session has ended.
        """
        others = self.context.addresses.of(state.session, self.by).others
        if not others:
            raise InvalidParamsError(NO_OTHERS)
        if self._to is not None and self._to not in others:
            raise InvalidParamsError(
                f"There is no other participant {shown(self._to)!r}: choose from {', '.join(others)}."
            )
        Episodes.of(self.context).check_open(state, "no further message is accepted")
        return super().change(state, start_clock)


class MessageKind(RepeatableKind):
    """The record of a message, from a client or a participant."""

    name = "message"
    shape = MessageRecord
    title = "message of the {role}"
    content = "content"
    is_message = True

    @override
    def repeat(
        self, context: SessionContext, session_id: str, owner: str, shown: Shown, call_id: str | None
    ) -> MessageOperation:
        """Return the operation that adds the record's message again, for a replay."""
        by = shown.get("by", CLIENT)
        if by == CLIENT:
            role, content, metadata = shown["role"], shown["content"], shown.get("metadata")
            return MessageOperation(context, session_id, owner, role, content, call_id, metadata)
        return SayOperation(context, session_id, owner, shown["content"], call_id, by=by, to=shown.get("to"))

    @override
    def message(self, shown: Shown) -> SaidMessage:
        message: SaidMessage = {"role": shown["role"], "content": shown["content"]}
        if "by" in shown:
            message["by"] = shown["by"]
            if shown.get("to") is not None:
                message["to"] = shown["to"]
        return message

    def add_to_trajectory(self, messages: list[dict[str, Any]], shown: Shown) -> None:
        metadata = {"metadata": shown["metadata"]} if shown.get("metadata") is not None else {}
        messages.append({"role": shown["role"], "content": shown["content"], **metadata})
