"""The path of a session: the records that led to its present version, its ancestors' among them.

A reset goes back on the path: what came after the version that it names is no longer on it. Calls that change nothing
belong to the version that they read. A fork's path begins with its parent's, up to the version that was forked, but
without the answer, as each fork gives its own. The fork only refers to that: it names its parent, the version, and the
last record that its parent had. The store keeps what forks refer to, also when the parent is closed.

What is here follows from what has keyed hashes: records, and what never changes in a session. So a fork can't
be given another past, neither by whoever can write to the store, nor by a store that has lost its newest records: the
record that it names would be missing, or be another one.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import SessionNotFoundError, StateDamagedError
from toolpack_server.jsonio.strict import loads
from toolpack_server.sessions.histories import RecordTree
from toolpack_server.sessions.identity import Identities
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.sessions.records import Records
from toolpack_server.stores.base import ForkPoint, SessionStore, StoredSession

READ_AT_ONCE = 64
REMEMBERED = 256  # sessions of which a server knows how their records follow each other
POINTS_REMEMBERED = 4096  # at which sessions were forked

Line = tuple[str, bytes]
"""A record of a path: its session, and the JSON that clients see."""


class _Known:
    """What is known of a session's records, and the lock of whoever reads more of them."""

    def __init__(self, kinds: RecordKinds) -> None:
        self.lock = threading.Lock()
        self.history = RecordTree(kinds)


class _PathSegment(NamedTuple):
    """The part of a path that is one session's own.

    Attributes:
        before: The part before it, which is another session's; None at the beginning.
        point: Where it was forked, after which nothing of it is on the path; None if the path ends in it.
        start: The place of the first of them on the path.
        stop: The place after the last.
    """

    before: "_PathSegment | None"
    session_id: str
    point: ForkPoint | None
    ranges: Sequence[range]
    start: int
    stop: int


def _stretch(
    before: _PathSegment | None, session_id: str, point: ForkPoint | None, ranges: Sequence[range]
) -> _PathSegment:
    start = before.stop if before else 0
    return _PathSegment(before, session_id, point, ranges, start, start + sum(map(len, ranges)))


class _Piece(NamedTuple):
    """Records of a stretch that are read in one step."""

    session_id: str
    point: ForkPoint | None
    indices: range


class PathMessage(NamedTuple):
    """What a participant has said, by the place of its record; `to` is None if it was said to all."""

    session_id: str
    point: ForkPoint | None
    record: int
    by: str
    to: str | None


@dataclass(frozen=True, slots=True)
class PathRecord:
    """A record on the path that led to a version.

    Attributes:
        own: It is the session's own, not one of a parent.
    """

    shown: Mapping[str, Any]
    own: bool


