"""Tree of the records of one session. It is used to compute the path of a version.

The path of a version is the sequence of the records that led to the version. A reset goes back to an earlier version,
so the records form a tree, and a path is one branch of this tree. Records between two resets have consecutive indices,
so even a long path consists of only a few ranges.

The tree only grows, and its entries never change, so threads can read it while another thread adds records.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from toolpack_server.jsonio.strict import loads
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.stores.base import Record

_KIND = re.compile(rb'\{"index":\d+,"kind":"([a-z]+)"')


class RecordTree:
    """Tree of a session's records.

    Records are numbered from 0. The number -1 stands for the position before the first record.
    """

    def __init__(self, kinds: RecordKinds) -> None:
        self._kinds = kinds
        self.last_id = ""
        self._count = 0
        self._ends = array("q", [-1])  # index of the last record up to each version
        self._resets = array("q")  # indices of resets
        self._reset_ends = array("q")  # for each reset, index of the last record on the path that it restored
        self._not_inherited = array("q")  # indices of records, other than resets, that forks don't inherit
        self._message_indices = array("q")  # indices of participants' messages
        self._addressees: list[tuple[str, str | None]] = []  # sender and recipient of each message
        self._cached_path: tuple[int, Sequence[range]] = -1, ()  # last record and ranges of the last requested path

    def __len__(self) -> int:
        return self._count

    def add(self, record: Record, text: bytes) -> None:
        """Add the next record.

        Args:
            record: The record.
            text: The line of the record that clients see.
        """
        kind = self._kinds[_kind(text)]
        if not kind.inherited:
            shown = loads(text)
            back_to = kind.goes_back_to(shown)
            if back_to is None:
                self._not_inherited.append(record.index)
            else:
                self._reset_ends.append(self._end(back_to))
                self._resets.append(record.index)
        elif kind.is_message and b',"by":' in text:  # a quick test, because `loads` is slow
            shown = loads(text)
            if "by" in shown:
                self._addressees.append((shown["by"], shown.get("to")))
                self._message_indices.append(record.index)
        while len(self._ends) <= record.version:  # a new version begins with this record
            self._ends.append(self._count - 1)
        self._ends[record.version] = record.index
        self.last_id = record.id
        self._count += 1

    def path(self, version: int) -> Sequence[range]:
        """Return the indices of the records on the path of a version, in order."""
        end = self._end(version)
        if end != self._cached_path[0]:
            self._cached_path = end, self._ranges(end)
        return self._cached_path[1]

    def inherited(self, version: int, last: int) -> Sequence[range]:
        """Return the indices of the records that a fork inherits, in order.

        Some kinds, such as answers, aren't inherited.

        Args:
            version: The version that was forked.
            last: Index of the last record that the fork can inherit.
        """
        return [*_without(self._not_inherited, self._ranges(min(self._end(version), last)))]

    def messages(self, ranges: Iterable[range]) -> Iterator[tuple[int, str, str | None]]:
        """Yield the participants' messages in ranges of records.

        Each message is a tuple of its index, its sender, and its recipient, which is None for all participants.
        """
        at = self._message_indices
        for indices in ranges:
            for number in range(bisect_left(at, indices.start), bisect_left(at, indices.stop)):
                yield at[number], *self._addressees[number]

    def _end(self, version: int) -> int:
        """Return the index of the last record that belongs to this or an earlier version."""
        return self._ends[min(version, len(self._ends) - 1)]

    def _ranges(self, end: int) -> Sequence[range]:
        """Return the path that ends with a record, as ranges of indices.

        Args:
            end: Index of the record.
        """
        ranges: list[range] = []
        while end >= 0:  # collect ranges backwards, from the end to the last reset before it
            reset = bisect_right(self._resets, end) - 1
            ranges.append(range(self._resets[reset] + 1 if reset >= 0 else 0, end + 1))
            end = self._reset_ends[reset] if reset >= 0 else -1
        return [indices for indices in reversed(ranges) if indices]


def _without(excluded: Sequence[int], ranges: Iterable[range]) -> Iterator[range]:
    """Yield the ranges without the excluded indices, which must be sorted."""
    for indices in ranges:
        between = excluded[bisect_left(excluded, indices.start) : bisect_left(excluded, indices.stop)]
        for before, after in pairwise([indices.start - 1, *between, indices.stop]):
            if before + 1 < after:
                yield range(before + 1, after)


def _kind(text: bytes) -> str:
    """Return the kind of a record. A regular expression is faster than parsing the JSON."""
    match = _KIND.match(text)
    return match[1].decode() if match else str(loads(text)["kind"])
