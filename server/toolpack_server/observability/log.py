"""Log on standard error: calls, events of sessions, refused requests, workers and faults.

Each line is one JSON object, at any level and with any traceback. On a terminal, lines are formatted for people. No
line contains a token, an agent's key, a whole session id or an unknown path. A call's line contains arguments and
results only if a setting says so.

Lines about calls don't pass through Python's `logging`, because its records would double their cost. Lines about calls
that end together are written together, because writing is the most expensive step. For the same reason, events logged
in one iteration of an event loop are written together, at the end of the iteration or before the next message.
"""

import asyncio
import json
import logging
import re
import sys
import traceback
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from toolpack_server.base.logger import log
from toolpack_server.base.terminal import printable
from toolpack_server.base.times import timestamp
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.observability.request_ids import request_id
from toolpack_server.observability.trace_context import TraceContext, trace_context

Style = Literal["auto", "full", "json", "text", "off"]

SHOWN_ID_CHARACTERS = 8
_SECRET_ID = re.compile(r"[0-9a-f]{32,}")


def configure_logging(style: Style, level: str) -> None:
    """Configure Python's logging for this process."""
    logging.basicConfig(level=level.upper(), handlers=[_Handler(style)], force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields, the id of the current request, and the request's trace context.

    Fields that are None are omitted.
    """
    if log.isEnabledFor(level):
        trace = trace_context.get()
        members = {"request_id": request_id.get() or None, **fields, **(trace.members() if trace else {})}
        extra = {"event": {k: v for k, v in members.items() if v is not None}}
        # `Logger.log` would also search for the caller's file and line, which takes a third of the time.
        log.handle(log.makeRecord(log.name, level, "", 0, name, (), None, extra=extra))


def shown_id(session_id: str) -> str:
    """Return the part of a session id that is safe to log. With the whole id, other clients could use the session."""
    return session_id[:SHOWN_ID_CHARACTERS]


class EndedCall(NamedTuple):
    """A finished call, for the log and the metrics.

    Attributes:
        at: The time when the call ended, in seconds since the epoch.
        session_id: The session of the call. The log contains only the first characters of this id.
        owner: The token's owner, or None for a call made through an agent's path.
        kwargs: The JSON text of the arguments, exactly as the client sent it.
        outcome: `ok`, or the reason for the failure.
        result: The result as JSON, or the error's text.
        seconds: The time from the call's arrival to its response.
        traceback: The traceback of the function's exception, if the log includes tracebacks.
        raised_at: The file, line and function that raised the exception.
        trace: The trace context of the request.
        counted_as: The function's toolpack and registered name, for the metrics. Both are "" if the function is unknown
            or the call was refused.
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
    raised_at: str | None = None
    trace: TraceContext | None = None
    counted_as: tuple[str, str] = ("", "")


class CallLog:
    """Log that writes a line for each call.

    Args:
        style: `json`, `text` or `off`. `auto` writes text on a terminal, otherwise JSON. `full` does the same, and adds
            arguments and results.
    """

    def __init__(self, style: Style, *, level: str = "info") -> None:
        self._is_on = style != "off" and level in {"debug", "info"}
        self._is_text = _is_text(style)
        self._arguments = style == "full"

    def write(self, calls: Iterable[EndedCall]) -> None:
        """Write the lines of these calls."""
        if self._is_on:
            # A closed standard error stays closed, so after a failed write no further lines are formatted.
            self._is_on = _write(b"\n".join([*map(self._line, calls), b""]))

    def _line(self, call: EndedCall) -> bytes:
        """Return the line of a call: JSON, or text that consists of the values of the same fields."""
        line: dict[str, Any] = {
            "time": timestamp(call.at),
            "request_id": call.request_id,
            "session": shown_id(call.session_id),
            "owner": "agent" if call.owner is None else call.owner,
            # A client might send a key as the function's name by mistake, so the name is cut and keys are removed.
            "function": _SECRET_ID.sub(lambda match: f"{shown_id(match[0])}…", call.function[:256]),
            "outcome": call.outcome,
            "duration_ms": round(call.seconds * 1000, 3),
        }
        if self._is_text:
            *fields, milliseconds = line.values()
            text = f"{' '.join(printable(field) or '-' for field in fields)} {milliseconds} ms"
            if call.trace:
                text += f" {call.trace.traceparent}"
            extra = f" {call.kwargs.decode()}" if self._arguments else ""
            if call.raised_at:
                extra += f" {printable(_without_folder(call.raised_at))}"
            trace = "".join(f"\n  {printable(row)}" for row in (call.traceback or "").splitlines())
            return f"{text}{extra}{trace}".encode("ascii", "backslashreplace")
        if call.trace:
            line |= call.trace.members()
        if self._arguments:
            line["kwargs"] = Fragment(call.kwargs)
            line["result"] = Fragment(call.result) if isinstance(call.result, bytes) else call.result
        if call.raised_at:
            line["raised_at"] = _without_folder(call.raised_at)
        if call.traceback:
            line["traceback"] = call.traceback
        return dumps(line)


class _Handler(logging.Handler):
    """Handler of Python's logging that writes lines in the server's form. It writes lines of events together."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._line = _text_line if _is_text(style) else _json_line
        self._lines: list[bytes] = []  # lines of events in this iteration of the event loop

    def handle(self, record: logging.LogRecord) -> bool:
        # A function can log. Its deadline must not interrupt this method, because the handler's lock would stay locked.
        with uninterruptible:
            return super().handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message's line at once. Write an event's line at the end of the event loop's iteration, if one runs.

        Lines stay in order, because a message's line is written together with all lines that wait.
        """
        try:
            self._lines.append(self._line(record).encode("utf-8", "backslashreplace") + b"\n")
            if not hasattr(record, "event") or not self._flush_soon():
                self._flush()
        except Exception:  # noqa: BLE001 - as in all handlers, an error in a log call must not affect the caller
            self.handleError(record)

    def flush(self) -> None:
        self.acquire()
        try:
            self._flush()
        finally:
            self.release()

    def _flush_soon(self) -> bool:
        """Schedule a flush at the end of this iteration of the event loop. Return False if no loop runs here."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if len(self._lines) == 1:  # for further lines, the first line has already scheduled the flush
            loop.call_soon(self.flush)
        return True

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            _write(b"".join(lines))


def _is_text(style: Style) -> bool:
    """Return whether lines are formatted for people: always for `text`, never for `json`, else if on a terminal."""
    return style == "text" or (style != "json" and sys.stderr.isatty())


def _write(lines: bytes) -> bool:
    """Write lines to standard error. Return False if it is closed; no error is raised, so that the server continues."""
    try:
        sys.stderr.buffer.write(lines)
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        return False
    return True


def _json_line(record: logging.LogRecord) -> str:
    """Return a message or an event as a line of JSON."""
    line: dict[str, Any] = {"time": timestamp(record.created), "level": record.levelname.lower()}
    fields = getattr(record, "event", None)
    line |= {"message": record.getMessage()} if fields is None else {"event": record.msg, **fields}
    if trace := _traceback(record):
        line["traceback"] = trace
    text = json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def _text_line(record: logging.LogRecord) -> str:
    """Return a message as `LEVEL: message`, or an event as its time, name and fields."""
    fields = getattr(record, "event", None)
    if fields is None:
        text = f"{record.levelname}: {record.getMessage()}"
    else:
        members = " ".join(f"{name}={_field(value)}" for name, value in fields.items())
        text = f"{timestamp(record.created)} {record.msg} {members}"
    trace = _traceback(record)
    return f"{text}\n{trace}" if trace else text


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip()


def _field(value: Any) -> str:
    text = printable(str(value)) or "-"
    return f'"{text}"' if " " in text else text


def _without_folder(location: str) -> str:
    """Return a source location without its folder, because logs must not reveal the host's paths."""
    return location.rpartition("/")[2]
