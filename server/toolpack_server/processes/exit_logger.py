"""Exit logger: a process that logs how the server exited, if the server was killed and couldn't log this itself.

If the supervisor is killed, its workers also exit, so a process outside the server must write the log line. The exit
logger is forked before the server does anything else, runs only this module, and exits after the server. It is forked
twice, so that it isn't a child of the server, whose only children are then its workers.
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
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # often sent to a whole process group


@contextlib.contextmanager
def log_exit_of(settings: Settings) -> Iterator[None]:
    """Log how this process exits if it is killed within the block. This works only on Linux.

    Exceptions that leave the block are logged elsewhere.
    """
    if not hasattr(os, "pidfd_open"):
        yield
        return
    server, has_left = os.getpid(), mmap.mmap(-1, 1)  # a byte of shared memory; 1 after the block: don't log the exit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the process don't matter here
        child = os.fork()
        if child == 0:
            _run_exit_logger(server, has_left, settings)
    os.waitpid(child, 0)
    try:
        yield
    finally:
        if os.getpid() == server:  # a process forked by a function also leaves the block, and must not set the byte
            has_left[0] = 1


def _run_exit_logger(server: int, has_left: mmap.mmap, settings: Settings) -> None:
    """Fork the exit logger from this process, then exit at once, so that the logger isn't a child of the server."""
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()  # so that the logger survives a signal to the server's process group
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - file numbers; a loop up to the limit could take a billion steps
                if int(name) > STANDARD_ERROR:
                    with contextlib.suppress(OSError):
                        os.close(int(name))
            _watch(server, has_left, settings)
    finally:
        os._exit(0)


def _watch(server: int, has_left: mmap.mmap, settings: Settings) -> None:
    """Wait until the server exits, and log how it exited, unless it has left the block of `log_exit_of`."""
    with contextlib.suppress(OSError):  # the server has already exited, or the system doesn't support pidfds
        end = os.pidfd_open(server)
        killed = _killed_for_memory()
        select.select([end], [], [])
        if not has_left[0]:
            configure_logging(settings.log_calls, settings.log_level)
            memory = " Meanwhile the system killed processes because it had no memory left."
            hint = memory if _killed_for_memory() > killed else ""
            log.error("The server, process %d, ended without a message%s.%s", server, _how(server), hint)


def _how(server: int) -> str:
    """Return how a process exited, for the log line. Return "" if its parent has already collected the exit status."""
    try:
        fields = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        code = os.waitstatus_to_exitcode(int(fields[49]))
    except (OSError, ValueError, IndexError):
        return ""
    return f", with status {code}" if code >= 0 else f", by signal {-code} ({signal.strsignal(-code)})"


def _killed_for_memory() -> int:
    """Return the number of processes that the system has killed for lack of memory."""
    with contextlib.suppress(OSError):
        for line in _MEMORY.read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
