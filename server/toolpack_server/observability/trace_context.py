"""Trace context of a request: an implementation of W3C Trace Context (w3.org/TR/trace-context) without dependencies.

As the standard demands, invalid headers are ignored, so a request never fails because of them. Only checked values are
logged, recorded or passed on.
"""

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MAX_MEMBERS = 32  # max members of a tracestate, by the standard
MAX_STATE = 512  # max characters of a tracestate; if it is longer, its last members are dropped

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_FIRST_VERSION, _NO_VERSION = "00", "ff"
_SAMPLED = 1
_MEMBER = re.compile(
    r"(?:[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)


class TraceContext(NamedTuple):
    """Reference to the client's span, which becomes the parent of the request's span.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        sampled: Whether the client records its span.
        state: The header `tracestate`, in which tracing systems pass on their own data, or "".
    """

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"{_FIRST_VERSION}-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def members(self) -> dict[str, str]:
        """Return the fields to log, record and pass on: `traceparent`, and `tracestate` if it isn't empty."""
        members = {TRACEPARENT: self.traceparent}
        return {**members, TRACESTATE: self.state} if self.state else members


trace_context: ContextVar[TraceContext | None] = ContextVar("trace_context", default=None)


def read_trace_context(parent: Any, state: Any = None) -> TraceContext | None:
    """Parse a `traceparent` and a `tracestate`. Return None if the `traceparent` isn't valid."""
    match = _PARENT.fullmatch(parent) if isinstance(parent, str) else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # Only later versions of the standard may append fields.
    if version == _NO_VERSION or (version == _FIRST_VERSION and rest is not None):
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):  # the standard forbids ids of only zeros
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id, span_id, sampled, _read_state(state) if isinstance(state, str) else "")


def accept_trace_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Set the trace context from a request's headers. Several `tracestate` headers count as one list."""
    headers = [*headers]
    parents, states = (
        [value.decode("latin-1").strip(" \t") for name, value in headers if name == header.encode()]
        for header in (TRACEPARENT, TRACESTATE)
    )
    trace_context.set(read_trace_context(parents[0], ",".join(states)) if len(parents) == 1 else None)


def accept_trace_members(members: Mapping[str, Any]) -> None:
    """Set the trace context from a message's fields if they are valid. Otherwise keep the request's trace context."""
    context = read_trace_context(members.get(TRACEPARENT), members.get(TRACESTATE))
    if context is not None:
        trace_context.set(context)


def _read_state(text: str) -> str:
    """Return a `tracestate` without empty members, cut to `MAX_STATE`. Return "" if it isn't valid."""
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > MAX_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    while len(state := ",".join(members)) > MAX_STATE:
        del members[-1]
    return state
