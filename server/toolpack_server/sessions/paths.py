"""Paths of sessions: the records that led to a version, including records of the session's ancestors.

A reset goes back on the path: it removes the records after the restored version from the path. A call that changes
nothing belongs to the version that it read. A fork's path begins with its parent's path up to the forked version. It
omits the parent's answer, because each fork submits its own answer. The fork stores only a reference: its parent, the
version, and the parent's last record at that time. The store keeps the referenced records even if the parent is closed.

Paths depend only on data that an HMAC protects: records, and the values of a session that never change. So an attacker
who can write to the store can't give a fork another past. If the store loses its newest records, the referenced record
is missing or has another id, so reading the path fails.
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

READ_BATCH = 64  # number of records that are read in one step
MAX_CACHED_TREES = 256  # maximum number of sessions whose record tree is cached
MAX_CACHED_POINTS = 4096  # maximum number of fork points whose path is cached

Line = tuple[str, bytes]
"""A record on a path: the id of its session, and the JSON that clients see."""


class _CachedTree:
    """Record tree of a session in the cache, and the lock that a thread holds while it extends the tree."""

    def __init__(self, kinds: RecordKinds) -> None:
        self.lock = threading.Lock()
        self.tree = RecordTree(kinds)


class _PathSegment(NamedTuple):
    """The records on a path that belong to one session.

    Attributes:
        before: The previous segment, which belongs to the parent session. None for the first segment.
        session_id: The session.
        point: The fork point at the end of the segment. None for the last segment.
        ranges: Indices that the records have in their session.
        start: Position of the segment's first record on the path.
        stop: Position after the segment's last record on the path.
    """

    before: "_PathSegment | None"
    session_id: str
    point: ForkPoint | None
    ranges: Sequence[range]
    start: int
    stop: int


def _segment(
    before: _PathSegment | None, session_id: str, point: ForkPoint | None, ranges: Sequence[range]
) -> _PathSegment:
    """Return the segment that follows `before`."""
    start = before.stop if before else 0
    return _PathSegment(before, session_id, point, ranges, start, start + sum(map(len, ranges)))


class _Piece(NamedTuple):
    """Records of a segment that one request to the store reads."""

    session_id: str
    point: ForkPoint | None
    indices: range


class PathMessage(NamedTuple):
    """Reference to the record of a participant's message.

    Attributes:
        session_id: The session that contains the record.
        point: The fork point at the end of the record's segment. None for the last segment.
        record: Index of the record in that session.
        by: The sender.
        to: The recipient. None means all participants.
    """

    session_id: str
    point: ForkPoint | None
    record: int
    by: str
    to: str | None


@dataclass(frozen=True, slots=True)
class PathRecord:
    """A record on the path that led to a version.

    Attributes:
        shown: The fields that clients see.
        own: Whether the record belongs to the session itself and not to an ancestor.
    """

    shown: Mapping[str, Any]
    own: bool


class Paths:
    """Reader of paths. It caches the record trees of sessions, and the inherited paths of forks."""

    def __init__(self, store: SessionStore, records: Records, identities: Identities, kinds: RecordKinds) -> None:
        self._kinds = kinds
        self._store = store
        self._records = records
        self._identities = identities
        self._trees = lru_cache(maxsize=MAX_CACHED_TREES)(lambda _session_id: _CachedTree(kinds))
        self._pasts = BoundedCache[ForkPoint, _PathSegment](MAX_CACHED_POINTS)
        self.before = lru_cache(maxsize=MAX_CACHED_POINTS)(self._before)

    # Whole paths

    def lines(self, session: StoredSession, version: int, start: int = 0, limit: int | None = None) -> Iterator[Line]:
        """Yield the records on the path of a version, from position `start` on, at most `limit` records.

        Raises:
            StateDamagedError: A record or an ancestor is missing, damaged or forged.
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
                if batch and size + len(indices) > READ_BATCH:
                    yield from self._read(batch)
                    batch, size = [], 0
                batch.append(piece._replace(indices=indices))
                size += len(indices)
            if batch:
                yield from self._read(batch)

    def messages(self, session: StoredSession, version: int) -> list[PathMessage]:
        """Return the participants' messages on the path of a version, in order. Cached records aren't read again."""
        with self._unless_closed(session):
            return [
                PathMessage(segment.session_id, segment.point, *message)
                for segment in self._segments(session, version, 0)
                for message in self._tree(segment.session_id).messages(segment.ranges)
            ]

    def message_lines(self, session: StoredSession, messages: Sequence[PathMessage]) -> Iterator[bytes]:
        """Yield the records of messages, as the JSON that clients see. Raise the same errors as `lines`."""
        pieces = [_Piece(each.session_id, each.point, range(each.record, each.record + 1)) for each in messages]
        with self._unless_closed(session):
            for start in range(0, len(pieces), READ_BATCH):
                for _, text in self._read(pieces[start : start + READ_BATCH]):
                    yield text

    def _segments(self, session: StoredSession, version: int, start: int) -> list[_PathSegment]:
        """Return the segments of a path that end after position `start`, in order."""
        segment: _PathSegment | None = _segment(
            self._past(session), session.id, None, self._tree(session.id).path(version)
        )
        segments = []
        while segment is not None and segment.stop > start:
            segments.append(segment)
            segment = segment.before
        return segments[::-1]

    def _pieces(self, session: StoredSession, version: int, start: int) -> Iterator[_Piece]:
        """Yield the path of a version in pieces of at most `READ_BATCH` records."""
        for segment in self._segments(session, version, start):
            for indices in _after(segment.ranges, start - segment.start):
                for first in range(indices.start, indices.stop, READ_BATCH):
                    batch = range(first, min(first + READ_BATCH, indices.stop))
                    yield _Piece(segment.session_id, segment.point, batch)

    def _read(self, pieces: Sequence[_Piece]) -> Iterator[Line]:
        """Yield records as clients see them, after checking that the records at the fork points are unchanged.

        A record's HMAC shows that the record belongs to its session, but not that it was there when the session was
        forked. If the record at the fork point has the expected id, all records before it were there as well.
        """
        points = {piece.point for piece in pieces if piece.point is not None}
        # Fork points at a record that the pieces don't contain.
        other_points = {piece.point for piece in pieces if piece.point and piece.point.last not in piece.indices}
        queries = [(piece.session_id, piece.indices) for piece in pieces]
        queries += [(point.session_id, range(point.last, point.last + 1)) for point in other_points]
        results = zip(queries, self._store.records_at(queries), strict=True)
        records = {(session_id, record.index): record for (session_id, _), result in results for record in result}
        if any((session_id, index) not in records for session_id, indices in queries for index in indices):
            raise _missing()
        for point in other_points:
            self._records.read(point.session_id, records[point.session_id, point.last])
        if any(records[point.session_id, point.last].id != point.record for point in points):
            raise _missing()
        for session_id, _, indices in pieces:
            for index in indices:
                yield session_id, self._records.read(session_id, records[session_id, index])[0]

    def evidence(self, session: StoredSession, version: int) -> tuple[Mapping[str, str], list[PathRecord]]:
        """Return the initial parts and the path of a version, for an evaluator. Raise the same errors as `lines`.

        The initial parts are those of version 0 of the session's oldest ancestor.
        """
        path = [PathRecord(loads(line), own=origin == session.id) for origin, line in self.lines(session, version)]
        root, point = session.id, session.parent
        with self._unless_closed(session):
            while point is not None:
                root, point = point.session_id, self.before(point)
        return self._store.parts_at(root, 0), path

    @contextmanager
    def _unless_closed(self, session: StoredSession) -> Iterator[None]:
        """In a `with` block, replace `StateDamagedError` by `SessionNotFoundError` if the session was closed meanwhile.

        The records of a closed session are missing. Without this replacement, the error would say that the store is
        damaged.
        """
        try:
            yield
        except StateDamagedError:
            if self._store.get(session.id) is None:
                raise SessionNotFoundError from None
            raise

    def _past(self, session: StoredSession) -> _PathSegment | None:
        """Return the segment before the session's own segment on its path, or None if the session isn't a fork."""
        points, point, past = [], session.parent, None
        while point is not None and (past := self._pasts.get(point)) is None:
            points.append(point)
            point = self.before(point)
        for point in reversed(points):
            ranges = self._tree(point.session_id).inherited(point.version, point.last)
            past = _segment(past, point.session_id, point, ranges)
            self._pasts.put(point, past)
        return past

    def _before(self, point: ForkPoint) -> ForkPoint | None:
        """Check that the parent and the record of a fork point exist, and return the parent's own fork point."""
        parent = self._store.ancestor(point.session_id)
        records = self._store.records(point.session_id, point.last - 1, 1) if point.last >= 0 else []
        if parent is None or (point.last >= 0 and [record.id for record in records] != [point.record]):
            raise _missing()
        self._identities.check(parent)
        for record in records:
            self._records.read(point.session_id, record)
        return parent.parent

    # One session's own records

    def end(self, session_id: str, version: int, last: int) -> int:
        """Return the index of the last record of `version` or an earlier version, up to the index `last`, or -1.

        A binary search reads only a few records, because versions never decrease.

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
        """Return the line of a record that only the server reads. Raise the same errors as `lines`."""
        for record in self._store.records(session_id, index - 1, 1):
            return self._records.read(session_id, record)[1]
        raise SessionNotFoundError

    def _tree(self, session_id: str) -> RecordTree:
        """Return the record tree of a session, extended by the records that were added since the last call."""
        cached = self._trees(session_id)
        with cached.lock:
            tree = cached.tree
            count = len(tree)
            # Also read the tree's last record again, to check that the store still contains it.
            records = self._store.records(session_id, count - 2, READ_BATCH)
            if count and not (records and records[0].id == tree.last_id):
                # The store has lost its newest records, and might have new records in their place. So build a new tree.
                cached.tree = tree = RecordTree(self._kinds)
                count = 0
                records = self._store.records(session_id, -1, READ_BATCH)
            records = records[1:] if count else records
            more = len(records) >= READ_BATCH - 1  # a full batch, of which the repeated record was removed
            while records:
                for record in records:
                    if record.index != len(tree):
                        raise _missing()
                    tree.add(record, self._records.read(session_id, record)[0])
                records = self._store.records(session_id, len(tree) - 1, READ_BATCH) if more else []
            return tree


def _missing() -> StateDamagedError:
    """Return the error for a record that is missing, or was replaced."""
    return StateDamagedError(
        "Records on the session's path are missing from the store: restore a backup, or close the session."
    )


def _after(ranges: Sequence[range], count: int) -> Iterator[range]:
    """Yield the ranges without their first `count` indices."""
    for indices in ranges:
        if count < len(indices):
            yield indices[max(count, 0) :]
        count -= len(indices)
