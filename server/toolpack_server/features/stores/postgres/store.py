"""Store in Postgres, which several machines can share. With a synchronous standby, losing a machine loses no data.

A read is one statement. A change is one transaction, and usually one round trip. A statement that writes also checks
its conditions, so concurrent changes can't invalidate them.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError, VersionNotRetainedError
from toolpack_server.features.stores.postgres import commits, deletion, listing
from toolpack_server.features.stores.postgres import statements as sql
from toolpack_server.features.stores.postgres.connection import PostgresConnection, PostgresConnections, Rows
from toolpack_server.features.stores.rows import RECIPE_CACHE_BYTES, decoder, digest, load, undamaged
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
from toolpack_server.stores.blob_stubs import size_of
from toolpack_server.stores.history import Change, fitting, parts_at, to_note, trim


class PostgresStore:
    """Session store in Postgres; `SharedStore` documents the methods."""

    shared = True

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._recipes = BoundedCache[bytes, bytes](RECIPE_CACHE_BYTES, len)  # recipes, by digest

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool = False) -> "PostgresStore":
        """Open the store of a libpq URL, such as `postgresql://user:password@first,second/database`."""
        del exclusive
        return cls(PostgresConnections(url))

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        self._connections.transaction(lambda connection: _create(connection, sessions, parts, blobs, history))

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Return a session and its head, or None."""
        for row in self._read(sql.GET, session_id):
            if session := self._session(row):
                return session, _head(row[sql.FACTS :])
        return None

    def ancestor(self, session_id: str) -> StoredSession | None:
        for row in self._read(sql.ANCESTOR, session_id):
            return self._session(row)
        return None

    def find_agent(self, agent_key: str) -> str | None:
        for (session_id,) in self._read(sql.FIND_AGENT, agent_key):
            return str(session_id, "utf-8")
        return None

    def commit(self, commits_: Sequence[Commit]) -> list[bool]:
        return commits.apply(self._connections, commits_)

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return blobs by id."""
        if not ids:
            return {}
        bodies = {id_.decode(): body for id_, body in self._read(sql.BLOBS, [*ids])}
        if missing := [id_ for id_ in ids if id_ not in bodies]:
            raise MissingBlobError(*missing)
        return bodies

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Return the blob ids of a version. A kept session has only version 0, or none if it is a fork."""
        for _, oldest, newest, is_kept, is_fork, *changes in self._read(sql.HISTORY, session_id):
            if is_kept and is_fork:
                break
            if version != 0 and not oldest <= version <= newest:
                raise VersionNotRetainedError(version, oldest, newest)
            return parts_at(_changes(*changes)[0], version)
        raise SessionNotFoundError

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        for row in self._read(sql.RECORD_OF_CALL, session_id, call_id):
            return _record(*row)
        return None

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Return records after an index, within the limits."""
        after = max(after, -1)
        if max_bytes is not None:
            sizes = self._read(sql.RECORD_SIZES, session_id, after, after + limit)
            limit = len(fitting(sizes, lambda row: int(row[0]), max_bytes))
        return [_record(*row) for row in self._read(sql.RECORDS, session_id, after, after + limit)]

    def records_at(self, ranges: Sequence[tuple[str, range]]) -> list[list[Record]]:
        """Return the records in each range, with one statement for all ranges."""
        groups: list[list[Record]] = [[] for _ in ranges]
        ids = [session_id for session_id, _ in ranges]
        bounds = [[indices.start for _, indices in ranges], [indices.stop for _, indices in ranges]]
        for number, *row in self._read(sql.RECORDS_AT, ids, *bounds):
            groups[number - 1].append(_record(*row))
        return groups

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions by the rules of `history.trim`."""
        rows = self._read(sql.HISTORY, session_id)
        if not rows or rows[0][3]:
            return
        key, oldest, version, _, _, *texts = rows[0]
        changes, sizes = _changes(*texts)
        # Computed outside the transaction, because a session can only get newer versions meanwhile.
        keep_from, unneeded = trim(changes, range(oldest, version + 1), sizes, keep_versions, keep_bytes)
        if keep_from == oldest:
            return
        versions, parts = [change.version for change in unneeded], [change.part for change in unneeded]
        freed = sum(sizes[change.blob] for change in unneeded if change.version > 0)

        def work(connection: PostgresConnection) -> None:
            """Set the oldest version, and delete the changes that no version needs."""
            connection.run([(sql.TRIM, (key, keep_from, freed))])
            deletion.remove_references(connection, (sql.REMOVE_CHANGES, (key, versions, parts)))

        self._connections.transaction(work)

    def renew(self, session_id: str, expires_at: float) -> None:
        self._read(sql.RENEW, session_id, expires_at)

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Return the sessions that match a query, with their versions. Damaged rows are skipped."""
        if query.limit <= 0:
            return []
        rows = listing.rows(self._connections, query)
        sessions = undamaged(lambda row: (self._session(row), row[sql.FACTS]), rows)
        return [*islice(((session, version) for session, version in sessions if session), query.limit)]

    def count(self, owner: str | None = None) -> int:
        ((number,),) = self._read(sql.COUNT) if owner is None else self._read(sql.COUNT_OF, owner)
        return int(number)

    def stored_bytes(self, owner: str) -> int:
        ((number,),) = self._read(sql.STORED_BYTES, owner)
        return int(number)

    def count_time(self, clock: float | None = None) -> StoreClock:
        """Return the store time. Save the reading of the clock only if necessary."""
        ((last_reading, uncounted, now),) = self._read(sql.CLOCK)
        now = now if clock is None else clock
        if to_note(last_reading, uncounted, now) is not None:
            return self._connections.transaction(lambda connection: _count_time(connection, clock))
        return StoreClock(now - uncounted, uncounted)

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        return deletion.delete_expired(self._connections, now, limit, busy)

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        return deletion.delete(self._connections, session_ids)

    def clean_up(self) -> None:
        """Remove data of workers that died unnoticed.

        Sessions need no cleanup, because `delete` removes all their data at once.
        """
        self._connections.run((sql.REMOVE_OLD_WORKERS, ()), (sql.REMOVE_OLD_ASKED, ()))

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Acquire leases, then read the heads of the sessions or the leases of other holders."""
        ids = [*session_ids]
        watched = [lease.holder for lease in dead], [lease.heartbeat for lease in dead]
        granted, rows = self._connections.run((sql.CLAIM, (ids, holder, *watched)), (sql.CLAIMED, (ids,)))
        granted_ids = {id_ for id_, _ in granted}
        claimed: dict[str, Head | Lease] = {
            id_.decode(): _head(head) if id_ in granted_ids else Lease(other.decode() if other else "", beat)
            for id_, other, beat, *head in rows
        }
        return [claimed.get(session_id) for session_id in ids]

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        self._read(sql.RELEASE, session_id, holder, epoch)

    def ask(self, session_id: str, holder: str) -> None:
        self._connections.run((sql.SET_ASYNC, ()), (sql.ASK, (session_id, holder)))

    def heartbeat(self, holder: str) -> Collection[str]:
        *_, asked = self._connections.run((sql.SET_ASYNC, ()), (sql.HEARTBEAT, (holder,)), (sql.TAKE_ASKED, (holder,)))
        return {session_id.decode() for (session_id,) in asked}

    def holder_ended(self, holder: str) -> None:
        self._connections.run((sql.ENDED, (holder,)), (sql.REMOVE_ASKED, (holder,)))

    def outside_name(self, new: str) -> str:
        """Return the name of this store in its bucket. If the store has no name, set it to `new`."""

        def choose(connection: PostgresConnection) -> str:
            """Return the name. If the store has no name, set it to `new`."""
            connection.run([(sql.LOCK_FORMAT, ())])
            (rows,) = connection.run([(sql.OUTSIDE_NAME, ())])
            if not rows and new:
                connection.run([(sql.SET_OUTSIDE_NAME, (new,))])
            return rows[0][0].decode() if rows else new

        return self._connections.transaction(choose)

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        return [stub for (stub,) in self._read(sql.TAKE_DROPPED, limit)]

    def ping(self) -> None:
        self._connections.run((sql.CAN_WRITE, ()))

    def close(self) -> None:
        self._connections.close()

    def _read(self, statement: str, *parameters: Any) -> Rows:
        """Run one statement, and return its rows."""
        return self._connections.run((statement, parameters))[0]

    @decoder
    def _session(self, row: Sequence[Any]) -> StoredSession | None:
        """Return a session from its columns, or None if it was deleted meanwhile."""
        recipe, id_, agent_key, owner, labels, ttl_seconds, created_at, expires_at = row[:8]
        parent, parent_version, parent_last, parent_record, details = row[8:13]
        text = self._recipes.get(recipe)
        if text is None:
            for _, text in self._read(sql.BLOBS, [recipe]):
                self._recipes.setdefault(recipe, text)
        if text is None:
            return None
        return StoredSession(
            id_.decode(),
            agent_key.decode(),
            owner.decode(),
            text,
            load(labels),
            ttl_seconds,
            created_at,
            expires_at,
            None if parent is None else ForkPoint(parent.decode(), parent_version, parent_last, parent_record.decode()),
            details,
        )


