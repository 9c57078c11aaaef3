"""How the records of one session follow each other.

A reset goes back on the path, so the records of a session are a tree, of which each version's path is one branch.
Between two resets the records of a path have consecutive indices, so a path is a few ranges, however long it is.

It only grows, and what is known of a record never changes. So it can be read while another thread adds to it.
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
    """The records of one session, which are numbered from 0; the place before the first record is -1."""

    def __init__(self, kinds: RecordKinds) -> None:
        self._kinds = kinds
        self.last_id = ""
        self._count = 0
        self._ends = array("q", [-1])  # for each version, the last record that has it or one before it
        self._resets = array("q")  # the indices of resets
        self._back_to = array("q")  # for each reset, the last record of the path to which it went back
        self._own = array("q")  # the indices of other records that no fork inherits
        self._said_at = array("q")  # the indices of what participants have said
        self._said: list[tuple[str, str | None]] = []  # by whom, and to whom
        self._listed: tuple[int, Sequence[range]] = -1, ()  # the path that was asked for last, by its end

    def __len__(self) -> int:
        return self._count

    def add(self, record: Record, text: bytes) -> None:
        """Add the next record; `text` is what clients see of it."""
        kind = self._kinds[_kind(text)]
        if not kind.inherited:
            shown = loads(text)
            back_to = kind.goes_back_to(shown)
            if back_to is None:
                self._own.append(record.index)
            else:
                self._back_to.append(self._end(back_to))
                self._resets.append(record.index)
        elif kind.is_message and b',"by":' in text:
            shown = loads(text)
            if "by" in shown:
                self._said.append((shown["by"], shown.get("to")))
                self._said_at.append(record.index)
        while len(self._ends) <= record.version:
            self._ends.append(self._count - 1)
        self._ends[record.version] = record.index
        self.last_id = record.id
        self._count += 1

    def path(self, version: int) -> Sequence[range]:
        """Get the indices of the records on the path of a version, in order."""
        end = self._end(version)
        if end != self._listed[0]:
            self._listed = end, self._ranges(end)
        return self._listed[1]

    def inherited(self, version: int, last: int) -> Sequence[range]:
        """Get the indices of what a fork inherits that was made when `last` was the last record; not of answers."""
        return [*_without(self._own, self._ranges(min(self._end(version), last)))]

    def said(self, ranges: Iterable[range]) -> Iterator[tuple[int, str, str | None]]:
        """Get what participants have said among these records: the index, by whom, and to whom (None: to all)."""
        for each in ranges:
            for number in range(bisect_left(self._said_at, each.start), bisect_left(self._said_at, each.stop)):
                yield self._said_at[number], *self._said[number]

    def _end(self, version: int) -> int:
        """Get the last record whose version is at most this one."""
        return self._ends[min(version, len(self._ends) - 1)]

    def _ranges(self, end: int) -> Sequence[range]:
        """Get the path on which a client was after a record."""
        found: list[range] = []
        while end >= 0:
            reset = bisect_right(self._resets, end) - 1
            found.append(range(self._resets[reset] + 1 if reset >= 0 else 0, end + 1))
            end = self._back_to[reset] if reset >= 0 else -1
        return [each for each in reversed(found) if each]


def _without(left_out: Sequence[int], ranges: Iterable[range]) -> Iterator[range]:
    for each in ranges:
        between = left_out[bisect_left(left_out, each.start) : bisect_left(left_out, each.stop)]
        for before, after in pairwise([each.start - 1, *between, each.stop]):
            if before + 1 < after:
                yield range(before + 1, after)


def _kind(text: bytes) -> str:
    found = _KIND.match(text)
    return found[1].decode() if found else str(loads(text)["kind"])
