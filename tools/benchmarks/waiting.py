"""Thousands of waiting sessions: each is created, takes one step that waits for a second, and is closed.

OpenEnv publishes such a table. Here both servers get the same crowds on one machine. Ours has records on SQLite and is
measured at `/rpc`, without tasks and with recorded verdicts, and at the paths of the trainers' protocols and of MCP,
with their clients' requests.

All sessions try to begin at the same moment, and a session's time runs from there. Processor time is counted until the
server is idle, so deferred work counts too.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.benchmarks import ours
from tools.benchmarks.bounds import Bound
from tools.benchmarks.processes import Process, UnavailableError, free_port, listens
from tools.benchmarks.workshop import HERE, Workshop

SIZES = (32, 128, 512, 2048, 4096, 8192, 16384)
WAIT_SECONDS = 1.0
WARM = 32  # warm-up sessions, after which the server knows which functions wait
IDLE_SECONDS = 2.0  # duration in which an idle server must have used almost no processor time
IDLE_SHARE = 0.05
MEMORY_SESSIONS, MEMORY_WAIT_SECONDS = 2048, 12.0
CROWD_SECONDS = 400  # time limit of the crowd's process
START_SECONDS = 300
SERVERS = ("ours", "episodes", "answers", "door", "ors", "nemo_gym", "mcp", "openenv")
CLIENT = str(HERE / "crowd.py")


@dataclass(frozen=True)
class Crowd:
    """The results of a crowd of sessions.

    Attributes:
        server: The server and the protocol: `ours`; `episodes`, with a verdict on each session; `answers`, also with
            call_ids and an answer; `door`, our paths for OpenEnv; `ors`, `nemo_gym` and `mcp`, our other paths;
            `openenv`, OpenEnv's own server.
        sessions: The number of sessions.
        times: The durations of the sessions that ended well, in seconds, sorted.
        steps: The durations of their steps, in seconds, sorted.
        server_ms: The server's processor time per session, in milliseconds.
        client_share: The client's share of all processor time, its own and the server's.
        load: The machine's load average before.
        wrong: The problems of the other sessions, and their number.
    """

    server: str
    sessions: int
    times: Sequence[float]
    steps: Sequence[float]
    server_ms: float
    client_share: float
    load: float
    wrong: dict[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> float:
        return len(self.times) / self.sessions

    def line(self) -> str:
        times = f"p50 {self.p(50):.2f} s, p99 {self.p(99):.2f} s"
        return (
            f"{self.server}, {self.sessions} sessions: {self.answered:.2%}, {times}, {self.server_ms:.2f} ms for each"
        )

    def p(self, percent: int, *, of_steps: bool = False) -> float:
        """Return a percentile of the durations of sessions, or of steps, in seconds."""
        values = self.steps if of_steps else self.times
        return values[min(len(values) - 1, len(values) * percent // 100)] if values else float("nan")


@dataclass(frozen=True)
class _Server:
    name: str
    process: Process
    port: int

    def meet(self, sessions: int) -> Crowd:
        """Run a crowd, and wait until the server is idle."""
        load, before, own = os.getloadavg()[0], self.process.cpu_seconds(), _children_cpu()
        result = self._crowd(sessions, WAIT_SECONDS)
        client = _children_cpu() - own
        used = self._cpu_when_idle() - before
        times, steps = sorted(result["times"]), sorted(result["steps"])
        share = client / max(client + used, 0.001)
        return Crowd(self.name, sessions, times, steps, used / sessions * 1000, share, load, result["wrong"])

    def kb_waiting(self) -> float:
        """Return the memory of one waiting session and its connection, in KB."""
        measured = [self.process.memory_bytes()]
        over = threading.Event()

        def measure() -> None:
            while not over.wait(0.25):
                measured.append(self.process.memory_bytes())

        thread = threading.Thread(target=measure)
        thread.start()
        try:
            result = self._crowd(MEMORY_SESSIONS, MEMORY_WAIT_SECONDS)
        finally:
            over.set()
            thread.join()
        if len(result["times"]) < MEMORY_SESSIONS:
            raise UnavailableError(f"not all sessions waited: {result['wrong']}")
        return (max(measured) - measured[0]) / MEMORY_SESSIONS / 1024

    def _crowd(self, sessions: int, seconds: float) -> Any:
        command = [sys.executable, CLIENT, self.name, str(self.port), str(sessions), str(seconds), ours.TOKEN]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CROWD_SECONDS)
        if ended.returncode:
            raise UnavailableError(f"the client ended with {ended.returncode}: {ended.stderr[-300:].strip()}")
        return json.loads(ended.stdout)

    def _cpu_when_idle(self) -> float:
        deadline = time.monotonic() + 60
        while True:
            before = self.process.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            after = self.process.cpu_seconds()
            if after - before < IDLE_SHARE * IDLE_SECONDS or time.monotonic() > deadline:
                return after


def meet(workshop: Workshop, only: Sequence[str], sizes: Sequence[int]) -> tuple[list[Crowd], list[Bound]]:
    """Run all crowds on both servers, in the usual sizes unless some are given."""
    crowds: list[Crowd] = []
    bounds: list[Bound] = []
    sizes = sizes or SIZES
    connections = _allow_connections(max(sizes))
    for name in SERVERS:
        if only and not any(word in name for word in only):
            continue
        try:
            with _serving(workshop, name, connections) as server:
                server.meet(WARM)
                for size in sizes:
                    crowds.append(server.meet(size))
                    print(crowds[-1].line(), file=sys.stderr, flush=True)
            with _serving(workshop, name, connections) as server:  # a fresh server, because memory once used is kept
                server.meet(WARM)
                limit = 35 if name == "ours" else float("inf")
                about = f"memory of a session that waits, {name}"
                bounds.append(
                    Bound(about, server.kb_waiting(), limit, unit=" KB", detail=f"{MEMORY_SESSIONS} sessions")
                )
        except (UnavailableError, subprocess.TimeoutExpired) as error:
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
    return crowds, [bound for crowd in crowds if crowd.server == "ours" for bound in _bounds(crowd)] + bounds


def _bounds(crowd: Crowd) -> Iterator[Bound]:
    limits = {2048: 2.5, 16384: 20.0}
    if crowd.sessions not in limits:
        return
    name, detail = f"{crowd.sessions} sessions that wait", f"load {crowd.load:.1f} before"
    yield Bound(f"{name}: answered", crowd.answered * 100, 100, at_least=True, unit=" %", detail=detail)
    yield Bound(f"{name}: p99", crowd.p(99), limits[crowd.sessions], unit=" s", detail=detail)
    if crowd.sessions == 2048:
        yield Bound(f"{name}: processor time of the server for each", crowd.server_ms, 1.5, unit=" ms", detail=detail)


@contextlib.contextmanager
def _serving(workshop: Workshop, name: str, connections: int) -> Iterator[_Server]:
    if name != "openenv":
        with ours.serving(workshop, settings={"TOOLPACK_MAX_CONNECTIONS": str(connections)}) as server:
            yield _Server(name, server.process, server.port)
        return
    port = free_port()
    with workshop.run("serve_openenv", port, "wait", requirements="openenv") as process:
        process.wait_until(lambda: listens(port), START_SECONDS)
        yield _Server(name, process, port)


def _allow_connections(most: int) -> int:
    """Raise this process's limit of open files to the maximum, and return the number of connections that a server may
    hold.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < most + 1000:
        print(f"The system allows {hard} open files, too few for {most} sessions: raise `ulimit -Hn`.", file=sys.stderr)
    return max(5000, min(hard if hard >= 0 else 2 * most, 2 * most) - 200)


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system
