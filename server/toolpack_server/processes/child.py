"""Forked child process with a pipe to its parent: the base of workers and other processes of the server.

The child is forked with `os.fork`. The class `multiprocessing.Process` would leak open files if a fork fails, and would
consider a process alive as long as one of that process's own children is alive.
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
END_SECONDS = 10.0  # max time from the end of the pipe to the end of the process, which may write a core dump
TICK_SECONDS = 0.01  # between two looks whether the process has ended
_PR_SET_PDEATHSIG = 1


class Child:
    """A forked process.

    Args:
        run: The function to run. It gets the child's end of the pipe, calls `set_up_child` or `follow` first, and
            returns the exit status.
        others: The parent's ends of the pipes to other children. The new child closes them.

    Raises:
        OSError: The system allows no more processes or open files.
    """

    def __init__(self, run: Callable[[Connection], int], others: Iterable[Connection] = ()) -> None:
        self.exit_code: int | None = None  # in the form of `subprocess`; None while the child runs
        self.pipe, end = multiprocessing.Pipe()
        flush_streams()
        # The child inherits the parent's signal handlers. So it gets no stop signal until it has set its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_child(run, end, [self.pipe, *others])
        except OSError:
            self.pipe.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            end.close()

    def received(self) -> Iterator[bytes]:
        """Yield the messages that the child has sent."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv_bytes()

    def send(self, message: bytes) -> None:
        """Send a message. It is lost if the child has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def is_alive(self) -> bool:
        """Return whether the child still runs."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal to the child if it still runs."""
        if self.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> str:
        """Wait for the end of a child whose pipe was closed, and return how it ended: `signal 11` or `status 1`.

        A child that goes on for `END_SECONDS` after closing its pipe is killed.
        """
        deadline = time.monotonic() + END_SECONDS
        while self.is_alive():
            if time.monotonic() > deadline:
                self.end()
                return "killed, as it had closed its open files"
            time.sleep(TICK_SECONDS)
        code = self.exit_code or 0
        return f"signal {-code}" if code < 0 else f"status {code}"

    def end(self) -> None:
        """Kill the child if it still runs, and close the pipe."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pipe.close()


def _run_child(run: Callable[[Connection], int], pipe: Connection, inherited: list[Connection]) -> NoReturn:
    """Close the parent's ends of pipes in the new process, call `run`, and end the process."""
    status = 1
    try:
        for other in inherited:
            other.close()
        status = run(pipe)
    finally:
        flush_streams()
        # Not `sys.exit`, which could wait for threads that are stuck in a function.
        os._exit(status)


def flush_streams() -> None:
    """Flush the standard streams, so that a forked process doesn't write their buffers again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed stream, or a full disk, must not stop the server
            stream.flush()


def handle_stop(handler: signal.Handlers | Callable[[int, FrameType | None], object]) -> None:
    """Handle the signals that stop a server, except SIGHUP if it is ignored, as with `nohup`.

    SIGINT is handled even if it is ignored, as in a background job of a shell script.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def set_up_child(parent: int, *, own_group: bool) -> None:
    """Make this child end at a stop signal, and with its parent.

    Args:
        own_group: Move the child to a process group of its own. Ctrl-C then reaches only the parent, which handles it.
    """
    if own_group:
        os.setpgid(0, 0)
    handle_stop(signal.SIG_DFL)
    follow(parent)


def follow(parent: int) -> None:
    """Unblock the stop signals in a child, and make it end with its parent.

    The child calls this after setting its signal handlers. The parent may have ended already.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with contextlib.suppress(OSError, AttributeError):  # only on Linux; elsewhere the end of the pipe tells the child
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # after `prctl`: the parent may end before it or after it
        os._exit(1)
