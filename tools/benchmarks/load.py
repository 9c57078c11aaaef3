"""Load and its results: `wrk` sends requests, and the server's state is read before and after.

Every answer is checked, and the state must show as many calls as `wrk` got answers. `wrk` stops without waiting for the
last answers, so the state may show up to one more call per connection.
"""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.benchmarks.processes import Process, UnavailableError

SCRIPT = Path(__file__).with_name("load.lua")
SETTLE_SECONDS = 0.3
MIN_BUSY_SHARE = 0.75  # minimum share of the time in which a connection waits for an answer


def find_wrk() -> str:
    path = shutil.which("wrk")
    if path is None:
        raise UnavailableError("wrk, which sends the requests, isn't installed: apt-get install wrk (Debian, Ubuntu)")
    return path


@dataclass(frozen=True)
class Sample:
    """The results of one run."""

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
        name: The name in the table.
        process: The server.
        port: The server's port.
        requests: Complete requests, which are sent in turn.
        expected: A text that every correct answer contains.
        read_count: Returns the number of calls that the server's state shows.
        connections: The number of concurrent connections.
        note: A remark for readers of the table.
    """

    name: str
    process: Process
    port: int
    requests: Sequence[bytes]
    expected: str
    read_count: Callable[[], int]
    connections: int = 8
    note: str = ""

    def measure(self, seconds: int) -> Sample:
        before, cpu = self.read_count(), self.process.cpu_seconds()
        counts, example = self._run_wrk(seconds)
        time.sleep(SETTLE_SECONDS)  # let the last calls end, for which wrk didn't wait; their CPU time counts, too
        cpu = self.process.cpu_seconds() - cpu
        calls_in_state = self.read_count() - before
        problems = []
        if counts["wrong"]:
            problems.append(f"{counts['wrong']} wrong answers, like {example}")
        if counts["broken"]:
            problems.append(f"{counts['broken']} broken connections or timeouts")
        if counts["answered"] * counts["mean_ms"] / 1000 < MIN_BUSY_SHARE * counts["seconds"] * self.connections:
            problems.append("some connections were idle")
        if not counts["answered"] <= calls_in_state <= counts["answered"] + self.connections:
            problems.append(f"{counts['answered']} calls were answered, but the state shows {calls_in_state}")
        return Sample(counts["answered"], counts["seconds"], counts["p50_ms"], counts["p99_ms"], cpu, problems)

    def _run_wrk(self, seconds: int) -> tuple[dict[str, float], str]:
        with tempfile.NamedTemporaryFile(suffix=".requests") as file:
            file.write(b"\0".join(self.requests))
            file.flush()
            command = [find_wrk(), "-t1", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "30s"]
            command += ["-s", str(SCRIPT), f"http://127.0.0.1:{self.port}/", "--", file.name, self.expected]
            process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
        try:
            *_, numbers, example = process.stdout.splitlines()
            return json.loads(numbers), example.removeprefix("example: ")
        except ValueError:
            raise UnavailableError(f"wrk failed: {(process.stderr or process.stdout)[-300:]}") from None


@dataclass(frozen=True)
class LoopCase:
    """A loop of calls in another process, without HTTP. The process measures itself."""

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
            raise UnavailableError(f"the loop ended: {self.process.output()}")
        figures = json.loads(line)
        failed = figures.pop("failed")
        return Sample(**figures, problems=[f"{failed} calls failed"] if failed else [])


Case = HttpCase | LoopCase
