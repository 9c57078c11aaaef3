"""Bounded LRU cache, for session states, initial environments, recipes, digests and agents' keys.

`cachetools` isn't used, because its caches aren't thread-safe, raise an exception for a value that is too large, and
would be the slowest step of a read from memory. It also has no `put_all`, which executors need.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A thread-safe cache of the most recently used values.

    Args:
        max_size: Maximum total size of the values.
        size_of: Returns the size of a value when it is stored. By default, the size of each value is 1.

    Attributes:
        size: Total size of the stored values.
    """

    def __init__(self, max_size: int, size_of: Callable[[V], int] = lambda _: 1) -> None:
        self._max_size = max_size
        self._size_of = size_of
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = RLock()  # reentrant, because `setdefault` and `put_all` call other methods
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of a key, and mark it as recently used. Return None if the key has no value."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Replace the value of a key. A value that is larger than the whole cache isn't stored."""
        size = self._size_of(value)
        with self._lock:
            _, before = self._entries.pop(key, (None, 0))
            self.size -= before
            if size <= self._max_size:
                self._entries[key] = value, size
                self.size += size
                if self.size > self._max_size:
                    self._drop(0)

    def setdefault(self, key: K, value: V) -> V:
        """Return the stored value of a key. If there is none, store and return `value`."""
        with self._lock:
            if key in self._entries:
                return self._entries[key][0]
            self.put(key, value)
        return value

    def put_all(self, values: Mapping[K, V]) -> None:
        """Store all values, even if together they exceed the maximum size: a call needs all its values at once."""
        with self._lock:
            for key, value in values.items():
                self.pop(key)
                size = self._size_of(value)
                self._entries[key] = value, size
                self.size += size
            self._drop(len(values))

    def pop(self, key: K) -> V | None:
        """Remove a key, and return its value or None."""
        with self._lock:
            value, size = self._entries.pop(key, (None, 0))
            self.size -= size
        return value

    def _drop(self, min_count: int) -> None:
        """Drop the least recently used values until the rest fits, but keep at least `min_count` values."""
        while self.size > self._max_size and len(self._entries) > min_count:
            _, (_, size) = self._entries.popitem(last=False)
            self.size -= size
