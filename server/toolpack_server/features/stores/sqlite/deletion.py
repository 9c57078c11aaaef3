"""Deletion of sessions from the SQLite store, and the release of free space.

A deleted session's row in the table `sessions` is deleted at once. Later, `clean_up` deletes the session's other rows
in short transactions with a limited number of rows and bytes, so that commits in between wait only briefly. If a
`clean_up` is interrupted, the next `clean_up` continues. For a session that is a fork or has forks, `clean_up` runs at
once, because other methods would still return the rows.
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import orjson

from toolpack_server.base.errors import OverloadedError
from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.features.stores.sqlite.file import SqliteFile
from toolpack_server.stores.base import HELD_SECONDS, StoreClock
from toolpack_server.stores.history import fitting, to_note

T = TypeVar("T")

CHUNK = 200  # maximum number of sessions or rows that one transaction deletes
CHUNK_BYTES = 4 * 2**20  # maximum size of the rows that one transaction deletes
SMALL_ROWS = (
    4  # a session with fewer records and changes is small, so that it is deleted together with other small sessions
)
SMALL_SESSIONS = CHUNK // (2 * SMALL_ROWS)  # maximum number of small sessions that one transaction deletes
GIVE_WAY_SECONDS = 0.0005  # pause between transactions; without it, waiting threads would never get the lock


def delete(file: SqliteFile, session_ids: Sequence[str]) -> Sequence[str]:
    """Delete sessions. Return the ids of the sessions that existed."""
    deleted: list[str] = []
    for start in range(0, len(session_ids), CHUNK):
        deleted += _delete(file, partial(_these, session_ids[start : start + CHUNK]))
    return deleted


def delete_expired(file: SqliteFile, now: float, limit: int, busy: Collection[str]) -> Sequence[str]:
    """Delete expired sessions that aren't in use; see `SessionStore.delete_expired`. Return their ids."""
    if not file.read(sql.ANY_EXPIRED, now):
        return []
    parameters = now, now - HELD_SECONDS, orjson.dumps([*busy]), min(limit, CHUNK)

    def choose(writer: sqlite3.Connection) -> Sequence[str]:
        """Return the ids of the sessions to delete."""
        ((expired,),) = writer.execute(sql.EXPIRED, parameters)
        session_ids: Sequence[str] = orjson.loads(expired)
        return session_ids

    return _delete(file, choose)


def count_time(file: SqliteFile, clock: float | None) -> StoreClock:
    """Return the store time; see `SessionStore.count_time`."""
    last_reading, uncounted = file.read(sql.CLOCK)[0]
    now = time.time() if clock is None else clock
    if to_note(last_reading, uncounted, now) is not None:
        with file.write() as writer:
            last_reading, uncounted = writer.execute(sql.CLOCK).fetchone()
            now = time.time() if clock is None else clock
            last_reading, uncounted = to_note(last_reading, uncounted, now) or (last_reading, uncounted)
            writer.execute(sql.CLEAR_CLOCK)
            writer.executemany(sql.ADD_TO_CLOCK, ((last_reading,), (uncounted,)))
    return StoreClock(now - uncounted, uncounted)


def _these(session_ids: Sequence[str], _writer: sqlite3.Connection) -> Sequence[str]:
    """Return the given session ids. Used as the argument `choose` of `_delete`."""
    return session_ids


def _delete(file: SqliteFile, choose: Callable[[sqlite3.Connection], Sequence[str]]) -> Sequence[str]:
    """Delete the sessions that `choose` returns within the transaction. Return the ids of the deleted sessions."""
    gone, in_families = _with_reserve(file, lambda: _delete_sessions(file, choose))
    if in_families:
        clean_up(file)
    return gone


def _delete_sessions(
    file: SqliteFile, choose: Callable[[sqlite3.Connection], Sequence[str]]
) -> tuple[Sequence[str], bool]:
    """Delete the rows of sessions.

    Return the ids of sessions that existed, and whether any of them is a fork or has forks.
    """
    gone: list[str] = []
    in_families = False
    with file.write() as writer:
        session_ids = choose(writer)
        gone += _delete_alone(writer, session_ids)
        alone = {*gone}
        for session_id in (id_ for id_ in session_ids if id_ not in alone):
            ((needed,),) = writer.execute(sql.NEEDED, (session_id, session_id))
            if needed is not None:
                writer.execute(sql.KEEP, (session_id,))
            for key, recipe, id_, parent in writer.execute(sql.DELETE_SESSION, (session_id,)).fetchall():
                gone.append(id_)
                in_families |= needed is not None or parent is not None
                if needed is None:
                    _delete_later(writer, key, recipe, parent)
                else:
                    # Version 0 stays, unless the session is itself a fork.
                    writer.execute(sql.DELETE_LATER, (key, needed + 1, 0 if parent else 1, None))
    return gone, in_families


