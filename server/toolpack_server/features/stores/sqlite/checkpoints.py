"""Checkpoints: what has been appended to the write-ahead log is copied back into the database.

Commits don't wait for it. SQLite would checkpoint within a commit, for as long as many MB take. So a thread
copies nearly all while commits go on, then blocks them for the few pages that came meanwhile. SQLite's own checkpoint
remains for a log that grows faster than it is copied.

The log's file then keeps its length, and SQLite writes it again from its beginning: that takes a fifth less of the
processor than a file that grows. How far it is filled isn't known, so the next checkpoint begins when the file grows
beyond that length. If it has become long by that, it is emptied.

SQLite's files must never be opened here, only asked for their size: closing a file ends all locks that this process has
on it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

CHECKPOINT_BYTES = 12 * 2**20  # a page that many commits change is copied back less often than with SQLite's 4 MB
LONG_BYTES = 16 * 2**20  # then the file is emptied
OWN_CHECKPOINT_PAGES = 5500  # 22 MB: then SQLite checkpoints within a commit
ROUNDS, FEW_BYTES = 6, 2**20  # each round copies what was written during the one before it
WAIT_SECONDS = 0.05  # for readers, while commits wait


class Checkpoints:
    """The thread that checkpoints one file."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], log: Path) -> None:
        self._connect = connect
        self._log = log
        self._length = 0  # of the log's file when it was last written from its beginning; 0 if it was emptied
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def look_at(self, log_bytes: int) -> None:
        """Begin a checkpoint if the log has become that long; called after each transaction."""
        if self._is_filled(log_bytes) and not self._due.is_set():
            self._due.set()

    def _is_filled(self, log_bytes: int) -> bool:
        return log_bytes > max(CHECKPOINT_BYTES, self._length)

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
    """Copy the log into the database; get how many bytes aren't copied: infinity if somebody stayed in the way."""
    with suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {round(wait_seconds * 1000)}")
        ((busy, pages, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
        if not busy:
            return int((pages - copied) * page_bytes)
    return float("inf")
