"""Checkpoints, which copy the write-ahead log back into the database, in a thread.

SQLite would checkpoint within a commit, which then waits until many MB are copied. So a thread copies nearly all of the
log while commits continue, and blocks them only for the last few pages. SQLite's own checkpoint remains for a log that
grows faster than the thread copies it.

After a checkpoint the log's file keeps its length, and SQLite overwrites it from the beginning. That takes a fifth less
CPU time than a growing file. The used length isn't visible, so the next checkpoint begins when the file grows beyond
that length. A file that has become long is truncated.

This module must never open SQLite's files, only read their size: closing a file releases all locks that this process
holds on it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

CHECKPOINT_BYTES = 12 * 2**20  # with SQLite's 4 MB, a page that many commits change would be copied more often
LONG_BYTES = 16 * 2**20  # a longer file is truncated
OWN_CHECKPOINT_PAGES = 5500  # 22 MB: from there on SQLite checkpoints within a commit
ROUNDS, FEW_BYTES = 6, 2**20  # each round copies the pages that were written during the round before it
WAIT_SECONDS = 0.05  # maximum wait for readers, while commits wait


class Checkpoints:
    """The thread that checkpoints one file."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], log: Path) -> None:
        self._connect = connect
        self._log = log
        self._length = 0  # of the log's file after the last checkpoint; 0 if it was truncated
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def start_if_due(self, log_bytes: int) -> None:
        """Start a checkpoint if the log is too long. Called after each transaction with the log's length."""
        if self._is_filled(log_bytes) and not self._due.is_set():
            self._due.set()

    def _is_filled(self, log_bytes: int) -> bool:
        return log_bytes > max(CHECKPOINT_BYTES, self._length)

    def close(self) -> None:
        """Stop the thread, after a running checkpoint."""
        self._closed = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()  # first: a `close` during the checkpoint below must be seen after it
            if self._closed:
                return
            with suppress(sqlite3.Error, OSError):
                if self._is_filled(self._log.stat().st_size):
                    self._checkpoint()

    def _checkpoint(self) -> None:
        with closing(self._connect()) as connection:
            for _ in range(ROUNDS):
                if checkpoint(connection, "PASSIVE", 0) < FEW_BYTES:
                    break
            length = self._log.stat().st_size
            is_long = length > LONG_BYTES
            if not checkpoint(connection, "TRUNCATE" if is_long else "RESTART", WAIT_SECONDS):
                self._length = 0 if is_long else length


def checkpoint(connection: sqlite3.Connection, mode: str, wait_seconds: float) -> float:
    """Copy the log into the database. Return the bytes left to copy, or infinity if a reader or writer blocked it."""
    with suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {round(wait_seconds * 1000)}")
        ((busy, pages, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
        if not busy:
            return int((pages - copied) * page_bytes)
    return float("inf")
