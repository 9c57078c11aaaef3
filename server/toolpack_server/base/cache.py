"""A bounded cache: for states of sessions, initial environments, recipes, digests, agents' keys.

What it holds can be had again, so whatever no longer fits is dropped. It is our own and not `cachetools`,
whose caches aren't safe between threads, refuse a value that is too large with an exception, and have no exception for
the values of the last call, which an executor needs; they would also be the slowest step of a read from memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The values that were used last, as many as fit. From any thread.

    Args:
        max_size: The size that all values together may have.
        size_of: Measures a value when it is put in; without it, each has the size 1.

    Attributes:
        size: The size of all values together.
    """

    def __init__(self, max_size: int, size_of: Callable[[V], int] = lambda _: 1) -> None:
        self._max_size = max_size
        self._size_of = size_of
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = RLock()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Get a value, as the one used last; None if it isn't here."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value as the one used last; not if it is larger than all that may be kept."""
        size = self._size_of(value)
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self.size -= before
            if size <= self._max_size:
                self._kept[key] = value, size
                self.size += size
                if self.size > self._max_size:
                    self._drop(0)

    def setdefault(self, key: K, value: V) -> V:
        """Get the value that is kept, or else keep this one."""
        with self._lock:
            if key in self._kept:
                return self._kept[key][0]
            self.put(key, value)
        return value

    def put_all(self, values: Mapping[K, V]) -> None:
        """Keep values as those used last; all of them, even if they are too large together."""
        with self._lock:
            for key, value in values.items():
                self.pop(key)
                size = self._size_of(value)
                self._kept[key] = value, size
                self.size += size
            self._drop(len(values))

    def pop(self, key: K) -> V | None:
        """Take a value out; None if it isn't here."""
        with self._lock:
            value, size = self._kept.pop(key, (None, 0))
            self.size -= size
        return value

    def _drop(self, least: int) -> None:
        """Drop the values used longest ago that no longer fit, but keep at least so many."""
        while self.size > self._max_size and len(self._kept) > least:
            _, (_, size) = self._kept.popitem(last=False)
            self.size -= size
