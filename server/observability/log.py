"""The log of everything but calls: events of sessions, refused requests, workers, faults.

The rule: a line is one JSON object, whatever its level and however many lines its traceback has; on a terminal it is
formatted for reading. No line has a token, an agent's key, a whole session id or the path of an unknown address.
"""

import json
import logging
import sys
import traceback
from typing import Any, Literal

from server.observability.call_log import SHOWN_ID_CHARACTERS, printable, request_id
from server.times import timestamp

Style = Literal["auto", "json", "text", "off"]

log = logging.getLogger("toolpack_server")


def is_text(style: Style) -> bool:
    """Whether lines are formatted for reading: `auto` and `off` leave it to whether standard error is a terminal."""
    return style == "text" or (style != "json" and sys.stderr.isatty())


def configure_logging(style: Style, level: str) -> None:
    """Let Python's logging write the log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_TextFormatter() if is_text(style) else _JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a line about something that has happened."""
    if log.isEnabledFor(level):
        known = {"request_id": request_id.get() or None, **fields}
        log.log(level, name, extra={"event": {k: v for k, v in known.items() if v is not None}})


def shown_id(session_id: str) -> str:
    """Get what the log shows of a session's id."""
    return session_id[:SHOWN_ID_CHARACTERS]


class _JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": timestamp(record.created), "level": record.levelname.lower()}
        fields = getattr(record, "event", None)
        if fields is None:
            line["message"] = record.getMessage()
        else:
            line |= {"event": record.msg, **fields}
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        text = json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))
        return text.encode("utf-8", "replace").decode()


class _TextFormatter(logging.Formatter):
    """`LEVEL: message`, or the time and the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "event", None)
        if fields is None:
            text = f"{record.levelname}: {record.getMessage()}"
        else:
            shown = " ".join(f"{name}={_field(value)}" for name, value in fields.items())
            text = f"{timestamp(record.created)} {record.msg} {shown}"
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return text


def _field(value: Any) -> str:
    text = printable(str(value))
    return f'"{text}"' if " " in text else text
