"""A forked process as its parent sees it: a process id, a pipe, and what comes through the pipe.

Nothing here decides anything. It is forked with `os.fork`, not with `multiprocessing`, which leaks open files
if a fork fails, and takes a process for alive as long as one that it has forked itself.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
END_SECONDS = 10.0  # from the end of a process's pipe to its own, which may write a core dump
TICK_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1


class Child:
    """A forked process.

    Args:
        run: What it runs, with its end of the pipe; returns its exit status. Calls `follow` first.
        others: Ends of pipes to other children, which it must not keep open.

    Raises:
        OSError: The system allows no more processes or open files.
    """

    def __init__(self, run: Callable[[Connection], int], others: Iterable[Connection] = ()) -> None:
        self.exit_code: int | None = None  # as `subprocess` has it; None while it lives
        self.pipe, end = multiprocessing.Pipe()
        flush_streams()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until the child handles them itself
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _live(run, end, [self.pipe, *others])
        except OSError:
            self.pipe.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            end.close()

    def received(self) -> Iterator[bytes]:
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv_bytes()

    def send(self, message: bytes) -> None:
        """Send a message, which is lost if the process has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def is_alive(self) -> bool:
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> str:
        """Wait until it has ended, whose pipe has, and get how: `signal 11`, or `status 1`.

        What it runs may have closed all its open files, and go on: then it is killed.
        """
        give_up = time.monotonic() + END_SECONDS
        while self.is_alive():
            if time.monotonic() > give_up:
                self.end()
                return "killed, as it had closed its open files"
            time.sleep(TICK_SECONDS)
        code = self.exit_code or 0
        return f"signal {-code}" if code < 0 else f"status {code}"

    def end(self) -> None:
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pipe.close()


def _live(run: Callable[[Connection], int], pipe: Connection, inherited: list[Connection]) -> NoReturn:
    status = 1
    try:
        for other in inherited:
            other.close()
        status = run(pipe)
    finally:
        flush_streams()
        # Not `sys.exit`, which may wait for threads that are stuck in a function.
        os._exit(status)


def flush_streams() -> None:
    """Write what the standard streams hold, so that no forked process writes it once more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or on a full disk: no reason not to go on
            stream.flush()


def handle_stop(handler: signal.Handlers | Callable[[int, FrameType | None], object]) -> None:
    """Handle the signals that stop a server, but SIGHUP if it is ignored, as below `nohup`.

    SIGINT is ignored in what a script starts in the background, and stops it nevertheless.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def follow(parent: int) -> None:
    """In a child that has set its handlers, let signals come, and end with the parent, which may have ended already."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it; others notice by the pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
