"""What fails because of the machine, and is no fact about a function or the agent that has called it.

It is decided by what the system says, and, where a function may have used something up itself, by what there
is after it has let go of that. Such a call is refused: nothing is recorded, and the same request can come again.
"""

import errno
import mmap
import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

FILES = "The server can open no more files; nothing was changed. Send it again, or raise its limit of open files."
MEMORY = "The server can get no more memory; nothing was changed. Send it again, or give it more."

_FILES = 8  # descriptors; with fewer free ones, a database can't be opened
_SQLITE_CANTOPEN = 14  # what SQLite says of a file that it can't open, whatever the reason
_MEMORY_BYTES = 2**24
_CAUSES = 10  # of an error, at most


def host_error(error: BaseException) -> str | None:
    """Say what the machine lacks, if that is why a call has failed; else None."""
    for each in _causes(error):
        number = each.errno if isinstance(each, OSError) else None
        if number in {errno.EMFILE, errno.ENFILE} or (_cannot_open(each) and not _can_open_files()):
            return FILES
        if isinstance(each, MemoryError) or number == errno.ENOMEM:
            traceback.clear_frames(error.__traceback__)
            if not _can_get_memory():
                return MEMORY
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Get an error, and what it was raised from or while handling."""
    found: BaseException | None = error
    for _ in range(_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _cannot_open(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF == _SQLITE_CANTOPEN


def _can_open_files() -> bool:
    try:
        with ExitStack() as opened:
            for _ in range(_FILES):
                opened.enter_context(Path(os.devnull).open("rb", buffering=0))
    except OSError:
        return False
    return True


def _can_get_memory() -> bool:
    try:
        mmap.mmap(-1, _MEMORY_BYTES).close()
    except (MemoryError, OSError):
        return False
    return True
