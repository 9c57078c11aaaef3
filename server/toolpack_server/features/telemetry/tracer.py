"""Tracer that creates OpenTelemetry spans for calls and evaluations, and records the durations of calls as metrics."""

import os
import time
from collections.abc import Container, Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toolpack_server.base.errors import RequestError
from toolpack_server.features.telemetry.environment import METRICS, TRACES, captures_content
from toolpack_server.features.telemetry.executor_spans import encodable, read_spans
from toolpack_server.features.telemetry.provider import NAME, create_provider, create_resource
from toolpack_server.features.telemetry.sending import LossLog, MetricExporter, SpanQueue, close_all
from toolpack_server.observability.request_ids import request_id
from toolpack_server.observability.trace_context import trace_context
from toolpack_server.observability.tracing import CallTrace, RequestOrigin, request_origin
from toolpack_server.rpc.codes import ERROR_INTERNAL_ERROR, describe
from toolpack_server.sessions.call_observer import OK, REFUSED

EXECUTOR = "toolpack_server.features.telemetry.executor_spans:run_traced"
MAX_CONTENT = 16_384  # max characters of the arguments or the result in a span
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)  # bucket bounds from the conventions for MCP
_NO_ORIGIN = RequestOrigin("", "run_function", None)
_propagator = TraceContextTextMapPropagator()


class CallSpans(CallTrace):
    """The spans of one call.

    Attributes:
        span: The span of the call.
        child_context: The context for child spans of `span`.
        run: The span of the function's run. None: the call is still in the queue.
        began: The time when the call arrived, in nanoseconds since the epoch.
        labels: The attributes of the call's metrics.
        claims: The spans that the function created in an executor, as JSON. They aren't checked yet.
    """

    __slots__ = ("_tracer", "began", "child_context", "claims", "labels", "origin", "run", "span")

    def __init__(
        self, tracer: "CallTracer", span: Span, origin: RequestOrigin, labels: dict[str, str], began: int
    ) -> None:
        super().__init__()
        self._tracer = tracer
        self.span, self.child_context = span, set_span_in_context(span, Context())
        self.origin, self.labels, self.began = origin, labels, began
        self.run: Span | None = None
        self.claims: Any = None

    def runs(self) -> None:
        super().runs()
        self._tracer.start_run(self)

    def take(self, data: Any) -> None:
        """Store the data that the executor returned with the call's result."""
        self.claims = data


