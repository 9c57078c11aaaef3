"""Exporters and a span queue that never block a call.

A call only puts its spans into the queue; the SDK's threads send them. Spans that don't fit or can't be sent are
counted and logged, at most once a minute. Headers may contain a key, so they are sent to the configured address only.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from toolpack_server.base.after_fork import run_after_fork
from toolpack_server.base.logger import log
from toolpack_server.functions.leftovers import SERVER_THREADS

CLOSE_SECONDS = 2.0  # time limit for the receiver when the server stops
QUIET_SECONDS = 60.0  # minimum interval of log lines
MAX_QUEUE_SIZE = 2048  # spans, as in the specification
SERVER_THREADS |= {"OtelBatchSpanRecordProcessor", "OtelPeriodicExportingMetricReader"}
# The exporters log every attempt, some with the receiver's whole URL, which may hold a key.
for _name in ("exporter", "sdk._shared_internal", "sdk.metrics._internal.export", "sdk.trace.export"):
    logging.getLogger(f"opentelemetry.{_name}").setLevel(logging.CRITICAL + 1)


class LossLog:
    """Counts lost spans and logs the reasons."""

    def __init__(self) -> None:
        self.lost = 0
        self._logged_at = float("-inf")
        self._logged = 0

    def report(self, why: str) -> None:
        """Log a failure, at most once a minute."""
        if time.monotonic() - self._logged_at >= QUIET_SECONDS:
            self._write(why)

    def report_rest(self) -> None:
        """Log the spans that were lost since the last line."""
        if self.lost > self._logged:
            self._write("the server stops")

    def _write(self, why: str) -> None:
        self._logged_at, self._logged = time.monotonic(), self.lost
        log.warning("Telemetry can't be sent: %s; %d spans were lost so far.", why, self.lost)


class Collector(requests.Session):
    """HTTP session to the receiver, which follows no redirects.

    Attributes:
        outcome: How the last request ended, for the log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outcome = ""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        host = urlsplit(str(request.url)).hostname
        try:
            response = super().send(request, **{**options, "allow_redirects": False})
        except OSError as error:
            # The text of an error of `requests` has the whole URL.
            why = type(error).__name__ if isinstance(error, requests.RequestException) else error
            self.outcome = f"{host}: {why}"
            raise
        self.outcome = f"{host} answers with status {response.status_code}"
        if 300 <= response.status_code < 400:  # noqa: PLR2004 - the exporter would take it for a success
            raise requests.TooManyRedirects(self.outcome, response=response)
        return response


class SpanExporter(OTLPSpanExporter):
    """Exports spans, and counts those that are lost.

    Attributes:
        done: The number of spans that were sent or lost.
    """

    def __init__(self, losses: LossLog) -> None:
        self._losses, self._collector = losses, Collector()
        self.done = 0
        super().__init__(session=self._collector)
        run_after_fork(self.shutdown)  # a process that a function forks must not use the same connection

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._collector.outcome = "spans can't be encoded"
        result, lost = SpanExportResult.FAILURE, self._losses.lost
        try:
            result = super().export(spans)
        finally:
            self.done += len(spans)
            if result is SpanExportResult.FAILURE:
                self._losses.lost += len(spans)
                self._losses.report(self._collector.outcome)
            elif self._losses.lost > lost:
                self._losses.report("there are more spans than the receiver takes")
        return result


class MetricExporter(OTLPMetricExporter):
    """Exports metrics."""

    def __init__(self, losses: LossLog) -> None:
        self._losses, self._collector = losses, Collector()
        super().__init__(session=self._collector)
        run_after_fork(self.shutdown)  # else a process that a function forks would send the same numbers again

    def export(self, metrics_data: MetricsData, *more: Any, **options: Any) -> MetricExportResult:
        result = super().export(metrics_data, *more, **options)
        if result is MetricExportResult.FAILURE:
            self._losses.report(self._collector.outcome)
        return result


class SpanQueue(BatchSpanProcessor):
    """A queue of spans that counts those that don't fit."""

    def __init__(self, losses: LossLog) -> None:
        self._losses, self._exporter = losses, SpanExporter(losses)
        self._added = 0
        self._max_size = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or MAX_QUEUE_SIZE)
        super().__init__(self._exporter, self._max_size)

    def waiting(self) -> int:
        return self._added - self._exporter.done

    def on_end(self, span: ReadableSpan) -> None:
        if self.waiting() >= self._max_size:
            self._losses.lost += 1
        else:
            self._added += 1
            super().on_end(span)


def close_all(closing: Sequence[Callable[[], object]]) -> None:
    """Call blocking functions in threads, and wait for them for `CLOSE_SECONDS` at most."""
    deadline = time.monotonic() + CLOSE_SECONDS
    threads = [threading.Thread(target=close, name="telemetry", daemon=True) for close in closing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
