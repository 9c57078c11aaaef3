"""Write sessions, blobs and histories as rows of the SQLite store.

This runs inside a transaction.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import accumulate

import orjson

from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError
from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.stores.base import History, StoredSession
from toolpack_server.stores.blob_stubs import size_of


def session_row(session: StoredSession, digest: bytes) -> tuple[object, ...]:
    """Put together a row of `ADD_SESSIONS`."""
    return (
        session.id,
        session.agent_key,
        session.owner,
        orjson.dumps(session.labels),
        session.ttl_seconds,
        session.created_at,
        session.expires_at,
        *(session.parent or (None, None, None, None)),
        session.details,
        digest,
    )


def check_parent(writer: sqlite3.Connection, sessions: Sequence[StoredSession]) -> None:
    for parent in {session.parent.session_id for session in sessions if session.parent}:
        exists = writer.execute(sql.KEY_OF, (parent,)).fetchone()
        if not exists and not all(writer.execute(sql.IS_STORED, (each.id, each.id)).fetchone() for each in sessions):
            raise SessionNotFoundError


def find_blob(writer: sqlite3.Connection, blob: str) -> tuple[int, int] | None:
    """Get the key and the size in bytes of a blob; None if it isn't stored."""
    found: tuple[int, int] | None = writer.execute(sql.FIND_BLOB, (blob,)).fetchone()
    return found


def add_blob(writer: sqlite3.Connection, blob: str, blobs: Mapping[str, bytes]) -> tuple[int, int]:
    """Get the key and the size in bytes of a blob, which is added if it is new."""
    if (body := blobs.get(blob)) is not None:
        added = writer.execute(sql.INSERT_BLOB, (None, blob, body))
        if added.rowcount and added.lastrowid:
            return added.lastrowid, size_of(body)
    found = find_blob(writer, blob)
    if found is None:
        raise MissingBlobError(blob)
    return found


def add_history(writer: sqlite3.Connection, after: int, history: History) -> None:
    """Insert the records of sessions whose key is above `after`, and note which of their versions are kept."""
    if history.oldest > 1:
        writer.execute(sql.OLDEST_OF_NEW, (history.oldest, after))
    totals = accumulate(len(record.body) for record in history.records)
    writer.executemany(
        sql.ADD_RECORD_OF_NEW,
        (
            (record.index, record.version, record.call_id, record.id, total, record.body, after)
            for record, total in zip(history.records, totals, strict=True)
        ),
    )
