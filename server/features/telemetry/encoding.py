"""Spans as OTLP, by the semantic conventions for MCP and for generative AI.

The rule: what is the same in many spans is encoded once. What an executor has told of its function's spans is nothing
but a claim: it gets into the trace of that call, in its form and size, or nowhere.
"""

import contextlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope as Scope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as EncodedResource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from opentelemetry.sdk.resources import Resource

from server.features.telemetry.provider import NAME
from server.features.telemetry.spans import SPAN_BYTES, SpanOfCall
from server.features.telemetry.wire import (
    SAMPLED,
    ChildSpan,
    member,
    read_ids,
    server_span,
    session_attribute,
    text_attribute,
)

MAX_FOUND = 256  # spans of one function in an executor
MAX_TEXT = 4096  # characters of what an executor says
MAX_CONTENT = 16_384  # bytes of arguments, and of a result
KINDS = 5
_QUEUE, _RUN, _COMMIT = map(ChildSpan, ("queue", "run", "commit"))
_SCOPE_SPANS, _RESOURCE_SPANS = 0x12, 0x0A  # keys of members: of `ResourceSpans`, and of the request


def key_value(key: str, value: Any) -> KeyValue:
    if isinstance(value, bool):
        made = AnyValue(bool_value=value)
    elif isinstance(value, int):
        made = AnyValue(int_value=value)
    elif isinstance(value, float):
        made = AnyValue(double_value=value)
    else:
        made = AnyValue(string_value=str(value))
    return KeyValue(key=key, value=made)


