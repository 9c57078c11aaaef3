"""Requests of OTLP, what spans and metrics of calls have in common, and the spans that executors tell.

What an executor has told of its function's spans is nothing but a claim: it gets into the trace of that call,
in its form and size, or nowhere.
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

from toolpack_server.features.telemetry.provider import NAME
from toolpack_server.features.telemetry.spans import SPAN_BYTES, SpanOfCall

MAX_FOUND = 256  # spans of one function in an executor
MAX_TEXT = 4096  # characters of what an executor says
MAX_CONTENT = 16_384  # bytes of arguments, and of a result
KINDS = 5
SAMPLED = 1  # a flag of a span
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

    @property
    def span_name(self) -> str:
        return f"{self.method} {self.function}" if self.function else self.method

    def attributes(self) -> dict[str, Any]:
        """Get what all their spans have."""
        attributes: dict[str, Any] = {**self.names(), "network.transport": self.transport, "error.type": self.error}
        if self.is_call:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": self.function}
        if self.error is not None:
            code = None if self.code is None else str(self.code)
            attributes |= {"rpc.response.status_code": code, "toolpack.outcome": self.outcome}
        return attributes


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
        ours = self._before_scopes + b"".join(_member(_SCOPE_SPANS, scope) for scope in scopes)
        request = _member(_RESOURCE_SPANS, ours)
        return request + encode_spans(made).SerializeToString() if made else request


def _member(key: int, content: bytes) -> bytes:
    """Put bytes that are a message already into another one: protobuf.dev/programming-guides/encoding."""
    size, length = len(content), bytearray()
    while size > 127:  # noqa: PLR2004 - seven bits of each byte
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([key, *length, size]) + content


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
