"""Delete sessions from the Postgres store.

Up to 256 sessions in one transaction, with all that belongs to them. Only one transaction at a time deletes
members of families, sessions that are forks or have forks: what one of them keeps, the other one may have to delete.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from toolpack_server.features.stores.postgres import statements as sql
from toolpack_server.features.stores.postgres.connection import PostgresConnection, PostgresConnections, Rows, Statement
from toolpack_server.stores.base import HELD_SECONDS

DELETED_AT_ONCE = 256


def delete(connections: PostgresConnections, session_ids: Sequence[str]) -> Sequence[str]:
    """Delete sessions; return the ids of those that existed."""
    deleted: list[str] = []
    for start in range(0, len(session_ids), DELETED_AT_ONCE):
        some = [*session_ids[start : start + DELETED_AT_ONCE]]
        deleted += connections.transaction(partial(_delete, choose=(sql.LOCK_SESSIONS, (some,))))
    return deleted


def delete_expired(connections: PostgresConnections, now: float, limit: int, busy: Collection[str]) -> Sequence[str]:
    """Delete sessions whose time of expiry is at or before `now`, and in which nothing runs; return their ids."""
    given = now, now - HELD_SECONDS, [*busy], min(limit, DELETED_AT_ONCE)
    return connections.transaction(partial(_delete, choose=(sql.LOCK_EXPIRED, given)))


def forget(connection: PostgresConnection, *removals: Statement) -> None:
    """Remove references, and the blobs to which there are none any more."""
    free = [blob for rows in connection.run(removals) for blob, references in rows if references <= 0]
    if free:
        connection.run([(sql.FREE, (free,))])


def _delete(connection: PostgresConnection, choose: Statement) -> Sequence[str]:
    """Delete the sessions that a statement locks; get their ids."""
    (rows,) = connection.run([choose])
    if not rows:
        return ()
    ids = [id_ for _, id_, _, _ in rows]
    (forks,) = connection.run([(sql.FORKS, (ids,))])
    alone = [row for row in rows if row[3] is None and row[1] not in {parent for parent, _ in forks}]
    if alone:
        keys = [key for key, *_ in alone]
        connection.run([(sql.REMOVE_SESSIONS, (keys,))])
        _remove(connection, keys, [recipe for _, _, recipe, _ in alone])
    if len(alone) < len(rows):
        _delete_in_families(connection, [row for row in rows if row not in alone])
    return [id_.decode() for id_ in ids]


def _delete_in_families(connection: PostgresConnection, rows: Rows) -> None:
    keys = [key for key, *_ in rows]
    connection.run(
        [(sql.LOCK_FAMILIES, ()), (sql.KEEP, (keys,)), (sql.KEEP_HEADS, (keys,)), (sql.REMOVE_PARTS, (keys,))]
    )
    gone: set[int] = set()
    candidates: list[Any] = [id_ for _, id_, _, _ in rows]
    recipes = []
    while candidates:
        (removed,) = connection.run([(sql.REMOVE_KEPT, (candidates,))])
        gone.update(key for key, _, _ in removed)
        recipes += [recipe for _, recipe, _ in removed]
        candidates = [parent for _, _, parent in removed if parent is not None]
    _remove(connection, [*gone], recipes)
    kept = [row for row in rows if row[0] not in gone]
    (forks,) = connection.run([(sql.FORKS, ([id_ for _, id_, _, _ in kept],))])
    last: dict[Any, Any] = dict(forks)
    for key, id_, _, parent in kept:
        # The first version stays if a family began with it.
        connection.run([(sql.REMOVE_LATER_RECORDS, (key, last[id_])), (sql.COUNT_RECORDS, (key, last[id_]))])
        forget(connection, (sql.FORGET_FROM, (key, 1 if parent is None else 0)))


def _remove(connection: PostgresConnection, keys: Sequence[int], recipes: Sequence[bytes]) -> None:
    """Remove all other rows of sessions."""
    if keys:
        given = ([*keys],)
        connection.run([(sql.REMOVE_HEADS, given), (sql.REMOVE_RECORDS, given), (sql.REMOVE_PARTS, given)])
        fewer = Counter(recipes)
        forget(connection, (sql.FORGET_ALL, given), (sql.REMOVE_REFERENCES, ([*fewer], [*fewer.values()])))
