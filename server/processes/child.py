"""A worker as its supervisor sees it: a process id, a pipe, and what came through the pipe.

The rule: nothing here decides anything. It is forked with `os.fork`, not with `multiprocessing`, which leaks open files
if a fork fails, and takes a worker for alive as long as a process that one of its functions has forked.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

from server.processes.pipe import FAILED, HURRY, RETIRE, SERVING, UNFIT


class Child:
    """A worker process.

    Args:
        run: What it runs, with its end of the pipe; never returns.
        row: Its row in the metrics.
        others: The supervisor's ends of other workers' pipes, which it must not keep open.

    Attributes:
        pid: Its process id.
        pipe: The supervisor's end of the pipe.
        age: For how many seconds it has been watched.
        silence: For how many of them, up to now, no heartbeat came.
        ending: For how many of them it has been retired; None if it isn't.
        served: It has served.
        unfit: It has said that it should be replaced.
        failure: Why it can't start; "" if it hasn't said so.
        exit_code: As `subprocess` has it; None while it lives.

    Raises:
        OSError: The system allows no more processes or open files.
    """

    def __init__(self, run: Callable[[Connection], None], row: int, others: list[Connection]) -> None:
        self.row = row
        self.age = self.silence = 0.0
        self.ending: float | None = None
        self.served = self.unfit = False
        self.failure = ""
        self.exit_code: int | None = None
        self.pipe, child_end = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with blocked_signals():  # until the child handles them itself
                self.pid = os.fork()
                if self.pid == 0:
                    _run(run, child_end, [self.pipe, *others])
        except OSError:
            self.pipe.close()
            raise
        finally:
            child_end.close()

    def watch(self, seconds: float) -> None:
        """Read what has come through the pipe.

        Args:
            seconds: The time since it was watched last, without pauses of the supervisor itself.
        """
        self.age += seconds
        self.silence += seconds
        if self.ending is not None:
            self.ending += seconds
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                message = self.pipe.recv_bytes()
                self.silence = 0.0
                self.served |= message in {SERVING, UNFIT}
                self.unfit |= message == UNFIT
                if message.startswith(FAILED):
                    self.failure = message.removeprefix(FAILED).decode()

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def retire(self) -> None:
        """Tell it that another worker serves in its place."""
        self.ending = 0.0
        self._send(RETIRE)

    def stop(self) -> None:
        """Let it finish running calls and end."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGTERM)

    def hurry(self) -> None:
        """Let it end without waiting for running calls."""
        self._send(HURRY)

    def end(self) -> None:
        """Kill it if it still runs, and release its resources."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pipe.close()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)


def _run(run: Callable[[Connection], None], pipe: Connection, inherited: list[Connection]) -> NoReturn:
    try:
        for other in inherited:
            other.close()
        run(pipe)
    finally:
        os._exit(1)


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Block the signals that end a server, for a child that is forked meanwhile, until it handles them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
