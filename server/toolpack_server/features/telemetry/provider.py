"""Creation of OpenTelemetry's tracer provider, which creates and numbers spans, in workers and in executors."""

from importlib.metadata import version
from uuid import uuid4

from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from toolpack_server.base.after_fork import id_numbers

NAME = "toolpack-server"


class IndependentIds(IdGenerator):
    """Generates ids with the server's own generator.

    Python's global generator isn't used, because functions get their random numbers from it, and ids would change them.
    """

    def generate_span_id(self) -> int:
        return id_numbers.getrandbits(64) or 1  # 0 isn't a valid id

    def generate_trace_id(self) -> int:
        return id_numbers.getrandbits(128) or 1


def create_provider(
    resource: Resource, processor: SpanProcessor | None, sampler: Sampler | None = None
) -> TracerProvider:
    """Create a tracer provider. Make it the global provider, unless a toolpack has set a provider."""
    provider = TracerProvider(sampler, resource, id_generator=IndependentIds(), shutdown_on_exit=False)
    if processor is not None:
        provider.add_span_processor(processor)
    if isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):
        otel.set_tracer_provider(provider)
    return provider


def create_resource() -> Resource:
    """Create the description of this worker, which all its spans and metrics carry.

    Values in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
    """
    resource = Resource({"service.version": version(NAME), "service.instance.id": str(uuid4())})
    resource = resource.merge(Resource.create())
    # The SDK sets this name if neither variable contains a name.
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": NAME}))
    return resource
