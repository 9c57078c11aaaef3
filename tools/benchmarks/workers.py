"""The benefit of a second worker: more calls on Redis or Postgres, and no loss on SQLite.

The load generator, Redis and Postgres use processor time, too. So calls per second are divided by the share of the
processors that was left for the server.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.benchmarks.bounds import Bound
from tools.benchmarks.ours import serving
from tools.benchmarks.rounds import Plan
from tools.benchmarks.workshop import Workshop

ONE = {"amount": 1}
CONNECTIONS, SESSIONS = 64, 2000


def two_workers(workshop: Workshop, plan: Plan, only: Sequence[str] = ()) -> Iterator[Bound]:
    """Compare two workers with one worker, with 64 connections and 2,000 sessions."""
    for store, limit in (("redis:", 1.6), ("postgres:", 1.7), ("sqlite:", 1.0)):
        if only and not any(word in f"ours, {store}" for word in only):
            continue
        rates = {workers: _rate(workshop, plan, store, workers) for workers in (1, 2)}
        detail = ", ".join(f"{workers}: {plain:.0f}/s, share {share:.2f}" for workers, (plain, share) in rates.items())
        (one, one_share), (two, two_share) = rates[1], rates[2]
        value = (two / two_share) / (one / one_share)
        name = f"calls/s of two workers, compared with one, {store} without the load's share"
        yield Bound(name, value, limit, at_least=True, detail=detail)


def _rate(workshop: Workshop, plan: Plan, store: str, workers: int) -> tuple[float, float]:
    """Return the calls per second, and the share of processors that was left for the workers.

    A share of 1 means that each worker could use a whole processor.
    """
    with serving(workshop, store, workers=workers) as server:
        case = server.case("workers", "add", ONE, sessions=SESSIONS, connections=CONNECTIONS)
        case.measure(1)
        busy, began = _busy_seconds(), time.monotonic()
        sample = case.measure(plan.seconds)
        other_seconds = _busy_seconds() - busy - sample.cpu_seconds
        max_processors = min(workers, os.cpu_count() or 1)
        processors_left = (os.cpu_count() or 1) - other_seconds / (time.monotonic() - began)
        return sample.per_second, min(1.0, max(processors_left, 0.1) / max_processors)


def _busy_seconds() -> float:
    """Return the total busy time of all processors since the system started, in seconds."""
    total, *_ = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    user, nice, system, _idle, _wait, *more = map(int, total.split()[1:])
    return (user + nice + system + sum(more[:2])) / os.sysconf("SC_CLK_TCK")
