"""Prometheus metrics, summed over all workers.

All numbers are in memory that the workers share with their supervisor, so they survive the exit of a worker and need no
files. Each worker owns a *row* of *slots*, one slot for each number, and only one process writes to a row. All slots
are allocated before the first worker starts. This is possible because labels come from registered functions and fixed
words, never from clients.
"""

import mmap
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Self

from toolpack_server.observability.running import RunningFunctions
from toolpack_server.stores.base import Commit

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BYTES = tuple(4.0**power * 1024 for power in range(8))
GAUGES = {
    "waiting_calls": "Calls waiting for their session.",
    "stuck_threads": "Threads still running a function that passed its deadline.",
    "cached_sessions": "Sessions in the workers' caches.",
    "waiting_coroutines": "Calls of async functions that wait without a thread.",
    "waiting_coroutine_bytes": "Estimated memory of the calls in toolpack_waiting_coroutines.",
}
NUMBER_BYTES = 8


class MetricFamily(NamedTuple):
    """A metric of a feature: one number, or a number for each value of a label.

    Attributes:
        name: The name without the prefix `toolpack_`.
        text: One sentence that explains the metric; Prometheus shows it as help.
        counts: True for a counter, which `Metrics.count` increases. False for a gauge, which `Metrics.measure` sets.
        label: The name of the label, or "" for a metric with one number.
        values: All values of the label.
    """

    name: str
    text: str
    counts: bool = False
    label: str = ""
    values: Sequence[str] = ("",)


class _Histogram:
    """The slots of one histogram in a row: a count for each bucket, then the sum of all values.

    Args:
        bounds: The upper bounds of the buckets. After them comes a last bucket without a bound.
        start: The index of the histogram's first slot in a row.
    """

    def __init__(self, bounds: Sequence[float], start: int) -> None:
        self.end = start + len(bounds) + 2
        self._bounds = bounds
        self._start = start

    def observe(self, row: "memoryview[float]", value: float) -> None:
        row[self._start + bisect_left(self._bounds, value)] += 1
        row[self.end - 1] += value

    def read(self, sums: Sequence[float]) -> tuple[Sequence[tuple[float, float]], float]:
        """Return the number of values up to each bound, and the sum of all values.

        Args:
            sums: The sums of all slots over all rows.
        """
        counts = accumulate(sums[self._start : self.end - 1])
        return [*zip((*self._bounds, float("inf")), counts, strict=True)], sums[self.end - 1]


class SummedFamily(NamedTuple):
    """A metric, summed over the workers.

    Attributes:
        labels: The names of the labels.
        samples: Maps each tuple of label values to the number, or for a histogram to the result of `_Histogram.read`.
    """

    name: str
    text: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Sequence[str]
    samples: Mapping[Any, Any]


