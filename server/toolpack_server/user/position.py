"""Where a participant is in a session, by the records alone: what it has heard, done and used, and whose turn it is.

Pure. Whoever starts again with the same records is at the same place, and so is a fork or a replay. The model
sees what the participant's trajectory shows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolpack_server.features.evaluation.tasks.trajectories import Messages, participants_messages
from toolpack_server.sessions.record_kinds import RecordKind, RecordKinds

ANSWERED, LEFT = "answered", "left"
_WRONG_CALLS = ("arguments", "not_found")  # as records of calls say it


class Limits(NamedTuple):
    """How long a participant goes on in one session."""

    turns: int  # what it has said and called, or, if that is more, what its model has answered
    tokens: int | None  # that its model has read and written, as far as the endpoint says it
    mistakes: int = 5  # of one kind in a row


class Place(NamedTuple):
    """Where a participant is.

    Attributes:
        messages: The conversation, as chat completions have it.
        done: How much of this session it has said and called, what a reset has undone too: the number of its next act.
        turn: How much of the path it has said and called.
        heard: The index of the last message that it has said or was told, as `listen` counts.
        may_call: It has calls left.
        is_next: It is its turn.
        over: How its part has ended; "" if it goes on.
        limit: The reason for which it doesn't go on, and what has happened; None if it does.
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
    """How a participant looks at a session.

    Attributes:
        told: What `get_task` tells at its address.
        kinds: The kinds of records.
        limits: How long it goes on.
        stops: Whether a text ends its part.
        first: It speaks where nobody has.
    """

    told: Mapping[str, Any]
    kinds: RecordKinds
    limits: Limits
    stops: Callable[[str], bool]
    first: bool

    def place(self, path: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> Place:
        """Get the place of a participant by a path, and by all records of the session itself."""
        prompt: Any = self.told.get("prompt") or []
        if isinstance(prompt, str):
            prompt = [{"role": "system", "content": prompt}]
        placed = [{**record, "place": place} for place, record in enumerate(path)]
        messages = participants_messages({**self.told, "prompt": prompt}, placed, self.kinds)
        seen = _Seen(self.told["name"], is_next=self.first or (bool(prompt) and prompt[-1]["role"] == "user"))
        for record in path:
            seen.add(record, self.kinds[record["kind"]], self.stops)
        if seen.problems:
            text = f"[Your last answer can't be used. {seen.problems[-1]} Say something, or call a function.]"
            messages.append({"role": "user", "content": text})
        most = self.told.get("max_calls")
        return Place(
            messages,
            done=sum(record.get("by") == seen.name for record in own),
            turn=seen.said + seen.called,
            heard=seen.heard - 1,
            may_call=most is None or seen.calls < most,
            is_next=seen.is_next,
            over=seen.over,
            limit=seen.limit(self.limits),
        )


class _Seen:
    """What a participant has seen of a path, record by record.

    Args:
        is_next: It is its turn at the beginning.
    """

    def __init__(self, name: str, *, is_next: bool) -> None:
        self.name = name
        self.is_next = is_next
        self.over = ""
        self.heard = self.said = self.called = self.calls = 0  # `calls`: nested ones, too
        self.problems: list[str] = []  # with answers since it has last done something
        self._answers = self._tokens = self._wrong = 0

    def add(self, record: Mapping[str, Any], kind: RecordKind, stops: Callable[[str], bool]) -> None:
        failure, by = kind.failure(record), record.get("by")
        if failure is not None:
            self.over = f"failed ({failure['reason']})"
        elif kind.ends(record):
            self.over = ANSWERED
        elif kind.is_message and by is not None:
            if by == self.name or record.get("to") in {None, self.name}:
                self._add_message(record, stops)
        elif kind.is_call and by == self.name:
            self.is_next, self.problems = True, []
            self.called += 1
            self.calls += 1 + len(record.get("nested", ()))
            self._wrong = self._wrong + 1 if record.get("failure") in _WRONG_CALLS else 0
        elif record["kind"] == "turn" and record["participant"] == self.name:
            used = record["metadata"]
            self._answers += 1
            self._tokens += used.get("prompt_tokens", 0) + used.get("completion_tokens", 0)
            self.problems += [record["problem"]] if "problem" in record else []

    def _add_message(self, record: Mapping[str, Any], stops: Callable[[str], bool]) -> None:
        self.heard += 1
        self.is_next = record["by"] != self.name
        if not self.is_next:
            self.said += 1
            self._wrong, self.problems = 0, []
            self.over = LEFT if stops(record["content"]) else ""

    def limit(self, limits: Limits) -> tuple[str, str] | None:
        """Get the limit that is reached, and what has happened; None if it goes on."""
        if self._wrong >= limits.mistakes:
            return "wrong_calls", f"{self._wrong} calls in a row had a wrong name or wrong arguments."
        if len(self.problems) >= limits.mistakes:
            return "nonsense", f"{len(self.problems)} answers in a row can't be used. {self.problems[-1]}"
        if max(self.said + self.called, self._answers) >= limits.turns:
            return "turns", f"All {limits.turns} turns are used."
        if limits.tokens is not None and self._tokens >= limits.tokens:
            return "tokens", f"{self._tokens} tokens are used; {limits.tokens} are allowed."
        return None
