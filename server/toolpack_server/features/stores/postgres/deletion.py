"""Deletion of sessions from the Postgres store.

One transaction deletes up to 256 sessions with all their data. Only one transaction at a time deletes sessions that are
forks or have forks. Otherwise, two transactions that each delete one of a session's last two forks could both keep the
session.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from toolpack_server.features.stores.postgres import statements as sql
from toolpack_server.features.stores.postgres.connection import PostgresConnection, PostgresConnections, Rows, Statement
from toolpack_server.stores.base import HELD_SECONDS

BATCH_SIZE = 256  # number of sessions that one transaction deletes


def delete(connections: PostgresConnections, session_ids: Sequence[str]) -> Sequence[str]:
    """Delete sessions. Return the ids of the sessions that existed."""
    deleted: list[str] = []
    for start in range(0, len(session_ids), BATCH_SIZE):
        batch = [*session_ids[start : start + BATCH_SIZE]]
        deleted += connections.transaction(partial(_delete, choose=(sql.LOCK_SESSIONS, (batch,))))
    return deleted


def delete_expired(connections: PostgresConnections, now: float, limit: int, busy: Collection[str]) -> Sequence[str]:
    """Delete expired sessions that aren't in use; see `SessionStore.delete_expired`. Return their ids."""
    parameters = now, now - HELD_SECONDS, [*busy], min(limit, BATCH_SIZE)
    return connections.transaction(partial(_delete, choose=(sql.LOCK_EXPIRED, parameters)))


def remove_references(connection: PostgresConnection, *removals: Statement) -> None:
    """Run statements that remove references to blobs. Then delete the blobs without references."""
    free = [blob for rows in connection.run(removals) for blob, references in rows if references <= 0]
    if free:
        connection.run([(sql.FREE, (free,))])


def _delete(connection: PostgresConnection, choose: Statement) -> Sequence[str]:
    """Delete the sessions that the statement `choose` locks. Return their ids."""
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
    """Delete sessions that are forks or have forks. Keep the data that forks need."""
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
        # Version 0 stays, unless the session is itself a fork.
        connection.run([(sql.REMOVE_LATER_RECORDS, (key, last[id_])), (sql.COUNT_RECORDS, (key, last[id_]))])
        remove_references(connection, (sql.REMOVE_CHANGES_FROM, (key, 1 if parent is None else 0)))


def _remove(connection: PostgresConnection, keys: Sequence[int], recipes: Sequence[bytes]) -> None:
    """Remove the remaining rows of sessions, and their references to recipes and blobs."""
    if keys:
        parameters = ([*keys],)
        connection.run(
            [(sql.REMOVE_HEADS, parameters), (sql.REMOVE_RECORDS, parameters), (sql.REMOVE_PARTS, parameters)]
        )
        uses = Counter(recipes)
        remove_references(
            connection,
            (sql.REMOVE_ALL_CHANGES, parameters),
            (sql.REMOVE_REFERENCES, ([*uses], [*uses.values()])),
        )
