"""A process that outlives the server for a moment, to say in the log how it has ended if it couldn't say so itself.

A process that is killed says nothing, and with the supervisor its workers end, too. The witness is forked
before the server does anything else, runs no code but this, and ends with the server. It is nobody's child, so that the
server's children are its workers.
"""

import contextlib
import mmap
import os
import select
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

from toolpack_server.base.logger import log
from toolpack_server.base.settings import Settings
from toolpack_server.observability.log import configure_logging

STANDARD_ERROR = 2
_MEMORY = Path("/proc/vmstat")
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # which may be sent to all processes at once


@contextlib.contextmanager
def log_exit_of(settings: Settings) -> Iterator[None]:
    """Have a witness while the block runs; whatever it raises is said by others. Only Linux has what it needs."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    server, said = os.getpid(), mmap.mmap(-1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of whoever runs the command don't matter here
        child = os.fork()
        if child == 0:
            _become_witness(server, said, settings)
    os.waitpid(child, 0)
    try:
        yield
    finally:
        if os.getpid() == server:  # and not a process that a function has forked
            said[0] = 1


def _become_witness(server: int, said: mmap.mmap, settings: Settings) -> None:
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()  # so that it sees the end of a group of processes
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers; up to the limit there may be a billion
                if int(name) > STANDARD_ERROR:
                    with contextlib.suppress(OSError):
                        os.close(int(name))
            _watch(server, said, settings)
    finally:
        os._exit(0)


def _watch(server: int, said: mmap.mmap, settings: Settings) -> None:
    with contextlib.suppress(OSError):  # it has ended already, or the system can't tell
        end = os.pidfd_open(server)
        killed = _killed_for_memory()
        select.select([end], [], [])
        if not said[0]:
            configure_logging(settings.log_calls, settings.log_level)
            memory = " The system has killed processes meanwhile because it had no memory left."
            more = memory if _killed_for_memory() > killed else ""
            log.error("The server, process %d, has ended without a word%s.%s", server, _how(server), more)


def _how(server: int) -> str:
    """Say how a process has ended, as long as its parent hasn't asked."""
    try:
        fields = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        code = os.waitstatus_to_exitcode(int(fields[49]))
    except (OSError, ValueError, IndexError):
        return ""
    return f", with status {code}" if code >= 0 else f", by signal {-code} ({signal.strsignal(-code)})"


def _killed_for_memory() -> int:
    """Count the processes that the system has killed for lack of memory."""
    with contextlib.suppress(OSError):
        for line in _MEMORY.read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
