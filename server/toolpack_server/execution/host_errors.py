"""Errors caused by the host (no memory, no file descriptors), not by the function.

A call that meets such an error is refused and not recorded, so that the caller can retry it. The error's code tells
whether the host is the cause, with two exceptions:

- The function might have used up the memory itself. So its frames are cleared, which frees its objects. The host is the
  cause only if memory is still unavailable after that.
- SQLite reports one code for every file that it can't open. The host is the cause only if no other file can be opened.
"""

import errno
import mmap
import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

FILES = "The server has reached its limit of open files; nothing was changed. Retry, or raise that limit."
MEMORY = "The server is out of memory; nothing was changed. Retry, or give the server more memory."

_FILES = 8  # number of descriptors that must be free, because opening a database needs up to this many
_SQLITE_CANTOPEN = 14  # SQLite's code for a file that it can't open, for any reason
_MEMORY_BYTES = 2**24  # memory that must be available, or else the host is out of memory
_MAX_CAUSES = 10  # maximum number of examined exceptions in the chain of causes


def host_error(error: BaseException) -> str | None:
    """Return the message for a shortage on the host, or None if the error has another cause."""
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if number in {errno.EMFILE, errno.ENFILE} or (_cannot_open(cause) and not _can_open_files()):
            return FILES
        if isinstance(cause, MemoryError) or number == errno.ENOMEM:
            traceback.clear_frames(error.__traceback__)
            if not _can_get_memory():
                return MEMORY
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then its chain of causes and contexts."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _cannot_open(error: BaseException) -> bool:
    """Return whether SQLite couldn't open a file."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF == _SQLITE_CANTOPEN


def _can_open_files() -> bool:
    """Return whether this process can open as many more files as a database needs."""
    try:
        with ExitStack() as opened:
            for _ in range(_FILES):
                opened.enter_context(Path(os.devnull).open("rb", buffering=0))
    except OSError:
        return False
    return True


def _can_get_memory() -> bool:
    """Return whether the host still gives this process memory. The memory is freed at once."""
    try:
        mmap.mmap(-1, _MEMORY_BYTES).close()
    except (MemoryError, OSError):
        return False
    return True
