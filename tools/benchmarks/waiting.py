"""Thousands of waiting sessions: each is created, makes one call that waits for a second, and is closed.

OpenEnv publishes a table of such measurements. Here OpenEnv's server and ours get the same crowds of sessions on one
machine. Our server stores records on SQLite. It is measured at `/rpc`, with and without tasks, and at the paths of MCP
and of the trainers' protocols.

All sessions try to begin at the same moment, from which a session's time runs. Processor time is counted until the
server is idle, so deferred work counts, too.
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
WARM_UP_SESSIONS = 32  # after so many sessions, the server has measured which functions wait
IDLE_SECONDS = 2.0  # a server is idle if it uses less than IDLE_SHARE of a processor in this time
IDLE_SHARE = 0.05
MEMORY_SESSIONS, MEMORY_WAIT_SECONDS = 2048, 12.0
CROWD_SECONDS = 400  # time limit of the crowd's process
START_SECONDS = 300
SERVERS = ("ours", "episodes", "answers", "our_openenv", "ors", "nemo_gym", "mcp", "openenv")
CLIENT = str(HERE / "crowd.py")


@dataclass(frozen=True)
class Crowd:
    """The results of a crowd of sessions.

    Attributes:
        server: The server and the protocol. `ours`: this server at `/rpc`. `episodes`: with a verdict on each session.
            `answers`: also with call_ids and an answer. `our_openenv`, `ors`, `nemo_gym` and `mcp`: this server at the
            paths of these protocols. `openenv`: OpenEnv's own server.
        sessions: The number of sessions.
        times: The durations of the sessions that ended well, in seconds, sorted.
        steps: The durations of the calls that wait, in seconds, sorted.
        server_ms: The server's processor time per session, in milliseconds.
        client_share: The client's share of the processor time of client and server.
        load: The machine's load average before the crowd began.
        problems: The number of failed sessions, by problem.
    """

    server: str
    sessions: int
    times: Sequence[float]
    steps: Sequence[float]
    server_ms: float
    client_share: float
    load: float
    problems: dict[str, int] = field(default_factory=dict)

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

    def run_crowd(self, sessions: int) -> Crowd:
        """Run a crowd, wait until the server is idle, and return the results."""
        load, before, client_before = os.getloadavg()[0], self.process.cpu_seconds(), _children_cpu()
        result = self._crowd(sessions, WAIT_SECONDS)
        client = _children_cpu() - client_before
        server_cpu = self._cpu_when_idle() - before
        times, steps = sorted(result["times"]), sorted(result["steps"])
        share = client / max(client + server_cpu, 0.001)
        return Crowd(self.name, sessions, times, steps, server_cpu / sessions * 1000, share, load, result["problems"])

    def kb_waiting(self) -> float:
        """Return the memory of one waiting session and its connection, in KB."""
        memory_samples = [self.process.memory_bytes()]
        finished = threading.Event()

        def measure() -> None:
            while not finished.wait(0.25):
                memory_samples.append(self.process.memory_bytes())

        thread = threading.Thread(target=measure)
        thread.start()
        try:
            result = self._crowd(MEMORY_SESSIONS, MEMORY_WAIT_SECONDS)
        finally:
            finished.set()
            thread.join()
        if len(result["times"]) < MEMORY_SESSIONS:
            raise UnavailableError(f"not all sessions waited: {result['wrong']}")
        return (max(memory_samples) - memory_samples[0]) / MEMORY_SESSIONS / 1024

    def _crowd(self, sessions: int, seconds: float) -> Any:
        command = [sys.executable, CLIENT, self.name, str(self.port), str(sessions), str(seconds), ours.TOKEN]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CROWD_SECONDS)
        if process.returncode:
            raise UnavailableError(f"the client ended with {process.returncode}: {process.stderr[-300:].strip()}")
        return json.loads(process.stdout)

    def _cpu_when_idle(self) -> float:
        deadline = time.monotonic() + 60
        while True:
            before = self.process.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            after = self.process.cpu_seconds()
            if after - before < IDLE_SHARE * IDLE_SECONDS or time.monotonic() > deadline:
                return after


def measure_crowds(workshop: Workshop, only: Sequence[str], sizes: Sequence[int]) -> tuple[list[Crowd], list[Bound]]:
    """Run crowds of all sizes on all servers. Return the results and the bounds.

    Args:
        workshop: The workshop.
        only: Words. Measure only servers whose name contains a word; empty for all.
        sizes: Numbers of sessions; empty for the usual sizes.
    """
    crowds: list[Crowd] = []
    bounds: list[Bound] = []
    sizes = sizes or SIZES
    connections = _allow_connections(max(sizes))
    for name in SERVERS:
        if only and not any(word in name for word in only):
            continue
        try:
            with _serving(workshop, name, connections) as server:
                server.run_crowd(WARM_UP_SESSIONS)
                for size in sizes:
                    crowds.append(server.run_crowd(size))
                    print(crowds[-1].line(), file=sys.stderr, flush=True)
            with _serving(workshop, name, connections) as server:  # a new server, because a process keeps memory
                server.run_crowd(WARM_UP_SESSIONS)
                limit = 35 if name == "ours" else float("inf")
                bound_name = f"memory of a session that waits, {name}"
                bounds.append(
                    Bound(bound_name, server.kb_waiting(), limit, unit=" KB", detail=f"{MEMORY_SESSIONS} sessions")
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


def _allow_connections(sessions: int) -> int:
    """Raise this process's limit of open files to the maximum. Return the maximum number of connections of a server."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < sessions + 1000:
        warning = f"The system allows {hard} open files, too few for {sessions} sessions: raise `ulimit -Hn`."
        print(warning, file=sys.stderr)
    return max(5000, min(hard if hard >= 0 else 2 * sessions, 2 * sessions) - 200)


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system
