"""Processes that the benchmark starts: their output, end, CPU time and memory.

Each process leads a process group, which is killed when the benchmark ends, even after an error. CPU time and memory
include all descendants.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.005
STOP_SECONDS = 15.0
OUTPUT_CHARACTERS = 1500
_CPUCLOCK_SCHED = 2  # a constant of Linux: the part of a clock's id that selects the CPU time of a process


class UnavailableError(Exception):
    """A program can't be installed or started. The text is the reason."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A running process.

    Args:
        command: The command to run.
        log: The file for standard error, and for standard output unless `piped`.
        environment: All environment variables of the process. None stands for this process's variables.
        piped: Connect standard input and output to text pipes.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> None:
        self._log = log
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                text=True,
                process_group=0,
            )

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.popen.poll() is not None:
                raise UnavailableError(f"it ended with {self.popen.returncode}: {self.output()}")
            if time.monotonic() > deadline:
                raise UnavailableError(f"it was not ready within {seconds:g} s: {self.output()}")
            time.sleep(POLL_SECONDS)

    def output(self) -> str:
        """Return the end of the process's log."""
        return self._log.read_text(errors="replace")[-OUTPUT_CHARACTERS:].strip()

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def cpu_seconds(self) -> float:
        return sum(map(_cpu_seconds, _tree(self.popen.pid)))

    def memory_bytes(self) -> int:
        """Return the proportional set size (PSS), which counts shared memory once."""
        return sum(map(_memory_bytes, _tree(self.popen.pid)))


@contextlib.contextmanager
def running(*args, **kwargs) -> Iterator[Process]:
    """Run a process until the block ends. The arguments are those of `Process`."""
    process = Process(*args, **kwargs)
    try:
        yield process
    finally:
        process.stop()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _tree(pid: int) -> list[int]:
    pids = [pid]
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                pids += _tree(int(child))
    return pids


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)  # exact; /proc/PID/stat has steps of 10 ms
    except OSError:
        return 0.0


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
