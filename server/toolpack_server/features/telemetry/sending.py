"""Exporters and a span queue that never block a call.

A call only puts its spans into the queue, and threads of OpenTelemetry's SDK send them. Spans that don't fit into the
queue or can't be sent are counted as lost, and logged at most once a minute. Redirects aren't followed, because request
headers might contain a key that only the configured address is allowed to get.
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

CLOSE_SECONDS = 2.0  # time limit for sending the remaining spans and metrics when the server stops
QUIET_SECONDS = 60.0  # min interval between log lines about lost spans
MAX_QUEUE_SIZE = 2048  # max spans in the queue; the default in OpenTelemetry's specification
# A function isn't blamed for these threads, which the SDK starts.
SERVER_THREADS |= {"OtelBatchSpanRecordProcessor", "OtelPeriodicExportingMetricReader"}
# Silence the exporters' own loggers, because they log every attempt, some with the receiver's URL, which might contain
# a key.
for _name in ("exporter", "sdk._shared_internal", "sdk.metrics._internal.export", "sdk.trace.export"):
    logging.getLogger(f"opentelemetry.{_name}").setLevel(logging.CRITICAL + 1)


class LossLog:
    """Counts lost spans, and logs why they were lost."""

    def __init__(self) -> None:
        self.lost = 0
        self._logged_at = float("-inf")
        self._logged = 0

    def report(self, reason: str) -> None:
        """Log why spans are lost, at most once a minute."""
        if time.monotonic() - self._logged_at >= QUIET_SECONDS:
            self._write(reason)

    def report_rest(self) -> None:
        """Log, when the server stops, the spans that were lost since the last log line."""
        if self.lost > self._logged:
            self._write("the server stops")

    def _write(self, reason: str) -> None:
        self._logged_at, self._logged = time.monotonic(), self.lost
        log.warning("Telemetry can't be sent: %s; %d spans were lost so far.", reason, self.lost)


class Collector(requests.Session):
    """HTTP session for requests to the receiver of telemetry. It doesn't follow redirects.

    Attributes:
        outcome: Description of the last request's outcome, for the log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outcome = ""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request, and set `outcome`.

        Raises:
            OSError: The receiver can't be reached, or its response is a redirect.
        """
        host = urlsplit(str(request.url)).hostname
        try:
            response = super().send(request, **{**options, "allow_redirects": False})
        except OSError as error:
            # Log only the class of an error of `requests`, because its text contains the whole URL.
            reason = type(error).__name__ if isinstance(error, requests.RequestException) else error
            self.outcome = f"{host}: {reason}"
            raise
        self.outcome = f"{host} answers with status {response.status_code}"
        if 300 <= response.status_code < 400:  # noqa: PLR2004 - the exporter would treat a redirect as a success
            raise requests.TooManyRedirects(self.outcome, response=response)
        return response


class SpanExporter(OTLPSpanExporter):
    """Exports spans, and counts lost spans.

    Attributes:
        done: Number of spans that were sent or lost. `SpanQueue` computes from it how many spans still wait.
    """

    def __init__(self, losses: LossLog) -> None:
        self._losses, self._collector = losses, Collector()
        self.done = 0
        super().__init__(session=self._collector)
        run_after_fork(self.shutdown)  # a process that a function forks must not use this connection

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. If that fails, or if the queue was full since the last time, log that spans were lost.

        A thread of the SDK calls this, and exceptions pass through to it.
        """
        self._collector.outcome = "spans can't be encoded"
        result, lost = SpanExportResult.FAILURE, self._losses.lost  # FAILURE stays the result if `export` raises
        try:
            result = super().export(spans)
        finally:
            self.done += len(spans)
            if result is SpanExportResult.FAILURE:
                self._losses.lost += len(spans)
                self._losses.report(self._collector.outcome)
            elif self._losses.lost > lost:
                self._losses.report("the queue is full because the receiver is too slow")
        return result


class MetricExporter(OTLPMetricExporter):
    """Exports metrics, and logs when they can't be sent."""

    def __init__(self, losses: LossLog) -> None:
        self._losses, self._collector = losses, Collector()
        super().__init__(session=self._collector)
        run_after_fork(self.shutdown)  # otherwise a process that a function forks would send the same numbers again

    def export(self, metrics_data: MetricsData, *more: Any, **options: Any) -> MetricExportResult:
        result = super().export(metrics_data, *more, **options)
        if result is MetricExportResult.FAILURE:
            self._losses.report(self._collector.outcome)
        return result


class SpanQueue(BatchSpanProcessor):
    """A queue of spans that counts the spans that don't fit."""

    def __init__(self, losses: LossLog) -> None:
        self._losses, self._exporter = losses, SpanExporter(losses)
        self._added = 0
        self._max_size = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or MAX_QUEUE_SIZE)
        super().__init__(self._exporter, self._max_size)

    def waiting(self) -> int:
        """Return the number of queued spans that were neither sent nor lost yet."""
        return self._added - self._exporter.done

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or count it as lost if the queue is full."""
        if self.waiting() >= self._max_size:
            self._losses.lost += 1
        else:
            self._added += 1
            super().on_end(span)


def close_all(closing: Sequence[Callable[[], object]]) -> None:
    """Call blocking functions in parallel threads. Return when all functions are done, or after `CLOSE_SECONDS`."""
    deadline = time.monotonic() + CLOSE_SECONDS
    threads = [threading.Thread(target=close, name="telemetry", daemon=True) for close in closing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
