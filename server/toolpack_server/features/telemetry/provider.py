"""The SDK's provider, for the spans that toolpacks make themselves, and its samplers.

A provider that somebody else has set stays. Ids are never drawn from the generator that functions use: a
seeded session would differ when it is traced.
"""

import os
import random
from collections.abc import Callable
from importlib.metadata import version
from uuid import uuid4

from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision

from toolpack_server.features.telemetry.spans import TRACE_BYTES
from toolpack_server.observability.trace_context import TraceContext

NAME = "toolpack-server"
_KEEPS_ALL = {"", "parentbased_always_on"}


class Ids(IdGenerator):
    def __init__(self, source: random.Random) -> None:
        self._source = source

    def generate_span_id(self) -> int:
        return self._source.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return self._source.getrandbits(128) or 1


class EndedSpans(SpanProcessor):
    """Hands over each sampled span that has ended."""

    def __init__(self, ended: Callable[[ReadableSpan], None]) -> None:
        self._ended = ended

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._ended(span)


def make_provider(
    source: random.Random, ended: Callable[[ReadableSpan], None], resource: Resource | None = None
) -> TracerProvider:
    """Make the provider of this process, which hands over each span that has ended."""
    provider = TracerProvider(resource=resource or Resource.get_empty(), id_generator=Ids(source))
    provider.add_span_processor(EndedSpans(ended))
    if isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):
        otel.set_tracer_provider(provider)
    return provider


def make_resource() -> Resource:
    """Make what says which server it is, as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES want it."""
    found = Resource.create()
    named = not str(found.attributes.get("service.name", "unknown_service")).startswith("unknown_service")
    ours = {} if named else {"service.name": NAME}
    return (
        Resource({"service.version": version(NAME), "service.instance.id": str(uuid4())})
        .merge(found)
        .merge(Resource(ours))
    )


class Sampling:
    """Which calls are sampled, as OTEL_TRACES_SAMPLER says."""

    def __init__(self, provider: TracerProvider) -> None:
        self._sampler = provider.sampler
        self._keeps_all = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() in _KEEPS_ALL

    def takes(self, parent: TraceContext | None, ids: bytes) -> bool:
        """Whether a call is sampled; of its ids, that of a new trace comes first."""
        if self._keeps_all:
            return parent is None or parent.sampled
        above = None
        if parent is not None:
            flags = otel.TraceFlags(parent.sampled)
            context = otel.SpanContext(
                int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags
            )
            above = otel.set_span_in_context(otel.NonRecordingSpan(context))
        trace_id = int.from_bytes(ids[:TRACE_BYTES]) if parent is None else int(parent.trace_id, 16)
        found = self._sampler.should_sample(above, trace_id, "", otel.SpanKind.SERVER)
        return found.decision is Decision.RECORD_AND_SAMPLE
