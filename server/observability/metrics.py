"""Prometheus metrics, summed over all workers.

The rule: labels come from registered functions and fixed words alone, never from what a client sends, so that their
number is bounded. With several workers each writes to files in one folder that the supervisor makes; prometheus-client
finds it by its environment variable, so this module is imported only after that is set.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from server.stores.base import Commit, SessionStore

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BYTES = tuple(4.0**power * 1024 for power in range(8))


class Metrics:
    """The counters of one worker, and the sum of all."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        names: dict[str, Any] = {"registry": self._registry, "namespace": "toolpack"}
        self._calls = Counter("calls", "Calls, by what came of them.", ["toolpack", "function", "outcome"], **names)
        self._seconds = Histogram(
            "call_seconds", "Time from a call's arrival to its answer.", ["toolpack"], buckets=SECONDS, **names
        )
        self._commit_seconds = Histogram("store_commit_seconds", "Time of a commit.", buckets=SECONDS, **names)
        self._snapshot_bytes = Histogram("snapshot_bytes", "Size of a snapshot.", buckets=BYTES, **names)
        live = {**names, "multiprocess_mode": "livesum"}
        self._waiting = Gauge("waiting_calls", "Calls that wait for their session.", **live)
        self._stuck = Gauge("stuck_threads", "Threads in functions that were given up.", **live)
        self._cached = Gauge("cached_sessions", "Sessions that workers remember.", **live)
        self._known: dict[tuple[str, str, str], tuple[Any, Any]] = {}

    def called(self, toolpack: str, function: str, outcome: str, seconds: float) -> None:
        """Count a call; `toolpack` and `function` are "" where there is no such function."""
        known = self._known.get((toolpack, function, outcome))
        if known is None:
            known = self._calls.labels(toolpack, function, outcome), self._seconds.labels(toolpack)
            self._known[toolpack, function, outcome] = known
        known[0].inc()
        known[1].observe(seconds)

    def committed(self, seconds: float, commits: Sequence[Commit]) -> None:
        """Count a commit and the snapshots in it."""
        self._commit_seconds.observe(seconds)
        for commit in commits:
            for blob in commit.blobs.values():
                self._snapshot_bytes.observe(len(blob))

    def measured(self, waiting: int, stuck: int, cached: int) -> None:
        """Take what stands right now in this worker."""
        self._waiting.set(waiting)
        self._stuck.set(stuck)
        self._cached.set(cached)

    def exposition(self, sessions: int | None, *, calls: bool = True) -> bytes:
        """Write it all down in Prometheus' text format.

        Args:
            sessions: How many sessions the store holds; None where it doesn't say.
            calls: Include the metrics that name toolpacks and functions.
        """
        registry = self._registry
        if FOLDER_VARIABLE in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        told: bytes = generate_latest(registry)
        if not calls:
            told = b"".join(line for line in told.splitlines(keepends=True) if b'toolpack="' not in line)
        if sessions is not None:
            told += b"# HELP toolpack_sessions Sessions in the store.\n# TYPE toolpack_sessions gauge\n"
            told += b"toolpack_sessions %d\n" % sessions
        return told


class MeasuredStore:
    """A store whose commits are measured; all else goes straight through.

    Args:
        store: The store.
        metrics: Where the measurements go.
    """

    def __init__(self, store: SessionStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """See `SessionStore.commit`."""
        began = time.perf_counter()
        try:
            return self._store.commit(commits)
        finally:
            self._metrics.committed(time.perf_counter() - began, commits)
