"""Delete sessions from the SQLite store, and give the space back.

A deleted session disappears at once. Its other rows are deleted by `clean_up`, in short transactions, limited
by rows and by bytes, so that commits in between wait only briefly; if that is interrupted, the next one continues. That
is done at once where it can be seen: of sessions that are forks or have forks.
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

CHUNK = 200  # sessions or rows, deleted in one transaction
CHUNK_BYTES = 4 * 2**20
SMALL_ROWS = 4  # that a session has fewer records and changes than, if it is deleted together with others
SMALL_SESSIONS = CHUNK // (2 * SMALL_ROWS)
GIVE_WAY_SECONDS = 0.0005  # after each: a thread that takes a lock again at once overtakes those that wait


def delete(file: SqliteFile, session_ids: Sequence[str]) -> Sequence[str]:
    """Delete sessions; return the ids of those that existed."""
    deleted: list[str] = []
    for start in range(0, len(session_ids), CHUNK):
        deleted += _delete(file, partial(_these, session_ids[start : start + CHUNK]))
    return deleted


def delete_expired(file: SqliteFile, now: float, limit: int, busy: Collection[str]) -> Sequence[str]:
    """Delete sessions whose time of expiry is at or before `now`, and in which nothing runs; return their ids."""
    if not file.read(sql.ANY_EXPIRED, now):
        return []
    given = now, now - HELD_SECONDS, orjson.dumps([*busy]), min(limit, CHUNK)

    def choose(writer: sqlite3.Connection) -> Sequence[str]:
        ((expired,),) = writer.execute(sql.EXPIRED, given)
        found: Sequence[str] = orjson.loads(expired)
        return found

    return _delete(file, choose)


def count_time(file: SqliteFile, clock: float | None) -> StoreClock:
    """Do what `SessionStore.count_time` says; the time is noted now and then."""
    noted, left_out = file.read(sql.NOTED)[0]
    now = time.time() if clock is None else clock
    if to_note(noted, left_out, now) is not None:
        with file.write() as writer:
            noted, left_out = writer.execute(sql.NOTED).fetchone()
            now = time.time() if clock is None else clock
            noted, left_out = to_note(noted, left_out, now) or (noted, left_out)
            writer.execute(sql.FORGET_TIME)
            writer.executemany(sql.NOTE_TIME, ((noted,), (left_out,)))
    return StoreClock(now - left_out, left_out)


def _these(session_ids: Sequence[str], _writer: sqlite3.Connection) -> Sequence[str]:
    return session_ids


def _delete(file: SqliteFile, choose: Callable[[sqlite3.Connection], Sequence[str]]) -> Sequence[str]:
    gone, in_families = _with_reserve(file, lambda: _delete_sessions(file, choose))
    if in_families:
        clean_up(file)
    return gone


def _delete_sessions(
    file: SqliteFile, choose: Callable[[sqlite3.Connection], Sequence[str]]
) -> tuple[Sequence[str], bool]:
    """Delete the rows of sessions; get the ids of those that existed, and whether one is a fork or has forks."""
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
                    # The first version stays if a family began with it.
                    writer.execute(sql.DELETE_LATER, (key, needed + 1, 0 if parent else 1, None))
    return gone, in_families


def _delete_alone(writer: sqlite3.Connection, session_ids: Sequence[str]) -> Sequence[str]:
    """Delete the rows of those sessions that are no forks and have none; get their ids."""
    ((alone,),) = writer.execute(sql.ALONE, (orjson.dumps(session_ids),))
    found = orjson.loads(alone)
    if found:
        keys, recipes, ids = zip(*found, strict=True)
        writer.execute(sql.DELETE_SESSIONS, (orjson.dumps(keys),))
        writer.execute(sql.DELETE_ALL_LATER, (orjson.dumps(keys),))
        writer.executemany(sql.FREE_RECIPE, ((recipe,) for recipe in {*recipes}))
        return ids
    return ()


def _delete_later(writer: sqlite3.Connection, key: int, recipe: int, parent: str | None) -> None:
    """Note that all other rows of a session are to be deleted."""
    writer.execute(sql.DELETE_LATER, (key, 0, 0, parent))
    writer.execute(sql.FREE_RECIPE, (recipe,))


def clean_up(file: SqliteFile) -> None:
    """Delete all other rows of deleted sessions, and give free space back to the file system."""
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
    """Delete some rows of deleted sessions; return whether there may be more."""
    rows, size = CHUNK, CHUNK_BYTES
    with file.write() as writer:
        if _delete_small(writer):
            return True
        while rows > 0 and size > 0:
            found = writer.execute(sql.NEXT_DELETED).fetchone()
            if found is None:
                return False
            session, first_place, first_version, parent = found
            records = writer.execute(sql.RECORDS_TO_DELETE, (session, first_place, rows)).fetchall()
            some = fitting(records, lambda record: int(record[1]), size)
            writer.executemany(sql.DELETE_RECORD, ((row,) for row, _ in some))
            rows, size = rows - len(some) - 1, size - sum(length for _, length in some)
            if len(some) < len(records) or rows <= 0:
                continue
            changes = writer.execute(sql.CHANGES_TO_DELETE, (session, first_version, rows)).fetchall()
            some = fitting(changes, lambda change: int(change[3]), size)
            writer.executemany(sql.FORGET_CHANGE, ((session, version, part) for version, part, *_ in some))
            writer.executemany(sql.FREE_BLOB, {(blob,) for *_, blob, _ in some})
            rows, size = rows - len(some), size - sum(length for *_, length in some)
            if len(some) == len(changes) and rows > 0:
                writer.execute(sql.FORGET_DELETED, (session,))
                for kept in writer.execute(sql.DELETE_KEPT, (parent,) * 3).fetchall():
                    _delete_later(writer, *kept)
    return True


def _delete_small(writer: sqlite3.Connection) -> bool:
    """Delete the rows of those among the next sessions that have few; say whether there are any."""
    limits = (SMALL_SESSIONS, SMALL_ROWS, SMALL_ROWS, SMALL_ROWS, CHUNK_BYTES // SMALL_SESSIONS)
    ((small,),) = writer.execute(sql.SMALL_DELETED, limits)
    if small == "[]":
        return False
    ((blobs,),) = writer.execute(sql.BLOBS_OF, (small,))
    for statement in (sql.DELETE_RECORDS_OF, sql.FORGET_CHANGES_OF, sql.FORGET_ALL_DELETED):
        writer.execute(statement, (small,))
    writer.execute(sql.FREE_BLOBS, (blobs,))
    return True


def _with_reserve(file: SqliteFile, step: Callable[[], T]) -> T:
    """Do a step; if the disk is full, do it once more in the space that was reserved for that."""
    try:
        return step()
    except OverloadedError:
        if not file.use_reserve():
            raise
        return step()


def in_chunks(sized: Sequence[tuple[Any, int]]) -> Iterator[Sequence[Any]]:
    """Divide what is to be deleted, given with its sizes, into what one transaction deletes."""
    while sized:
        some = fitting(sized[:CHUNK], lambda each: each[1], CHUNK_BYTES)
        yield [each for each, _ in some]
        sized = sized[len(some) :]
