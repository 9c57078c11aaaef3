"""One line for each call, for whoever operates the server.

The rule: a line says who, what, how long and how it ended; never a token, an agent's key or a whole session id, and
arguments and results only if a setting says so. It is JSON, or, on a terminal, made for reading.
"""

import re
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal

from server.calls import timestamp
from server.strict_json import Fragment, dumps

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
SHORTENED = 8
_ID = re.compile(r"[0-9a-f]{32}")

request_id: ContextVar[str] = ContextVar("request_id", default="")


def accept_request_id(header: bytes | None) -> str:
    """Take over a request id that came along, if it can go into a log, or make one; it is the current one from now."""
    known = header.decode("ascii") if header and REQUEST_ID.fullmatch(header) else secrets.token_hex(8)
    request_id.set(known)
    return known


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

    def called(
        self,
        session_id: str,
        owner: str | None,
        function: str,
        kwargs: Any,
        outcome: str,
        result: bytes | str | None,
        seconds: float,
    ) -> None:
        """Write the line of a call.

        Args:
            session_id: Its session; the line has the beginning only.
            owner: The name of the token that it came with; None for an agent's address.
            function: The function's name.
            kwargs: Its arguments.
            outcome: `ok`, or why it failed.
            result: The JSON text of its result, or its error.
            seconds: How long it took from arrival to answer.
        """
        if self._style == "off":
            return
        line: dict[str, Any] = {
            "time": timestamp(time.time()),
            "request_id": request_id.get(),
            "session": session_id[:SHORTENED],
            "owner": "agent" if owner is None else owner,
            # Whoever mistakes a key for a function's name must not find it here.
            "function": _ID.sub(lambda found: f"{found[0][:SHORTENED]}…", function[:256]),
            "outcome": outcome,
            "duration_ms": round(seconds * 1000, 3),
        }
        if self._arguments:
            line["kwargs"] = Fragment(dumps(kwargs))
            line["result"] = Fragment(result) if isinstance(result, bytes) else result
        if self._style == "json":
            text = dumps(line)
        else:
            words = [line["time"], line["request_id"], line["session"], line["owner"], line["function"], outcome]
            told = f"{' '.join(map(_printable, words))} {line['duration_ms']} ms"
            extra = f" {dumps(kwargs).decode()}" if self._arguments else ""
            text = f"{told}{extra}".encode("ascii", "backslashreplace")
        try:
            sys.stderr.buffer.write(text + b"\n")
            sys.stderr.buffer.flush()
        except (OSError, ValueError):
            self._style = "off"  # nobody reads it any more, which must not stop the server


def _printable(text: str) -> str:
    """Get text for a line that a person reads: nothing in it moves a cursor or begins another line."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text) or "-"
