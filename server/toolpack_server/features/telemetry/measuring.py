"""How long calls have taken, as the standard's metrics.

Labels are registered functions and fixed words, so their number has a limit.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    ResourceMetrics,
    ScopeMetrics,
)

from toolpack_server.features.telemetry.encoding import Alike, Batches, key_values

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)  # seconds, as the conventions for MCP want


class Durations:
    """How long calls that are alike have taken."""

    __slots__ = ("alike", "counts", "seconds")

    def __init__(self, alike: Alike) -> None:
        self.alike = alike
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, nanoseconds: int) -> None:
        seconds = nanoseconds / 1e9
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


def encode_metrics(batches: Batches, found: Iterable[tuple[Alike, Durations]], since: int, now: int) -> bytes:
    """Encode all that was measured between two times, in nanoseconds since the epoch."""
    tools = Metric(name="gen_ai.execute_tool.duration", unit="s", description="Time of a call, by its function.")
    mcp = Metric(name="mcp.server.operation.duration", unit="s", description="Time of a request of MCP.")
    for alike, durations in found:
        if not alike.is_call:
            continue
        common = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": alike.function,
            "error.type": alike.error,
        }
        tools.histogram.data_points.append(_point(durations, since, now, common))
        if alike.protocol == "mcp":
            mcp.histogram.data_points.append(_point(durations, since, now, {**alike.names(), **common}))
    metrics = [metric for metric in (tools, mcp) if metric.histogram.data_points]
    for metric in metrics:
        metric.histogram.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    scoped = ScopeMetrics(scope=batches.scope, metrics=metrics)
    ours = ResourceMetrics(resource=batches.resource, scope_metrics=[scoped])
    encoded: bytes = ExportMetricsServiceRequest(resource_metrics=[ours]).SerializeToString()
    return encoded


def _point(durations: Durations, since: int, now: int, attributes: Mapping[str, Any]) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=key_values(attributes),
        start_time_unix_nano=since,
        time_unix_nano=now,
        count=sum(durations.counts),
        sum=durations.seconds,
        bucket_counts=durations.counts,
        explicit_bounds=BOUNDS,
    )