class CallTracer:
    """Traces and measures calls.

    Args:
        functions: The names of all functions. Other names aren't recorded, because agents can invent any name.
        signals: The signals to export: `TRACES`, `METRICS` or both.
        in_processes: Whether functions run in executors.
        for_toolpacks: Whether toolpacks might create spans. Their spans become children of the spans of their calls.
    """

    def __init__(
        self, functions: Container[str], signals: Container[str], *, in_processes: bool, for_toolpacks: bool
    ) -> None:
        self._functions = functions
        self._in_processes, self._for_toolpacks = in_processes, for_toolpacks
        self._captures_content = captures_content(os.environ)
        self._losses = LossLog()
        self._resource = create_resource()
        self._queue = SpanQueue(self._losses) if TRACES in signals else None
        self.provider = create_provider(self._resource, self._queue, None if self._queue else ALWAYS_OFF)
        readers = [PeriodicExportingMetricReader(MetricExporter(self._losses))] if METRICS in signals else []
        self._metrics = MeterProvider(readers, self._resource, shutdown_on_exit=False)
        self._tracer: Tracer = self.provider.get_tracer(NAME, version(NAME))
        histogram = self._metrics.get_meter(NAME, version(NAME)).create_histogram
        self._tool_seconds, self._mcp_seconds = (
            histogram(name, "s", text, explicit_bucket_boundaries_advisory=BOUNDS)
            for name, text in (
                ("gen_ai.execute_tool.duration", "Duration of a call, by function."),
                ("mcp.server.operation.duration", "Duration of an MCP request."),
            )
        )

    def close(self) -> None:
        """Send the remaining spans and metrics, and wait for this at most `CLOSE_SECONDS`."""
        close_all([self.provider.shutdown, self._metrics.shutdown])
        if self._queue is not None:
            self._losses.lost += self._queue.waiting()
        self._losses.report_rest()

    def begin(self, session_id: str, function: str, arguments: bytes) -> CallTrace:
        """Start the span of a call that has arrived. Return its trace, which the server passes to `end`."""
        labels = {"gen_ai.operation.name": "execute_tool"}
        if function in self._functions:
            labels["gen_ai.tool.name"] = function
        origin, began = request_origin.get() or _NO_ORIGIN, time.time_ns()
        more = {"gen_ai.tool.call.arguments": _cut(arguments)} if self._captures_content else {}
        span = self._start(origin, session_id, labels.get("gen_ai.tool.name"), began, {**labels, **more})
        return CallSpans(self, span, origin, labels, began)

    def _start(
        self,
        origin: RequestOrigin,
        session_id: str,
        name: str | None,
        began: int,
        more: Mapping[str, str] | None = None,
    ) -> Span:
        """Start the span of a call or an evaluation. If the request named the client's span, it becomes the parent."""
        attributes = {
            **_method(origin),
            "network.transport": "tcp" if request_id.get() else "pipe",  # only HTTP requests have a request id
            "mcp.session.id": session_id,
            **(more or {}),
        }
        if origin.id is not None:
            attributes["jsonrpc.request.id"] = encodable(origin.id)
        parent = trace_context.get()
        parent_context = Context() if parent is None else _propagator.extract(parent.members(), Context())
        span_name = f"{origin.method} {name}" if name else origin.method
        return self._tracer.start_span(span_name, parent_context, SpanKind.SERVER, attributes, start_time=began)

    def start_run(self, trace: CallSpans) -> None:
        """Start the span of a function's run, and make it the parent of the function's own spans."""
        trace.run = self._tracer.start_span("run", trace.child_context, start_time=trace.run_began)
        if not self._for_toolpacks:
            return
        run_context = set_span_in_context(trace.run, Context())
        if self._in_processes:
            trace.process_data = process_data = {"by": EXECUTOR}
            _propagator.inject(process_data, run_context)
        else:
            attach(run_context)  # needs no detach, because the context exists only during the call

    def end(self, trace: CallTrace, outcome: str, result: bytes | str | None, refusal: BaseException | None) -> None:
        """End the span of a call, and record the call's duration.

        The child spans "queue" and "commit" are created only now, from the times in `trace`.

        Args:
            outcome: `OK`, or the reason for the failure.
            result: The result as JSON, or the error message. None if the call has neither.
            refusal: Why the server refused the call, or None.
        """
        if not isinstance(trace, CallSpans):
            return
        ended, span = time.time_ns(), trace.span
        failure = _failure(trace.origin, outcome, refusal)
        labels = {**trace.labels, "error.type": failure["error.type"]} if failure else trace.labels
        seconds = (ended - trace.began) / 1e9
        self._tool_seconds.record(seconds, labels)
        if trace.origin.protocol == "mcp":
            self._mcp_seconds.record(seconds, {**_method(trace.origin), **labels})
        if not span.is_recording():
            return
        if self._captures_content and result is not None:
            span.set_attribute("gen_ai.tool.call.result", _cut(result))
        if trace.run is not None:
            self._tracer.start_span("queue", trace.child_context, start_time=trace.began).end(trace.run_began)
            trace.run.end(trace.run_ended or ended)
            if trace.commit_began:
                self._tracer.start_span("commit", trace.child_context, start_time=trace.commit_began).end(
                    trace.commit_ended
                )
            if trace.claims is not None and self._queue is not None:
                for each in read_spans(trace.claims, trace.run.get_span_context(), self._resource):
                    self._queue.on_end(each)
        _end(span, failure, ended)

    def evaluated(
        self, session_id: str, task: str, began: int, verdict: Mapping[str, Any] | None, refusal: Exception | None
    ) -> None:
        """Create the span of an evaluation that has ended, with the verdict as an event.

        Args:
            began: The time when the evaluation began, in nanoseconds since the epoch.
            verdict: The verdict, or None if the evaluation was refused.
        """
        origin = request_origin.get() or _NO_ORIGIN
        span = self._start(origin, session_id, task, began)
        if verdict is not None:
            attributes = {
                "gen_ai.evaluation.name": task,
                "gen_ai.evaluation.score.value": verdict["reward"],
                "gen_ai.evaluation.score.label": ("pass" if verdict["passed"] else "fail")
                if verdict["valid"]
                else "invalid",
            }
            span.add_event("gen_ai.evaluation.result", attributes)
        _end(span, _failure(origin, OK if refusal is None else REFUSED, refusal), time.time_ns())


def _end(span: Span, failure: Mapping[str, str], ended: int) -> None:
    if failure:
        span.set_attributes(failure)
        span.set_status(StatusCode.ERROR)
    span.end(ended)


def _method(origin: RequestOrigin) -> dict[str, str]:
    """Return the span attributes of the client's protocol and method."""
    if origin.protocol != "mcp":
        return {"rpc.system.name": "jsonrpc", "rpc.method": origin.method}
    attributes = {"mcp.method.name": origin.method}
    if origin.version:
        attributes["mcp.protocol.version"] = origin.version
    return attributes


def _failure(origin: RequestOrigin, outcome: str, refusal: BaseException | None) -> dict[str, str]:
    """Return the span attributes of a failure. The result is empty if the call succeeded."""
    if refusal is not None:
        code = str(describe(refusal)[0] if isinstance(refusal, RequestError) else ERROR_INTERNAL_ERROR)
        return {"error.type": code, "rpc.response.status_code": code, "toolpack.outcome": outcome}
    if outcome == OK:
        return {}
    # For MCP, OpenTelemetry's conventions demand `tool_error` if the tool failed but the request didn't.
    return {"error.type": "tool_error" if origin.protocol == "mcp" else outcome, "toolpack.outcome": outcome}


def _cut(content: bytes | str) -> str:
    """Convert arguments or a result to a string, cut to `MAX_CONTENT`."""
    text = content if isinstance(content, str) else content[:MAX_CONTENT].decode(errors="ignore")
    return encodable(text, MAX_CONTENT)
