"""Exposition of metrics in Prometheus' text format.

Only code that serves metrics imports this module, because importing Prometheus' library is slow.
"""

from collections.abc import Iterator
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from toolpack_server.observability.metrics import Metrics, SummedFamily

_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def exposition(metrics: Metrics, sessions: int | None, *, calls: bool = True) -> bytes:
    """Return all metrics in Prometheus' text format, version 0.0.4.

    Args:
        metrics: The metrics of any worker. They can compute the sums over all workers, because the memory is shared.
        sessions: The number of sessions in the store, or None if unknown.
        calls: Whether to include the metrics that name toolpacks and functions.
    """
    body: bytes = generate_latest(_Families(metrics))
    if not calls:
        body = b"".join(line for line in body.splitlines(keepends=True) if b'toolpack="' not in line)
    if sessions is not None:
        body += b"# HELP toolpack_sessions Sessions in the store.\n# TYPE toolpack_sessions gauge\n"
        body += b"toolpack_sessions %d\n" % sessions
    return body


class _Families(Collector):
    """Adapter through which Prometheus' library collects the summed metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return map(_prometheus_metric, self._metrics.summed())


def _prometheus_metric(family: SummedFamily) -> Metric:
    """Convert a summed metric to a metric of Prometheus' library."""
    metric: Any = _KINDS[family.kind](f"toolpack_{family.name}", family.text, labels=family.labels)
    for labels, sample in family.samples.items():
        if family.kind == "histogram":
            buckets, total = sample
            names = [(floatToGoString(bound), count) for bound, count in buckets]  # type: ignore[no-untyped-call]
            metric.add_metric(labels, buckets=names, sum_value=total)
        else:
            metric.add_metric(labels, sample)
    return metric  # type: ignore[no-any-return]