def _create(
    connection: PostgresConnection,
    sessions: Sequence[StoredSession],
    parts: Mapping[str, str],
    blobs: Mapping[str, bytes],
    history: History,
) -> None:
    """Add sessions within a transaction, as `create` describes."""
    recipes = {session.recipe: "recipe:" + digest(session.recipe).hex() for session in sessions}
    changes = [*((0, *row) for row in parts.items()), *history.rows()]
    parents = {session.parent.session_id for session in sessions if session.parent}
    (*results,) = connection.run(
        [
            *((sql.LOCK_PARENT, (parent,)) for parent in parents),
            *((sql.ADD_SESSION, _facts(session, recipes[session.recipe])) for session in sessions),
        ]
    )
    added = results[len(parents) :]
    new = [(key, session) for rows, session in zip(added, sessions, strict=True) for (key,) in rows]
    if new and not all(results[: len(parents)]):
        raise SessionNotFoundError
    names = sorted({blob for _, _, blob in changes})
    (stored,) = connection.run([(sql.SIZES, ([name for name in names if name not in blobs],))])
    sizes = {blob: size_of(body) for blob, body in blobs.items()} | {blob.decode(): size for blob, size in stored}
    if missing := [name for name in names if name not in sizes]:
        raise MissingBlobError(*missing)
    if not new:
        return
    keys = [key for key, _ in new]
    uses = Counter(blob for _, _, blob in changes)
    bodies = {recipe: text for text, recipe in recipes.items()} | {name: blobs[name] for name in names if name in blobs}
    counts = {name: uses[name] * len(new) for name in names}
    counts |= Counter(recipes[session.recipe] for _, session in new)
    existing = [name for name in counts if name not in bodies]
    newest = {part: blob for _, part, blob in changes}
    last = history.records[-1].id if history.records else ""
    total = sum(len(record.body) for record in history.records)
    records = [(record.index, record.version, record.call_id, record.id, record.body) for record in history.records]
    written = [name for name in bodies if name in counts]
    connection.run(
        [
            (
                sql.ADD_HEADS,
                (
                    keys,
                    [session.expires_at for _, session in new],
                    len(records) - 1,
                    history.version,
                    history.oldest,
                    last,
                    total,
                    sum(sizes[blob] for version, _, blob in changes if version > 0),
                ),
            ),
            (sql.ADD_CHANGES, (keys, *_columns([(*change, sizes[change[2]]) for change in changes], 4))),
            (sql.ADD_PARTS, (keys, [*newest], [*newest.values()])),
            (sql.ADD_RECORDS, (keys, *_columns(records, 5))),
            (sql.ADD_BLOBS, (written, [counts[name] for name in written], [bodies[name] for name in written])),
            (sql.ADD_REFERENCES, (existing, [counts[name] for name in existing])),
        ]
    )


