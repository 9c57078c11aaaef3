"""The file behind the SQLite store: its path, its lock, its connections and its schema version.

One connection writes, behind a lock, in transactions that begin IMMEDIATE; each read has its own connection
while it runs, so no reader waits for a writer. What makes a file unusable is an error on opening: a wrong URL, a folder
that can't be written, a file that another process has locked or that another program or a newer version wrote.

A database that isn't at its path any more, because somebody deleted or replaced it, acknowledges nothing. A full disk
is no end: reads continue, and a small reserved file makes room for the deletion of sessions.

The lock that keeps other servers from the file is on another one beside it: SQLite holds its own locks only during a
transaction, and a lock on the database file itself would be lost when any connection to it is closed. Of SQLite's
errors, what passes by itself or by an operator's hand becomes an `OverloadedError`; a file that can't be read any more
is damaged; what only a bug of ours can cause stays what it is.
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
    """Create a missing file for this user only, and lock the file beside it."""
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
    """Say which other processes have a file open, or have locked it, as far as Linux tells this user."""
    found = os.fstat(lock_file)
    holders: set[int] = set()
    with suppress(OSError, ValueError):
        name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            if name in (words := line.split()) and words[1] == "FLOCK":
                holders.add(int(words[words.index(name) - 1]))
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            status = descriptor.stat()
            if (status.st_dev, status.st_ino) == (found.st_dev, found.st_ino):
                holders.add(int(descriptor.parts[2]))
    named = []
    for process in sorted(holders - {os.getpid()}):
        with suppress(OSError):  # it has ended, and somebody who has inherited it holds the lock
            command = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")
            shown_command = shown("".join(c if c.isprintable() else " " for c in command).strip())
            named.append(f"process {process} ({shown_command})")
    return f", {' and '.join(named)}" if named else ""


def open_private(path: Path) -> int:
    """Open a file that only this user may read; it is created if it is missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def translate(error: BaseException) -> None:
    """Raise an error of SQLite as one of a store; do nothing about others."""
    # Locked by another process, disk full, file not writable; or SQLite may hold no more memory in this process.
    if isinstance(error, sqlite3.OperationalError | MemoryError):
        why = str(error) or "no memory"
        raise OverloadedError(f"The store can't be used now ({why}); nothing was changed.") from error
    if type(error) is sqlite3.DatabaseError:  # its other subclasses are bugs of ours
        raise StateDamagedError(f"The store's file is damaged ({error}): restore a backup of it.") from error


