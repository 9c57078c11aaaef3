"""The cost of isolation in processes: calls in executors, compared with calls in threads.

It also measures the benefit: the delay of other sessions' calls by a function that never releases the interpreter.
Threads and processes are measured in turns, so that other load on the machine affects both. The processor time includes
the executors.
"""

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator

from tools.benchmarks.bounds import MIB, Bound
from tools.benchmarks.load import HttpCase
from tools.benchmarks.ours import AGENTDOJO, Server, serving
from tools.benchmarks.rounds import Plan
from tools.benchmarks.workshop import Workshop

ISOLATIONS = ("thread", "process")
HOLD_SECONDS = 2


def isolation(workshop: Workshop, plan: Plan) -> Iterator[Bound]:
    """Measure the processor time of calls, the memory of executors, and calls beside a function that blocks."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(workshop, "memory:", isolation=name)) for name in ISOLATIONS]
        suite, function, kwargs = AGENTDOJO["110 KB"]
        memory = servers[1].process.memory_bytes()
        for label, limit, cases in (
            ("tiny, read", 1.8, [server.case("read", "get") for server in servers]),
            ("tiny, change", 1.8, [server.case("change", "add", {"amount": 1}) for server in servers]),
            (
                "110 KB, change",
                1.6,
                [server.case("large", function, kwargs, toolpack=f"agentdojo-{suite}") for server in servers],
            ),
        ):
            yield _cost(label, limit, cases, plan)
        added = (servers[1].process.memory_bytes() - memory) / MIB
        yield Bound("process: memory that these calls have added", added, 60, unit=" MB", detail="PSS of all processes")
        slowest = dict(zip(ISOLATIONS, map(_slowest_call, servers), strict=True))
        name = "process: slowest call of others beside a function that holds the interpreter"
        detail = f"in threads {slowest['thread']:.0f} ms"
        yield Bound(name, slowest["process"], 250, unit=" ms", detail=detail)


def _cost(label: str, limit: float, cases: list[HttpCase], plan: Plan) -> Bound:
    """Compare the processor time of calls in processes with that of calls in threads."""
    for case in cases:
        case.measure(1)
    pairs = [tuple(case.measure(plan.seconds).cpu_us for case in cases) for _ in range(plan.rounds)]
    threads, processes = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(process / thread for thread, process in pairs)
    detail = f"{processes:.0f} / {threads:.0f} µs"
    return Bound(f"{label}: CPU time in processes, compared with threads", ratio, limit, detail=detail)


def _slowest_call(server: Server) -> float:
    """Return the duration of the slowest of many calls beside a function that computes in C, in milliseconds."""
    client, session_id, quiet = server.connect(), server.create("counter"), server.create("counter")
    call = {"session_id": session_id, "function": "hold", "kwargs": {"seconds": HOLD_SECONDS}}
    thread = threading.Thread(target=client.call, args=("run_function", call))
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        began = time.perf_counter()
        server.client.call("run_function", {"session_id": quiet, "function": "add", "kwargs": {"amount": 1}})
        slowest = max(slowest, time.perf_counter() - began)
        time.sleep(0.002)
    thread.join()
    return slowest * 1000
