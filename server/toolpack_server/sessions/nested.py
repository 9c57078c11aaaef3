"""Nested calls in the record of a call.

The record lists all nested calls of a call. Long arguments and results are cut. A nested call that didn't return gets
the error of the whole call.
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
    """Nested calls of one call, prepared for the record of that call.

    Args:
        calls: The nested calls.
        max_bytes: Maximum total size of the arguments, and of the results. If a total is larger, each long value is
            cut.
    """

    def __init__(self, calls: Sequence[NestedCall], max_bytes: int) -> None:
        self._calls = calls
        self._max_bytes = max_bytes
        self._arguments = _cut_together([dumps(call.arguments) for call in calls], max_bytes)

    def members(self, results: Sequence[bytes], error: str | None) -> list[Mapping[str, Any]]:
        """Return the nested calls as JSON objects for the record.

        Args:
            results: Results of the nested calls that returned, in order. These are the first nested calls.
            error: Error of the whole call, if it failed. The nested calls without a result get this error.
        """
        texts = _cut_together(results, self._max_bytes)
        short = error and cut_error(error, SMALL_BYTES)
        return [
            {
                "function": call.function[:MAX_SHOWN],
                "kwargs": Fragment(self._arguments[index]),
                "result": Fragment(texts[index]) if index < len(texts) else "",
                "error": None if index < len(texts) else short,
                **({} if call.parent is None else {"parent": call.parent}),
            }
            for index, call in enumerate(self._calls)
        ]


def _cut_together(texts: Sequence[bytes], max_bytes: int) -> Sequence[bytes]:
    """Return the JSON texts. If their total size is too large, cut each long text."""
    if sum(map(len, texts)) <= max_bytes:
        return texts
    return [cut_if_longer(text, min(SMALL_BYTES, max_bytes)) for text in texts]
