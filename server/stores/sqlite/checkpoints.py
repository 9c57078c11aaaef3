"""Checkpoints: what has been appended to the write-ahead log is copied back into the database.

The rule: commits don't wait for it. SQLite would checkpoint within a commit, for as long as many MB take. So a thread
copies nearly all while commits go on, then blocks them for the few pages that came meanwhile, after which the log
starts anew. SQLite's own checkpoint remains for a log that grows faster than it is copied.
"""

import sqlite3
import struct
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

PAUSE_SECONDS = 0.05  # between two looks at the log while something is written
CHECKPOINT_PAGES = 3000  # 12 MB: a page that many commits change is copied back less often than with SQLite's 1000
OWN_CHECKPOINT_PAGES = 5500  # 22 MB: then SQLite checkpoints within a commit
ROUNDS, FEW_PAGES = 6, 200  # each round copies what was written during the one before it
WAIT_SECONDS = 0.05  # for readers, while commits wait
FRAMES = struct.Struct("=16xI")  # the first bytes of the WAL index, see https://www.sqlite.org/walformat.html


class Checkpoints:
    """The thread that checkpoints one file.

    Args:
        connect: Opens a connection to it.
        path: The path of the database.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._connect = connect
        self._index = path.with_name(path.name + "-shm")
        self._written = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def note_write(self) -> None:
        """Note that something was written; called after each transaction."""
        if not self._written.is_set():
            self._written.set()

    def close(self) -> None:
        """End the thread; a checkpoint that runs is awaited."""
        self._closed.set()
        self._written.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(PAUSE_SECONDS):
            if self._frames() > CHECKPOINT_PAGES:
                with suppress(sqlite3.Error), closing(self._connect()) as connection:
                    self._checkpoint(connection)
            self._written.wait()
            self._written.clear()

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        for _ in range(ROUNDS):
            copied = checkpoint(connection, "PASSIVE", 0)
            if self._frames() - copied < FEW_PAGES:
                break
        checkpoint(connection, "RESTART", WAIT_SECONDS)

    def _frames(self) -> int:
        """Get the number of pages in the log."""
        with suppress(OSError, struct.error), self._index.open("rb") as index:
            frames: int = FRAMES.unpack(index.read(FRAMES.size))[0]
            return frames
        return 0


def checkpoint(connection: sqlite3.Connection, mode: str, wait_seconds: float) -> int:
    """Copy the write-ahead log into the database as far as nobody is in the way, and get how many pages are copied.

    Args:
        connection: A connection without a transaction.
        mode: See SQLite's documentation of `PRAGMA wal_checkpoint`.
        wait_seconds: How long to wait for others.
    """
    with suppress(sqlite3.Error):
        connection.execute(f"PRAGMA busy_timeout = {round(wait_seconds * 1000)}")
        ((_, _, copied),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return int(copied)
    return 0
