"""One line for each call, for whoever operates the server.

The rule: a line says who, what, how long and how it ended; never a token, an agent's key or a whole session id, and
arguments and results only if a setting says so. It is JSON, or, on a terminal, made for reading. The lines of calls
that end together are written together: a write costs more than all the rest of a line.
"""

import itertools
import re
import secrets
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from server.jsonio.strict import Fragment, dumps
from server.times import timestamp

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
SHORTENED = 8
_ID = re.compile(r"[0-9a-f]{32,}")

request_id: ContextVar[str] = ContextVar("request_id", default="")

_made = itertools.count(secrets.randbits(64))


def accept_request_id(header: bytes | None) -> str:
    """Take over a request id that came along, if it can go into a log, or make one; it is the current one from now."""
    known = header.decode("ascii") if header and REQUEST_ID.fullmatch(header) else f"{next(_made) % 2**64:016x}"
    request_id.set(known)
    return known


class EndedCall(NamedTuple):
    """What the line of a call says.

    Attributes:
        at: When it ended, in seconds since the epoch.
        request_id: The id of the request that it came with.
        session_id: Its session; the line has the beginning only.
        owner: The name of the token that it came with; None for an agent's address.
        function: The function's name.
        kwargs: The JSON text of its arguments, as they were sent.
        outcome: `ok`, or why it failed.
        result: The JSON text of its result, or its error.
        seconds: How long it took from arrival to answer.
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


class CallLog:
    """Writes the lines to standard error.

    Args:
        style: `json`, `text`, `off`, or `auto`: text on a terminal, else JSON.
        arguments: Whether arguments and results go in too.
    """

    def __init__(self, style: Literal["auto", "json", "text", "off"], *, arguments: bool) -> None:
        if style == "auto":
            style = "text" if sys.stderr.isatty() else "json"
        self._style = style
        self._arguments = arguments

    def write(self, calls: Iterable[EndedCall]) -> None:
        """Write the lines of calls."""
        if self._style == "off":
            return
        try:
            sys.stderr.buffer.write(b"".join([self._line(call) + b"\n" for call in calls]))
            sys.stderr.buffer.flush()
        except (OSError, ValueError):
            self._style = "off"  # nobody reads it any more, which must not stop the server

    def _line(self, call: EndedCall) -> bytes:
        line: dict[str, Any] = {
            "time": timestamp(call.at),
            "request_id": call.request_id,
            "session": call.session_id[:SHORTENED],
            "owner": "agent" if call.owner is None else call.owner,
            # Whoever mistakes a key for a function's name must not find it here.
            "function": _ID.sub(lambda found: f"{found[0][:SHORTENED]}…", call.function[:256]),
            "outcome": call.outcome,
            "duration_ms": round(call.seconds * 1000, 3),
        }
        if self._arguments:
            line["kwargs"] = Fragment(call.kwargs)
            line["result"] = Fragment(call.result) if isinstance(call.result, bytes) else call.result
        if self._style == "json":
            return dumps(line)
        words = [line[name] for name in ("time", "request_id", "session", "owner", "function", "outcome")]
        told = f"{' '.join(map(_printable, words))} {line['duration_ms']} ms"
        extra = f" {call.kwargs.decode()}" if self._arguments else ""
        return f"{told}{extra}".encode("ascii", "backslashreplace")


def _printable(text: str) -> str:
    """Get text for a line that a person reads: nothing in it moves a cursor or begins another line."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text) or "-"
