"""The spans of a call as bytes of OTLP.

Generated classes of protobuf take three times as long, the SDK's spans ten times: that would be a quarter of a call. So
what differs from call to call is packed between bytes that the generated classes have made once.

The rule: only this file knows OTLP's bytes (opentelemetry/proto/trace/v1/trace.proto), and tests read what it has
written with the generated classes.
"""

from functools import lru_cache
from struct import Struct

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from server.features.telemetry.spans import SPAN_BYTES, TRACE_BYTES

IDS_BYTES = TRACE_BYTES + 4 * SPAN_BYTES
SAMPLED = 1  # a flag of a span
_SPANS = 0x12  # of `ScopeSpans`: the key of each member that is a span
_TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"  # of `Span`: the keys of members, and lengths
_STATE, _BEGAN, _ENDED, _ATTRIBUTE = 0x1A, 0x39, 0x41, 0x4A
_KEY, _VALUE, _TEXT = 0x0A, 0x12, 0x0A  # of `KeyValue`, and of the text in its `AnyValue`
_IDS = Struct("16s8s8s8s8s")
_TIMES = Struct("<BQBQ")
_SMALL = [bytes([size]) for size in range(128)]


def read_ids(ids: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Get the ids of the trace, and of the spans of the call, its run, its queue and its commit."""
    found: tuple[bytes, bytes, bytes, bytes, bytes] = _IDS.unpack(ids)
    return found


def member(key: int, content: bytes) -> bytes:
    """Get a member of a message that has a length."""
    size = len(content)
    if size < len(_SMALL):
        return b"%c%b%b" % (key, _SMALL[size], content)
    return b"%c%b%b" % (key, _number(size), content)


def _number(size: int) -> bytes:
    found = bytearray()
    while size > 127:  # noqa: PLR2004 - seven bits of each byte
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size])


def text_attribute(name: bytes, value: bytes) -> bytes:
    """Get an attribute of a span."""
    return member(_ATTRIBUTE, member(_KEY, name) + member(_VALUE, member(_TEXT, value)))


@lru_cache(4096)
def session_attribute(session_id: str) -> bytes:
    return text_attribute(b"mcp.session.id", session_id.encode())


def server_span(
    trace_id: bytes, span_id: bytes, parent_id: bytes | None, state: str, began: int, ended: int, rest: bytes
) -> bytes:
    """Get a span that begins a server's part of a trace, as a member of `ScopeSpans`."""
    above = _PARENT_ID + parent_id if parent_id else b""
    if state:
        above += member(_STATE, state.encode())
    times = _TIMES.pack(_BEGAN, began, _ENDED, ended)
    return member(_SPANS, b"".join((_TRACE_ID, trace_id, _SPAN_ID, span_id, above, times, rest)))


class ChildSpan:
    """Spans of one name, below that of a call."""

    def __init__(self, name: str) -> None:
        self._rest = Span(name=name, kind=Span.SPAN_KIND_INTERNAL, flags=SAMPLED).SerializeToString()
        self._pack = Struct(f"<BB2s16s2s8s2s8sBQBQ{len(self._rest)}s")
        self._size = self._pack.size - 2

    def encode(self, trace_id: bytes, span_id: bytes, parent_id: bytes, began: int, ended: int) -> bytes:
        """Get one, as a member of `ScopeSpans`."""
        return self._pack.pack(
            *(_SPANS, self._size, _TRACE_ID, trace_id, _SPAN_ID, span_id, _PARENT_ID, parent_id),
            *(_BEGAN, began, _ENDED, ended, self._rest),
        )