def key_values(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Encode attributes; those that are None are omitted."""
    return [key_value(key, value) for key, value in attributes.items() if value is not None]


class Alike(NamedTuple):
    """What calls and evaluations have in common that are alike; its attributes are the same for all of them.

    Attributes:
        protocol: As in `AskedBy`; so are `method` and `version`.
        function: The function; None if there is no such function. Of an evaluation the task.
        transport: By which they came: `tcp`, or `pipe` for standard input.
        outcome: `ok`, or why they have failed.
        code: The code of the JSON-RPC error that they were answered with; None if it was none.
        is_call: They are calls.
    """

    protocol: str
    method: str
    version: str
    function: str | None
    transport: str
    outcome: str
    code: int | None
    is_call: bool

    @property
    def error(self) -> str | None:
        """What `error.type` says; None if they have succeeded."""
        if self.code is not None:
            return str(self.code)
        if self.outcome == "ok":
            return None
        # A failed tool is no failed request of MCP, whose conventions have a word for it.
        return "tool_error" if self.protocol == "mcp" else self.outcome

    def names(self) -> dict[str, str | None]:
        """Get the attributes of their method."""
        if self.protocol == "mcp":
            return {"mcp.method.name": self.method, "mcp.protocol.version": self.version or None}
        return {"rpc.system.name": "jsonrpc", "rpc.method": self.method}

    def encode(self) -> bytes:
        """Encode what all their spans have."""
        attributes: dict[str, Any] = {**self.names(), "network.transport": self.transport, "error.type": self.error}
        if self.is_call:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": self.function}
        if self.error is not None:
            code = None if self.code is None else str(self.code)
            attributes |= {"rpc.response.status_code": code, "toolpack.outcome": self.outcome}
        span = Span(
            name=f"{self.method} {self.function}" if self.function else self.method,
            kind=Span.SPAN_KIND_SERVER,
            attributes=key_values(attributes),
            status=None if self.error is None else Status(code=Status.STATUS_CODE_ERROR),
            flags=SAMPLED,
        )
        encoded: bytes = span.SerializeToString()
        return encoded


def encode_call(call: SpanOfCall) -> bytes:
    """Encode the spans of a call that has ended."""
    trace_id, span_id, run_id, queue_id, commit_id = read_ids(call.ids)
    content = b""
    if call.sent is not None:
        content = text_attribute(b"gen_ai.tool.call.arguments", call.sent)
        if call.result is not None:
            content += text_attribute(b"gen_ai.tool.call.result", call.result)
    spans = [_encode_own(call, trace_id, span_id, call.rest + content)]
    began = call.run_began
    if began:
        spans.append(_QUEUE.encode(trace_id, queue_id, span_id, call.began, began))
        spans.append(_RUN.encode(trace_id, run_id, span_id, began, call.run_ended or call.ended))
        if call.commit_began:
            spans.append(_COMMIT.encode(trace_id, commit_id, span_id, call.commit_began, call.commit_ended))
    return b"".join(spans)


def encode_evaluation(span: SpanOfCall, verdict: Mapping[str, Any] | None) -> bytes:
    """Encode the span of an evaluation, with an event for its verdict."""
    trace_id, span_id, *_ = read_ids(span.ids)
    rest = span.rest
    if verdict is not None:
        label = ("pass" if verdict["passed"] else "fail") if verdict["valid"] else "invalid"
        told = {
            "gen_ai.evaluation.name": span.function,
            "gen_ai.evaluation.score.value": verdict["reward"],
            "gen_ai.evaluation.score.label": label,
        }
        event = Span.Event(name="gen_ai.evaluation.result", time_unix_nano=span.ended, attributes=key_values(told))
        rest += Span(events=[event]).SerializeToString()
    return _encode_own(span, trace_id, span_id, rest)


def _encode_own(span: SpanOfCall, trace_id: bytes, span_id: bytes, rest: bytes) -> bytes:
    more, asked, parent = session_attribute(span.session_id), span.asked.id, span.parent
    if asked is not None:
        more += text_attribute(b"jsonrpc.request.id", str(asked)[:MAX_TEXT].encode("utf-8", "replace"))
    above, state = (bytes.fromhex(parent.span_id), parent.state) if parent is not None else (None, "")
    return server_span(trace_id, span_id, above, state, span.began, span.ended, rest + more)


def cut(content: bytes | str | None) -> bytes | None:
    """Get what is exported of arguments or a result, as valid UTF-8."""
    if content is None:
        return None
    text = content if isinstance(content, str) else content[:MAX_CONTENT].decode(errors="ignore")
    return text[:MAX_CONTENT].encode("utf-8", "replace")


class Batches:
    """Requests of OTLP.

    Attributes:
        of: What the server is.
        resource: The same, encoded.
        scope: In which it makes spans and metrics.
    """

    def __init__(self, resource: Resource) -> None:
        self.of = resource
        self.resource = EncodedResource(attributes=key_values(resource.attributes))
        self.scope = Scope(name=NAME, version=version(NAME))
        self._before_scopes: bytes = ResourceSpans(resource=self.resource).SerializeToString()
        self._before_spans: bytes = ScopeSpans(scope=self.scope).SerializeToString()

    def encode(self, items: Sequence[Any]) -> bytes:
        """Encode spans: the server's, which are bytes already, those that executors have told, and the SDK's."""
        own = b"".join(item for item in items if isinstance(item, bytes))
        found = [item for item in items if isinstance(item, ScopeSpans)]
        made = [item for item in items if not isinstance(item, bytes | ScopeSpans)]
        scopes = [self._before_spans + own, *(scope.SerializeToString() for scope in found)]
        ours = self._before_scopes + b"".join(member(_SCOPE_SPANS, scope) for scope in scopes)
        request = member(_RESOURCE_SPANS, ours)
        return request + encode_spans(made).SerializeToString() if made else request


def found_spans(call: SpanOfCall) -> list[ScopeSpans]:
    """Get the spans that a function has made in an executor, below the span of its run."""
    scopes = []
    for each in call.found[:MAX_FOUND] if isinstance(call.found, list) else ():
        with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
            scopes.append(ScopeSpans(scope=Scope(name=_text(each["scope"])), spans=[_found_span(each, call)]))
    return scopes


def _found_span(each: Mapping[str, Any], call: SpanOfCall) -> Span:
    span_id, parent_id = bytes.fromhex(each["span_id"]), bytes.fromhex(each["parent_id"])
    if not len(span_id) == len(parent_id) == SPAN_BYTES or each["kind"] not in range(1, KINDS + 1):
        raise ValueError("it has another form")
    return Span(
        trace_id=call.trace_id,
        span_id=span_id,
        parent_span_id=parent_id,
        name=_text(each["name"]),
        kind=each["kind"],
        start_time_unix_nano=each["began"],
        end_time_unix_nano=each["ended"],
        attributes=_found_attributes(each["attributes"]),
        events=[
            Span.Event(name=_text(name), time_unix_nano=at, attributes=_found_attributes(attributes))
            for name, at, attributes in each["events"]
        ],
        status=Status(code=each["status"], message=_text(each["message"])),
        flags=SAMPLED,
    )


def _found_attributes(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [
        key_value(_text(key), _text(value) if isinstance(value, str) else value) for key, value in attributes.items()
    ]


def _text(value: Any) -> str:
    return str(value)[:MAX_TEXT].encode("utf-8", "replace").decode()
