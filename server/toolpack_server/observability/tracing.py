"""Interface between the core and a tracer. The core records the times of each call; the tracer turns them into spans.

If no tracer is installed, nothing is recorded. Recording needs no lock, because the tracer reads the times only after
the call has been answered.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol


class RequestOrigin(NamedTuple):
    """The protocol message that caused a call or an evaluation. The span of the call contains these facts."""

    protocol: str  # `mcp` or `jsonrpc`
    method: str
    id: str | int | float | None
    version: str = ""  # the version of MCP; "" for JSON-RPC


class CallTrace:
    """The recorded times of one call, in nanoseconds since the epoch. A time is 0 until it is recorded.

    Attributes:
        process_data: Data that is sent to the process that runs the function. None: no data is sent.
    """

    __slots__ = ("commit_began", "commit_ended", "process_data", "run_began", "run_ended")

    def __init__(self) -> None:
        self.process_data: Mapping[str, Any] | None = None
        self.run_began = self.run_ended = self.commit_began = self.commit_ended = 0

    def runs(self) -> None:
        """Record the start of the call's function. Must be called in the function's context."""
        self.run_began = time.time_ns()
        _running.set(self)

    def has_run(self) -> None:
        """Record the end of the call's function."""
        self.run_ended = time.time_ns()

    def committed(self, began: int) -> None:
        """Record that the call's commit began at `began` and has ended now."""
        self.commit_began, self.commit_ended = began, time.time_ns()

    def take(self, data: Any) -> None:
        """Accept data from the process that ran the function. A tracer's subclass checks and stores the data."""


class Tracer(Protocol):
    """Creates spans for calls and evaluations. Methods must be fast and must not raise, because calls wait for them."""

    def begin(self, session_id: str, function: str, arguments: bytes) -> CallTrace:
        """Begin the span of a call.

        The context variable `request_origin` contains the message that caused the call, and `trace_context` contains
        the parent span.
        """

    def end(self, trace: CallTrace, outcome: str, result: bytes | str | None, refusal: BaseException | None) -> None:
        """End the span of a call.

        Args:
            outcome: `ok`, or the reason for the failure; the log uses the same words.
            result: The result as JSON, or the error's text.
            refusal: The error of a refused call, or None.
        """

    def evaluated(
        self, session_id: str, task: str, began: int, verdict: Mapping[str, Any] | None, refusal: Exception | None
    ) -> None:
        """Create the span of an evaluation that began at `began` and ended now, with a verdict or a refusal."""

    def close(self) -> None:
        """Send the remaining spans, after all calls have ended. This runs in a thread, so it can take some seconds."""


request_origin: ContextVar[RequestOrigin | None] = ContextVar("request_origin", default=None)
_running: ContextVar[CallTrace | None] = ContextVar("running", default=None)


def running_trace() -> CallTrace | None:
    """Return the trace of the call that runs in the current context, or None."""
    return _running.get()
