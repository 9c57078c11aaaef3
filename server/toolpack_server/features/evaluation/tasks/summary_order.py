"""In which order summaries can be had, and how the next ones of such an order are found.

What has no value comes last, whether the order goes up or down, and what is equal is sorted by session_id: so
an order is the same each time, and the page after a session begins where the last one ended.
"""

import re
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Literal

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.features.evaluation.tasks.results import SessionSummary
from toolpack_server.jsonio.strict import dumps

Order = Literal[
    "id",
    "-id",
    "created",
    "-created",
    "task",
    "-task",
    "parent",
    "-parent",
    "verdict",
    "-verdict",
    "calls",
    "-calls",
    "last",
    "-last",
    "done",
    "-done",
    "version",
    "-version",
]
BY_STORE = {"id", "-created"}
"""The orders in which the store has sessions: no other needs to read them all."""
MOST_SORTED = 20_000  # sessions: each takes a few hundred bytes until the answer

_VALUES: dict[str, Callable[[SessionSummary], Any]] = {
    "id": itemgetter("session_id"),
    "created": itemgetter("created_at"),
    "task": lambda summary: _natural(summary["task"]),
    "parent": lambda summary: summary["parent"] and summary["parent"]["session_id"],
    "verdict": lambda summary: _outcome(summary["verdict"]),
    "calls": itemgetter("calls"),
    "last": lambda summary: _natural(summary["last_function"]),
    "done": itemgetter("done"),
    "version": itemgetter("version"),
}


def in_order(summaries: Iterable[SessionSummary], order: str, after: str) -> tuple[list[bytes], int]:
    """Get the JSON of those summaries that come after a session in an order, and how many there are in all.

    Raises:
        InvalidParamsError: There are too many, or there is no such session.
    """
    value = _VALUES[order.removeprefix("-")]
    has: list[tuple[Any, str, bytes]] = []
    has_not: list[tuple[Any, str, bytes]] = []
    for summary in summaries:
        key = value(summary)
        (has_not if key is None else has).append((key, summary["session_id"], dumps(summary)))
        if len(has) + len(has_not) > MOST_SORTED:
            raise InvalidParamsError(
                f"order: {shown(order)!r} sorts up to {MOST_SORTED:,} sessions: give labels, so that there are fewer."
            )
    has.sort(key=itemgetter(1))
    has.sort(key=itemgetter(0), reverse=order.startswith("-"))
    has_not.sort(key=itemgetter(1))
    ids = [session_id for _, session_id, _ in has + has_not]
    if after and after not in ids:
        raise InvalidParamsError(
            f"after: no session like this has the id {shown(after)!r}, or no longer: list the first ones again."
        )
    start = ids.index(after) + 1 if after else 0
    return [text for _, _, text in (has + has_not)[start:]], len(ids)


def _natural(text: str | None) -> Any:
    """Get what sorts a text as people do: step 9 before step 10."""
    if text is None:
        return None
    parts = [(part, part.lstrip("0") if part.isdecimal() else "") for part in re.split(r"([0-9]+)", text)]
    # The longer of two numbers is the larger one; Python makes no number of one that is very long.
    return [(part.isdecimal(), len(number), number, part) for part, number in parts]


def _outcome(verdict: Any) -> Any:
    if verdict is None:
        return None
    return ("passed" if verdict["passed"] else "failed") if verdict["valid"] else "invalid"
