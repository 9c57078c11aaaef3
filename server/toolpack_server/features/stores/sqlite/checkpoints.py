"""Checkpoints that run in a thread. A checkpoint copies the write-ahead log into the database.

By default, SQLite checkpoints within a commit, which then waits until many MB are copied. So here, a thread copies
nearly all of the log while commits continue, and blocks commits only for the last few pages. If the log grows faster
than the thread copies it, SQLite still checkpoints within a commit.

After a checkpoint, the log's file keeps its length, and SQLite overwrites the file from the beginning. This takes a
fifth less CPU time than a growing file. The module can't see how much of the file is used, so the next checkpoint
begins when the file grows. A file that has become long is truncated.

This module must never open SQLite's files, because closing a file releases all locks that this process holds on it
(https://www.sqlite.org/howtocorrupt.html, section 2.2). It is only allowed to read their size.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

# Length of the log at which a checkpoint begins. SQLite's default, 4 MB, would more often copy pages that many commits
# change.
CHECKPOINT_BYTES = 12 * 2**20
LONG_BYTES = 16 * 2**20  # a longer file is truncated
OWN_CHECKPOINT_PAGES = 5500  # at this number of pages (22 MB), SQLite itself checkpoints within a commit
# The rounds stop when so few bytes are left; each round copies the pages written during the previous round.
ROUNDS, FEW_BYTES = 6, 2**20
WAIT_SECONDS = 0.05  # maximum time in seconds that commits wait because readers delay copying the last pages


class Checkpoints:
    """Thread that copies the write-ahead log of one database file into the database."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], log: Path) -> None:
        self._connect = connect
        self._log = log
        self._length = 0  # length of the log's file after the last checkpoint, or 0 if the file was truncated
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def start_if_due(self, log_bytes: int) -> None:
        """Start a checkpoint if the log is long enough.

        The store calls this after each transaction, with the log's length.
        """
        if self._is_filled(log_bytes) and not self._due.is_set():
            self._due.set()

    def _is_filled(self, log_bytes: int) -> bool:
        """Return whether a checkpoint is due. If the file has grown, SQLite has used up its old length."""
        return log_bytes > max(CHECKPOINT_BYTES, self._length)

    def close(self) -> None:
        """Stop the thread. Wait for a running checkpoint."""
        self._closed = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        """Run checkpoints until `close`."""
        while True:
            self._due.wait()
            self._due.clear()  # clear it before the checkpoint, so that a `close` during the checkpoint isn't missed
            if self._closed:
                return
            with suppress(sqlite3.Error, OSError):
                if self._is_filled(self._log.stat().st_size):
                    self._checkpoint()

    def _checkpoint(self) -> None:
        """Copy the log without blocking commits until few pages are left.

        Then block commits, copy these pages, and restart the log.
        """
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
        wait_seconds: Maximum time to wait for readers and writers.
    """
    with suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {round(wait_seconds * 1000)}")
        ((busy, pages, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
        if not busy:
            return int((pages - copied) * page_bytes)
    return float("inf")
