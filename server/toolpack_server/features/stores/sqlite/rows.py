"""Rows of sessions, blobs and histories in the SQLite store. The functions must be called inside a transaction."""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import accumulate

import orjson

from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError
from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.stores.base import History, StoredSession
from toolpack_server.stores.blob_stubs import size_of


def session_row(session: StoredSession, digest: bytes) -> tuple[object, ...]:
    """Return the parameters of `ADD_SESSIONS` for one session.

    Args:
        session: The session.
        digest: The digest of its recipe.
    """
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
    """Raise `SessionNotFoundError` if the parent doesn't exist, unless all sessions are already stored."""
    for parent in {session.parent.session_id for session in sessions if session.parent}:
        exists = writer.execute(sql.KEY_OF, (parent,)).fetchone()
        if not exists and not all(writer.execute(sql.IS_STORED, (item.id, item.id)).fetchone() for item in sessions):
            raise SessionNotFoundError


def find_blob(writer: sqlite3.Connection, blob: str) -> tuple[int, int] | None:
    """Return the key and the size in bytes of a blob, or None if it isn't stored."""
    row: tuple[int, int] | None = writer.execute(sql.FIND_BLOB, (blob,)).fetchone()
    return row


def add_blob(writer: sqlite3.Connection, blob: str, blobs: Mapping[str, bytes]) -> tuple[int, int]:
    """Add a blob unless the store already contains it. Return its key and its size in bytes.

    Args:
        writer: The connection.
        blob: The id of the blob.
        blobs: The bytes of new blobs, by id.

    Raises:
        MissingBlobError: The blob is neither in the store nor in `blobs`.
    """
    if (body := blobs.get(blob)) is not None:
        added = writer.execute(sql.INSERT_BLOB, (None, blob, body))
        if added.rowcount and added.lastrowid:
            return added.lastrowid, size_of(body)
    stored = find_blob(writer, blob)
    if stored is None:
        raise MissingBlobError(blob)
    return stored


def add_history(writer: sqlite3.Connection, after: int, history: History) -> None:
    """Insert the records of a history for new sessions, and set their oldest version.

    Args:
        writer: The connection.
        after: The greatest key of the older sessions. The new sessions have greater keys.
        history: The history, which all new sessions share.
    """
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
