"""In an executor: the spans that a function makes hang below its call, and are told to the worker.

An executor sends nothing itself, as it may have no network; nor does it import the SDK, unless a toolpack has
imported OpenTelemetry's API.
"""

import random
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

MOST = 256  # spans of one function
MAX_TEXT = 4096  # characters of an attribute


def traced(trace: Mapping[str, Any], do: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Do something below the given span; get what comes of it, and the spans that it has made."""
    if "opentelemetry" not in sys.modules:
        return do(), []
    from opentelemetry import context  # noqa: PLC0415 - see the module's rule
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

    collected = _collected()
    collected.clear()
    above = tracecontext.TraceContextTextMapPropagator().extract(trace, context.Context())
    token = context.attach(above)
    try:
        return do(), [_told(span) for span in collected[:MOST]]
    finally:
        context.detach(token)


@lru_cache(1)
def _collected() -> list[Any]:
    """Get the list to which each span is added that has ended in this process."""
    from toolpack_server.features.telemetry.provider import make_provider  # noqa: PLC0415 - as above

    found: list[Any] = []
    make_provider(random.Random(), lambda span: found.append(span) if len(found) < MOST else None)  # noqa: S311
    return found


def _told(span: Any) -> dict[str, Any]:
    return {
        "name": span.name[:MAX_TEXT],
        "scope": span.instrumentation_scope.name if span.instrumentation_scope else "",
        "span_id": f"{span.context.span_id:016x}",
        "parent_id": f"{span.parent.span_id:016x}" if span.parent else "",
        "kind": span.kind.value + 1,  # OTLP counts from 1
        "began": span.start_time,
        "ended": span.end_time,
        "attributes": _plain(span.attributes),
        "events": [[event.name, event.timestamp, _plain(event.attributes)] for event in span.events],
        "status": span.status.status_code.value,
        "message": span.status.description or "",
    }


def _plain(attributes: Any) -> dict[str, Any]:
    return {
        key: value if isinstance(value, bool | int | float) else str(value)[:MAX_TEXT]
        for key, value in (attributes or {}).items()
    }
