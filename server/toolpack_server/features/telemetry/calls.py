"""Spans of calls and of evaluations.

On the way of a call a few values are noted, and when it is answered they become bytes at once: so no work is
piled up that would keep others from the interpreter, and what waits to be sent is small. Nothing waits for anybody.
"""

import random
import time
from collections.abc import Container, Mapping
from contextvars import Context
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.trace.span import TraceState

from toolpack_server.base.errors import RequestError
from toolpack_server.features.telemetry.call_spans import encode_call, encode_evaluation
from toolpack_server.features.telemetry.encoding import (
    Alike,
    Batches,
    cut,
    found_spans,
)
from toolpack_server.features.telemetry.environment import Destination, captures_content
from toolpack_server.features.telemetry.measuring import Durations, encode_metrics
from toolpack_server.features.telemetry.provider import Sampling, make_provider, make_resource
from toolpack_server.features.telemetry.sending import Sender
from toolpack_server.features.telemetry.spans import IDS_BYTES, SpanOfCall
from toolpack_server.observability.request_ids import request_id
from toolpack_server.observability.trace_context import TraceContext, trace_context
from toolpack_server.observability.tracing import AskedBy, CallTrace, asked_by
from toolpack_server.rpc.codes import ERROR_INTERNAL_ERROR, describe

EXECUTOR = "toolpack_server.features.telemetry.executor:traced"
OK, REFUSED = "ok", "refused"
_NOBODY = AskedBy("", "run_function", None)


class CallTracer:
    """Traces calls, and measures them.

    Args:
        functions: The names of all functions; a call of any other is one without a name.
        in_processes: Functions run in executors.
        for_toolpacks: Toolpacks make spans themselves, which are to hang below those of their calls.
    """

    def __init__(
        self, functions: Container[str], targets: dict[str, Destination], *, in_processes: bool, for_toolpacks: bool
    ) -> None:
        self._functions = functions
        self._in_processes = in_processes
        self._for_toolpacks = for_toolpacks
        self._captures = captures_content()
        self._random = random.Random()  # noqa: S311 - ids needn't be secret, but must not be those of a seeded function
        self._durations: dict[Alike, Durations] = {}
        self._batches = batches = Batches(make_resource())
        self._since = time.time_ns()
        self._sender = Sender(targets, batches.encode, self._encode_metrics)
        self._sampling = Sampling(make_provider(self._random, self._sender.put, batches.of))

    def close(self) -> None:
        self._sender.close()

    def _encode_metrics(self) -> bytes:
        return encode_metrics(self._batches, [*self._durations.items()], self._since, time.time_ns())

    def begin(self, session_id: str, function: str, arguments: bytes) -> CallTrace:
        span = self._begin(session_id, function if function in self._functions else None, time.time_ns())
        if self._captures:
            span.sent = cut(arguments)
        if self._for_toolpacks:
            self._put_above(span)
        return span

    def _begin(self, session_id: str, function: str | None, began: int) -> SpanOfCall:
        parent, ids = trace_context.get(), self._random.randbytes(IDS_BYTES)
        asked = asked_by.get() or _NOBODY
        return SpanOfCall(ids, parent, asked, session_id, function, began, sampled=self._sampling.takes(parent, ids))

    def _put_above(self, span: SpanOfCall) -> None:
        """Let the spans that a function makes hang below that of its run."""
        state = span.parent.state if span.parent else ""
        if self._in_processes:
            above = TraceContext(span.trace_id.hex(), span.run_id.hex(), span.sampled, state)
            span.told = {"by": EXECUTOR, **above.members()}
            span.run_in(Context())
            return
        known = otel.SpanContext(
            int.from_bytes(span.trace_id),
            int.from_bytes(span.run_id),
            is_remote=False,
            trace_flags=otel.TraceFlags(span.sampled),
            trace_state=TraceState.from_header([state]) if state else None,
        )
        within = otel.set_span_in_context(otel.NonRecordingSpan(known), otel_context.Context())
        span.run_in(Context()).run(otel_context.attach, within)

    def end(self, trace: CallTrace, outcome: str, result: bytes | str | None, refusal: BaseException | None) -> None:
        if not isinstance(trace, SpanOfCall):
            return
        ended = time.time_ns()
        durations = self._alike(trace, outcome, refusal, is_call=True)
        durations.add(ended - trace.began)
        if trace.sampled:
            if trace.sent is not None:
                trace.result = cut(result)
            trace.alike, trace.ended = durations.alike, ended
            self._sender.put(encode_call(trace))
            if trace.found is not None:
                for found in found_spans(trace):
                    self._sender.put(found)
        elif self._sender.measures:
            self._sender.start()

    def evaluated(
        self, session_id: str, task: str, began: int, verdict: Mapping[str, Any] | None, refusal: Exception | None
    ) -> None:
        span = self._begin(session_id, task, began)
        durations = self._alike(span, OK if refusal is None else REFUSED, refusal, is_call=False)
        if span.sampled:
            span.alike, span.ended = durations.alike, time.time_ns()
            self._sender.put(encode_evaluation(span, verdict))

    def _alike(self, span: SpanOfCall, outcome: str, refusal: BaseException | None, *, is_call: bool) -> Durations:
        code = None
        if refusal is not None:
            code = describe(refusal)[0] if isinstance(refusal, RequestError) else ERROR_INTERNAL_ERROR
        protocol, method, _, version = span.asked
        transport = "tcp" if request_id.get() else "pipe"
        key = Alike(protocol, method, version, span.function, transport, outcome, code, is_call)
        found = self._durations.get(key)
        if found is None:
            found = self._durations[key] = Durations(key)
        return found
