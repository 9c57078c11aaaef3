"""The call log: one line for each call, for the operator.

The rule: a line never has a token, an agent's key or a whole session id, and has arguments and results only if a
setting says so. It is JSON, or plain text on a terminal. Lines of calls that end together are written together, because
the write is the most expensive step.
"""

import itertools
import os
import re
import secrets
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from server.jsonio.strict import Fragment, dumps
from server.times import timestamp

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
SHOWN_ID_CHARACTERS = 8
_SECRET_ID = re.compile(r"[0-9a-f]{32,}")

request_id: ContextVar[str] = ContextVar("request_id", default="")


class _Numbers:
    """Numbers that no other process gives, also if it was forked from this one."""

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        self._count = itertools.count(secrets.randbits(64))

    def next(self) -> int:
        return next(self._count)


_numbers = _Numbers()


def accept_request_id(header: bytes | None) -> str:
    """Get the X-Request-Id header if it is safe to log, else a new id, and make it the current request's.

    Args:
        header: The header's value; accepted are 1-128 printable ASCII characters without spaces.
    """
    accepted = header.decode("ascii") if header and REQUEST_ID.fullmatch(header) else f"{_numbers.next() % 2**64:016x}"
    request_id.set(accepted)
    return accepted


class EndedCall(NamedTuple):
    """A finished call, as it is logged.

    Attributes:
        at: When it ended, in seconds since the epoch.
        request_id: The id of its HTTP request.
        session_id: Its session; the line has only the first characters.
        owner: The name of its token; None for an agent's path.
        function: The function's name.
        kwargs: The JSON text of its arguments, as they were sent.
        outcome: `ok`, or why it failed.
        result: The result as JSON, or the error's text.
        seconds: The time from arrival to answer.
        traceback: Where its function raised; None if it didn't, or the log has no tracebacks.
    """

    at: float
    request_id: str
    session_id: str
    owner: str | None
    function: str
    kwargs: bytes
    outcome: str
    result: bytes | str | None
    seconds: float
    traceback: str | None = None


class CallLog:
    """Writes the call log to standard error.

    Args:
        style: `json`, `text`, `off`, or `auto`: text on a terminal, else JSON.
        arguments: Whether to log arguments and results.
        level: The least important lines that are logged; a call's line is `info`.
    """

    def __init__(self, style: Literal["auto", "json", "text", "off"], *, arguments: bool, level: str = "info") -> None:
        if level not in {"debug", "info"}:
            style = "off"
        if style == "auto":
            style = "text" if sys.stderr.isatty() else "json"
        self._style = style
        self._arguments = arguments

    def write(self, calls: Iterable[EndedCall]) -> None:
        """Write a line for each call."""
        if self._style == "off":
            return
        try:
            sys.stderr.buffer.write(b"".join([self._line(call) + b"\n" for call in calls]))
            sys.stderr.buffer.flush()
        except (OSError, ValueError):
            self._style = "off"  # standard error was closed, which must not stop the server

    def _line(self, call: EndedCall) -> bytes:
        line: dict[str, Any] = {
            "time": timestamp(call.at),
            "request_id": call.request_id,
            "session": call.session_id[:SHOWN_ID_CHARACTERS],
            "owner": "agent" if call.owner is None else call.owner,
            # A client may send a secret key as the function's name by mistake.
            "function": _SECRET_ID.sub(lambda found: f"{found[0][:SHOWN_ID_CHARACTERS]}…", call.function[:256]),
            "outcome": call.outcome,
            "duration_ms": round(call.seconds * 1000, 3),
        }
        if self._arguments:
            line["kwargs"] = Fragment(call.kwargs)
            line["result"] = Fragment(call.result) if isinstance(call.result, bytes) else call.result
        if call.traceback:
            line["traceback"] = call.traceback
        if self._style == "json":
            return dumps(line)
        fields = [line[name] for name in ("time", "request_id", "session", "owner", "function", "outcome")]
        text = f"{' '.join(map(printable, fields))} {line['duration_ms']} ms"
        extra = f" {call.kwargs.decode()}" if self._arguments else ""
        trace = "".join(f"\n  {printable(row)}" for row in (call.traceback or "").splitlines())
        return f"{text}{extra}{trace}".encode("ascii", "backslashreplace")


def printable(text: str) -> str:
    """Escape control characters, which could move the terminal's cursor or forge a line; "-" for empty text."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text) or "-"
