"""Functions for Linux processes that Python's standard library lacks, based on prctl, capset and files in /proc."""

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
    """Ask the kernel to kill this process when its parent exits. Exit at once if the parent has already exited."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent exits."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Prevent other processes of the same user from reading this process's memory and environment."""
    _prctl(_PR_SET_DUMPABLE, 0)


def give_up_new_privileges() -> None:
    """Prevent programs that this process starts from gaining privileges, for example by setuid."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def give_up_capabilities() -> None:
    """Give up all capabilities of root."""
    version = 0x20080522  # of the interface, capset(2)
    header, none = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    if LIBC.capset(header, none):
        raise_errno()


def children() -> list[int]:
    """Return the process ids of this process's children, zombies included."""
    process = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:  # not every kernel has this file
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if parent_of(int(entry.name)) == process]


def parent_of(process: int) -> int:
    """Return the process id of a process's parent, or 0 if the process doesn't exist."""
    try:
        # The process's name, in brackets before these fields, can contain any characters.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def keeps_threads() -> bool:
    """Return whether this process has other threads after a fork.

    The function forks, because some libraries, such as OpenBLAS, stop their threads just before a fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork with threads
        process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208 - it is never an empty name


def has_children() -> bool:
    """Return whether this process has children, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill(process: int) -> None:
    """Kill a child that hasn't been waited for yet. After the wait, its id could belong to another process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)


def limit_memory(extra_bytes: int, statm: TextIO) -> None:
    """Limit the address space of this process to its present size plus `extra_bytes`, and disable core dumps.

    Args:
        extra_bytes: 0 sets no limit.
        statm: The file `STATM`, opened before the process entered a sandbox.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if extra_bytes:
        pages = int(statm.read().split()[0])
        limit = pages * resource.getpagesize() + extra_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
