"""What Linux offers to watch and end processes, and Python's standard library doesn't.

Each function is one call of the system; nothing here knows what it is for.
"""

import contextlib
import ctypes
import os
import resource
import signal
import warnings
from pathlib import Path
from typing import TextIO

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
STATM = Path("/proc/self/statm")
LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise_errno()


def raise_errno() -> None:
    """Raise the OSError of the last system call."""
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def end_with_parent(parent: int) -> None:
    """Have this process killed when its parent exits; exit at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent exits."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Let no process of the same user read this process's memory or environment."""
    _prctl(_PR_SET_DUMPABLE, 0)


def give_up_new_privileges() -> None:
    """Let no program that this process starts have more rights than it has itself."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def give_up_capabilities() -> None:
    """Give up the rights that root has beyond those of other users."""
    version = 0x20080522  # of the interface, capset(2)
    header, none = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    if LIBC.capset(header, none):
        raise_errno()


def children() -> list[int]:
    """Get the process ids of this process's children, zombies included."""
    process = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:  # not every kernel has this file
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if parent_of(int(entry.name)) == process]


def parent_of(process: int) -> int:
    """Get the id of a process's parent; 0 if there is no such process."""
    try:
        # The name, which is in brackets, may contain anything.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def keeps_threads() -> bool:
    """Whether this process has further threads when it forks; OpenBLAS, for one, ends its own before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads may be there: that is the question
        process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208 - it is never an empty name


def has_children() -> bool:
    """Whether there are children, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill(process: int) -> None:
    """Kill a child that hasn't been waited for, so that its id can't belong to another process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)


def limit_memory(more: int, size: TextIO) -> None:
    """Limit the address space of this process to its present size plus `more` bytes; write no core dumps.

    Args:
        size: The file `STATM`, opened before the process entered a sandbox.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if more:
        pages = int(size.read().split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
