"""Metrics of executors."""

from toolpack_server.observability.metrics import MetricFamily

EXECUTORS = MetricFamily("executors", "Processes for toolpacks' code.", label="state", values=("busy", "idle"))
STARTED = MetricFamily("executors_started", "Processes that were started.", counts=True)
ENDED = MetricFamily(
    "executors_ended",
    "Processes that have ended.",
    counts=True,
    label="why",
    values=("deadline", "crashed", "retired", "idle"),
)
METRICS = (EXECUTORS, STARTED, ENDED)
