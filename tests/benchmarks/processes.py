"""Processes that the benchmark starts: how they end, and what they take.

The rule: each is the head of a process group of its own and is stopped by its id, however the benchmark ends; what it
takes is read for it and all its descendants.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
POLL_SECONDS = 0.005
STOP_SECONDS = 15.0
TOLD = 1500


class UnavailableError(Exception):
    """Something can't be installed or started; the text says why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A running process.

    Args:
        command: What to run.
        log: Where its standard error goes; standard output too, unless it is `talking`.
        environment: Its whole environment; default: this process's.
        talking: Its standard input and output are pipes of text.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, talking: bool = False
    ) -> None:
        self._log = log
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE if talking else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talking else file,
                stderr=file,
                text=True,
                process_group=0,
            )

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.popen.poll() is not None:
                raise UnavailableError(f"it ended with {self.popen.returncode}: {self.told()}")
            if time.monotonic() > deadline:
                raise UnavailableError(f"it was not ready within {seconds:g} s: {self.told()}")
            time.sleep(POLL_SECONDS)

    def told(self) -> str:
        """Get the last of what it wrote."""
        return self._log.read_text(errors="replace")[-TOLD:].strip()

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
        """Get its proportional share of memory, which counts what processes share once."""
        return sum(map(_memory_bytes, _tree(self.popen.pid)))


@contextlib.contextmanager
def started(*args, **kwargs) -> Iterator[Process]:
    """Run a process until the block ends; see `Process` for what it takes."""
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
    found = [pid]
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += _tree(int(child))
    return found


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
