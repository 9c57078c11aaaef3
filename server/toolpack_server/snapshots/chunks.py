"""Items of a dict or list that is stored in chunks, and the chunks that a change to the items replaces.

A chunk is always written as a whole. A change to a large container writes only a few of its chunks.
"""

from collections.abc import Sequence
from operator import indexOf, is_
from typing import Any

CHUNK = 64  # maximum number of items in a new chunk


class Items:
    """Copy of a container's items at the time when they were last stored, used to find later changes.

    Attributes:
        container: The dict or list itself, which a call might have changed since then.
        keys: The stored keys. None for a list.
        values: The stored values.
    """

    __slots__ = ("container", "keys", "values")

    def __init__(self, container: Any, keys: list[Any] | None, values: list[Any]) -> None:
        self.container = container
        self.keys = keys
        self.values = values

    @classmethod
    def of(cls, container: Any) -> "Items":
        """Copy the current items of a container."""
        return (
            cls(container, [*container], [*container.values()])
            if type(container) is dict
            else cls(container, None, [*container])
        )

    def current_values(self) -> list[Any]:
        """Return the values that the container has now."""
        return [*self.container] if self.keys is None else [*self.container.values()]

    def is_changed(self) -> bool:
        """Return whether an item was added, removed, moved or replaced. Keys and values are compared by identity."""
        values = self.container if self.keys is None else self.container.values()
        is_same = len(values) == len(self.values) and all(map(is_, values, self.values))
        return not (is_same and (self.keys is None or all(map(is_, self.container, self.keys))))

    def changed_slices(
        self, chunks: Sequence[tuple[int, int]], keys: list[Any] | None, values: list[Any]
    ) -> tuple[int, int, int, int]:
        """Return the chunks to replace, and the items for the new chunks.

        Args:
            chunks: The number of each stored chunk, with its count of items.
            keys: The current keys. None for a list.
            values: The current values.

        Returns:
            Start and end of the slice of `chunks` to replace, followed by start and end of the slice of `values` to
            store.
        """
        # The numbers of unchanged items at the beginning and at the end.
        head, tail = _common(values, self.values), _common(values[::-1], self.values[::-1])
        if keys is not None and self.keys is not None:
            head, tail = min(head, _common(keys, self.keys)), min(tail, _common(keys[::-1], self.keys[::-1]))
        front, start, back, end = 0, 0, len(chunks), len(values)
        while front < len(chunks) and start + chunks[front][1] <= head:
            start += chunks[front][1]
            front += 1
        kept = 0  # number of items in the chunks at the end that aren't replaced
        while back > front and kept + chunks[back - 1][1] <= tail and end - chunks[back - 1][1] >= start:
            back -= 1
            kept += chunks[back][1]
            end -= chunks[back][1]
        if front and end - start < CHUNK // 2:  # also replace the previous chunk, instead of adding a small chunk
            front -= 1
            start -= chunks[front][1]
        return front, back, start, end


def _common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the number of identical objects at the beginning of two sequences."""
    try:
        return indexOf(map(is_, left, right), False)
    except ValueError:
        return min(len(left), len(right))