class Metrics:
    """The metrics of one worker, and the sums over all workers.

    Args:
        functions: The toolpack and the name of each function.
        outcomes: All outcomes that calls can have.
        rows: The max number of workers.
        of_features: The metrics of each feature. A feature's metrics are shown only if one of their numbers isn't 0.
    """

    def __init__(
        self,
        functions: Iterable[tuple[str, str]],
        outcomes: Iterable[str],
        rows: int = 1,
        of_features: Sequence[Sequence[MetricFamily]] = (),
    ) -> None:
        # The slots of a row: the core's gauges, the numbers of features, the calls by outcome, then the histograms.
        functions = [*functions]
        pairs = [*functions, ("", "")]
        self.running = RunningFunctions(functions, rows)
        series = [(*pair, outcome) for pair in pairs for outcome in outcomes]
        self._of_features = of_features
        families = [family for each in of_features for family in each]
        feature_numbers = [(family.name, value) for family in families for value in family.values]
        self._slots = {number: slot for slot, number in enumerate(feature_numbers, len(GAUGES))}
        self._gauges = [
            *range(len(GAUGES)),
            *(self._slots[family.name, value] for family in families if not family.counts for value in family.values),
        ]
        first = len(GAUGES) + len(feature_numbers)
        self._calls = {labels: slot for slot, labels in enumerate(series, first)}
        self._commit_seconds = _Histogram(SECONDS, first + len(series))
        self._snapshot_bytes = _Histogram(BYTES, self._commit_seconds.end)
        self._seconds: dict[tuple[str, str], _Histogram] = {}
        width = self._snapshot_bytes.end
        for pair in pairs:
            self._seconds[pair] = _Histogram(SECONDS, width)
            width = self._seconds[pair].end
        memory = memoryview(mmap.mmap(-1, rows * width * NUMBER_BYTES)).cast("d")
        self._rows = [memory[start : start + width] for start in range(0, len(memory), width)]
        self._row = self._rows[0]
        self._commit_lock = threading.Lock()

    def of_row(self, number: int) -> Self:
        """Select the row for this worker's process, and return `self`."""
        self._row = self._rows[number]
        self.running.of_row(number)
        return self

    def called(self, toolpack: str, function: str, outcome: str, seconds: float) -> None:
        """Count a call. `toolpack` and `function` are "" if the function is unknown."""
        self._row[self._calls[toolpack, function, outcome]] += 1
        self._seconds[toolpack, function].observe(self._row, seconds)

    def committed(self, seconds: float, commits: Sequence[Commit]) -> None:
        """Record the time of a commit and the sizes of its snapshots. Thread-safe."""
        with self._commit_lock:
            self._commit_seconds.observe(self._row, seconds)
            for commit in commits:
                for blob in commit.blobs.values():
                    self._snapshot_bytes.observe(self._row, len(blob))

    def count(self, family: MetricFamily, value: str = "") -> None:
        """Add 1 to a feature's counter. The caller must hold a lock, because several threads can write."""
        self._row[self._slots[family.name, value]] += 1

    def measure(self, family: MetricFamily, number: float, value: str = "") -> None:
        """Set a feature's gauge. The caller must hold a lock, because several threads can write."""
        self._row[self._slots[family.name, value]] = number

    def worker_ended(self) -> None:
        """Set the gauges of this row to 0, because its worker has exited. The counters keep their values."""
        for slot in self._gauges:
            self._row[slot] = 0

    def measured(self, *gauges: float) -> None:
        """Set the core's gauges, in the order of `GAUGES`."""
        for slot, value in enumerate(gauges):
            self._row[slot] = value

    def summed(self) -> Iterator[SummedFamily]:
        """Yield all metrics, summed over all rows. Functions that were never called have no samples."""
        sums = [sum(column) for column in zip(*self._rows, strict=True)]
        for (name, text), number in zip(GAUGES.items(), sums, strict=False):  # a row begins with the core's gauges
            yield SummedFamily(name, text, "gauge", (), {(): number})
        for families in self._of_features:
            summed = [
                _summed(each, [sums[self._slots[each.name, value]] for value in each.values]) for each in families
            ]
            if any(any(family.samples.values()) for family in summed):
                yield from summed
        calls = {labels: sums[slot] for labels, slot in self._calls.items() if sums[slot]}
        yield SummedFamily("calls", "Calls, by outcome.", "counter", ("toolpack", "function", "outcome"), calls)
        seconds = {called: self._seconds[called].read(sums) for called in sorted({each[:2] for each in calls})}
        text = "Time from a call's arrival to its answer."
        yield SummedFamily("call_seconds", text, "histogram", ("toolpack", "function"), seconds)
        commits, snapshots = self._commit_seconds.read(sums), self._snapshot_bytes.read(sums)
        yield SummedFamily("store_commit_seconds", "Time of a commit.", "histogram", (), {(): commits})
        yield SummedFamily("snapshot_bytes", "Size of a snapshot.", "histogram", (), {(): snapshots})


def _summed(family: MetricFamily, numbers: Iterable[float]) -> SummedFamily:
    labels = (family.label,) if family.label else ()
    samples = {(value,) if labels else (): number for value, number in zip(family.values, numbers, strict=True)}
    return SummedFamily(family.name, family.text, "counter" if family.counts else "gauge", labels, samples)
