"""The file behind the SQLite store: its path, its lock, its connections and its schema version.

The rule: one connection writes, behind a lock, in transactions that begin IMMEDIATE; each read has its own connection
while it runs, so no reader waits for a writer. What makes a file unusable is an error on opening: a wrong URL, a folder
that can't be written, a file that another process has locked or that another program or a newer version wrote.

The lock is on a file beside the database: SQLite holds its own locks only during a transaction, and a lock on the
database file itself would be lost when any connection to it is closed.
"""

import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from server.errors import OverloadedError, SettingsError, StateDamagedError
from server.stores.sqlite.statements import SCHEMA

APPLICATION = 0x746F6F6C  # "tool", in SQLite's application_id: marks the file as ours
VERSION = 1
OLDEST_SQLITE = (3, 38)  # the first with JSON functions in every build
OPEN_AGAIN_SECONDS = 0.01
BUSY_SECONDS = 10  # above the 5 s after which the supervisor kills a worker that hangs inside a transaction
STATEMENTS = 256  # prepared and cached: inserts need one for each number of rows
CHECKPOINT_PAGES = 4000  # 16 MB, not SQLite's 1000 pages: a page that many commits change is copied back less often


class SqliteFile:
    """A database file that this process has locked, exclusively or together with others.

    Args:
        path: Its path; a missing file is created.
        exclusive: No other process may open it.

    Raises:
        SettingsError: It can't be opened.
    """

    def __init__(self, path: Path, *, exclusive: bool) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise SettingsError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 is needed.")
        self._path = path
        self._writing = threading.Lock()
        self._readers: deque[sqlite3.Connection] = deque()  # idle; never more than there were reads at the same time
        self._closed = False
        self._lock_file = _lock(path, exclusive=exclusive)
        try:
            self._writer = self._connect()
            try:
                self._prepare(exclusive=exclusive)
            except BaseException:
                self._writer.close()
                raise
        except BaseException as error:
            self._lock_file.close()
            if isinstance(error, sqlite3.Error):
                raise SettingsError(f"The store {path} can't be opened: {error}. Name another file.") from None
            raise

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool) -> "SqliteFile":
        """Open the file of a URL like `sqlite:///relative.db` or `sqlite:////absolute/path.db`."""
        path = url.removeprefix("sqlite:///")
        if path in {url, "", ":memory:"} or path.endswith("/"):
            raise SettingsError(
                f"{url!r} names no file: use sqlite:///relative.db or sqlite:////absolute/path.db, or memory: for none."
            )
        return cls(Path(path), exclusive=exclusive)

    def _connect(self) -> sqlite3.Connection:
        """Open a connection; every statement is its own transaction unless BEGIN says otherwise."""
        return sqlite3.connect(
            self._path,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
            cached_statements=STATEMENTS,
        )

    def read(self, statement: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
        """Run one SELECT on a connection that nobody else uses."""
        with _translated_errors():
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = self._connect()
            try:
                return reader.execute(statement, parameters).fetchall()
            finally:
                self._readers.append(reader)
                if self._closed:
                    self._close_readers()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction."""
        with _translated_errors(), self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # SQLite has rolled back itself after some errors
                    self._writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connections and unlock the file; a read that still runs closes its own."""
        with self._writing:
            self._closed = True
            self._writer.close()
            self._close_readers()
            self._lock_file.close()

    def _close_readers(self) -> None:
        with suppress(IndexError):
            while True:
                self._readers.pop().close()

    def _prepare(self, *, exclusive: bool) -> None:
        """Create the tables of a new file, or check those of an existing one."""
        execute = self._writer.execute
        execute("BEGIN IMMEDIATE")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        if not application and not execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in SCHEMA.split(";"):
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION}")
            execute(f"PRAGMA user_version = {VERSION}")
        elif application != APPLICATION:
            raise SettingsError(f"The store {self._path} belongs to another program: name another file.")
        elif version != VERSION:
            raise SettingsError(
                f"The store {self._path} has schema {version}, this toolpack-server reads {VERSION}: "
                "run the version that wrote it, or name another file."
            )
        if exclusive:  # no other process uses it: drop old leases and restart epochs
            execute("UPDATE sessions SET epoch = 0, holder = NULL WHERE epoch <> 0")
            execute("DELETE FROM workers")
        execute("COMMIT")
        self._write_ahead()
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        execute("PRAGMA synchronous = NORMAL")  # in WAL mode this survives the end of the process, kill -9 included

    def _write_ahead(self) -> None:
        """Switch to WAL mode, with retries: SQLite doesn't wait here while another process opens the file."""
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._writer.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(OPEN_AGAIN_SECONDS)
            else:
                return


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate SQLite's errors to those of a store."""
    try:
        yield
    except sqlite3.OperationalError as error:  # locked by another process, disk full, file not writable
        raise OverloadedError(f"The store can't be used now ({error}); nothing was changed.") from error
    except sqlite3.DatabaseError as error:
        if type(error) is sqlite3.DatabaseError:  # its subclasses are bugs of ours
            raise StateDamagedError(f"The store's file is damaged ({error}): restore a backup of it.") from error
        raise


def _lock(path: Path, *, exclusive: bool) -> FileIO:
    """Create a missing file for this user only, and lock the file beside it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(_open_private(path))  # SQLite gives its -wal and -shm files the same mode
        lock_file = FileIO(_open_private(path.with_name(path.name + ".lock")))
    except OSError as error:
        raise SettingsError(f"The store {path} can't be opened: {error.strerror}.") from None
    try:
        fcntl.flock(lock_file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        lock_file.close()
        if not isinstance(error, BlockingIOError):
            raise SettingsError(f"The store {path} can't be locked: {error.strerror}.") from None
        raise SettingsError(
            f"The store {path} is in use by another toolpack-server: stop it, or give this one its own --store."
        ) from None
    return lock_file


def _open_private(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
