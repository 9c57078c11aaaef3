"""What is noted of a call until its spans are encoded.

Plain values. On the way of a call there is nothing else, because each microsecond here is one of every call.
"""

from typing import Any

from toolpack_server.observability.trace_context import TraceContext
from toolpack_server.observability.tracing import AskedBy, CallTrace

TRACE_BYTES, SPAN_BYTES = 16, 8
IDS_BYTES = TRACE_BYTES + 4 * SPAN_BYTES


class SpanOfCall(CallTrace):
    """The span of a call, and those below it; times are nanoseconds since the epoch.

    Attributes:
        ids: Of the trace, and of the spans of the call, its run, its queue and its commit, one after the other.
        parent: The client's span; None if it has sent none.
        sampled: It is to be sent.
        asked: The message that asked for it.
        function: Its name, or None if there is no such function; of an evaluation the task.
        sent: The arguments as JSON, if they are to be exported.
        result: The result as JSON, or the error's text, if that is to be exported.
        ended: When it was answered.
        alike: What it has in common with others.
        found: What an executor has told of the spans of its function.
    """

    __slots__ = (
        *("alike", "asked", "began", "ended", "found", "function", "ids", "parent", "result", "sampled", "sent"),
        "session_id",
    )
    ended: int
    alike: Any

    def __init__(
        self,
        ids: bytes,
        parent: TraceContext | None,
        asked: AskedBy,
        session_id: str,
        function: str | None,
        began: int,
        *,
        sampled: bool,
    ) -> None:
        super().__init__()
        self.ids = ids if parent is None else bytes.fromhex(parent.trace_id) + ids[TRACE_BYTES:]
        self.parent = parent
        self.asked = asked
        self.session_id = session_id
        self.function = function
        self.began = began
        self.sampled = sampled
        self.sent: bytes | None = None
        self.result: bytes | None = None
        self.found: Any = None

    @property
    def trace_id(self) -> bytes:
        return self.ids[:TRACE_BYTES]

    @property
    def run_id(self) -> bytes:
        return self.ids[TRACE_BYTES + SPAN_BYTES : TRACE_BYTES + 2 * SPAN_BYTES]

    def take(self, found: Any) -> None:
        self.found = found