def _delete_alone(writer: sqlite3.Connection, session_ids: Sequence[str]) -> Sequence[str]:
    """Delete the rows of the given sessions that aren't forks and have no forks. Return the ids of these sessions."""
    ((alone,),) = writer.execute(sql.ALONE, (orjson.dumps(session_ids),))
    rows = orjson.loads(alone)
    if rows:
        keys, recipes, ids = zip(*rows, strict=True)
        writer.execute(sql.DELETE_SESSIONS, (orjson.dumps(keys),))
        writer.execute(sql.DELETE_ALL_LATER, (orjson.dumps(keys),))
        writer.executemany(sql.FREE_RECIPE, ((recipe,) for recipe in {*recipes}))
        return ids
    return ()


def _delete_later(writer: sqlite3.Connection, key: int, recipe: int, parent: str | None) -> None:
    """Schedule all other rows of a session for deletion by `clean_up`."""
    writer.execute(sql.DELETE_LATER, (key, 0, 0, parent))
    writer.execute(sql.FREE_RECIPE, (recipe,))


def clean_up(file: SqliteFile) -> None:
    """Delete the remaining rows of deleted sessions, and return free space to the file system."""
    if not file.read(sql.ANY_DELETED):
        return
    while _with_reserve(file, lambda: _delete_rows(file)):
        time.sleep(GIVE_WAY_SECONDS)
    shrunk = False
    while file.shrink():
        shrunk = True
        time.sleep(GIVE_WAY_SECONDS)
    file.shorten_log(shrunk=shrunk)
    file.keep_reserve()


def _delete_rows(file: SqliteFile) -> bool:
    """Delete some remaining rows of deleted sessions, in one transaction. Return whether more rows might remain."""
    rows, size = CHUNK, CHUNK_BYTES
    with file.write() as writer:
        if _delete_small(writer):
            return True
        while rows > 0 and size > 0:
            deletion = writer.execute(sql.NEXT_DELETED).fetchone()
            if deletion is None:
                return False
            session, first_place, first_version, parent = deletion
            records = writer.execute(sql.RECORDS_TO_DELETE, (session, first_place, rows)).fetchall()
            chunk = fitting(records, lambda record: int(record[1]), size)
            writer.executemany(sql.DELETE_RECORD, ((row,) for row, _ in chunk))
            rows, size = rows - len(chunk) - 1, size - sum(length for _, length in chunk)
            if len(chunk) < len(records) or rows <= 0:
                continue
            changes = writer.execute(sql.CHANGES_TO_DELETE, (session, first_version, rows)).fetchall()
            chunk = fitting(changes, lambda change: int(change[3]), size)
            writer.executemany(sql.DELETE_CHANGE, ((session, version, part) for version, part, *_ in chunk))
            writer.executemany(sql.FREE_BLOB, {(blob,) for *_, blob, _ in chunk})
            rows, size = rows - len(chunk), size - sum(length for *_, length in chunk)
            if len(chunk) == len(changes) and rows > 0:
                writer.execute(sql.DELETION_DONE, (session,))
                for kept in writer.execute(sql.DELETE_KEPT, (parent,) * 3).fetchall():
                    _delete_later(writer, *kept)
    return True


def _delete_small(writer: sqlite3.Connection) -> bool:
    """Delete the remaining rows of small sessions among the next deleted sessions. Return whether any were found."""
    limits = (SMALL_SESSIONS, SMALL_ROWS, SMALL_ROWS, SMALL_ROWS, CHUNK_BYTES // SMALL_SESSIONS)
    ((small,),) = writer.execute(sql.SMALL_DELETED, limits)
    if small == "[]":
        return False
    ((blobs,),) = writer.execute(sql.BLOBS_OF, (small,))
    for statement in (sql.DELETE_RECORDS_OF, sql.DELETE_CHANGES_OF, sql.DELETIONS_DONE):
        writer.execute(statement, (small,))
    writer.execute(sql.FREE_BLOBS, (blobs,))
    return True


def _with_reserve(file: SqliteFile, step: Callable[[], T]) -> T:
    """Run a step. If the disk is full, free the reserved space and run the step again."""
    try:
        return step()
    except OverloadedError:
        if not file.use_reserve():
            raise
        return step()


def in_chunks(sized: Sequence[tuple[Any, int]]) -> Iterator[Sequence[Any]]:
    """Yield items in chunks, each small enough for one transaction.

    Args:
        sized: The items, each with its size in bytes.
    """
    while sized:
        chunk = fitting(sized[:CHUNK], lambda pair: pair[1], CHUNK_BYTES)
        yield [item for item, _ in chunk]
        sized = sized[len(chunk) :]
