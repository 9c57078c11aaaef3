"""Log lines about sessions: created, forked, reset, closed.

The rule: a line says who did what to which session, and how it ended; it has no options, environments or labels, which
may hold anything.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from server.errors import ToolpackServerError
from server.observability.log import event, shown_id
from server.rpc.method import Caller, Method

MOST_SHOWN = 10  # sessions of one request

Fields = dict[str, Any]


def _created(_params: Any, session: Any) -> Fields:
    return {"session": shown_id(session["session_id"]), "toolpacks": ",".join(session["toolpacks"])}


def _forked(_params: Any, sessions: Any) -> Fields:
    names = [shown_id(session["session_id"]) for session in sessions]
    return {
        "version": sessions[0]["parent"]["version"],
        "count": len(names),
        "forks": ",".join(names[:MOST_SHOWN]) + "…" * (len(names) > MOST_SHOWN),
    }


def _reset(params: Any, session: Any) -> Fields:
    return {"to_version": params.version, "version": session["version"]}


def _closed(_params: Any, _result: Any) -> Fields:
    return {}


def _all_closed(_params: Any, count: Any) -> Fields:
    return {"count": count}


_FIELDS: dict[str, Callable[[Any, Any], Fields]] = {
    "create_session": _created,
    "fork_session": _forked,
    "reset_session": _reset,
    "close_session": _closed,
    "close_sessions": _all_closed,
}


def with_log_line(method: Method) -> Method:
    """Get a method that also writes a log line, if that is about the life of sessions."""
    fields_of = _FIELDS.get(method.name)
    if fields_of is None:
        return method

    async def answer(caller: Caller, params: Any) -> Any:
        began = time.perf_counter()
        fields: Fields = {"outcome": "refused"}
        try:
            result = await method.answer(caller, params)
            fields = {"outcome": "ok", **fields_of(params, result)}
        except ToolpackServerError as error:
            fields["error"] = type(error).__name__
            raise
        finally:
            session = getattr(params, "session_id", None)
            about = {"owner": caller.owner, **({"session": shown_id(session)} if session else {}), **fields}
            event(method.name, **about, duration_ms=round((time.perf_counter() - began) * 1000, 3))
        return result

    return replace(method, answer=answer)
