"""Write sessions, blobs and commits as rows of the SQLite store.

The rule: this runs inside a transaction, and a commit is refused before its first row is written, so that the rest of
its batch can continue. Several commits are inserted together, as a statement costs more than its rows; if one of them
can't be, the transaction is rolled back and they are inserted one by one.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

from server.errors import MissingBlobError, NotTogetherError
from server.stores.base import Commit, History, StoredSession
from server.stores.rows import dump
from server.stores.sqlite import statements as sql

ROWS = 64  # in one INSERT statement, at most


def session_row(session: StoredSession, digest: bytes) -> tuple[object, ...]:
    """Get the values of `ADD_SESSION`."""
    parent, parent_version = session.parent or (None, None)
    return (
        session.id,
        session.agent_key,
        session.owner,
        dump(session.labels),
        session.ttl_seconds,
        session.created_at,
        session.expires_at,
        parent,
        parent_version,
        dump(session.details),
        digest,
    )


def _find_blob(writer: sqlite3.Connection, blob: str) -> tuple[int, int] | None:
    found: tuple[int, int] | None = writer.execute(
        "SELECT key, length(body) FROM blobs WHERE id = ?", (blob,)
    ).fetchone()
    return found


def add_blob(writer: sqlite3.Connection, blob: str, blobs: Mapping[str, bytes]) -> tuple[int, int]:
    """Get the key and the size in bytes of a blob, which is added if it is new."""
    if (body := blobs.get(blob)) is not None:
        added = writer.execute("INSERT INTO blobs (id, body) VALUES (?, ?) ON CONFLICT DO NOTHING", (blob, body))
        if added.rowcount and added.lastrowid:
            return added.lastrowid, len(body)
    found = _find_blob(writer, blob)
    if found is None:
        raise MissingBlobError(blob)
    return found


def add_history(writer: sqlite3.Connection, after: int, history: History) -> None:
    """Insert the records of sessions whose key is above `after`, and note which of their versions are kept."""
    if history.oldest > 1:
        writer.execute("UPDATE sessions SET oldest = ? WHERE key > ?", (history.oldest, after))
    totals = accumulate(len(record.body) for record in history.records)
    writer.executemany(
        "INSERT INTO records (session, place, version, call_id, id, total, body)"
        " SELECT key, ?, ?, ?, ?, ?, ? FROM sessions WHERE key > ?",
        (
            (record.index, record.version, record.call_id, record.id, total, record.body, after)
            for record, total in zip(history.records, totals, strict=True)
        ),
    )


def add_commit(writer: sqlite3.Connection, commit: Commit) -> bool:
    """Insert the rows of a commit, or nothing; return whether it is stored now."""
    record = commit.record
    row = {
        "session": commit.session_id,
        "epoch": commit.epoch,
        "place": record.index,
        "version": record.version,
        "call_id": record.call_id,
        "body": record.body,
        "id": record.id,
        "after": commit.after,
        "holder": commit.holder,
    }
    blobs_exist = all(blob in commit.blobs or _find_blob(writer, blob) for blob in commit.parts.values())
    added = writer.execute(sql.ADD_RECORD, row).fetchall() if blobs_exist else None
    if not added:
        return writer.execute(sql.SAME_RECORD, row).fetchone() is not None
    ((session,),) = added
    for part, blob in commit.parts.items():
        writer.execute(sql.ADD_CHANGE, (session, record.version, part, *add_blob(writer, blob, commit.blobs)))
    if commit.expires_at is not None:
        writer.execute("UPDATE sessions SET expires_at = ? WHERE key = ?", (commit.expires_at, session))
    if commit.release:
        writer.execute("UPDATE sessions SET holder = NULL WHERE key = ?", (session,))
    return True


def add_together(writer: sqlite3.Connection, commits: Sequence[Commit]) -> None:
    """Insert the rows of all these commits.

    Raises:
        NotTogetherError: A commit doesn't follow what is stored. Rows may have been written: roll back.
        MissingBlobError: A commit refers to a missing blob; roll back, too.
    """
    keys, heads, holders = {}, {}, {}
    for session, key, epoch, holder, *last in writer.execute(sql.HEADS, (dump([*{c.session_id for c in commits}]),)):
        keys[session], holders[session], heads[session] = key, holder, (epoch, *last)
    records = []
    for commit in commits:
        session, record = commit.session_id, commit.record
        epoch, place, last_id, total = heads.get(session, (None, 0, "", 0))
        if (epoch, place, last_id) != (commit.epoch, record.index - 1, commit.after):
            raise NotTogetherError
        if commit.holder not in {None, holders[session]}:
            raise NotTogetherError
        total += len(record.body)
        heads[session] = epoch, record.index, record.id, total
        records.append((keys[session], record.index, record.version, record.call_id, record.id, total, record.body))
    _insert(writer, "records (session, place, version, call_id, id, total, body)", records)
    blobs = [blob for commit in commits for blob in commit.blobs.items()]
    added = {id_: (key, size) for id_, key, size in _insert(writer, "blobs (id, body)", blobs, "id, key, length(body)")}
    changes = [
        (keys[commit.session_id], commit.record.version, part, *(added.get(blob) or add_blob(writer, blob, {})))
        for commit in commits
        for part, blob in commit.parts.items()
    ]
    _insert(writer, "changes (session, version, part, blob, size)", changes)
    for commit in commits:
        if commit.expires_at is not None:
            writer.execute(
                "UPDATE sessions SET expires_at = ? WHERE key = ?", (commit.expires_at, keys[commit.session_id])
            )
    released = {keys[commit.session_id] for commit in commits if commit.release}
    if released:
        writer.execute(sql.RELEASE, (dump([*released]),))


def _insert(
    writer: sqlite3.Connection, into: str, rows: Sequence[tuple[object, ...]], returning: str = ""
) -> list[Any]:
    """Insert rows and get their `returning` columns; raises `NotTogetherError` if a row exists already."""
    returned = []
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        inserted = writer.execute(_insertion(into, len(some), len(some[0]), returning), [*chain.from_iterable(some)])
        returned += inserted.fetchall()
        if inserted.rowcount != len(some):
            raise NotTogetherError
    return returned


@lru_cache(maxsize=3 * ROWS)
def _insertion(into: str, rows: int, columns: int, returning: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return (
        f"INSERT INTO {into} VALUES {', '.join([row] * rows)} ON CONFLICT DO NOTHING"  # noqa: S608 - from constants
        f"{returning and ' RETURNING '}{returning}"
    )
