"""Prometheus metrics, summed over all workers.

The rule: labels come from registered functions and fixed words, never from a client, so that their number is bounded.
Each worker writes to files in one folder; prometheus-client reads its path from an environment variable when imported,
so this module is imported only after that is set.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from server.stores.base import Commit, SessionStore

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BYTES = tuple(4.0**power * 1024 for power in range(8))


class Metrics:
    """The metrics of one worker, and the sums over all."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        names: dict[str, Any] = {"registry": self._registry, "namespace": "toolpack"}
        self._calls = Counter("calls", "Calls, by outcome.", ["toolpack", "function", "outcome"], **names)
        self._seconds = Histogram(
            "call_seconds", "Time from a call's arrival to its answer.", ["toolpack"], buckets=SECONDS, **names
        )
        self._commit_seconds = Histogram("store_commit_seconds", "Time of a commit.", buckets=SECONDS, **names)
        self._snapshot_bytes = Histogram("snapshot_bytes", "Size of a snapshot.", buckets=BYTES, **names)
        live = {**names, "multiprocess_mode": "livesum"}
        self._waiting = Gauge("waiting_calls", "Calls waiting for their session.", **live)
        self._stuck = Gauge("stuck_threads", "Threads still running a function that passed its deadline.", **live)
        self._cached = Gauge("cached_sessions", "Sessions in the workers' caches.", **live)
        self._series: dict[tuple[str, str, str], tuple[Any, Any]] = {}

    def called(self, toolpack: str, function: str, outcome: str, seconds: float) -> None:
        """Count a call; `toolpack` and `function` are "" if there is no such function."""
        series = self._series.get((toolpack, function, outcome))
        if series is None:
            series = self._calls.labels(toolpack, function, outcome), self._seconds.labels(toolpack)
            self._series[toolpack, function, outcome] = series
        count, duration = series
        count.inc()
        duration.observe(seconds)

    def committed(self, seconds: float, commits: Sequence[Commit]) -> None:
        """Count a commit and the snapshots in it."""
        self._commit_seconds.observe(seconds)
        for commit in commits:
            for blob in commit.blobs.values():
                self._snapshot_bytes.observe(len(blob))

    def measured(self, waiting: int, stuck: int, cached: int) -> None:
        """Set the gauges of this worker to their current values."""
        self._waiting.set(waiting)
        self._stuck.set(stuck)
        self._cached.set(cached)

    def exposition(self, sessions: int | None) -> bytes:
        """Get all metrics in Prometheus' text format, version 0.0.4.

        Args:
            sessions: The number of sessions in the store; None if unknown.
        """
        registry = self._registry
        if FOLDER_VARIABLE in os.environ:
            registry = CollectorRegistry()
            _Files(registry)  # type: ignore[no-untyped-call]
        body: bytes = generate_latest(registry)
        if sessions is not None:
            body += b"# HELP toolpack_sessions Sessions in the store.\n# TYPE toolpack_sessions gauge\n"
            body += b"toolpack_sessions %d\n" % sessions
        return body


class _Files(MultiProcessCollector):
    """The files of all workers, but for one that a worker is just making: it is empty for a moment."""

    def collect(self) -> Any:
        files = [str(file) for file in Path(os.environ[FOLDER_VARIABLE]).glob("*.db") if _is_filled(file)]
        return self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]


def _is_filled(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:  # its worker has just died
        return False


class MeasuredStore:
    """A store that measures commits, and delegates everything else.

    Args:
        store: The store.
        metrics: The metrics to update.
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
