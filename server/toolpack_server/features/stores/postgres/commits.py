"""Batches of commits to the Postgres store.

A batch is usually one statement, so it takes one round trip and one write to Postgres' log. The statement that writes a
commit also checks the commit, according to the rule in `history.follows`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.features.stores.postgres import statements as sql
from toolpack_server.features.stores.postgres.connection import PostgresConnection, PostgresConnections, Statement
from toolpack_server.stores.base import Commit
from toolpack_server.stores.blob_stubs import size_of


def apply(connections: PostgresConnections, commits: Sequence[Commit]) -> list[bool]:
    """Apply commits in order. For each commit, return whether it is stored."""
    if not commits:
        return []
    # One statement is enough if the commits belong to different sessions and contain all their blobs.
    if len({commit.session_id for commit in commits}) == len(commits) and all(
        commit.blobs.keys() >= {*commit.parts.values()} for commit in commits
    ):
        (rows,) = connections.run(_statement(commits, {}))
        stored = {number - 1 for (number,) in rows}
        others = [index for index in range(len(commits)) if index not in stored]
        if others:
            (rows,) = connections.run(_same([commits[index] for index in others]))
            stored.update(others[number - 1] for (number,) in rows)
    else:
        stored = connections.transaction(lambda connection: _one_by_one(connection, commits))
    return [index in stored for index in range(len(commits))]


def _one_by_one(connection: PostgresConnection, commits: Sequence[Commit]) -> set[int]:
    """Apply commits that might depend on each other or on stored blobs. Return the indices of the stored commits."""
    blob_ids = sorted({blob for commit in commits for blob in commit.parts.values()})
    sessions = sorted({commit.session_id for commit in commits})
    _, rows = connection.run([(sql.LOCK_HEADS, (sessions,)), (sql.SIZES, (blob_ids,))])
    sizes: dict[str, int] = {blob.decode(): size for blob, size in rows}
    stored = set()
    for index, commit in enumerate(commits):
        has_all = all(blob in commit.blobs or blob in sizes for blob in commit.parts.values())
        is_new = has_all and connection.run([_statement([commit], sizes)])[0]
        if is_new or connection.run([_same([commit])])[0]:
            stored.add(index)
        if is_new:
            references = Counter(blob for blob in commit.parts.values() if blob not in commit.blobs)
            connection.run([(sql.ADD_REFERENCES, ([*references], [*references.values()]))])
            for blob in commit.parts.values():
                sizes.setdefault(blob, size_of(commit.blobs.get(blob, b"")))
    return stored


def _statement(commits: Sequence[Commit], sizes: Mapping[str, int]) -> Statement:
    """Return the statement that applies commits of different sessions.

    Args:
        commits: The commits.
        sizes: Sizes of the stored blobs that the commits refer to, by blob id.
    """
    rows: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    blobs: dict[str, bytes] = {}
    for number, commit in enumerate(commits, 1):
        record, before = commit.record, len(changes)
        for part, blob in commit.parts.items():
            size = sizes.get(blob)
            changes.append((number, part, blob, size_of(commit.blobs[blob]) if size is None else size))
        blobs.update(commit.blobs)
        added = sum(size for *_, size in changes[before:])
        facts = (commit.session_id, commit.epoch, commit.holder, record.index, commit.after, record.version)
        rows.append((*facts, record.call_id, record.id, record.body, commit.expires_at, commit.release, added))
    columns = [*map(list, zip(*rows, strict=True))]
    changed = [*map(list, zip(*changes, strict=True))] if changes else [[], [], [], []]
    return sql.COMMIT, (*columns, *changed, [*blobs], [*blobs.values()])


def _same(commits: Sequence[Commit]) -> Statement:
    """Return the statement that finds commits whose records are already stored."""
    records = [commit.record for commit in commits]
    rows = [(record.index, record.version, record.call_id, record.id, record.body) for record in records]
    columns = map(list, zip(*rows, strict=True))
    return sql.SAME, ([commit.session_id for commit in commits], *columns)
