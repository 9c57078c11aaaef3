"""Store in the memory of this process. Its sessions are lost when the process exits.

Tests compare the other stores with this store, so it is kept simple. It consists of dictionaries behind one lock.
"""

import dataclasses
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import orjson

from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError, VersionNotRetainedError
from toolpack_server.stores.base import (
    HELD_SECONDS,
    NO_HISTORY,
    Commit,
    Head,
    History,
    Record,
    SessionQuery,
    StoreClock,
    StoredSession,
)
from toolpack_server.stores.blob_stubs import MARK, size_of
from toolpack_server.stores.history import Change, SessionHead, fitting, follows, parts_at, to_note, trim


@dataclass(slots=True)
class Row:
    """A session and all its data."""

    session: StoredSession
    expires_at: float
    parts: Mapping[str, str]
    changes: list[Change]
    version: int = 0
    oldest: int = 1  # the oldest stored version, except version 0
    record_bytes: int = 0  # total size of the records in bytes
    records: list[Record] = field(default_factory=list)
    calls: dict[str, Record] = field(default_factory=dict)  # by call_id
    forks: dict[str, int] = field(
        default_factory=dict
    )  # for each fork, by id, the number of this session's records that the fork needs

    def load_history(self, history: History) -> None:
        """Set the version and the records from a history. The caller has already added its changes to `changes`."""
        if history.changes:
            self.version, self.oldest = history.version, history.oldest
            self.parts = parts_at(self.changes, self.version)
        self.records = [*history.records]
        self.record_bytes = sum(len(record.body) for record in self.records)
        self.calls = {record.call_id: record for record in self.records if record.call_id is not None}

    def stored_session(self) -> StoredSession:
        """Return the session with its current expiry time."""
        if self.session.expires_at != self.expires_at:
            self.session = dataclasses.replace(self.session, expires_at=self.expires_at)
        return self.session

    def head(self, position: SessionHead, blobs: Mapping[str, bytes]) -> Head:
        added = {change.blob for change in self.changes if change.version > 0}
        size = self.record_bytes + sum(size_of(blobs[blob]) for blob in added)
        return Head(position.last_index, self.version, self.parts, position.epoch, position.last, size)


class SortedIndex:
    """Lists of session ids, sorted by id and by creation time, and the ids of each session's forks."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._created: list[tuple[float, str]] = []
        self._times: dict[str, float] = {}
        self._forks: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, sessions: Sequence[StoredSession]) -> None:
        """Add sessions, and keep all lists sorted."""
        for session in sessions:
            self._times[session.id] = session.created_at
            if session.parent is not None:
                self._forks[session.parent.session_id].add(session.id)
        self._ids.extend(session.id for session in sessions)
        self._ids.sort()
        self._created.extend((session.created_at, session.id) for session in sessions)
        self._created.sort()

    def remove(self, sessions: Collection[StoredSession]) -> None:
        """Remove sessions."""
        for session in sessions:
            del self._times[session.id]
            if session.parent is not None:
                forks = self._forks[session.parent.session_id]
                forks.remove(session.id)
                if not forks:
                    del self._forks[session.parent.session_id]
        if sessions:
            self._ids = [id_ for id_ in self._ids if id_ in self._times]
            self._created = [entry for entry in self._created if entry[1] in self._times]

    def following(self, query: SessionQuery) -> Iterator[str]:
        """Return the ids after `query.after`, in the query's order. Filter by parent, but not by owner and labels."""
        after, parent = query.after, query.parent
        if not query.newest_first:
            ids = self._ids if parent is None else sorted(self._forks.get(parent, ()))
            return (ids[position] for position in range(bisect_right(ids, after), len(ids)))
        if after and after not in self._times:
            raise SessionNotFoundError
        created = self._created
        if parent is not None:
            created = sorted((self._times[id_], id_) for id_ in self._forks.get(parent, ()))
        end = bisect_left(created, (self._times[after], after)) if after else len(created)
        return (created[position][1] for position in range(end - 1, -1, -1))


