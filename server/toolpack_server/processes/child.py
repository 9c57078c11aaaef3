"""Forked child process with a pipe to its parent: the base of workers and other processes of the server.

The child is forked with `os.fork`. The class `multiprocessing.Process` isn't used, because it leaks open files if a
fork fails, and considers a process alive as long as one of the process's own children is alive.
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
END_SECONDS = 10.0  # max time from the closing of the pipe to the exit of the process, which might write a core dump
TICK_SECONDS = 0.01  # time between two checks whether the process has exited
_PR_SET_PDEATHSIG = 1


class Child:
    """A forked process.

    Args:
        run: The function to run in the child. It receives the child's end of the pipe, must first call `set_up_child`
            or `follow`, and returns the exit status.
        others: The parent's ends of the pipes to other children. The new child closes these ends, because it inherits
            them.

    Raises:
        OSError: The system allows no more processes or open files.
    """

    def __init__(self, run: Callable[[Connection], int], others: Iterable[Connection] = ()) -> None:
        self.exit_code: int | None = None  # as in `subprocess`: negative for a signal; None while the child runs
        self.pipe, end = multiprocessing.Pipe()
        flush_streams()
        # The child inherits the parent's signal handlers, so block stop signals until the child has set its own
        # handlers.
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
        """Yield the messages that the child has sent since the last call. Don't wait for further messages."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv_bytes()

    def send(self, message: bytes) -> None:
        """Send a message. The message is lost if the child has exited."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def is_alive(self) -> bool:
        """Return whether the child is still running."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal to the child if it is still running."""
        if self.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> str:
        """Wait until a child that has closed its pipe exits. Return how it exited, such as `signal 11` or `status 1`.

        The child is killed if it doesn't exit within `END_SECONDS`.
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
        """Kill the child if it is still running, and close the pipe."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pipe.close()


def _run_child(run: Callable[[Connection], int], pipe: Connection, inherited: list[Connection]) -> NoReturn:
    """In the new process, close the parent's ends of pipes, call `run`, and exit with its status."""
    status = 1
    try:
        for other in inherited:
            other.close()
        status = run(pipe)
    finally:
        flush_streams()
        # `sys.exit` could wait for threads that are stuck in a function.
        os._exit(status)


def flush_streams() -> None:
    """Flush the standard streams, so that a forked process doesn't write their buffered output again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed stream, or a full disk, must not stop the server
            stream.flush()


def handle_stop(handler: signal.Handlers | Callable[[int, FrameType | None], object]) -> None:
    """Install a handler for the signals that stop a server.

    An ignored SIGHUP stays ignored, because `nohup` ignores it on purpose. An ignored SIGINT gets the handler, because
    shell scripts ignore SIGINT in all background jobs.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def set_up_child(parent: int, *, own_group: bool) -> None:
    """Make this child exit at a stop signal, and when its parent exits.

    Args:
        own_group: Move the child to its own process group, so that Ctrl-C reaches only the parent, which handles it.
    """
    if own_group:
        os.setpgid(0, 0)
    handle_stop(signal.SIG_DFL)
    follow(parent)


def follow(parent: int) -> None:
    """Unblock the stop signals in a child, and make the child exit when its parent exits.

    The child calls this after setting its signal handlers. If the parent has already exited, the child exits at once.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with contextlib.suppress(OSError, AttributeError):  # only on Linux; elsewhere, the child notices the closed pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent exited before `prctl`, which has an effect only on a later exit
        os._exit(1)
