"""Checkpoints in a thread. A checkpoint copies the write-ahead log into the database.

SQLite would checkpoint within a commit, and the commit would wait until many MB are copied. So a thread copies nearly
all of the log while commits continue, and blocks commits only for the last few pages. SQLite still checkpoints within a
commit if the log grows faster than the thread copies it.

After a checkpoint the log's file keeps its length, and SQLite overwrites it from the beginning. This takes a fifth less
CPU time than a growing file. The used length isn't visible, so the next checkpoint begins when the file grows beyond
its length. A file that has become long is truncated.

This module must never open SQLite's files, because closing a file releases all locks that this process holds on it
(https://www.sqlite.org/howtocorrupt.html, section 2.2). It may only read their size.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

# Length of the log at which a checkpoint begins. With SQLite's 4 MB, a page that many commits change would be copied
# more often.
CHECKPOINT_BYTES = 12 * 2**20
LONG_BYTES = 16 * 2**20  # a longer file is truncated
OWN_CHECKPOINT_PAGES = 5500  # number of pages (22 MB) from which on SQLite itself checkpoints within a commit
ROUNDS, FEW_BYTES = 6, 2**20  # rounds end when few bytes are left; a round copies the pages written during the last
WAIT_SECONDS = 0.05  # maximum time that commits wait while the last pages wait for readers


class Checkpoints:
    """The thread that checkpoints one file."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], log: Path) -> None:
        self._connect = connect
        self._log = log
        self._length = 0  # length of the log's file after the last checkpoint; 0 if it was truncated
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def start_if_due(self, log_bytes: int) -> None:
        """Start a checkpoint if the log is long enough. Call this after each transaction with the log's length."""
        if self._is_filled(log_bytes) and not self._due.is_set():
            self._due.set()

    def _is_filled(self, log_bytes: int) -> bool:
        """Return whether a checkpoint is due. A longer file shows that SQLite has overwritten all of the log."""
        return log_bytes > max(CHECKPOINT_BYTES, self._length)

    def close(self) -> None:
        """Stop the thread, after a running checkpoint."""
        self._closed = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        """Run checkpoints until `close`."""
        while True:
            self._due.wait()
            self._due.clear()  # before the checkpoint, so that a `close` during the checkpoint isn't missed
            if self._closed:
                return
            with suppress(sqlite3.Error, OSError):
                if self._is_filled(self._log.stat().st_size):
                    self._checkpoint()

    def _checkpoint(self) -> None:
        """Copy the log without blocking commits until few pages are left. Then copy these and restart the log."""
        with closing(self._connect()) as connection:
            for _ in range(ROUNDS):
                if checkpoint(connection, "PASSIVE", 0) < FEW_BYTES:
                    break
            length = self._log.stat().st_size
            is_long = length > LONG_BYTES
            if not checkpoint(connection, "TRUNCATE" if is_long else "RESTART", WAIT_SECONDS):
                self._length = 0 if is_long else length


def checkpoint(connection: sqlite3.Connection, mode: str, wait_seconds: float) -> float:
    """Copy the log into the database. Return the bytes left to copy, or infinity if the checkpoint was blocked.

    Args:
        connection: A connection.
        mode: Mode of SQLite's checkpoint, such as PASSIVE.
        wait_seconds: Maximum wait for readers and writers.
    """
    with suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {round(wait_seconds * 1000)}")
        ((busy, pages, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
        if not busy:
            return int((pages - copied) * page_bytes)
    return float("inf")
