"""Log lines about sessions: created, forked, reset, closed.

The rule: a line says who did what to which session, and how it ended. What it says of the result, the method's class
declares.
"""

import time
from typing import Any

from server.base.errors import ToolpackServerError
from server.observability.log import event, shown_id
from server.rpc.caller import Caller
from server.rpc.method import App, Method


async def handle_and_log(request: Method, caller: Caller, app: App) -> Any:
    began = time.perf_counter()
    fields: dict[str, Any] = {"outcome": "refused"}
    try:
        result = await request.handle(caller, app)
        fields = {"outcome": "ok", **request.log_fields(result)}
    except ToolpackServerError as error:
        fields["error"] = type(error).__name__
        raise
    finally:
        session = getattr(request, "session_id", None)
        about = {"owner": caller.owner, **({"session": shown_id(session)} if session else {}), **fields}
        event(request.declared.name, **about, duration_ms=round((time.perf_counter() - began) * 1000, 3))
    return result
