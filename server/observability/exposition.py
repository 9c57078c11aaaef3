"""Metrics in Prometheus' text format.

The rule: only who shows metrics imports it, as Prometheus' library takes longer to import than most of the server.
"""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from server.observability.metrics import GAUGES, HistogramSums, MetricFamily, Metrics, Sums


def exposition(metrics: Metrics, sessions: int | None, *, calls: bool = True) -> bytes:
    """Get all metrics in Prometheus' text format, version 0.0.4.

    Args:
        metrics: Those of any worker; what is shown is summed over all of them.
        sessions: The number of sessions in the store; None if unknown.
        calls: Include the metrics that name toolpacks and functions.
    """
    body: bytes = generate_latest(_Families(metrics.sums()))
    if not calls:
        body = b"".join(line for line in body.splitlines(keepends=True) if b'toolpack="' not in line)
    if sessions is not None:
        body += b"# HELP toolpack_sessions Sessions in the store.\n# TYPE toolpack_sessions gauge\n"
        body += b"toolpack_sessions %d\n" % sessions
    return body


class _Families(Collector):
    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    def collect(self) -> Iterator[Metric]:
        sums = self._sums
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"toolpack_{name}", text, sums.gauges[name])
        yield from (_of_feature(*each) for each in sums.of_features)
        calls = CounterMetricFamily("toolpack_calls", "Calls, by outcome.", labels=["toolpack", "function", "outcome"])
        for labels, number in sums.calls.items():
            calls.add_metric(labels, number)
        yield calls
        seconds = HistogramMetricFamily(
            "toolpack_call_seconds", "Time from a call's arrival to its answer.", labels=["toolpack"]
        )
        for toolpack, histogram in sums.seconds.items():
            _add(seconds, [toolpack], histogram)
        yield seconds
        commits = HistogramMetricFamily("toolpack_store_commit_seconds", "Time of a commit.")
        _add(commits, [], sums.commit_seconds)
        yield commits
        snapshots = HistogramMetricFamily("toolpack_snapshot_bytes", "Size of a snapshot.")
        _add(snapshots, [], sums.snapshot_bytes)
        yield snapshots


def _of_feature(family: MetricFamily, numbers: Mapping[str, float]) -> Metric:
    made = (CounterMetricFamily if family.counts else GaugeMetricFamily)(
        f"toolpack_{family.name}", family.text, labels=[family.label] if family.label else None
    )
    for value, number in numbers.items():
        made.add_metric([value] if family.label else [], number)
    return made


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: HistogramSums) -> None:
    names = [(floatToGoString(bound), count) for bound, count in histogram.buckets]  # type: ignore[no-untyped-call]
    family.add_metric(labels, buckets=names, sum_value=histogram.total)
