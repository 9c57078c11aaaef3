"""Sort orders of session summaries, and pages in these orders.

Summaries without a value come last in both directions. Summaries with equal values are sorted by session_id, so that
each page begins where the last page ended.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Literal

from toolpack_server.base.errors import InvalidParamsError, shown
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
"""The orders in which the store can list sessions. For any other order, the server must read all sessions."""
BY_RECORDS = {"verdict", "calls", "last", "done"}
"""The orders by values that come from records. All other orders need only the outlines of sessions."""
MAX_SORTED = 20_000  # max sessions to sort; each takes a few hundred bytes of memory until the response is sent

_VALUES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
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


def sort_summaries(summaries: Iterable[Mapping[str, Any]], order: str, after: str) -> tuple[list[bytes], int]:
    """Sort summaries. Return the JSON of the summaries after the session `after`, and the number of all summaries.

    Args:
        summaries: The summaries. Outlines are enough, unless the order is one of `BY_RECORDS`.
        after: The session_id of a summary. "": return all summaries.

    Raises:
        InvalidParamsError: The summaries are more than `MAX_SORTED`, or none of them has the session_id `after`.
    """
    value = _VALUES[order.removeprefix("-")]
    with_value: list[tuple[Any, str, bytes]] = []
    without_value: list[tuple[Any, str, bytes]] = []
    for summary in summaries:
        key = value(summary)
        (without_value if key is None else with_value).append((key, summary["session_id"], dumps(summary)))
        if len(with_value) + len(without_value) > MAX_SORTED:
            raise InvalidParamsError(
                f"order: {shown(order)!r} can sort at most {MAX_SORTED:,} sessions: select fewer with labels."
            )
    with_value.sort(key=itemgetter(1))  # sorting is stable, so equal values stay in the order of their session_ids
    with_value.sort(key=itemgetter(0), reverse=order.startswith("-"))
    without_value.sort(key=itemgetter(1))
    ids = [session_id for _, session_id, _ in with_value + without_value]
    if after and after not in ids:
        raise InvalidParamsError(
            f"after: no matching session has the id {shown(after)!r}: start again from the first page."
        )
    start = ids.index(after) + 1 if after else 0
    return [text for _, _, text in (with_value + without_value)[start:]], len(ids)


def _natural(text: str | None) -> Any:
    """Return a sort key that compares numbers in a text by value, so that step 9 comes before step 10."""
    if text is None:
        return None
    parts = [(part, part.lstrip("0") if part.isdecimal() else "") for part in re.split(r"([0-9]+)", text)]
    # Numbers are compared by their length and then as strings, because int() refuses very long numbers.
    return [(part.isdecimal(), len(number), number, part) for part, number in parts]


def _outcome(verdict: Any) -> Any:
    if verdict is None:
        return None
    return ("passed" if verdict["passed"] else "failed") if verdict["valid"] else "invalid"
