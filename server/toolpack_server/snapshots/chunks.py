"""Items of a container that is stored in chunks, and the chunks that a change of them replaces."""

from collections.abc import Sequence
from operator import indexOf, is_
from typing import Any

CHUNK = 64  # items in a chunk


class Items:
    """Items of a chunked container, as stored."""

    __slots__ = ("container", "keys", "values")

    def __init__(self, container: Any, keys: list[Any] | None, values: list[Any]) -> None:
        self.container = container
        self.keys = keys
        self.values = values

    @classmethod
    def now(cls, container: Any) -> "Items":
        return (
            cls(container, [*container], [*container.values()])
            if type(container) is dict
            else cls(container, None, [*container])
        )

    def values_now(self) -> list[Any]:
        return [*self.container] if self.keys is None else [*self.container.values()]

    def is_changed(self) -> bool:
        """Return whether an item was added, removed, moved or replaced. Keys and values are compared by identity."""
        values = self.container if self.keys is None else self.container.values()
        is_same = len(values) == len(self.values) and all(map(is_, values, self.values))
        return not (is_same and (self.keys is None or all(map(is_, self.container, self.keys))))

    def unchanged(
        self, chunks: Sequence[tuple[int, int]], keys: list[Any] | None, values: list[Any]
    ) -> tuple[int, int, int, int]:
        """Return which chunks to replace and by which items: two slices of `chunks` and of `values`."""
        head, tail = _common(values, self.values), _common(values[::-1], self.values[::-1])
        if keys is not None and self.keys is not None:
            head, tail = min(head, _common(keys, self.keys)), min(tail, _common(keys[::-1], self.keys[::-1]))
        front, start, back, end = 0, 0, len(chunks), len(values)
        while front < len(chunks) and start + chunks[front][1] <= head:
            start += chunks[front][1]
            front += 1
        kept = 0
        while back > front and kept + chunks[back - 1][1] <= tail and end - chunks[back - 1][1] >= start:
            back -= 1
            kept += chunks[back][1]
            end -= chunks[back][1]
        if front and end - start < CHUNK // 2:  # fill the chunk before instead of adding small ones
            front -= 1
            start -= chunks[front][1]
        return front, back, start, end


def _common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the number of identical objects at the beginning of two sequences."""
    try:
        return indexOf(map(is_, left, right), False)
    except ValueError:
        return min(len(left), len(right))