class Paths:
    def __init__(self, store: SessionStore, records: Records, identities: Identities, kinds: RecordKinds) -> None:
        self._kinds = kinds
        self._store = store
        self._records = records
        self._identities = identities
        self._known = lru_cache(maxsize=REMEMBERED)(lambda _session_id: _Known(kinds))
        self._pasts = BoundedCache[ForkPoint, _PathSegment](POINTS_REMEMBERED)
        self.before = lru_cache(maxsize=POINTS_REMEMBERED)(self._before)

    # Whole paths

    def lines(self, session: StoredSession, version: int, start: int = 0, limit: int | None = None) -> Iterator[Line]:
        """Read the path of a version from a place on: for each record the session, and the JSON that clients see.

        Raises:
            StateDamagedError: A record, or a session on the way, was damaged or forged, or is missing.
            SessionNotFoundError: The session was closed meanwhile.
        """
        with self._unless_closed(session):
            batch: list[_Piece] = []
            size = 0
            for piece in self._pieces(session, version, start):
                if limit == 0:
                    break
                indices = piece.indices if limit is None else piece.indices[:limit]
                limit = None if limit is None else limit - len(indices)
                if batch and size + len(indices) > READ_AT_ONCE:
                    yield from self._read(batch)
                    batch, size = [], 0
                batch.append(piece._replace(indices=indices))
                size += len(indices)
            if batch:
                yield from self._read(batch)

    def said(self, session: StoredSession, version: int) -> list[PathMessage]:
        """Get what participants have said on the path of a version, in order; no record is read again."""
        with self._unless_closed(session):
            return [
                PathMessage(stretch.session_id, stretch.point, *each)
                for stretch in self._stretches(session, version, 0)
                for each in self._history(stretch.session_id).said(stretch.ranges)
            ]

    def said_lines(self, session: StoredSession, said: Sequence[PathMessage]) -> Iterator[bytes]:
        """Read what clients see of these records; raises as `lines`."""
        pieces = [_Piece(each.session_id, each.point, range(each.record, each.record + 1)) for each in said]
        with self._unless_closed(session):
            for start in range(0, len(pieces), READ_AT_ONCE):
                for _, text in self._read(pieces[start : start + READ_AT_ONCE]):
                    yield text

    def _stretches(self, session: StoredSession, version: int, start: int) -> list[_PathSegment]:
        """Get the stretches of a path, in order, from that of a place on."""
        path: _PathSegment | None = _stretch(
            self._past(session), session.id, None, self._history(session.id).path(version)
        )
        found = []
        while path is not None and path.stop > start:
            found.append(path)
            path = path.before
        return found[::-1]

    def _pieces(self, session: StoredSession, version: int, start: int) -> Iterator[_Piece]:
        for stretch in self._stretches(session, version, start):
            for indices in _after(stretch.ranges, start - stretch.start):
                for first in range(indices.start, indices.stop, READ_AT_ONCE):
                    some = range(first, min(first + READ_AT_ONCE, indices.stop))
                    yield _Piece(stretch.session_id, stretch.point, some)

    def _read(self, pieces: Sequence[_Piece]) -> Iterator[Line]:
        """Read records as clients see them, if the last one to which a fork refers is there too."""
        points = {piece.point for piece in pieces if piece.point is not None}
        beyond = {piece.point for piece in pieces if piece.point and piece.point.last not in piece.indices}
        wanted = [(piece.session_id, piece.indices) for piece in pieces]
        wanted += [(point.session_id, range(point.last, point.last + 1)) for point in beyond]
        found = zip(wanted, self._store.records_at(wanted), strict=True)
        records = {(of, record.index): record for (of, _), some in found for record in some}
        if any((of, index) not in records for of, indices in wanted for index in indices):
            raise _missing()
        for point in beyond:
            self._records.read(point.session_id, records[point.session_id, point.last])
        if any(records[point.session_id, point.last].id != point.record for point in points):
            raise _missing()
        for of, _, indices in pieces:
            for index in indices:
                yield of, self._records.read(of, records[of, index])[0]

    def evidence(self, session: StoredSession, version: int) -> tuple[Mapping[str, str], list[PathRecord]]:
        """Get the first parts and the path of a version for an evaluator; raises as `lines`.

        The first parts are those of the environments with which the session's family began.
        """
        path = [PathRecord(loads(line), own=of == session.id) for of, line in self.lines(session, version)]
        root, point = session.id, session.parent
        with self._unless_closed(session):
            while point is not None:
                root, point = point.session_id, self.before(point)
        return self._store.parts_at(root, 0), path

    @contextmanager
    def _unless_closed(self, session: StoredSession) -> Iterator[None]:
        """Say that a session was closed meanwhile if that is why a part of its path is missing."""
        try:
            yield
        except StateDamagedError:
            if self._store.get(session.id) is None:
                raise SessionNotFoundError from None
            raise

    def _past(self, session: StoredSession) -> _PathSegment | None:
        """Get what a session inherits of its path; None if it is no fork."""
        points, point, past = [], session.parent, None
        while point is not None and (past := self._pasts.get(point)) is None:
            points.append(point)
            point = self.before(point)
        for point in reversed(points):
            ranges = self._history(point.session_id).inherited(point.version, point.last)
            past = _stretch(past, point.session_id, point, ranges)
            self._pasts.put(point, past)
        return past

    def _before(self, point: ForkPoint) -> ForkPoint | None:
        """Check that a fork's past is there, and get where the session that was forked was forked itself, if it was."""
        parent = self._store.ancestor(point.session_id)
        found = self._store.records(point.session_id, point.last - 1, 1) if point.last >= 0 else []
        if parent is None or (point.last >= 0 and [record.id for record in found] != [point.record]):
            raise _missing()
        self._identities.check(parent)
        for record in found:
            self._records.read(point.session_id, record)
        return parent.parent

    # One session's own records

    def end(self, session_id: str, version: int, last: int) -> int:
        """Get the last record of a version, or one before it, that isn't after `last`; -1 if there is none.

        It is known from a few records, however many there are.

        Raises:
            SessionNotFoundError: The session was closed meanwhile.
        """

        def version_of(index: int) -> int:
            for record in self._store.records(session_id, index - 1, 1):
                return record.version
            raise SessionNotFoundError

        if last < 0 or version_of(last) <= version:
            return last
        return bisect_right(range(last + 1), version, key=version_of) - 1

    def private(self, session_id: str, index: int) -> bytes:
        """Get the line of a record that only the server reads; raises as `lines`."""
        for record in self._store.records(session_id, index - 1, 1):
            return self._records.read(session_id, record)[1]
        raise SessionNotFoundError

    def _history(self, session_id: str) -> RecordTree:
        """Read the records that came since the last time."""
        known = self._known(session_id)
        with known.lock:
            history = known.history
            count = len(history)
            found = self._store.records(session_id, count - 2, READ_AT_ONCE)
            if count and not (found and found[0].id == history.last_id):
                # A store has lost its newest records, and got others.
                known.history = history = RecordTree(self._kinds)
                count = 0
                found = self._store.records(session_id, -1, READ_AT_ONCE)
            found = found[1:] if count else found
            more = len(found) >= READ_AT_ONCE - 1
            while found:
                for record in found:
                    if record.index != len(history):
                        raise _missing()
                    history.add(record, self._records.read(session_id, record)[0])
                found = self._store.records(session_id, len(history) - 1, READ_AT_ONCE) if more else []
            return history


def _missing() -> StateDamagedError:
    return StateDamagedError("A part of the session's past is missing from the store: restore a backup, or close it.")


def _after(ranges: Sequence[range], count: int) -> Iterator[range]:
    """Omit the first `count` indices."""
    for indices in ranges:
        if count < len(indices):
            yield indices[max(count, 0) :]
        count -= len(indices)
