"""Database file of the SQLite store: its path, lock, connections and schema version.

One connection, guarded by a lock, writes in IMMEDIATE transactions. Each read uses another connection, so readers don't
wait for writers. Opening a file that can't be used raises an error, for example if another process has locked it, or if
it belongs to another program or a newer version.

If the file is deleted or replaced while the server runs, no commit is acknowledged any more. If the disk is full, reads
continue, and a small reserved file makes room for the deletion of sessions.

The lock that keeps other servers out is on a separate file beside the database. SQLite's own locks don't suffice,
because SQLite holds them only during a transaction. A lock on the database file itself would be lost when any
connection to the file is closed.

SQLite's errors are translated. A temporary error, or an error that an operator can fix, becomes an `OverloadedError`. A
damaged file raises `StateDamagedError`. Errors that only a bug can cause aren't translated.
"""

import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Self

from toolpack_server.base.after_fork import detach, run_after_fork
from toolpack_server.base.errors import OverloadedError, SettingsError, StateDamagedError, StoreInUseError, shown
from toolpack_server.base.store_url import SQLITE
from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.features.stores.sqlite.checkpoints import OWN_CHECKPOINT_PAGES, Checkpoints, checkpoint


def lock(path: Path, *, exclusive: bool) -> FileIO:
    """Create the database file if it is missing, readable only by this user, and lock the `.lock` file beside it.

    Raises:
        SettingsError: The file can't be opened or locked.
        StoreInUseError: Another process has locked the file.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(open_private(path))  # SQLite gives its -wal and -shm files the same mode
        lock_file = FileIO(open_private(path.with_name(path.name + ".lock")))
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "its folder is a file" if is_file else error.strerror
        raise SettingsError(f"The store {path} can't be opened: {reason}. Choose another --store.") from None
    try:
        fcntl.flock(lock_file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        used = f"in use by another toolpack-server{_holders(lock_file.fileno())}"
        lock_file.close()
        if not isinstance(error, BlockingIOError):
            raise SettingsError(
                f"The store {path} can't be locked: {error.strerror}. Choose another --store."
            ) from None
        raise StoreInUseError(f"The store {path} is {used}: stop it, or give this one its own --store.") from None
    return lock_file


def _holders(lock_file: int) -> str:
    """Describe other processes that have locked or opened a file, if Linux shows these processes to this user."""
    lock_status = os.fstat(lock_file)
    holders: set[int] = set()
    with suppress(OSError, ValueError):
        name = f"{os.major(lock_status.st_dev):02x}:{os.minor(lock_status.st_dev):02x}:{lock_status.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            if name in (words := line.split()) and words[1] == "FLOCK":
                holders.add(int(words[words.index(name) - 1]))
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            status = descriptor.stat()
            if (status.st_dev, status.st_ino) == (lock_status.st_dev, lock_status.st_ino):
                holders.add(int(descriptor.parts[2]))
    descriptions = []
    for process in sorted(holders - {os.getpid()}):
        with suppress(OSError):  # the process has exited, and a child that inherited the lock still holds it
            command = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")
            shown_command = shown("".join(c if c.isprintable() else " " for c in command).strip())
            descriptions.append(f"process {process} ({shown_command})")
    return f", {' and '.join(descriptions)}" if descriptions else ""


def open_private(path: Path) -> int:
    """Open a file for reading and writing. If it is missing, create it readable only by this user."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Return whether another process held the lock of the database for too long."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def translate(error: BaseException) -> None:
    """Raise the store error that corresponds to a SQLite error. Do nothing for any other exception.

    Raises:
        OverloadedError: The file can't be used now.
        StateDamagedError: The file is damaged.
    """
    # The database is locked by another process, the disk is full, the file isn't writable, or memory is exhausted.
    if isinstance(error, sqlite3.OperationalError | MemoryError):
        why = str(error) or "no memory"
        raise OverloadedError(f"The store can't be used now ({why}); nothing was changed.") from error
    if type(error) is sqlite3.DatabaseError:  # only a bug in this server can raise the other subclasses
        raise StateDamagedError(f"The store's file is damaged ({error}): restore a backup of it.") from error


