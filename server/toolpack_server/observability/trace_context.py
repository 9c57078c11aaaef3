"""Where a request belongs in a distributed trace: W3C Trace Context (w3.org/TR/trace-context), without any dependency.

What isn't written as the standard says is ignored, as the standard wants it, and never fails a request; only
what has been checked is logged, recorded or passed on.
"""

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MAX_MEMBERS = 32  # of a tracestate
MAX_STATE = 512  # characters of a tracestate that are kept, in whole members

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_FIRST_VERSION, _NO_VERSION = "00", "ff"
_SAMPLED = 1
_MEMBER = re.compile(
    r"(?:[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)


class TraceContext(NamedTuple):
    """The span of a client, below which its request belongs.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        sampled: The client records its span.
        state: What tracing systems have written into `tracestate`; "" if there is none.
    """

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"{_FIRST_VERSION}-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def members(self) -> dict[str, str]:
        """Get it as it is logged, recorded and passed on: `traceparent`, and `tracestate` if there is one."""
        members = {TRACEPARENT: self.traceparent}
        return {**members, TRACESTATE: self.state} if self.state else members


trace_context: ContextVar[TraceContext | None] = ContextVar("trace_context", default=None)


def read_trace_context(parent: Any, state: Any = None) -> TraceContext | None:
    """Read a `traceparent` and a `tracestate`; None if the first isn't valid."""
    found = _PARENT.fullmatch(parent) if isinstance(parent, str) else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _NO_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id, span_id, sampled, _read_state(state) if isinstance(state, str) else "")


def accept_trace_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Make what the headers of a request say its context; a `tracestate` may come in several headers."""
    headers = [*headers]
    parents, states = (
        [value.decode("latin-1").strip(" \t") for name, value in headers if name == wanted.encode()]
        for wanted in (TRACEPARENT, TRACESTATE)
    )
    trace_context.set(read_trace_context(parents[0], ",".join(states)) if len(parents) == 1 else None)


def accept_trace_members(members: Mapping[str, Any]) -> None:
    """Make what a message says in its members its context, if that is valid; else that of its request stays."""
    found = read_trace_context(members.get(TRACEPARENT), members.get(TRACESTATE))
    if found is not None:
        trace_context.set(found)


def _read_state(text: str) -> str:
    """Get a `tracestate` without empty members, cut to its limit; "" if it isn't valid."""
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > MAX_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    while len(state := ",".join(members)) > MAX_STATE:
        del members[-1]
    return state
