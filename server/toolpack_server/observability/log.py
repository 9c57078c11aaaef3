"""The log, on standard error: calls, events of sessions, refused requests, workers, faults.

A line is one JSON object, whatever its level and however many lines its traceback has; on a terminal it is
formatted for reading. No line has a token, an agent's key, a whole session id or the path of an unknown address, and a
call's line has arguments and results only if a setting says so.

Everything but calls comes through Python's logging. Lines of calls that end together are written together, because the
write is the most expensive step; a record of `logging` for each would cost as much again. So are those of events, on an
event loop: they are written at the end of its turn, or before the next line of another kind.
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
    logging.basicConfig(level=level.upper(), handlers=[_Handler(style)], force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    if log.isEnabledFor(level):
        trace = trace_context.get()
        known = {"request_id": request_id.get() or None, **fields, **(trace.members() if trace else {})}
        extra = {"event": {k: v for k, v in known.items() if v is not None}}
        # As `Logger.log` does, without looking for the caller, which would take a third of the time.
        log.handle(log.makeRecord(log.name, level, "", 0, name, (), None, extra=extra))


def shown_id(session_id: str) -> str:
    return session_id[:SHOWN_ID_CHARACTERS]


class EndedCall(NamedTuple):
    """A finished call, as it is counted and logged."""

    at: float  # when it ended, in seconds since the epoch
    request_id: str
    session_id: str  # its session; the line has only the first characters
    owner: str | None  # whose token it came with; None for an agent's path
    function: str
    kwargs: bytes  # the JSON text of its arguments, as they were sent
    outcome: str  # `ok`, or why it failed
    result: bytes | str | None  # the result as JSON, or the error's text
    seconds: float  # the time from arrival to answer
    traceback: str | None = None  # where its function raised; None if it didn't, or the log has no tracebacks
    raised_at: str | None = None  # file, line and function; None if it didn't raise
    trace: TraceContext | None = None  # where its request belongs in a distributed trace, if that says so
    # Its function's toolpack, and the function's name there; "" if there is no such function, or the call was refused.
    counted_as: tuple[str, str] = ("", "")


class CallLog:
    """Writes a line for each call.

    Args:
        style: `json`, `text`, `off`, `auto`: text on a terminal, else JSON, or `full`: as `auto`, with arguments.
    """

    def __init__(self, style: Style, *, level: str = "info") -> None:
        self._is_on = style != "off" and level in {"debug", "info"}
        self._is_text = _is_text(style)
        self._arguments = style == "full"

    def write(self, calls: Iterable[EndedCall]) -> None:
        if self._is_on:
            # If standard error was closed it stays closed, and no line needs to be made any more.
            self._is_on = _write(b"\n".join([*map(self._line, calls), b""]))

    def _line(self, call: EndedCall) -> bytes:
        line: dict[str, Any] = {
            "time": timestamp(call.at),
            "request_id": call.request_id,
            "session": shown_id(call.session_id),
            "owner": "agent" if call.owner is None else call.owner,
            # A client may send a secret key as the function's name by mistake.
            "function": _SECRET_ID.sub(lambda found: f"{shown_id(found[0])}…", call.function[:256]),
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
    def __init__(self, style: Style) -> None:
        super().__init__()
        self._line = _text_line if _is_text(style) else _json_line
        self._lines: list[bytes] = []  # those of events in this turn of the event loop

    def handle(self, record: logging.LogRecord) -> bool:
        # A tool function may log, and this takes the handler's lock.
        with uninterruptible:
            return super().handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self._line(record).encode("utf-8", "backslashreplace") + b"\n")
            if not hasattr(record, "event") or not self._flush_soon():
                self._flush()
        except Exception:  # noqa: BLE001 - as all handlers do: a mistake in a log call must not fail what it is about
            self.handleError(record)

    def flush(self) -> None:
        self.acquire()
        try:
            self._flush()
        finally:
            self.release()

    def _flush_soon(self) -> bool:
        """Flush at the end of this turn of the event loop; get False if this thread runs none."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if len(self._lines) == 1:
            loop.call_soon(self.flush)
        return True

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            _write(b"".join(lines))


def _is_text(style: Style) -> bool:
    """Whether lines are formatted for reading: `auto` and `off` leave it to whether standard error is a terminal."""
    return style == "text" or (style != "json" and sys.stderr.isatty())


def _write(lines: bytes) -> bool:
    """Write lines; say if standard error is still open: that it was closed must not stop the server."""
    try:
        sys.stderr.buffer.write(lines)
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        return False
    return True


def _json_line(record: logging.LogRecord) -> str:
    line: dict[str, Any] = {"time": timestamp(record.created), "level": record.levelname.lower()}
    fields = getattr(record, "event", None)
    line |= {"message": record.getMessage()} if fields is None else {"event": record.msg, **fields}
    if trace := _traceback(record):
        line["traceback"] = trace
    text = json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def _text_line(record: logging.LogRecord) -> str:
    """`LEVEL: message`, or the time and the fields of an event."""
    fields = getattr(record, "event", None)
    if fields is None:
        text = f"{record.levelname}: {record.getMessage()}"
    else:
        shown = " ".join(f"{name}={_field(value)}" for name, value in fields.items())
        text = f"{timestamp(record.created)} {record.msg} {shown}"
    trace = _traceback(record)
    return f"{text}\n{trace}" if trace else text


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip()


def _field(value: Any) -> str:
    text = printable(str(value)) or "-"
    return f'"{text}"' if " " in text else text


def _without_folder(place: str) -> str:
    """Return a place without the folder of its file: a log shows no paths of the machine."""
    return place.rpartition("/")[2]
