"""What a tracer asks the core to note of a call: when its parts began and ended, and below which span it runs.

Where nobody traces there is no tracer, and a call pays for nothing but the look whether there is one. Noting
takes no lock; the tracer reads what was noted when the call has been answered.
"""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol


class AskedBy(NamedTuple):
    """The message that asked for a call."""

    protocol: str  # `mcp` or `jsonrpc`
    method: str
    id: str | int | float | None
    version: str = ""  # of MCP


class CallTrace:
    """What is noted of one call; times are nanoseconds since the epoch, and 0 if that hasn't happened.

    Attributes:
        told: What another process is told that runs its function; None if it needn't know.
    """

    __slots__ = ("commit_began", "commit_ended", "run_began", "run_ended", "told")

    def __init__(self) -> None:
        self.told: Mapping[str, Any] | None = None
        self.run_began = self.run_ended = self.commit_began = self.commit_ended = 0

    def runs(self) -> None:
        """Note that its run begins. Called in the context in which its function then runs."""
        self.run_began = time.time_ns()
        _running.set(self)

    def has_run(self) -> None:
        self.run_ended = time.time_ns()

    def committed(self, began: int) -> None:
        self.commit_began, self.commit_ended = began, time.time_ns()

    def take(self, found: Any) -> None:
        """Take what the process that ran the function has noted, which may be anything."""


class Tracer(Protocol):
    """Makes spans of calls and evaluations. Brief, and never raises."""

    def begin(self, session_id: str, function: str, arguments: bytes) -> CallTrace:
        """Begin the span of a call; `asked_by` and `trace_context` say where it belongs."""

    def end(self, trace: CallTrace, outcome: str, result: bytes | str | None, refusal: BaseException | None) -> None:
        """End it.

        Args:
            outcome: `ok`, or why it failed, as in the log.
            result: The result as JSON, or the error's text.
            refusal: Why it was refused; None if it wasn't.
        """

    def evaluated(
        self, session_id: str, task: str, began: int, verdict: Mapping[str, Any] | None, refusal: Exception | None
    ) -> None:
        """Make the span of the evaluation of a task that began then, and has ended with a verdict or was refused."""

    def close(self) -> None:
        """Send the spans that wait, when all calls have ended; runs in a thread, and may take a second or two."""


asked_by: ContextVar[AskedBy | None] = ContextVar("asked_by", default=None)
_running: ContextVar[CallTrace | None] = ContextVar("running", default=None)


def running_trace() -> CallTrace | None:
    """Get the trace of the call that the present thread is running."""
    return _running.get()
