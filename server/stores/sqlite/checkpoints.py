"""Checkpoints: what has been appended to the write-ahead log is copied back into the database.

The rule: commits don't wait for it. SQLite would checkpoint within a commit, for as long as many MB take. So a thread
copies nearly all while commits go on, then blocks them for the few pages that came meanwhile, after which the log is
empty. SQLite's own checkpoint remains for a log that grows faster than it is copied.

SQLite's files must never be opened here, only asked for their size: closing a file ends all locks that this process has
on it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

CHECKPOINT_BYTES = 12 * 2**20  # a page that many commits change is copied back less often than with SQLite's 4 MB
OWN_CHECKPOINT_PAGES = 5500  # 22 MB: then SQLite checkpoints within a commit
ROUNDS, FEW_BYTES = 6, 2**20  # each round copies what was written during the one before it
WAIT_SECONDS = 0.05  # for readers, while commits wait


class Checkpoints:
    """The thread that checkpoints one file.

    Args:
        connect: Opens a connection to it.
        log: The path of its write-ahead log.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], log: Path) -> None:
        self._connect = connect
        self._log = log
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def look_at(self, log_bytes: int) -> None:
        """Begin a checkpoint if the log has become that long; called after each transaction."""
        if log_bytes > CHECKPOINT_BYTES and not self._due.is_set():
            self._due.set()

    def close(self) -> None:
        """End the thread; a checkpoint that runs is awaited."""
        self._closed = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()  # before anything else: a `close` during a checkpoint must be noticed after it
            if self._closed:
                return
            with suppress(sqlite3.Error, OSError):
                if self._log.stat().st_size > CHECKPOINT_BYTES:
                    self._checkpoint()

    def _checkpoint(self) -> None:
        with closing(self._connect()) as connection:
            for _ in range(ROUNDS):
                copied = checkpoint(connection, "PASSIVE", 0)
                if self._log.stat().st_size - copied < FEW_BYTES:
                    break
            checkpoint(connection, "TRUNCATE", WAIT_SECONDS)


def checkpoint(connection: sqlite3.Connection, mode: str, wait_seconds: float) -> int:
    """Copy the write-ahead log into the database as far as nobody is in the way, and get how many bytes are copied.

    Args:
        connection: A connection without a transaction.
        mode: See SQLite's documentation of `PRAGMA wal_checkpoint`.
        wait_seconds: How long to wait for others.
    """
    with suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {round(wait_seconds * 1000)}")
        ((_, _, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
        return int(copied) * int(page_bytes)
    return 0
