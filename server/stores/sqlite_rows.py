"""The rows that a session, a blob and a commit come to in the SQLite store.

The rule: this runs within a transaction, and a commit that must be refused is refused before its first row is written,
so that the rest of its batch can go on.
"""

import sqlite3
from collections.abc import Mapping

from server.stores import Commit, MissingBlobError, Session
from server.stores import sqlite_statements as sql
from server.stores.rows import dump


def session_row(session: Session, digest: bytes) -> tuple[object, ...]:
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
        digest,
    )


def _find_blob(writer: sqlite3.Connection, blob: str) -> tuple[int, int] | None:
    found: tuple[int, int] | None = writer.execute(
        "SELECT key, length(body) FROM blobs WHERE id = ?", (blob,)
    ).fetchone()
    return found


def add_blob(writer: sqlite3.Connection, blob: str, blobs: Mapping[str, bytes]) -> tuple[int, int]:
    """Get the key and the size of a blob, which is added if it is new."""
    if (body := blobs.get(blob)) is not None:
        added = writer.execute("INSERT INTO blobs (id, body) VALUES (?, ?) ON CONFLICT DO NOTHING", (blob, body))
        if added.rowcount and added.lastrowid:
            return added.lastrowid, len(body)
    found = _find_blob(writer, blob)
    if found is None:
        raise MissingBlobError(blob)
    return found


def add_commit(writer: sqlite3.Connection, commit: Commit) -> bool:
    """Add what a commit brings, or nothing; say whether it is there now."""
    record = commit.record
    row = {
        "session": commit.session_id,
        "epoch": commit.epoch,
        "place": record.index,
        "version": record.version,
        "call_id": record.call_id,
        "body": record.body,
    }
    complete = all(blob in commit.blobs or _find_blob(writer, blob) for blob in commit.parts.values())
    added = writer.execute(sql.ADD_RECORD, row).fetchall() if complete else None
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
