"""A receiver of OpenTelemetry data (OTLP over HTTP): a small server that decodes and stores the requests."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import serving
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received:
    """A received span, with its attributes as a dictionary."""

    def __init__(self, span: Any, scope: str, resource: dict[str, Any]) -> None:
        self.name, self.kind, self.state, self.scope, self.resource = (
            span.name,
            span.kind,
            span.trace_state,
            scope,
            resource,
        )
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.began, self.ended = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = plain(span.attributes)
        self.events = [(event.name, plain(event.attributes)) for event in span.events]
        self.failed = span.status.code == span.status.STATUS_CODE_ERROR


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Receiver:
    """The data that the server has received so far.

    Attributes:
        bodies: All request bodies.
        heard: An event that is set by each request.
        silent: Whether the server leaves requests without an answer.
        replies: The headers of each answer.
    """

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.metrics: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.heard, self.ends = threading.Event(), threading.Event()
        self.silent = False
        self.status = 200
        self.replies: dict[str, str] = {}
        self.port = 0

    def variables(self, **options: str) -> dict[str, str]:
        quick = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_METRIC_EXPORT_INTERVAL": "20"}
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}", **quick, **options}

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            for ours in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = plain(ours.resource.attributes)
                for scoped in ours.scope_spans:
                    self.spans += [Received(span, scoped.scope.name, resource) for span in scoped.spans]
        elif path == "/v1/metrics":
            for all_metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics = {each.name: each for scoped in all_metrics.scope_metrics for each in scoped.metrics}

    def wait_for(self, *names: str, trace: str = "") -> list[Received]:
        """Wait for spans of these names, in the given trace or in any, and return the first span of each name."""

        def spans_by_name() -> Any:
            by_name = {span.name: span for span in reversed([*self.spans]) if trace in {"", span.trace}}
            return [by_name[name] for name in names] if by_name.keys() >= {*names} else None

        return serving.wait_until(spans_by_name, f"spans {names}, but {[span.name for span in self.spans]}")


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.headers.append(dict(self.headers))
            receiver.heard.set()
            if receiver.silent:
                receiver.ends.wait(serving.PATIENCE)
                return
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if receiver.status == 200:
                receiver.take(self.path, body)
            self.send_response(receiver.status)
            for reply in receiver.replies.items():
                self.send_header(*reply)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            receiver.headers.append(dict(self.headers))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.ends.set()
        server.shutdown()
        server.server_close()
        thread.join(serving.PATIENCE)