class _TranslatedErrors:
    """A context manager. Not a generator: to enter one takes five times as long, and every call does."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            translate(error)


translated_errors = _TranslatedErrors()


APPLICATION = 0x746F6F6C  # "tool", in SQLite's application_id: marks the file as ours
VERSION = 1
CHECKPOINT_SECONDS = 0.2  # in which a checkpoint that makes the file longer writes its first page and then the last
OLDEST_SQLITE = (3, 38)  # the first with JSON functions in every build
OPEN_AGAIN_SECONDS = 0.01
BUSY_SECONDS = 10  # above the 5 s after which the supervisor kills a worker that hangs inside a transaction
STATEMENTS = 128  # prepared and cached
RESERVED_BYTES = 20 * 2**20  # beside the file: enough to empty the write-ahead log, so that its space can be used again
FULL_BYTES = 4 * 2**20  # a disk with less free space is called full
SHRINK_PAGES = 1000  # that one transaction gives back to the file system
FREE_PAGES = 4000  # that a file may keep for later, or a quarter of it
WAL_BYTES = 20 * 2**20  # that the write-ahead log may keep; it grows further only during one large transaction


class SqliteFile:
    """A database file that this process has locked, exclusively or together with others.

    Args:
        path: Its path; a missing file is created.
        exclusive: No other process may open it.

    Attributes:
        transactions: The number of the last transaction; one that failed counts twice. To be read within one.

    Raises:
        SettingsError: It can't be opened.
    """

    def __init__(self, path: Path, *, exclusive: bool) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise SettingsError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 is needed.")
        self._path = path = path.absolute()  # a function may change the working folder
        self._log = path.with_name(path.name + "-wal")
        self._names = str(self._path), str(self._log)
        self._reserve = path.with_name(path.name + ".reserve")
        self.transactions = 0
        self._trouble = ""  # why the last transaction failed, unless another process was in the way
        self._is_cut = False  # the file was seen without some of its pages; from then on nothing is acknowledged
        self._writing = threading.Lock()
        self._readers: deque[sqlite3.Connection] = deque()  # idle; never more than there were reads at the same time
        self._closed = False
        self._lock_file = lock(path, exclusive=exclusive)
        run_after_fork(self._let_go)
        try:
            self._writer = self._connect()
            try:
                self._prepare(exclusive=exclusive)
                self._files, self._bytes, _ = self._look()
                self.keep_reserve()
                self._checkpoints = Checkpoints(self._connect, self._log)
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
        path = url.removeprefix(SQLITE)
        if path in {url, "", ":memory:"} or path.endswith("/"):
            raise SettingsError(
                f"{url!r} names no file: use sqlite:///relative.db or sqlite:////absolute/path.db, or memory: for none."
            )
        return cls(Path(path), exclusive=exclusive)

    def _connect(self, options: str = "") -> sqlite3.Connection:
        """Open a connection; every statement is its own transaction unless BEGIN says otherwise."""
        connection = sqlite3.connect(
            self._path.as_uri() + options,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
            cached_statements=STATEMENTS,
        )
        # Some systems' SQLite overwrites what is deleted, so a deletion would write as much as it deletes.
        connection.execute("PRAGMA secure_delete = OFF").close()
        return connection

    def read(self, statement: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
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
        """Get a context manager, which gives the connection: its block is one transaction.

        Raises:
            OverloadedError: It isn't stored, because the disk is full, the file is locked, or the file is gone.
        """
        return self  # and no generator: every call enters it

    def __enter__(self) -> sqlite3.Connection:
        self._writing.acquire()
        self.transactions += 1
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self._writer

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                try:
                    self._writer.execute("COMMIT")
                except BaseException as failure:
                    self._undo(failure)
                    raise
                self._trouble = ""
                self._check_in_place()
            else:
                self._undo(error)
        finally:
            self._writing.release()

    def _undo(self, error: BaseException) -> None:
        """Roll the transaction back that an error has ended, and raise that as a store does if it is SQLite's."""
        self.transactions += 1
        if self._writer.in_transaction:  # SQLite has rolled back itself after some errors
            self._writer.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError) and not is_busy(error):
            self._trouble = str(error)
            self._restart_log("PASSIVE")  # then its space can be used again
        translate(error)

    def check(self) -> None:
        """Raise `OverloadedError` if the file isn't in its place, or nothing can be written to it."""
        with self.write() as writer:
            writer.execute(f"PRAGMA user_version = {VERSION}")
        if self._free_bytes() < FULL_BYTES:
            raise OverloadedError(f"The disk of the store {self._path} is full: make room, or close sessions.")
        self.keep_reserve()

    def _free_bytes(self) -> float:
        """Get how many bytes the disk has left; infinity if the system doesn't say."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else float("inf")

    def use_reserve(self) -> bool:
        """If the disk is full, free what was reserved; return whether there was something."""
        if not self._trouble:
            return False
        try:
            self._reserve.unlink()
        except OSError:
            return False
        with self._writing:
            self._restart_log("PASSIVE")
        return True

    def keep_reserve(self) -> None:
        """Reserve space for deletions, if the disk has more than that."""
        if self._trouble or self._reserve.exists() or self._free_bytes() < 2 * RESERVED_BYTES:
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
        """Give some free pages back to the file system; return whether there may be more.

        A file that was restored from its rows doesn't shrink, as SQLite decides that when a file is made.
        """
        with translated_errors, self._writing:
            free, pages, vacuum = (
                self._writer.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("freelist_count", "page_count", "auto_vacuum")
            )
            more = bool(vacuum) and bool(free > (max(FREE_PAGES, pages // 4) if self._reserve.exists() else 0))
            if more:
                try:
                    self._vacuum()
                except sqlite3.OperationalError:  # the log takes what the disk had left: write it from its beginning
                    self._restart_log("PASSIVE")
                    self._vacuum()
        return more

    def _vacuum(self) -> None:
        # As a script: `execute` would give back one page only.
        self._writer.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")

    def shorten_log(self, *, shrunk: bool) -> None:
        """Shorten the log if it has grown long; if `shrink` has given pages back, make the file shorter by them."""
        is_long = self._log.stat().st_size > WAL_BYTES
        if is_long or shrunk:
            with self._writing:
                self._restart_log("TRUNCATE" if is_long else "PASSIVE")

    def _restart_log(self, mode: str) -> None:
        """Copy the write-ahead log into the database, as far as no reader is in the way."""
        checkpoint(self._writer, mode, 0)
        self._writer.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")

    def _look(self) -> tuple[tuple[int, ...], int, int]:
        """Get what identifies the file and the log beside it, and their sizes."""
        # With `os.stat`, as this is done after each transaction, and `Path.stat` takes three times as long.
        file, log = os.stat(self._names[0]), os.stat(self._names[1])  # noqa: PTH116
        return (file.st_ino, file.st_dev, log.st_ino, log.st_dev), file.st_size, log.st_size

    def _check_in_place(self) -> None:
        """Check that the file, and the log beside it, are those that were opened; see if the log is long."""
        try:
            files, file_bytes, log_bytes = self._look()
            if files == self._files:
                if self._is_cut or file_bytes < self._bytes:
                    self._check_whole()
                self._bytes = file_bytes
                self._checkpoints.look_at(log_bytes)
                return
        except OSError:
            pass
        raise OverloadedError(
            f"The store {self._path} was deleted or replaced while the server runs: restart the server."
        )

    def _check_whole(self) -> None:
        """Check, where the file has become shorter, that this was `shrink`, which leaves it with all of its pages.

        A connection that ignores the log finds that out when it opens the file. On a disk that is full a page may be
        missing because it couldn't be copied from the log; there it is.
        """
        again = time.monotonic() + CHECKPOINT_SECONDS
        while not self._is_cut:
            with suppress(sqlite3.DatabaseError), closing(self._connect("?mode=ro&immutable=1")) as connection:
                if connection.execute("PRAGMA application_id").fetchone() == (APPLICATION,):
                    return
            if self._free_bytes() < FULL_BYTES:
                return
            self._is_cut = time.monotonic() > again
            time.sleep(0.005)
        raise OverloadedError(
            f"The store {self._path} was cut short while the server runs: stop the server and restore a backup."
        )

    def close(self) -> None:
        """Close the connections and unlock the file; a read that still runs closes its own."""
        self._checkpoints.close()
        with self._writing:
            self._closed = True
            self._writer.close()
            self._close_readers()
            self._lock_file.close()

    def _let_go(self) -> None:
        """In a process that a function has forked, keep neither the lock nor the database."""
        if not self._lock_file.closed:
            detach([self._lock_file.fileno(), *_descriptors_of(f"{self._path}{end}" for end in ("", "-wal", "-shm"))])

    def _close_readers(self) -> None:
        with suppress(IndexError):
            while True:
                self._readers.pop().close()

    def _prepare(self, *, exclusive: bool) -> None:
        execute = self._writer.execute
        execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file; nothing else is changed by it
        execute("BEGIN IMMEDIATE")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        if not application and not execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in sql.SCHEMA.split(";"):
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
            for statement in (sql.FORGET_LEASES, sql.FORGET_WORKERS, sql.FORGET_ALL_ASKED):
                execute(statement)
        execute("COMMIT")
        self._write_ahead()
        execute("SELECT 1 FROM sqlite_master").fetchall()  # opens the write-ahead log
        execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        execute(f"PRAGMA wal_autocheckpoint = {OWN_CHECKPOINT_PAGES}")
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


def _descriptors_of(paths: Iterable[str]) -> list[int]:
    """Get the descriptors that this process has of files; a library may have opened them."""
    wanted, found = set(), []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            wanted.add((status.st_dev, status.st_ino))
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - numbers
        with suppress(OSError):  # that of the list itself is closed
            status = os.fstat(int(name))
            if (status.st_dev, status.st_ino) in wanted:
                found.append(int(name))
    return found
