"""The lock that keeps other servers from a SQLite file.

The rule: the lock is on a file beside the database. SQLite holds its own locks only during a transaction, and a lock on
the database file itself would be lost when any connection to it is closed.
"""

import fcntl
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

from server.base.errors import SettingsError, StoreInUseError, shown


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
