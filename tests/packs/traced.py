"""A toolpack that makes spans of its own."""

import asyncio

from opentelemetry import trace

from server import TaskEnvironment, Toolpack


class TracedEnvironment(TaskEnvironment):
    seen: int = 0


toolpack = Toolpack("traced", TracedEnvironment)
tracer = trace.get_tracer("a toolpack")


@toolpack.function(read_only=True)
def look() -> str:
    """Look, in two spans."""
    with tracer.start_as_current_span("outer", attributes={"depth": 1}) as outer, tracer.start_as_current_span("inner"):
        outer.add_event("looked")
        return f"{outer.get_span_context().trace_id:032x}"


@toolpack.function(read_only=True)
async def wait() -> str:
    """Look, and wait."""
    with tracer.start_as_current_span("waiting") as span:
        await asyncio.sleep(0)
        return f"{span.get_span_context().trace_id:032x}"
