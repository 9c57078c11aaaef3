"""Interface between the core and a tracer: the times of a call's parts, and its parent span.

Without a tracer, a call only checks that there is none. Recording times needs no lock; the tracer reads them when the
call has been answered.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol


class AskedBy(NamedTuple):
    """The protocol message that caused a call."""

    protocol: str  # `mcp` or `jsonrpc`
    method: str
    id: str | int | float | None
    version: str = ""  # of MCP


class CallTrace:
    """The recorded times of one call, in nanoseconds since the epoch. A time is 0 before it happens.

    Attributes:
        told: Data for the process that runs the function, if that is another one, or None.
    """

    __slots__ = ("commit_began", "commit_ended", "run_began", "run_ended", "told")

    def __init__(self) -> None:
        self.told: Mapping[str, Any] | None = None
        self.run_began = self.run_ended = self.commit_began = self.commit_ended = 0

    def runs(self) -> None:
        """Record the start of the call's function. This runs in the function's context."""
        self.run_began = time.time_ns()
        _running.set(self)

    def has_run(self) -> None:
        """Record the end of its function."""
        self.run_ended = time.time_ns()

    def committed(self, began: int) -> None:
        """Record the begin and the end of its commit."""
        self.commit_began, self.commit_ended = began, time.time_ns()

    def take(self, found: Any) -> None:
        """Store data from the process that ran the function. Its form must be checked."""


class Tracer(Protocol):
    """Creates spans of calls and evaluations. Its methods are fast and never raise."""

    def begin(self, session_id: str, function: str, arguments: bytes) -> CallTrace:
        """Begin the span of a call. `asked_by` and `trace_context` have its message and its parent span."""

    def end(self, trace: CallTrace, outcome: str, result: bytes | str | None, refusal: BaseException | None) -> None:
        """End the span of a call.

        Args:
            outcome: `ok`, or the reason of the failure, as in the log.
            result: The result as JSON, or the error's text.
            refusal: The error of a refused call, or None.
        """

    def evaluated(
        self, session_id: str, task: str, began: int, verdict: Mapping[str, Any] | None, refusal: Exception | None
    ) -> None:
        """Create the span of a task's evaluation, which began at `began` and ended with a verdict or a refusal."""

    def close(self) -> None:
        """Send the waiting spans after the end of all calls. It runs in a thread and may take a second or two."""


asked_by: ContextVar[AskedBy | None] = ContextVar("asked_by", default=None)
_running: ContextVar[CallTrace | None] = ContextVar("running", default=None)


def running_trace() -> CallTrace | None:
    """Return the trace of the call that the current thread is running."""
    return _running.get()