class _TranslatedErrors:
    """Context manager that translates SQLite errors.

    Every call of the store enters this context manager. A generator-based context manager would take five times as long
    to enter.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            translate(error)


translated_errors = _TranslatedErrors()


APPLICATION = 0x746F6F6C  # "tool", SQLite's application_id, which marks the files of this server
VERSION = 1  # number of the schema, in SQLite's user_version
CHECKPOINT_SECONDS = 0.2  # maximum time for which a growing file can lack its last page during a checkpoint
MIN_SQLITE = (3, 38)  # the first version with JSON functions in every build
RETRY_SECONDS = 0.01
BUSY_SECONDS = 10  # longer than 5 s, after which the supervisor kills a worker that hangs inside a transaction
MAX_STATEMENTS = 128  # maximum number of prepared statements of a connection
# Size of the `.reserve` file, which is enough to copy the write-ahead log and then reuse the log's space.
RESERVED_BYTES = 20 * 2**20
FULL_BYTES = 4 * 2**20  # a disk with less free space in bytes counts as full
SHRINK_PAGES = 1000  # number of pages that one transaction returns to the file system
MAX_FREE_PAGES = 4000  # number of free pages that stay in the file for reuse, or a quarter of the file if that is more
MAX_LOG_BYTES = 20 * 2**20  # a longer write-ahead log is truncated; only a large transaction makes it longer


class SqliteFile:
    """A database file that this process has locked, exclusively or together with other processes.

    Args:
        path: The file's path. A missing file is created.
        exclusive: Whether to lock the file so that no other process can open it.

    Attributes:
        transactions: Number of transactions so far. A failed transaction counts twice. Read this attribute only inside
            a transaction.

    Raises:
        SettingsError: The file can't be opened.
        StoreInUseError: Another process has locked the file.
    """

    def __init__(self, path: Path, *, exclusive: bool) -> None:
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise SettingsError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 is needed.")
        self._path = path = path.absolute()  # absolute, because a function can change the working folder
        self._log = path.with_name(path.name + "-wal")
        self._names = str(self._path), str(self._log)
        self._reserve = path.with_name(path.name + ".reserve")
        self.transactions = 0
        self._write_error = ""  # error of the last transaction, or "" if it succeeded or another process held the lock
        self._is_cut = False  # whether the file has lost pages, so commits must not be acknowledged
        self._writing = threading.Lock()
        self._readers: deque[sqlite3.Connection] = deque()  # idle connections
        self._closed = False
        self._lock_file = lock(path, exclusive=exclusive)
        run_after_fork(self._detach)
        try:
            self._writer = self._connect()
            try:
                self._prepare(exclusive=exclusive)
                self._files, self._bytes, _ = self._stat()
                self.keep_reserve()
                self._checkpoints = Checkpoints(self._connect, self._log)
            except BaseException:
                self._writer.close()
                raise
        except BaseException as error:
            self._lock_file.close()
            if isinstance(error, sqlite3.Error):
                raise SettingsError(f"The store {path} can't be opened: {error}. Choose another file.") from None
            raise

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool) -> "SqliteFile":
        """Open the file of a URL like `sqlite:///relative.db` or `sqlite:////absolute/path.db`."""
        path = url.removeprefix(SQLITE)
        if path in {url, "", ":memory:"} or path.endswith("/"):
            raise SettingsError(
                f"{url!r} has no file name: use sqlite:///relative.db or sqlite:////absolute/path.db, or memory: to "
                "keep sessions in memory."
            )
        return cls(Path(path), exclusive=exclusive)

    def _connect(self, options: str = "") -> sqlite3.Connection:
        """Open a connection. Each statement is its own transaction, except between BEGIN and COMMIT."""
        connection = sqlite3.connect(
            self._path.as_uri() + options,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
            cached_statements=MAX_STATEMENTS,
        )
        # Some systems' SQLite overwrites deleted data, so a deletion would write as many bytes as it deletes.
        connection.execute("PRAGMA secure_delete = OFF").close()
        return connection

    def read(self, statement: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
        """Run a statement that reads, and return its rows."""
        with translated_errors:
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

    def write(self) -> Self:
        """Return a context manager for one transaction. Its value is the connection.

        Raises:
            OverloadedError: Nothing was stored, because the disk is full, or the file is locked or missing.
        """
        return self  # a class instead of a generator, because every call enters this block, and a generator is slower

    def __enter__(self) -> sqlite3.Connection:
        """Begin a transaction, and return the connection. Other threads wait until its end."""
        self._writing.acquire()
        self.transactions += 1
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self._writer

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Commit the transaction, or roll it back after an error."""
        try:
            if error is None:
                try:
                    self._writer.execute("COMMIT")
                except BaseException as failure:
                    self._undo(failure)
                    raise
                self._write_error = ""
                self._check_in_place()
            else:
                self._undo(error)
        finally:
            self._writing.release()

    def _undo(self, error: BaseException) -> None:
        """Roll back the transaction after an error. Raise a SQLite error as the error of a store."""
        self.transactions += 1
        if self._writer.in_transaction:  # after some errors, SQLite has already rolled back
            self._writer.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError) and not is_busy(error):
            self._write_error = str(error)
            self._restart_log("PASSIVE")  # this lets SQLite reuse the log's space
        translate(error)

    def check(self) -> None:
        """Raise `OverloadedError` if the file was deleted or replaced, or can't be written."""
        with self.write() as writer:
            writer.execute(f"PRAGMA user_version = {VERSION}")
        if self._free_bytes() < FULL_BYTES:
            raise OverloadedError(f"The disk of the store {self._path} is full: free some space, or close sessions.")
        self.keep_reserve()

    def _free_bytes(self) -> float:
        """Return the free bytes of the disk, or infinity if the system doesn't report them."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else float("inf")

    def use_reserve(self) -> bool:
        """If the last transaction failed, free the reserved space. Return whether space was freed."""
        if not self._write_error:
            return False
        try:
            self._reserve.unlink()
        except OSError:
            return False
        with self._writing:
            self._restart_log("PASSIVE")
        return True

    def keep_reserve(self) -> None:
        """Reserve space for deletions, if the disk has twice as much free space."""
        if self._write_error or self._reserve.exists() or self._free_bytes() < 2 * RESERVED_BYTES:
            return
        with suppress(OSError):
            reserve = open_private(self._reserve)
            try:
                os.posix_fallocate(reserve, 0, RESERVED_BYTES)
            except OSError:
                self._reserve.unlink()
            finally:
                os.close(reserve)

    def shrink(self) -> bool:
        """Return some free pages to the file system. Return whether more free pages might remain.

        A file that was restored from a dump of its rows doesn't shrink, because SQLite enables shrinking only when it
        creates a file.
        """
        with translated_errors, self._writing:
            free, pages, vacuum = (
                self._writer.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("freelist_count", "page_count", "auto_vacuum")
            )
            has_more = bool(vacuum) and bool(free > (max(MAX_FREE_PAGES, pages // 4) if self._reserve.exists() else 0))
            if has_more:
                try:
                    self._vacuum()
                except sqlite3.OperationalError:  # the log has filled the disk, so copy the log to reuse its space
                    self._restart_log("PASSIVE")
                    self._vacuum()
        return has_more

    def _vacuum(self) -> None:
        """Return up to `SHRINK_PAGES` free pages to the file system."""
        # `execute` would return only one page, because it stops after the statement's first row.
        self._writer.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")

    def shorten_log(self, *, shrunk: bool) -> None:
        """Truncate the log if it is long. If the file was shrunk, copy the log, so that the file becomes shorter."""
        is_long = self._log.stat().st_size > MAX_LOG_BYTES
        if is_long or shrunk:
            with self._writing:
                self._restart_log("TRUNCATE" if is_long else "PASSIVE")

    def _restart_log(self, mode: str) -> None:
        """Copy the write-ahead log into the database, as far as running reads allow.

        Args:
            mode: Mode of SQLite's checkpoint: PASSIVE, or TRUNCATE to also empty the log.
        """
        checkpoint(self._writer, mode, 0)
        self._writer.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")

    def _stat(self) -> tuple[tuple[int, ...], int, int]:
        """Return inodes and devices of the file and its log, the file's size, and the log's size."""
        # `Path.stat` would take three times as long, and this method runs after each transaction.
        file, log = os.stat(self._names[0]), os.stat(self._names[1])  # noqa: PTH116
        return (file.st_ino, file.st_dev, log.st_ino, log.st_dev), file.st_size, log.st_size

    def _check_in_place(self) -> None:
        """Check that the file and its log weren't deleted or replaced. Start a checkpoint if the log is long."""
        try:
            files, file_bytes, log_bytes = self._stat()
            if files == self._files:
                if self._is_cut or file_bytes < self._bytes:
                    self._check_whole()
                self._bytes = file_bytes
                self._checkpoints.start_if_due(log_bytes)
                return
        except OSError:
            pass
        raise OverloadedError(
            f"The store {self._path} was deleted or replaced while the server runs: restart the server."
        )

    def _check_whole(self) -> None:
        """Check that a file that has become shorter still contains all its pages.

        `shrink` removes only free pages, but a truncation from outside loses data. To detect missing pages, this method
        opens a connection that ignores the log. On a full disk, the check is impossible, because some pages might be in
        the log only.

        Raises:
            OverloadedError: The file was truncated.
        """
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while not self._is_cut:
            with suppress(sqlite3.DatabaseError), closing(self._connect("?mode=ro&immutable=1")) as connection:
                if connection.execute("PRAGMA application_id").fetchone() == (APPLICATION,):
                    return
            if self._free_bytes() < FULL_BYTES:
                return
            self._is_cut = time.monotonic() > deadline
            time.sleep(0.005)
        raise OverloadedError(
            f"The store {self._path} was truncated while the server runs: stop the server and restore a backup."
        )

    def close(self) -> None:
        """Close the connections, and unlock the file. A running read closes its own connection afterwards."""
        self._checkpoints.close()
        with self._writing:
            self._closed = True
            self._writer.close()
            self._close_readers()
            self._lock_file.close()

    def _detach(self) -> None:
        """Close the lock file and the database in a process that a tool function has forked."""
        if not self._lock_file.closed:
            detach([self._lock_file.fileno(), *_descriptors_of(f"{self._path}{end}" for end in ("", "-wal", "-shm"))])

    def _close_readers(self) -> None:
        """Close the idle connections of readers."""
        with suppress(IndexError):
            while True:
                self._readers.pop().close()

    def _prepare(self, *, exclusive: bool) -> None:
        """Create the tables in a new file, or check the schema of an existing file.

        Then set the connection's options.
        """
        execute = self._writer.execute
        execute("PRAGMA auto_vacuum = INCREMENTAL")  # this setting affects only a new file
        execute("BEGIN IMMEDIATE")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        if not application and not execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in sql.SCHEMA.split(";"):
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION}")
            execute(f"PRAGMA user_version = {VERSION}")
        elif application != APPLICATION:
            raise SettingsError(f"The store {self._path} belongs to another program: choose another file.")
        elif version != VERSION:
            raise SettingsError(
                f"The store {self._path} has schema {version}, but this toolpack-server needs schema {VERSION}: "
                "run the version that wrote it, or choose another file."
            )
        if exclusive:  # no other process uses the file, so remove old leases and restart the epochs
            for statement in (sql.RESET_LEASES, sql.DELETE_WORKERS, sql.DELETE_ALL_ASKED):
                execute(statement)
        execute("COMMIT")
        self._write_ahead()
        execute("SELECT 1 FROM sqlite_master").fetchall()  # opens the write-ahead log
        execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
        execute(f"PRAGMA wal_autocheckpoint = {OWN_CHECKPOINT_PAGES}")
        execute(
            "PRAGMA synchronous = NORMAL"
        )  # in WAL mode, a commit then survives even if the process is killed with SIGKILL

    def _write_ahead(self) -> None:
        """Switch to WAL mode. Retry, because SQLite doesn't wait here for other processes that open the file."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._writer.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
            else:
                return


def _descriptors_of(paths: Iterable[str]) -> list[int]:
    """Return this process's descriptors for files, including the descriptors that SQLite has opened."""
    files, descriptors = set(), []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            files.add((status.st_dev, status.st_ino))
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - numbers
        with suppress(OSError):  # `listdir` has closed its own descriptor
            status = os.fstat(int(name))
            if (status.st_dev, status.st_ino) in files:
                descriptors.append(int(name))
    return descriptors
