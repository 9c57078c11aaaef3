"""Batches of commits, each batch in one transaction with few statements.

A commit that is refused has written nothing, so the rest of its batch goes on. What the last record of
a session is was mostly written by the transaction before this one, so it is remembered; that is used only if nothing
else has been written since, by this process or another.
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

REMEMBERED = 4000  # sessions


@dataclass(slots=True)
class _KnownHead(SessionHead):
    """What is known of a session: also its key, and the bytes of its records."""

    key: int
    total: int


@dataclass(slots=True)
class _Rows:
    """What is to be written for a batch."""

    records: list[tuple[Any, ...]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    changes: list[tuple[Any, ...]] = field(default_factory=list)
    expiries: list[tuple[float, int]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


class _CallIdTakenError(Exception):
    """A record of a batch has the call_id of another one; then each commit is tried alone."""


class Commits:
    """Writes batches of commits to one file."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._known: dict[str, _KnownHead] = {}
        self._last_blob = 0  # the highest key of a blob
        self._written: tuple[int, int] | None = None  # the transaction that wrote this, and the data version in it

    def apply(self, commits: Sequence[Commit]) -> list[bool]:
        """Store those commits that can be; say for each whether it is stored now."""
        try:
            return self._apply(commits)
        except _CallIdTakenError:
            return [False] if len(commits) == 1 else [self.apply([commit])[0] for commit in commits]

    def _apply(self, commits: Sequence[Commit]) -> list[bool]:
        with self._file.write() as writer:
            written = self._remember(writer, commits)
            rows = _Rows()
            stored = []
            for commit in commits:
                stored.append(self._note(writer, commit, rows))  # noqa: PERF401 - as in `_remember`
            self._insert(writer, rows)
            # If the transaction fails after all, its number isn't the one before the next.
            self._written = written
        return stored

    def _remember(self, writer: sqlite3.Connection, commits: Sequence[Commit]) -> tuple[int, int]:
        """Forget what may have changed, and read what isn't known; get what `_written` is to be."""
        number = self._file.transactions
        (version,) = writer.execute(sql.DATA_VERSION).fetchone()
        if self._written != (number - 1, version) or len(self._known) > REMEMBERED:
            self._known.clear()
            (self._last_blob,) = writer.execute(sql.LAST_BLOB).fetchone()
        self._written = None
        unknown = []
        for commit in commits:
            if commit.session_id not in self._known:
                unknown.append(commit.session_id)  # noqa: PERF401 - every call comes here, most often in vain
        if unknown:
            ((tips,),) = writer.execute(sql.TIPS, (orjson.dumps(unknown),))
            for session_id, *known in orjson.loads(tips):
                self._known[session_id] = _KnownHead(*known)
        return number, version

    def _note(self, writer: sqlite3.Connection, commit: Commit, rows: _Rows) -> bool:
        """Note the rows of a commit, if it can be stored; say whether it is stored then."""
        record, known = commit.record, self._known.get(commit.session_id)
        if known is None:
            return False
        key = known.key
        row = (key, record.index, record.version, record.call_id, record.id, record.body)
        if record.index <= known.place:
            return bool(writer.execute(sql.SAME_RECORD, row).fetchone())
        if not follows(known, commit):
            return False
        for blob in commit.parts.values():
            if blob not in commit.blobs and blob not in rows.blobs and not find_blob(writer, blob):
                return False
        total = known.total + len(record.body)
        rows.records.append((*row, total))
        known.place, known.last, known.total = record.index, record.id, total
        rows.blobs.update(commit.blobs)
        for part, blob in commit.parts.items():
            rows.changes.append((key, record.version, part, blob))
        if commit.expires_at is not None:
            rows.expiries.append((commit.expires_at, key))
        if commit.release:
            known.holder = None
            rows.released.append(key)
        return True

    def _insert(self, writer: sqlite3.Connection, rows: _Rows) -> None:
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
            # A blob that was stored already, as after a reset, has the key that it had.
            sql.INSERT_CHANGES.insert(
                writer, [(*change, *(blobs.get(blob) or add_blob(writer, blob, {}))) for *change, blob in rows.changes]
            )
        if rows.expiries:
            writer.executemany(sql.RENEW_KEY, rows.expiries)
        if rows.released:
            writer.execute(sql.RELEASE, (orjson.dumps(rows.released),))