def _columns(rows: Sequence[tuple[Any, ...]], number: int) -> list[list[Any]]:
    """Return rows as `number` columns, because each column is one array parameter of a statement."""
    return [*map(list, zip(*rows, strict=True))] if rows else [[] for _ in range(number)]


def _facts(session: StoredSession, recipe: str) -> tuple[Any, ...]:
    """Return the parameters of `ADD_SESSION`."""
    return (
        session.id,
        session.agent_key,
        session.owner,
        orjson.dumps(session.labels),
        session.ttl_seconds,
        session.created_at,
        *(session.parent or (None, None, None, None)),
        session.details,
        recipe,
        listing.hashes(session.labels),
    )


def _count_time(connection: PostgresConnection, clock: float | None) -> StoreClock:
    """Return the store time, and save the reading of the clock if necessary."""
    (((last_reading, uncounted, now),),) = connection.run([(sql.LOCK_CLOCK, ())])
    now = now if clock is None else clock
    if update := to_note(last_reading, uncounted, now):
        connection.run([(sql.UPDATE_CLOCK, update)])
        uncounted = update[1]
    return StoreClock(now - uncounted, uncounted)


def _record(index: int, version: int, call_id: bytes | None, body: bytes, id_: bytes) -> Record:
    """Return a record from its columns."""
    return Record(index, version, None if call_id is None else call_id.decode(), body, id_.decode())


def _changes(
    versions: Sequence[int] | None, parts: Sequence[bytes], blobs: Sequence[bytes], sizes: Sequence[int]
) -> tuple[list[Change], dict[str, int]]:
    """Return changes in version order, and the sizes of their blobs."""
    if versions is None:
        return [], {}
    names = [blob.decode() for blob in blobs]
    changes = [*map(Change, versions, (part.decode() for part in parts), names)]
    return changes, dict(zip(names, sizes, strict=True))


def _head(row: Sequence[Any]) -> Head:
    """Return a head from its columns."""
    index, version, epoch, last, size, parts, blobs = row
    names = {part.decode(): blob.decode() for part, blob in zip(parts or (), blobs or (), strict=True)}
    return Head(index, version, names, epoch, last.decode(), size)
