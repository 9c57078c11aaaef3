"""Batches of commits to the SQLite store. A batch is one transaction with few statements.

A refused commit writes no rows, so the other commits of its batch aren't affected. The heads of sessions are cached,
because usually the previous batch has written them. The cache is used only if neither this process nor another process
has written to the file since that batch.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.features.stores.sqlite.file import SqliteFile
from toolpack_server.features.stores.sqlite.rows import add_blob, find_blob
from toolpack_server.stores.base import Commit
from toolpack_server.stores.blob_stubs import MARK, size_of
from toolpack_server.stores.history import SessionHead, follows

MAX_CACHED_HEADS = 4000


@dataclass(slots=True)
class _CachedHead(SessionHead):
    """Head of a session, with values that its next row in `records` needs."""

    key: int  # key of the session's row
    total: int  # total size of the session's records in bytes


@dataclass(slots=True)
class _Rows:
    """The rows that a batch will write, by kind."""

    records: list[tuple[Any, ...]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    changes: list[tuple[Any, ...]] = field(default_factory=list)
    expiries: list[tuple[float, int]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


class _CallIdTakenError(Exception):
    """A session already has a record with the call_id of a commit. Each commit of the batch is then tried alone."""


class Commits:
    """Writer of batches of commits to one file."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._heads: dict[str, _CachedHead] = {}  # the cached heads, by session id
        self._last_blob = 0  # the highest key of a blob
        # Number and data version of the transaction that filled the cache. None means that the cache isn't valid.
        self._cached_at: tuple[int, int] | None = None

    def apply(self, commits: Sequence[Commit]) -> list[bool]:
        """Apply commits in order. For each commit, return whether it is stored."""
        try:
            return self._apply(commits)
        except _CallIdTakenError:
            return [False] if len(commits) == 1 else [self.apply([commit])[0] for commit in commits]

    def _apply(self, commits: Sequence[Commit]) -> list[bool]:
        """Apply commits in one transaction. Raise `_CallIdTakenError` if a call_id is already taken."""
        with self._file.write() as writer:
            cached_at = self._load_heads(writer, commits)
            rows = _Rows()
            stored = []
            for commit in commits:
                stored.append(self._add(writer, commit, rows))  # noqa: PERF401 - for the same reason as in `_load_heads`
            self._insert(writer, rows)
            # A failed transaction counts twice, so that the transaction after it doesn't use the cache.
            self._cached_at = cached_at
        return stored

    def _load_heads(self, writer: sqlite3.Connection, commits: Sequence[Commit]) -> tuple[int, int]:
        """Clear the cache if it is stale, and load missing heads. Return the new value of `_cached_at`."""
        number = self._file.transactions
        (version,) = writer.execute(sql.DATA_VERSION).fetchone()
        if self._cached_at != (number - 1, version) or len(self._heads) > MAX_CACHED_HEADS:
            self._heads.clear()
            (self._last_blob,) = writer.execute(sql.LAST_BLOB).fetchone()
        self._cached_at = None
        missing = []
        for commit in commits:
            if commit.session_id not in self._heads:
                missing.append(commit.session_id)  # noqa: PERF401 - a loop is faster, because usually no head is missing
        if missing:
            ((heads,),) = writer.execute(sql.HEADS, (orjson.dumps(missing),))
            for session_id, *columns in orjson.loads(heads):
                self._heads[session_id] = _CachedHead(*columns)
        return number, version

    def _add(self, writer: sqlite3.Connection, commit: Commit, rows: _Rows) -> bool:
        """Add the rows of a commit to `rows`. Return False if the commit is refused.

        A commit that is already stored adds no rows, but isn't refused.
        """
        record, head = commit.record, self._heads.get(commit.session_id)
        if head is None:
            return False
        key = head.key
        row = (key, record.index, record.version, record.call_id, record.id, record.body)
        if record.index <= head.last_index:
            return bool(writer.execute(sql.SAME_RECORD, row).fetchone())
        if not follows(head, commit):
            return False
        for blob in commit.parts.values():
            if blob not in commit.blobs and blob not in rows.blobs and not find_blob(writer, blob):
                return False
        total = head.total + len(record.body)
        rows.records.append((*row, total))
        head.last_index, head.last, head.total = record.index, record.id, total
        rows.blobs.update(commit.blobs)
        for part, blob in commit.parts.items():
            rows.changes.append((key, record.version, part, blob))
        if commit.expires_at is not None:
            rows.expiries.append((commit.expires_at, key))
        if commit.release:
            head.holder = None
            rows.released.append(key)
        return True

    def _insert(self, writer: sqlite3.Connection, rows: _Rows) -> None:
        """Write the rows of a batch."""
        if sql.INSERT_RECORDS.insert(writer, rows.records) < len(rows.records):
            raise _CallIdTakenError
        blobs = {}
        if rows.blobs:
            first = self._last_blob + 1
            self._last_blob += len(rows.blobs)
            new = [(key, *blob) for key, blob in enumerate(rows.blobs.items(), first)]
            if sql.INSERT_BLOBS.insert(writer, new) == len(new):
                blobs = {blob: (key, size_of(body) if body.startswith(MARK) else len(body)) for key, blob, body in new}
        if rows.changes:
            # A blob that is already stored, for example after a reset, keeps its key.
            sql.INSERT_CHANGES.insert(
                writer, [(*change, *(blobs.get(blob) or add_blob(writer, blob, {}))) for *change, blob in rows.changes]
            )
        if rows.expiries:
            writer.executemany(sql.RENEW_KEY, rows.expiries)
        if rows.released:
            writer.execute(sql.RELEASE, (orjson.dumps(rows.released),))
