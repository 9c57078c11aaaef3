"""Store in one SQLite file, which one or several processes on one machine can use.

A read is one statement, and a change is one short transaction. A commit checks the head of its session in the
transaction that writes the record.

The store doesn't count references. It deletes a blob or a recipe if no row refers to it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import (
    MissingBlobError,
    SessionNotFoundError,
    StateDamagedError,
    VersionNotRetainedError,
)
from toolpack_server.features.stores.rows import RECIPE_CACHE_BYTES, digest, load
from toolpack_server.features.stores.sqlite import deletion
from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.features.stores.sqlite.commits import Commits
from toolpack_server.features.stores.sqlite.file import SqliteFile
from toolpack_server.features.stores.sqlite.listing import SqliteListing
from toolpack_server.features.stores.sqlite.rows import add_blob, add_history, check_parent, session_row
from toolpack_server.stores.base import (
    NO_HISTORY,
    Commit,
    ForkPoint,
    Head,
    History,
    Lease,
    Record,
    SessionQuery,
    StoreClock,
    StoredSession,
)
from toolpack_server.stores.history import Change, fitting, trim

MIN_PAGE_SIZE = 100  # minimum number of sessions that `list` reads at a time if few of them might have the labels


class RowGoneError(Exception):
    """A session was deleted between two reads."""


class SqliteStore:
    """Session store in a SQLite file; `SharedStore` documents the methods."""

    def __init__(self, file: SqliteFile, *, shared: bool) -> None:
        self.shared = shared
        self._file = file
        self._commits = Commits(file)
        self._recipes = BoundedCache[int, bytes](RECIPE_CACHE_BYTES, len)  # recipes by key; a key is never reused

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool) -> "SqliteStore":
        return cls(SqliteFile.from_url(url, exclusive=exclusive), shared=not exclusive)

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Add sessions in one transaction. Sessions that are already stored stay unchanged."""
        changes = [*((0, *row) for row in parts.items()), *history.rows()]
        digests = {session.recipe: digest(session.recipe) for session in sessions}
        with self._file.write() as writer:
            check_parent(writer, sessions)
            (last,) = writer.execute(sql.LAST_SESSION).fetchone()
            stored = {blob: add_blob(writer, blob, blobs) for _, _, blob in changes}
            writer.executemany(sql.ADD_RECIPE, ((digest, recipe) for recipe, digest in digests.items()))
            sql.ADD_SESSIONS.insert(writer, [session_row(session, digests[session.recipe]) for session in sessions])
            for version, part, blob in changes:
                writer.execute(sql.ADD_CHANGE_OF_NEW, (version, part, *stored[blob], last))
            add_history(writer, last, history)
            # If all sessions already existed, no row refers to the new blobs, so this statement deletes them again.
            writer.executemany(sql.FREE_BLOB, ((key,) for key, _ in stored.values()))

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Return a session and its head, or None."""
        with suppress(RowGoneError):
            for row in self._file.read(sql.GET, session_id):
                return self._session(row[:13]), _head(row[13:])
        return None

    def ancestor(self, session_id: str) -> StoredSession | None:
        """Return a session that exists or is kept for its forks, or None."""
        with suppress(RowGoneError):
            for row in self._file.read(sql.ANCESTOR, session_id, session_id):
                return self._session(row)
        return None

    def find_agent(self, agent_key: str) -> str | None:
        rows = self._file.read(sql.FIND_AGENT, agent_key)
        return rows[0][0] if rows else None

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        return self._commits.apply(commits)

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return blobs by id."""
        bodies = {}
        for blob in ids:
            rows = self._file.read(sql.BLOB, blob)
            if not rows:
                raise MissingBlobError(blob)
            bodies[blob] = rows[0][0]
        return bodies

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Return the blob ids of a version. A kept session has only version 0, or none if it is a fork."""
        rows = self._file.read(sql.PARTS_AT, version, session_id) or self._file.read(sql.FIRST_PARTS_KEPT, session_id)
        if not rows:
            raise SessionNotFoundError
        oldest, current = rows[0][:2]
        if version != 0 and not oldest <= version <= current:
            raise VersionNotRetainedError(version, oldest, current)
        return {part: blob for _, _, part, blob, _ in rows if part is not None}

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        rows = self._file.read(sql.RECORD_OF_CALL, session_id, call_id)
        return Record(*rows[0]) if rows else None

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Return records after an index. With `max_bytes`, read their sizes first."""
        if max_bytes is not None:
            sizes = self._file.read(sql.RECORD_SIZES, session_id, session_id, after, limit)
            limit = len(fitting(sizes, lambda row: int(row[0]), max_bytes))
        return [Record(*row) for row in self._file.read(sql.RECORDS, session_id, session_id, after, limit)]

    def records_at(self, ranges: Sequence[tuple[str, range]]) -> list[list[Record]]:
        """Return the records in each range, with one statement for all ranges."""
        groups: list[list[Record]] = [[] for _ in ranges]
        bounds = [(session_id, indices.start, indices.stop - 1) for session_id, indices in ranges]
        for number, *row in self._file.read(sql.RECORDS_AT, orjson.dumps(bounds)):
            groups[number].append(Record(*row))
        return [sorted(records, key=lambda record: record.index) for records in groups]

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions by the rules of `history.trim`, in several short transactions."""
        rows = self._file.read(sql.HISTORY, session_id)
        if not rows:
            return
        key, oldest, version, history = rows[0]
        changes, sizes = [], {}
        for *change, size in sorted(orjson.loads(history)):
            changes.append(Change(*change))
            sizes[change[2]] = size
        # Computed outside the transaction, because a session can only get newer versions meanwhile.
        keep_from, unneeded = trim(changes, range(oldest, version + 1), sizes, keep_versions, keep_bytes)
        if keep_from == oldest:
            return
        for chunk in [*deletion.in_chunks([(change, sizes[change.blob]) for change in unneeded])] or [[]]:
            with self._file.write() as writer:
                writer.execute(sql.TRIM, (keep_from, key))
                writer.executemany(sql.DELETE_CHANGE, ((key, change.version, change.part) for change in chunk))
                writer.executemany(sql.FREE_BLOB, {(int(change.blob),) for change in chunk})

    def renew(self, session_id: str, expires_at: float) -> None:
        with self._file.write() as writer:
            writer.execute(sql.RENEW, (expires_at, session_id))

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Return the sessions that match a query, with their versions. Damaged rows are skipped."""
        sessions: list[tuple[StoredSession, int]] = []
        # Read one more row than the limit, because the loop ends at the row after the last session.
        for *session, version in SqliteListing(self._file, query).rows(
            max(query.limit + 1, MIN_PAGE_SIZE if query.labels else 0)
        ):
            if len(sessions) == query.limit:
                break
            with suppress(RowGoneError, StateDamagedError):
                sessions.append((self._session(session), version))
        return sessions

    def count(self, owner: str | None = None) -> int:
        if owner is None:
            return int(self._file.read(sql.COUNT)[0][0])
        return int(self._file.read(sql.COUNT_OF, owner)[0][0])

    def stored_bytes(self, owner: str) -> int:
        return int(self._file.read(sql.STORED_BYTES, owner, owner)[0][0])

    def count_time(self, clock: float | None = None) -> StoreClock:
        return deletion.count_time(self._file, clock)

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        return deletion.delete_expired(self._file, now, limit, busy)

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        return deletion.delete(self._file, session_ids)

    def clean_up(self) -> None:
        deletion.clean_up(self._file)

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Acquire leases. Return the heads of the sessions, or the leases of other holders."""
        ids = orjson.dumps([*session_ids])
        # First read without a write transaction, because a worker that waits for a lease tries often.
        leases = _leases(self._file.read(sql.LEASES, ids))
        if not _grantable(leases, holder, dead):
            return [leases.get(session_id) for session_id in session_ids]
        with self._file.write() as writer:
            leases = _leases(writer.execute(sql.LEASES, (ids,)))
            granted: dict[str, Head] = {}
            for session_id in _grantable(leases, holder, dead):
                writer.execute(sql.CLAIM, (holder, session_id))
                granted[session_id] = _head(writer.execute(sql.GET, (session_id,)).fetchone()[13:])
        return [granted.get(session_id) or leases.get(session_id) for session_id in session_ids]

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        with self._file.write() as writer:
            writer.execute(sql.RELEASE_ONE, (session_id, holder, epoch))

    def ask(self, session_id: str, holder: str) -> None:
        with self._file.write() as writer:
            writer.execute(sql.ASK, (holder, session_id))

    def heartbeat(self, holder: str) -> Collection[str]:
        """Count a heartbeat. Return the sessions whose leases other workers have asked for."""
        with self._file.write() as writer:
            writer.execute(sql.HEARTBEAT, (holder,))
            rows = writer.execute(sql.TAKE_ASKED, (holder,))
            return {session_id for (session_id,) in rows}

    def holder_ended(self, holder: str) -> None:
        with self._file.write() as writer:
            for statement in (sql.RELEASE_ALL, sql.DELETE_WORKER, sql.DELETE_ASKED):
                writer.execute(statement, (holder,))

    def outside_name(self, new: str) -> str:
        """Return the name of this store in its bucket. If the store has no name, set it to `new`."""
        if not self._file.read(sql.HAS_OUTSIDE):
            if not new:
                return ""
            with self._file.write() as writer:
                for statement in sql.CREATE_OUTSIDE:
                    writer.execute(statement)
                if writer.execute(sql.OUTSIDE_NAME).fetchone() is None:
                    writer.execute(sql.SET_OUTSIDE_NAME, (new,))
        return str(self._file.read(sql.OUTSIDE_NAME)[0][0])

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        """Remove and return the stubs of some deleted blobs."""
        if not self._file.read(sql.ANY_DROPPED):
            return []
        with self._file.write() as writer:
            rows = writer.execute(sql.DROPPED, (limit,)).fetchall()
            writer.execute(sql.DELETE_DROPPED, (orjson.dumps([key for key, _ in rows]),))
        return [stub for _, stub in rows]

    def ping(self) -> None:
        self._file.check()

    def close(self) -> None:
        self._file.close()

    def _session(self, row: Sequence[Any]) -> StoredSession:
        """Return a session from its columns. Raise `RowGoneError` if it was deleted meanwhile."""
        recipe, id_, agent_key, owner, labels, ttl_seconds, created_at, expires_at, *parent, details = row
        return StoredSession(
            id_,
            agent_key,
            owner,
            self._recipes.get(recipe) or self._recipes.setdefault(recipe, self._read_recipe(recipe)),
            load(labels),
            ttl_seconds,
            created_at,
            expires_at,
            None if parent[0] is None else ForkPoint(*parent),
            details,
        )

    def _read_recipe(self, key: int) -> bytes:
        """Return a recipe. Raise `RowGoneError` if it was deleted meanwhile."""
        rows = self._file.read(sql.RECIPE, key)
        if not rows:
            raise RowGoneError
        text: bytes = rows[0][0]
        return text


def _leases(rows: Iterable[tuple[Any, ...]]) -> dict[str, Lease]:
    """Return leases by session id. A free lease has the holder None."""
    return {id_: Lease(holder, heartbeat) for id_, holder, heartbeat in rows}


def _grantable(leases: Mapping[str, Lease], holder: str, dead: Collection[Lease]) -> Sequence[str]:
    """Return the ids of the sessions whose leases can be granted to a holder."""
    return [id_ for id_, lease in leases.items() if lease.holder in {None, holder} or lease in dead]


def _head(row: Sequence[Any]) -> Head:
    """Return a head from its columns."""
    version, index, epoch, last, size, parts = row
    return Head(-1 if index is None else index, version, orjson.loads(parts), epoch, last, size)
