"""The spans of calls and evaluations as OTLP, by the semantic conventions for MCP and for generative AI.

Making each with the generated classes of protobuf would take a tenth of a call, with the SDK's spans a quarter. So they
make the spans of one call for all calls of its form, and the values that differ are put into these bytes.

Only the generated classes know the format. Whatever has no fixed form is made by them alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from toolpack_server.features.telemetry.encoding import MAX_TEXT, SAMPLED, Alike, key_value, key_values
from toolpack_server.features.telemetry.spans import SPAN_BYTES, TRACE_BYTES, SpanOfCall

BELOW = ("run", "queue", "commit")  # the spans below that of a call, in the order of their ids
SESSION, REQUEST = "mcp.session.id", "jsonrpc.request.id"
MAX_LAYOUTS = 1024
_IDS = Struct(f"{TRACE_BYTES}s" + f"{SPAN_BYTES}s" * (1 + len(BELOW)))
_TIMES = Struct("<8Q")
_TIME_BYTES = Struct("8s" * 8)
_NO_TEXT = -1
# What stands for values while a layout is made; no text has these bytes, as they aren't UTF-8.
_ID_MARKS = (b"\xc8" * TRACE_BYTES, *(bytes([mark]) * SPAN_BYTES for mark in range(0xC9, 0xCD)))
_TIME_MARKS = tuple(bytes([mark]) * 8 for mark in range(0xCD, 0xD5))
_PARENT_MARK = b"\xd5" * SPAN_BYTES


def encode_call(call: SpanOfCall) -> bytes:
    """Encode the spans of a call that has ended, as members of `ScopeSpans`."""
    request = call.asked.id
    above, state = _client_span(call)
    ids = _IDS.unpack(call.ids)
    run_began, commit_began = call.run_began, call.commit_began
    times = (
        *(call.began, call.ended, run_began, call.run_ended or call.ended),
        *(call.began if run_began else 0, run_began, commit_began, call.commit_ended),
    )
    if call.sent is not None or state:
        content = {"gen_ai.tool.call.arguments": call.sent, "gen_ai.tool.call.result": call.result}
        told = {name: text.decode() for name, text in content.items() if text is not None}
        return _encode(call.alike, ids, times, {**_own(call), **told}, above, state)
    session, sent = call.session_id.encode(), b"" if request is None else _text(request)
    form, in_order = _layout(
        *(call.alike, bool(run_began), bool(commit_began), bool(above)),
        *(len(session), _NO_TEXT if request is None else len(sent)),
    )
    return form % in_order((*ids, *_TIME_BYTES.unpack(_TIMES.pack(*times)), above, session, sent))


def encode_evaluation(span: SpanOfCall, verdict: Mapping[str, Any] | None) -> bytes:
    """Encode the span of an evaluation, with an event for its verdict, as a member of `ScopeSpans`."""
    events = []
    if verdict is not None:
        label = ("pass" if verdict["passed"] else "fail") if verdict["valid"] else "invalid"
        told = {
            "gen_ai.evaluation.name": span.alike.function,
            "gen_ai.evaluation.score.value": verdict["reward"],
            "gen_ai.evaluation.score.label": label,
        }
        events = [Span.Event(name="gen_ai.evaluation.result", time_unix_nano=span.ended, attributes=key_values(told))]
    above, state = _client_span(span)
    times = (span.began, span.ended, *[0] * 2 * len(BELOW))
    return _encode(span.alike, _IDS.unpack(span.ids), times, _own(span), above, state, events)


def _client_span(span: SpanOfCall) -> tuple[bytes, str]:
    """Get the id of the client's span, and the `tracestate` that came with it; both are empty if it has sent none."""
    parent = span.parent
    return (b"", "") if parent is None else (bytes.fromhex(parent.span_id), parent.state)


def _own(span: SpanOfCall) -> dict[str, Any]:
    """Get the attributes whose values calls of one form don't share."""
    request = span.asked.id
    return {SESSION: span.session_id, REQUEST: None if request is None else _text(request).decode()}


def _text(request: str | float) -> bytes:
    return str(request)[:MAX_TEXT].encode("utf-8", "replace")


def _encode(
    alike: Alike,
    ids: Sequence[bytes],
    times: Sequence[int],
    attributes: Mapping[str, Any],
    parent_id: bytes,
    state: str = "",
    events: Sequence[Any] = (),
) -> bytes:
    """Encode a span, and those below it that have begun.

    Args:
        ids: Of the trace, of the span, and of those in `BELOW`.
        times: When each began and ended, in nanoseconds since the epoch.
        attributes: Those that `alike` doesn't have.
    """
    trace_id, span_id, *ids_below = ids
    spans = [
        Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_span_id=parent_id,
            trace_state=state,
            name=alike.span_name,
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=times[0],
            end_time_unix_nano=times[1],
            attributes=key_values({**alike.attributes(), **attributes}),
            events=events,
            status=None if alike.error is None else Status(code=Status.STATUS_CODE_ERROR),
            flags=SAMPLED,
        )
    ]
    for name, below, began, ended in zip(BELOW, ids_below, times[2::2], times[3::2], strict=True):
        if began:
            span = Span(name=name, trace_id=trace_id, span_id=below, parent_span_id=span_id, flags=SAMPLED)
            span.kind, span.start_time_unix_nano, span.end_time_unix_nano = Span.SPAN_KIND_INTERNAL, began, ended
            spans.append(span)
    encoded: bytes = ScopeSpans(spans=spans).SerializeToString()
    return encoded


@lru_cache(MAX_LAYOUTS)
def _layout(
    alike: Alike, has_run: bool, has_committed: bool, has_parent: bool, session_bytes: int, request_bytes: int
) -> tuple[bytes, Callable[[Sequence[bytes]], tuple[bytes, ...]]]:
    """Get the spans of calls of one form as a format for `%`, and what puts a call's values in its order.

    The lengths of texts are part of the form, as all lengths stand in the bytes.
    """
    texts = {SESSION: "s" * session_bytes, REQUEST: None if request_bytes == _NO_TEXT else "r" * request_bytes}
    began = (True, has_run, has_run, has_committed)
    times = [int.from_bytes(mark, "little") * began[place // 2] for place, mark in enumerate(_TIME_MARKS)]
    encoded = _encode(alike, _ID_MARKS, times, texts, _PARENT_MARK if has_parent else b"")
    marks = [*_ID_MARKS, *_TIME_MARKS, _PARENT_MARK, *((text or "").encode() for text in texts.values())]
    patterns = [re.escape(mark) for mark in marks[: -len(texts)]]
    for key, text in texts.items():
        if text is not None:
            before = key_value(key, text).SerializeToString().removesuffix(text.encode())
            patterns.append(b"(?<=%b)%b" % (re.escape(before), text.encode()))
    pieces = re.split(b"(%b)" % b"|".join(patterns), encoded)
    return b"%b".join(piece.replace(b"%", b"%%") for piece in pieces[::2]), itemgetter(*map(marks.index, pieces[1::2]))