class MemoryStore:
    """Session store in dictionaries; `SessionStore` documents the methods."""

    shared = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._kept: dict[str, Row] = {}  # deleted sessions that are kept for their forks
        self._sorted = SortedIndex()
        self._agents: dict[str, str] = {}  # session ids, by agent key
        self._owners: Counter[str] = Counter()  # number of sessions, by owner
        self._blobs: dict[str, bytes] = {}
        self._references: Counter[str] = Counter()  # number of changes that refer to a blob, by blob id
        self._clock: tuple[float | None, float] = None, 0.0  # the last reading, and the uncounted seconds
        self._outside_name = ""
        self._dropped: list[bytes] = []  # stubs of deleted blobs

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool) -> "MemoryStore":  # noqa: ARG003 - the signature of all stores
        return cls()

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Add a row for each session that is neither stored nor kept for its forks. See `SessionStore.create`."""
        parts = dict(parts)  # one copy, which the new sessions share until they change something
        changes = [Change(0, part, blob) for part, blob in parts.items()]
        changes += [Change(*row) for row in history.rows()]
        with self._lock:
            new = [item for item in sessions if item.id not in self._rows and item.id not in self._kept]
            if any(session.parent and session.parent.session_id not in self._rows for session in new):
                raise SessionNotFoundError
            if any(change.blob not in blobs and change.blob not in self._blobs for change in changes):
                raise MissingBlobError
            for session in new:
                self._rows[session.id] = row = Row(session, session.expires_at, parts, changes.copy())
                row.load_history(history)
                self._agents[session.agent_key] = session.id
                self._owners[session.owner] += 1
                self._add_references(changes, blobs)
                if session.parent is not None:  # the number of the parent's records that the fork needs
                    self._rows[session.parent.session_id].forks[session.id] = session.parent.last + 1
            self._sorted.add(new)

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        with self._lock:
            row = self._rows.get(session_id)
            return (row.stored_session(), self._head(row)) if row else None

    def ancestor(self, session_id: str) -> StoredSession | None:
        with self._lock:
            row = self._find(session_id)
            return row.session if row else None

    def find_agent(self, agent_key: str) -> str | None:
        return self._agents.get(agent_key)

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        with self._lock:
            return [self._commit(commit) for commit in commits]

    def _commit(self, commit: Commit) -> bool:
        """Apply a commit, or return False if it is refused. The caller holds the lock."""
        row = self._rows.get(commit.session_id)
        if row is None:
            return False
        record = commit.record
        if record.index < len(row.records):  # the commit was sent again
            return row.records[record.index] == record
        if (
            not follows(self._session_head(row), commit)
            or record.call_id in row.calls
            or any(blob not in commit.blobs and blob not in self._blobs for blob in commit.parts.values())
        ):
            return False
        row.records.append(record)
        row.record_bytes += len(record.body)
        row.version = record.version
        if record.call_id is not None:
            row.calls[record.call_id] = record
        if commit.parts:
            row.parts = {**row.parts, **commit.parts}
            changes = [Change(record.version, part, blob) for part, blob in commit.parts.items()]
            row.changes += changes
            self._add_references(changes, commit.blobs)
        if commit.expires_at is not None:
            row.expires_at = commit.expires_at
        return True

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return blobs by id."""
        with self._lock:
            try:
                return {blob: self._blobs[blob] for blob in ids}
            except KeyError as missing:
                raise MissingBlobError(*missing.args) from None

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Return the blob ids of a version. A kept session has only version 0, or none if it is a fork."""
        with self._lock:
            row = self._find(session_id)
            if row is None or (row.session.id in self._kept and row.session.parent):
                raise SessionNotFoundError
            if version != 0 and not row.oldest <= version <= row.version:
                raise VersionNotRetainedError(version, row.oldest, row.version)
            return parts_at(row.changes, version)

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        with self._lock:
            row = self._rows.get(session_id)
            return row.calls.get(call_id) if row else None

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Return records after an index, within the limits. Also find the records of kept sessions."""
        first = max(after + 1, 0)
        with self._lock:
            row = self._find(session_id)
            records = row.records[first : first + limit] if row else []
        return fitting(records, lambda record: len(record.body), max_bytes)

    def records_at(self, ranges: Sequence[tuple[str, range]]) -> list[list[Record]]:
        with self._lock:
            rows = [(self._find(session_id), indices) for session_id, indices in ranges]
            return [row.records[indices.start : indices.stop] if row else [] for row, indices in rows]

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions by the rules of `history.trim`."""
        with self._lock:
            row = self._rows.get(session_id)
            if row is None:
                return
            sizes = {change.blob: size_of(self._blobs[change.blob]) for change in row.changes}
            kept = range(row.oldest, row.version + 1)
            row.oldest, unneeded = trim(row.changes, kept, sizes, keep_versions, keep_bytes)
            removed = set(unneeded)
            row.changes = [change for change in row.changes if change not in removed]
            self._remove_references(unneeded)

    def renew(self, session_id: str, expires_at: float) -> None:
        with self._lock:
            if row := self._rows.get(session_id):
                row.expires_at = expires_at

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Return the sessions that match a query, with their versions, in the query's order."""
        with self._lock:
            matches = (
                (row.stored_session(), row.version)
                for row in map(self._rows.__getitem__, self._sorted.following(query))
                if query.owner in {None, row.session.owner} and query.labels.items() <= row.session.labels.items()
            )
            return list(islice(matches, query.limit))

    def count(self, owner: str | None = None) -> int:
        with self._lock:
            return len(self._rows) if owner is None else self._owners[owner]

    def stored_bytes(self, owner: str) -> int:
        """Count the bytes of an owner's sessions. Each blob and each recipe counts once."""
        with self._lock:
            rows = [row for row in chain(self._rows.values(), self._kept.values()) if row.session.owner == owner]
            blobs = {change.blob for row in rows for change in row.changes}
            return (
                sum(size_of(self._blobs[blob]) for blob in blobs)
                + sum(
                    row.record_bytes + len(orjson.dumps(row.session.labels)) + len(row.session.details) for row in rows
                )
                + sum(map(len, {row.session.recipe for row in rows}))
            )

    def count_time(self, clock: float | None = None) -> StoreClock:
        """Return the store time, and save the reading of the clock."""
        with self._lock:
            now = time.time() if clock is None else clock
            self._clock = to_note(*self._clock, now) or self._clock
            return StoreClock(now - self._clock[1], self._clock[1])

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        """Delete expired sessions that aren't in use, and return their ids."""
        with self._lock:
            ids = (id_ for id_, row in self._rows.items() if row.expires_at <= now)
            expired = list(islice((id_ for id_ in ids if not self._is_in_use(id_, now, busy)), limit))
            self._delete(expired)
            return expired

    def _is_in_use(self, session_id: str, now: float, busy: Collection[str]) -> bool:
        """Return whether an expired session stays because it is in use. It stays for at most `HELD_SECONDS`."""
        return session_id in busy and self._rows[session_id].expires_at > now - HELD_SECONDS

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        with self._lock:
            return self._delete(session_ids)

    def clean_up(self) -> None:
        """Do nothing: `delete` removes all data at once."""

    def _delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        """Delete sessions. The caller holds the lock."""
        deleted = [row for session_id in session_ids if (row := self._rows.pop(session_id, None))]
        for row in deleted:
            del self._agents[row.session.agent_key]
            self._owners[row.session.owner] -= 1
            if row.forks:
                self._keep(row)
            else:
                self._remove(row)
        self._sorted.remove([row.session for row in deleted])
        return [row.session.id for row in deleted]

    def _keep(self, row: Row) -> None:
        """Keep the part of a deleted session that its forks need."""
        self._kept[row.session.id] = row
        needed = [change for change in row.changes if change.version == 0 and row.session.parent is None]
        self._remove_references(change for change in row.changes if change not in needed)
        row.changes, row.version, row.oldest = needed, 0, 1
        del row.records[max(row.forks.values()) :]
        row.record_bytes = sum(len(record.body) for record in row.records)

    def _remove(self, row: Row | None) -> None:
        """Remove a session without forks, and each ancestor that was kept only for this session."""
        while row is not None:
            self._remove_references(row.changes)
            fork, row = row.session, None
            parent = self._find(fork.parent.session_id) if fork.parent else None
            if parent is not None:
                del parent.forks[fork.id]
                row = None if parent.forks else self._kept.pop(parent.session.id, None)

    def outside_name(self, new: str) -> str:
        with self._lock:
            self._outside_name = self._outside_name or new
            return self._outside_name

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        with self._lock:
            taken, self._dropped = self._dropped[:limit], self._dropped[limit:]
            return taken

    def ping(self) -> None:
        """Do nothing: memory can always be written."""

    def close(self) -> None:
        """Do nothing."""

    def _session_head(self, row: Row) -> SessionHead:
        return SessionHead(0, None, len(row.records) - 1, row.records[-1].id if row.records else "")

    def _head(self, row: Row) -> Head:
        return row.head(self._session_head(row), self._blobs)

    def _find(self, session_id: str) -> Row | None:
        return self._rows.get(session_id) or self._kept.get(session_id)

    def _add_references(self, changes: Iterable[Change], blobs: Mapping[str, bytes]) -> None:
        """Count the references of changes to blobs, and store new blobs."""
        for change in changes:
            if change.blob not in self._blobs:
                self._blobs[change.blob] = blobs[change.blob]
            self._references[change.blob] += 1

    def _remove_references(self, changes: Iterable[Change]) -> None:
        """Remove the references of changes, and delete blobs without references."""
        for change in changes:
            self._references[change.blob] -= 1
            if not self._references[change.blob]:
                del self._references[change.blob]
                body = self._blobs.pop(change.blob)
                if body.startswith(MARK):
                    self._dropped.append(body)
