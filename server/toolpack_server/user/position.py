"""State of a participant in a session, computed from the records: the messages so far, whose turn it is, and limits.

The player reads this state, called *position*, before each action. The functions are pure, so the same records result
in the same position after a restart, in a fork and in a replay. The model sees the same messages that the participant's
exported trajectory contains.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.tasks.trajectories import Messages, participants_messages
from toolpack_server.sessions.record_kinds import RecordKind, RecordKinds

ANSWERED, LEFT = "answered", "left"
_WRONG_CALLS = ("arguments", "not_found")  # `failure` in records of calls


class Limits(NamedTuple):
    """Limits of a participant in one session."""

    turns: int  # max messages and calls, and max answers of the model
    tokens: int | None  # max tokens that the model reads and writes, if the endpoint reports them
    mistakes: int = 5  # max mistakes of one kind in a row


class Position(NamedTuple):
    """All that the player needs for a participant's next action in a session. `View.position` computes it.

    Attributes:
        messages: The conversation for the model, in the format of chat completions.
        done: Number of the participant's messages and calls in this session, including those undone by a reset. It
            numbers the next action.
        turn: Number of the participant's messages and calls in the current history.
        heard: Index of the last message from or to the participant, as `listen` counts.
        may_call: Whether the participant has calls left.
        is_next: Whether it is the participant's turn.
        over: How the participant's part ended, or "" while it continues.
        limit: The reason and the explanation of a reached limit, with which the participant fails. None: no limit is
            reached.
    """

    messages: Messages
    done: int
    turn: int
    heard: int
    may_call: bool
    is_next: bool
    over: str
    limit: tuple[str, str] | None


class View(NamedTuple):
    """The settings for computing a participant's position from a session's records.

    The command creates one view for a run. For each session, the player makes a copy with the session's `task`.

    Attributes:
        task: The result of `get_task` at the participant's address: prompt, call limit, and names of the participants.
        kinds: The kinds of records, which tell calls, messages and other records apart.
        limits: The participant's limits.
        stops: Function that checks whether a text ends the participant's part.
        first: Whether the participant speaks first in an empty conversation.
    """

    task: Mapping[str, Any]
    kinds: RecordKinds
    limits: Limits
    stops: Callable[[str], bool]
    first: bool

    def position(self, path: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> Position:
        """Return the participant's position after all records, to decide on the next action.

        If the model's last answer was unusable, the messages end with a hint to the model about the problem.

        Args:
            path: The records of the session's history, including those inherited by a fork.
            own: All records of the session itself, including those undone by a reset.
        """
        prompt: Any = self.task.get("prompt") or []
        if isinstance(prompt, str):
            prompt = [{"role": "system", "content": prompt}]
        numbered = [{**record, "path_index": number} for number, record in enumerate(path)]
        messages = participants_messages({**self.task, "prompt": prompt}, numbered, self.kinds)
        tally = _Tally(self.task["name"], is_next=self.first or (bool(prompt) and prompt[-1]["role"] == "user"))
        for record in path:
            tally.add(record, self.kinds[record["kind"]], self.stops)
        if tally.problems:
            text = f"[Your last answer can't be used. {tally.problems[-1]} Say something, or call a function.]"
            messages.append({"role": "user", "content": text})
        max_calls = self.task.get("max_calls")
        return Position(
            messages,
            done=sum(record.get("by") == tally.name for record in own),
            turn=tally.said + tally.called,
            heard=tally.heard - 1,  # the index of the last message; -1 if there is none
            may_call=max_calls is None or tally.calls < max_calls,
            is_next=tally.is_next,
            over=tally.over,
            limit=tally.limit(self.limits),
        )


class _Tally:
    """Counts of a participant's actions and messages in a history, updated record by record.

    Args:
        name: The participant.
        is_next: Whether it is the participant's turn at the beginning.
    """

    def __init__(self, name: str, *, is_next: bool) -> None:
        self.name = name
        self.is_next = is_next
        self.over = ""
        self.heard = self.said = self.called = 0  # numbers of messages to or from it, of sent messages, of calls
        self.calls = 0  # number of calls, including nested calls
        self.problems: list[str] = []  # problems in the model's answers since the participant's last action
        self._answers = self._tokens = 0  # the model's answers and tokens
        self._wrong = 0  # number of the latest calls in a row with a wrong name or wrong arguments

    def add(self, record: Mapping[str, Any], kind: RecordKind, stops: Callable[[str], bool]) -> None:
        """Count the next record. `stops` checks whether a message ends the participant's part."""
        failure, by = kind.failure(record), record.get("by")
        if failure is not None:
            self.over = f"failed ({failure['reason']})"
        elif kind.ends(record):
            self.over = ANSWERED
        elif kind.is_message and by is not None:
            if by == self.name or record.get("to") in {None, self.name}:
                self._add_message(record, stops)
        elif kind.is_call and by == self.name:
            self.is_next, self.problems = True, []  # the model continues with the result of its call
            self.called += 1
            self.calls += 1 + len(record.get("nested", ()))
            self._wrong = self._wrong + 1 if record.get("failure") in _WRONG_CALLS else 0
        elif record["kind"] == "turn" and record["participant"] == self.name:
            metadata = record["metadata"]
            self._answers += 1
            self._tokens += metadata.get("prompt_tokens", 0) + metadata.get("completion_tokens", 0)
            self.problems += [record["problem"]] if "problem" in record else []

    def _add_message(self, record: Mapping[str, Any], stops: Callable[[str], bool]) -> None:
        """Count a message from or to the participant. After another participant's message, it is this one's turn."""
        self.heard += 1
        self.is_next = record["by"] != self.name
        if not self.is_next:
            self.said += 1
            self._wrong, self.problems = 0, []
            self.over = LEFT if stops(record["content"]) else ""

    def limit(self, limits: Limits) -> tuple[str, str] | None:
        """Return the reason and the explanation of the first limit that is reached, or None."""
        if self._wrong >= limits.mistakes:
            return "wrong_calls", f"{self._wrong} calls in a row had a wrong name or wrong arguments."
        if len(self.problems) >= limits.mistakes:
            return "nonsense", f"{len(self.problems)} answers in a row can't be used. {self.problems[-1]}"
        if max(self.said + self.called, self._answers) >= limits.turns:
            return "turns", f"All {limits.turns} turns are used."
        if limits.tokens is not None and self._tokens >= limits.tokens:
            return "tokens", f"{self._tokens} tokens are used; {limits.tokens} are allowed."
        return None
