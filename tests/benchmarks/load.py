"""Load, and what came of it: `wrk` for whatever listens on a port, and a look at the state before and after.

The rule: every answer is looked at, and the state must show as many calls as were answered; `wrk` stops in the middle,
so that up to one call per connection may be done whose answer it didn't wait for.
"""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.processes import Process, UnavailableError

SCRIPT = Path(__file__).with_name("load.lua")
SETTLE_SECONDS = 0.3
BUSY = 0.75  # of the time, at least, a connection waits for an answer


def find_wrk() -> str:
    found = shutil.which("wrk")
    if found is None:
        raise UnavailableError("wrk is not installed, and it drives the load: apt-get install wrk (Debian, Ubuntu)")
    return found


@dataclass(frozen=True)
class Sample:
    """What one run of load showed."""

    answered: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_seconds: float
    problems: list[str] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.answered / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / max(1, self.answered) * 1e6


@dataclass(frozen=True)
class HttpCase:
    """A kind of call to one server.

    Attributes:
        name: What the table calls it.
        process: The server.
        port: Where it listens.
        requests: Whole requests, sent in turn.
        expected: What stands in every right answer.
        counted: Gets the number of calls that the server's state shows.
        connections: How many send at once.
        note: What a reader of the table has to know.
    """

    name: str
    process: Process
    port: int
    requests: Sequence[bytes]
    expected: str
    counted: Callable[[], int]
    connections: int = 8
    note: str = ""

    def measure(self, seconds: int) -> Sample:
        before, cpu = self.counted(), self.process.cpu_seconds()
        told, example = self._drive(seconds)
        time.sleep(SETTLE_SECONDS)  # what wrk left behind comes to its end, and its CPU time counts too
        cpu = self.process.cpu_seconds() - cpu
        done = self.counted() - before
        problems = []
        if told["wrong"]:
            problems.append(f"{told['wrong']} wrong answers, like {example}")
        if told["broken"]:
            problems.append(f"{told['broken']} broken connections or timeouts")
        if told["answered"] * told["mean_ms"] / 1000 < BUSY * told["seconds"] * self.connections:
            problems.append("some connections stood still")
        if not told["answered"] <= done <= told["answered"] + self.connections:
            problems.append(f"{told['answered']} calls were answered, but the state shows {done}")
        return Sample(told["answered"], told["seconds"], told["p50_ms"], told["p99_ms"], cpu, problems)

    def _drive(self, seconds: int) -> tuple[dict[str, float], str]:
        with tempfile.NamedTemporaryFile(suffix=".requests") as file:
            file.write(b"\0".join(self.requests))
            file.flush()
            command = [find_wrk(), "-t1", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "30s"]
            command += ["-s", str(SCRIPT), f"http://127.0.0.1:{self.port}/", "--", file.name, self.expected]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
        try:
            *_, numbers, example = ended.stdout.splitlines()
            return json.loads(numbers), example.removeprefix("example: ")
        except ValueError:
            raise UnavailableError(f"wrk failed: {(ended.stderr or ended.stdout)[-300:]}") from None


@dataclass(frozen=True)
class LoopCase:
    """A loop in a process of its own, which measures itself; no HTTP, one call at a time."""

    name: str
    process: Process
    note: str = ""

    def measure(self, seconds: float) -> Sample:
        stdin, stdout = self.process.popen.stdin, self.process.popen.stdout
        if stdin is None or stdout is None:
            raise UnavailableError("the loop has no pipes")
        stdin.write(f"{seconds}\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise UnavailableError(f"the loop ended: {self.process.told()}")
        told = json.loads(line)
        failed = told.pop("failed")
        return Sample(**told, problems=[f"{failed} calls failed"] if failed else [])


Case = HttpCase | LoopCase
