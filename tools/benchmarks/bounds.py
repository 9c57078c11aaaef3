"""The performance bounds: throughput, latency, isolation from other sessions' load, cost of sessions, start-up time.

Each function measures some of the bounds. A missed bound is reported, but isn't an error, because it depends on the
machine.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tools.benchmarks.load import HttpCase
from tools.benchmarks.ours import Server, serving
from tools.benchmarks.rounds import Plan, Row
from tools.benchmarks.wire import jsonrpc, status
from tools.benchmarks.workshop import Workshop

ONE = {"amount": 1}
MIB = 2**20
CREATIONS, IDLE_SESSIONS, STARTS, BATCH = 200, 10_000, 5, 100
LARGE_BYTES = 10 * MIB
MOVE_CALL = {"function": "move_to_savings", "kwargs": {"amount": "1.00"}}


@dataclass(frozen=True)
class Bound:
    """A measured value and its limit.

    Attributes:
        name: The measured quantity.
        value: The measured value.
        limit: The upper or lower limit of the value.
        at_least: True if the limit is a lower limit.
        unit: The unit of the value and of the limit.
        detail: The figures from which the value was computed.
    """

    name: str
    value: float
    limit: float
    at_least: bool = False
    unit: str = " x"
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def throughput(rows: list[Row]) -> list[Bound]:
    """Return the bounds of throughput, from the ratios in the table of results."""
    ratios = {row.name: row.ratio for row in rows if not row.unavailable}
    bounds = []
    for store, kind, limit in (
        ("sqlite:", "read", 0.8),
        ("sqlite:", "change", 0.6),
        ("redis:", "change", 0.45),
        ("postgres:", "change", 0.35),
    ):
        name = f"ours, {store} tiny, {kind}"
        if name in ratios:
            bounds.append(Bound(f"{name}: requests/s, compared with bare", ratios[name], limit, at_least=True))
    cpu = {row.name: row.cpu_us for row in rows if not row.unavailable}
    for store in ("memory:", "sqlite:"):
        name = f"ours, {store} tiny, change"
        agents, mcp = (cpu.get(f"{name}, {protocol}") for protocol in ("agents' address", "MCP tool call"))
        if agents and mcp:
            name = f"ours, {store} MCP tool call: CPU time, compared with run_function at the agents' address"
            bounds.append(Bound(name, mcp / agents, 1.15, detail=f"{mcp:.0f} / {agents:.0f} µs"))
    change = ratios.get("ours, sqlite: tiny, change")
    for other, limit in (("FastMCP", 5), ("FastAPI by hand", 1)):
        best = max((ratio for name, ratio in ratios.items() if name.startswith(other)), default=None)
        if best and change:
            name = f"ours, sqlite: tiny, change: requests/s, compared with {other}'s best"
            bounds.append(Bound(name, change / best, limit, at_least=True))
    tails = [row for row in rows if row.name in {"ours, sqlite: tiny, read", "ours, sqlite: tiny, change"}]
    bounds += [Bound(f"{row.name}: p99, compared with p50", row.p99_ms / row.p50_ms, 5) for row in tails if row.p50_ms]
    return bounds


def latency(workshop: Workshop, bare: HttpCase, plan: Plan) -> Iterator[Bound]:
    """Measure the latency with one connection, and the effect of a slow function on the calls of other sessions."""
    with serving(workshop) as server:
        for kind, function, kwargs in (("read", "get", {}), ("change", "add", ONE)):
            alone = server.case("one connection", function, kwargs, sessions=1, connections=1)
            alone.measure(1)
            pairs = [
                (alone.measure(plan.seconds).p50_ms, replace(bare, connections=1).measure(plan.bare_seconds).p50_ms)
                for _ in range(plan.rounds)
            ]
            ours, bare_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(one / other for one, other in pairs)
            detail = f"{ours:.3f} / {bare_ms:.3f} ms"
            yield Bound(f"p50 of a {kind}, one connection, compared with bare", ratio, 2, detail=detail)
        crowd = server.case("8 connections", "add", ONE)
        crowd.measure(1)
        for function, label in (("wait", "waits"), ("compute", "computes in Python")):
            quiet, noisy = [], []
            for _ in range(plan.rounds):
                quiet.append(crowd.measure(plan.seconds))
                with _busy(server, function, plan.seconds + 1.0):
                    noisy.append(crowd.measure(plan.seconds))
            if function == "wait":
                before, after = (statistics.median(s.p99_ms for s in samples) for samples in (quiet, noisy))
                detail, name = (
                    f"{after:.2f} / {before:.2f} ms",
                    f"p99 beside a function that {label}, compared with quiet",
                )
                yield Bound(name, after / before, 1.5, detail=detail)
            else:
                before, after = (statistics.median(s.per_second for s in samples) for samples in (quiet, noisy))
                detail = f"{after:.0f} / {before:.0f} per second"
                name = f"requests/s beside a function that {label}, compared with quiet"
                yield Bound(name, after / before, 1 / 3, at_least=True, detail=detail)


@contextmanager
def _busy(server: Server, function: str, seconds: float) -> Iterator[None]:
    """Run a function of this duration in a session of its own while the block runs."""
    client, session_id = server.connect(), server.create("counter")
    call = {"session_id": session_id, "function": function, "kwargs": {"seconds": seconds}}
    thread = threading.Thread(target=client.call, args=("run_function", call))
    thread.start()
    time.sleep(0.2)
    try:
        yield
    finally:
        thread.join()


def untouched_field(workshop: Workshop, plan: Plan) -> Iterator[Bound]:
    """Measure a call that changes 2 KB, with and without a large field that the call doesn't use."""
    with serving(workshop) as server:
        p50, cpu = [], []
        for untouched in (0, LARGE_BYTES):
            options = {"padding": 2048, "untouched": untouched}
            case = server.case("beside", "add", ONE, options=options, sessions=1, connections=1)
            case.measure(1)
            sample = case.measure(max(1, plan.seconds // 2))
            p50.append(sample.p50_ms)
            cpu.append(sample.cpu_us)
        detail = f"{p50[1]:.2f} / {p50[0]:.2f} ms; CPU {cpu[1]:.0f} / {cpu[0]:.0f} µs"
        yield Bound("p50 of a change of 2 KB beside 10 MB, compared with alone", p50[1] / p50[0], 1.5, detail=detail)


def sessions(workshop: Workshop, _plan: Plan) -> Iterator[Bound]:
    """Measure the time to create and to fork a session, and the memory of idle sessions."""
    with serving(workshop) as server:
        first = server.create("agentdojo-workspace")
        for name, action in (
            ("create", lambda: server.create("agentdojo-workspace")),
            ("fork", lambda: server.client.call("fork_session", {"session_id": first})),
        ):
            median, cpu = _time(server, action)
            detail = f"{cpu:.2f} ms of CPU in the server"
            yield Bound(f"{name} a session of 110 KB, over HTTP", median, 2, unit=" ms", detail=detail)
    for with_call in (False, True):
        with serving(workshop) as server:
            state = "each called once" if with_call else "untouched"
            value, detail = _memory(server, with_call=with_call)
            yield Bound(f"memory of {IDLE_SESSIONS} idle sessions, {state}", value, 50, unit=" MB", detail=detail)


def _time(server: Server, action: Callable[[], object]) -> tuple[float, float]:
    """Return the median duration of an action and its CPU time in the server, both in milliseconds."""
    for _ in range(20):
        action()
    durations, cpu = [], server.process.cpu_seconds()
    for _ in range(CREATIONS):
        began = time.perf_counter()
        action()
        durations.append(time.perf_counter() - began)
    return statistics.median(durations) * 1000, (server.process.cpu_seconds() - cpu) / CREATIONS * 1000


def _memory(server: Server, *, with_call: bool) -> tuple[float, str]:
    """Return the memory of many new sessions in MB, and the figures. `with_call` makes one call in each session."""
    ids = [server.create("bank") for _ in range(BATCH)]
    for id_ in ids:
        server.client.call("run_function", {"session_id": id_, **MOVE_CALL})
    before = server.process.memory_bytes()
    for _ in range(IDLE_SESSIONS // BATCH):
        created, _ = server.client.post([jsonrpc("create_session", {"toolpacks": ["bank"]}, n) for n in range(BATCH)])
        if with_call:
            ids = [answer["result"]["session_id"] for answer in created]
            calls = [{"session_id": id_, **MOVE_CALL} for id_ in ids]
            server.client.post([jsonrpc("run_function", call, number) for number, call in enumerate(calls)])
    time.sleep(1)
    after = server.process.memory_bytes()
    return (after - before) / MIB, f"PSS of all processes: {before / MIB:.0f} MB before, {after / MIB:.0f} MB after"


def start(workshop: Workshop, _plan: Plan) -> Iterator[Bound]:
    """Measure the time from the command until /readyz answers 200, with the bundled toolpacks."""
    durations = []
    for _ in range(STARTS):
        began = time.monotonic()
        with serving(workshop, bundled=True, wait=False) as server:
            server.process.wait_until(lambda: status(server.port, "/readyz") == 200)
            durations.append(time.monotonic() - began)
    detail = f"{min(durations):.2f} to {max(durations):.2f} s"
    yield Bound("start-up with the bundled toolpacks", statistics.median(durations), 1.5, unit=" s", detail=detail)
