"""Spans that functions create in executors, the separate processes that run toolpack code.

An executor sends its spans to its worker as JSON, and the worker exports them, because an executor might have no
network access. The worker doesn't trust executors, so it checks each span. A valid span becomes part of the call's
trace; an invalid span is dropped.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from opentelemetry import context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toolpack_server.features.telemetry.provider import create_provider

MAX_SPANS = 256  # max spans of one call
MAX_TEXT = 4096  # max characters of a name, an id, a key or a value
SPAN_ID_BYTES = 8
UINT64, INT64 = range(2**64), range(-(2**63), 2**63)  # the integers that protobuf can encode


class SpanCollector(SpanProcessor):
    """Collects the spans of the current call."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if len(self.spans) < MAX_SPANS and span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)


def run_traced(trace: Mapping[str, Any], do: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Call `do` in an executor. Return its result, and the spans created during the call, as JSON.

    Args:
        trace: The trace context. Its `traceparent` names the parent of the spans.
    """
    collector = _collector()
    collector.spans = []
    token = context.attach(TraceContextTextMapPropagator().extract(trace, context.Context()))
    try:
        return do(), [_describe(span) for span in collector.spans]
    finally:
        context.detach(token)


@lru_cache(1)
def _collector() -> SpanCollector:
    """Return this executor's span collector. The first traced call creates it and its tracer provider."""
    collector = SpanCollector()
    create_provider(Resource.get_empty(), collector)
    return collector


def _describe(span: Any) -> dict[str, Any]:
    """Convert a span to a JSON object, which `_read_span` converts back."""
    return {
        "name": encodable(span.name),
        "scope": span.instrumentation_scope.name if span.instrumentation_scope else "",
        "span_id": f"{span.context.span_id:016x}",
        "parent_id": f"{span.parent.span_id:016x}" if span.parent else "",
        "kind": span.kind.value,
        "began": span.start_time,
        "ended": span.end_time,
        "attributes": _plain(span.attributes or {}),
        "events": [[event.name, event.timestamp, _plain(event.attributes or {})] for event in span.events],
        "status": span.status.status_code.value,
        "message": span.status.description or "",
    }


def read_spans(claims: Any, run: SpanContext, resource: Resource) -> Iterator[ReadableSpan]:
    """Yield the valid spans in an executor's JSON. They become spans of the trace of the span `run`."""
    for claim in claims[:MAX_SPANS] if isinstance(claims, list) else ():
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            yield _read_span(claim, run, resource)


def _read_span(claim: Mapping[str, Any], run: SpanContext, resource: Resource) -> ReadableSpan:
    """Convert an executor's JSON to a span. Invalid JSON raises one of the errors that `read_spans` suppresses."""
    return ReadableSpan(
        encodable(claim["name"]),
        _span_context(claim["span_id"], run),
        _span_context(claim["parent_id"], run),
        resource,
        _plain(claim["attributes"]),
        [Event(encodable(name), _plain(attributes), _time(at)) for name, at, attributes in claim["events"]],
        kind=SpanKind(claim["kind"]),
        instrumentation_scope=InstrumentationScope(encodable(claim["scope"])),
        status=_status(StatusCode(claim["status"]), claim["message"]),
        start_time=_time(claim["began"]),
        end_time=_time(claim["ended"]),
    )


def _span_context(span_id: str, run: SpanContext) -> SpanContext:
    """Return the context of a span in the trace of `run`. Raise `ValueError` if the id is invalid."""
    encoded = bytes.fromhex(span_id)
    if len(encoded) != SPAN_ID_BYTES:
        raise ValueError("not the id of a span")
    number = int.from_bytes(encoded)
    return SpanContext(run.trace_id, number, is_remote=False, trace_flags=run.trace_flags, trace_state=run.trace_state)


def _status(code: StatusCode, message: Any) -> Status:
    return Status(code, encodable(message)) if code is StatusCode.ERROR and message else Status(code)


def _time(nanoseconds: Any) -> int:
    if type(nanoseconds) is not int or nanoseconds not in UINT64:
        raise ValueError("not a time")
    return nanoseconds


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span's attributes. Numbers stay; any other value is converted to a string and cut."""
    items: Iterable[tuple[Any, Any]] = attributes.items()
    return {encodable(key): value if _is_number(value) else encodable(value) for key, value in items}


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | float) or (type(value) is int and value in INT64)


def encodable(value: Any, max_length: int = MAX_TEXT) -> str:
    """Convert a value to a string, cut to `max_length`. Lone surrogates, which protobuf can't encode, are replaced."""
    return str(value)[:max_length].encode("utf-8", "replace").decode()
