"""What the record of a call says of the calls that were nested in it.

Every nested call stands there, whatever was cut of it. One that hasn't returned has the error with which the
whole call has ended.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.base.errors import MAX_SHOWN
from toolpack_server.execution.failure import cut_error
from toolpack_server.execution.nested import NestedCall
from toolpack_server.jsonio.strict import Fragment, cut_if_longer, dumps
from toolpack_server.sessions.records import SMALL_BYTES

MAX_NESTED_CALLS = 100


class NestedRecord:
    """The nested calls of one call, for its record.

    Args:
        max_bytes: How long their arguments, and their results, may be together; else those that aren't small are cut.
    """

    def __init__(self, calls: Sequence[NestedCall], max_bytes: int) -> None:
        self._calls = calls
        self._max_bytes = max_bytes
        self._arguments = _cut_together([dumps(call.arguments) for call in calls], max_bytes)

    def members(self, results: Sequence[bytes], error: str | None) -> list[Mapping[str, Any]]:
        """Get what the record shows of them.

        Args:
            results: Those of the calls that have returned, in order.
            error: The error of the whole call, if it has failed.
        """
        texts = _cut_together(results, self._max_bytes)
        short = error and cut_error(error, SMALL_BYTES)
        return [
            {
                "function": call.function[:MAX_SHOWN],
                "kwargs": Fragment(self._arguments[place]),
                "result": Fragment(texts[place]) if place < len(texts) else "",
                "error": None if place < len(texts) else short,
                **({} if call.parent is None else {"parent": call.parent}),
            }
            for place, call in enumerate(self._calls)
        ]


def _cut_together(texts: Sequence[bytes], max_bytes: int) -> Sequence[bytes]:
    if sum(map(len, texts)) <= max_bytes:
        return texts
    return [cut_if_longer(text, min(SMALL_BYTES, max_bytes)) for text in texts]
