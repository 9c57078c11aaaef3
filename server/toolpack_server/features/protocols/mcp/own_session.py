"""`/mcp`: MCP for clients that have one address and no session; the first message makes it.

Whoever has a token makes sessions here as `create_session` does, with its limits, and no others are reached.
What the address asks for stands in its query: `packs`, `task`, `seed`, and `session`, a name. Where there is a name, it
finds the session with each message. Else `initialize` makes one, and its id is the key of its `mcp_path`.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from toolpack_server.base.errors import CallIdReusedError, HttpRefusedError, SessionNotFoundError
from toolpack_server.features.protocols.mcp.endpoint import Exchange, McpEndpoint
from toolpack_server.features.protocols.mcp.messages import (
    CALL_ID_KEY,
    LEGACY,
    MODERN,
    UNSUPPORTED_VERSION,
    McpMessage,
    McpRefusedError,
)
from toolpack_server.features.protocols.mcp.results import Fault, shifted
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import ERROR_INVALID_PARAMS, ERROR_INVALID_REQUEST, REFUSALS, describe, sentence
from toolpack_server.web.endpoints import CUT_OFF
from toolpack_server.web.refusals import NO_CONTENT

SESSION_ID = b"mcp-session-id"
LABEL = "mcp"
ASKED = ("packs", "task", "seed", "session")
MAX_NAME = 64

WHICH = "Which session? Send the header Mcp-Session-Id, from the answer to initialize, or begin with initialize."
TOO_NEW = (
    f"Version {MODERN} of MCP has no sessions of its own: give the address a name for one, as in "
    f"/mcp?session=NAME, use the mcp_path of a session, or a version that begins with initialize."
)


class OwnSessionEndpoint(McpEndpoint):
    """`/mcp`, with all HTTP methods."""

    allowed = b"POST, DELETE"
    not_allowed = "MCP comes by POST here: there are no streams to GET, and DELETE ends the session of Mcp-Session-Id."
    status: Mapping[Fault | None, int] = {**McpEndpoint.status, Fault.NO_SESSION: 404}  # clients begin again

    async def stranger(self, exchange: Exchange) -> Caller:
        owner = self._gateway.gate.owner(exchange.headers)
        if b"origin" in exchange.headers:
            exchange.extra.append((b"access-control-expose-headers", b"Mcp-Session-Id"))
        key = exchange.headers.get(SESSION_ID)
        if key is None:
            return Caller(owner)
        caller = await self._gateway.service.agent(key.decode("latin-1"))
        if caller.owner != owner:
            raise SessionNotFoundError
        return caller

    async def agent(self, exchange: Exchange, caller: Caller, message: McpMessage) -> Caller:
        asked = _asked(exchange, message)
        name = asked.get("session")
        if name is None:
            if message.modern:
                data = {"supported": [*LEGACY], "requested": MODERN}
                raise message.refusal((UNSUPPORTED_VERSION, TOO_NEW, data))
            if message.method != "initialize":
                described = ERROR_INVALID_REQUEST, f"Invalid Request: {WHICH}", {"detail": WHICH}
                raise McpRefusedError(described, request_id=message.id)
        key = await self._create(caller, asked, message)
        if name is None:
            exchange.extra.append((SESSION_ID, key.encode()))
        return await self._gateway.service.agent(key)

    async def _create(self, caller: Caller, asked: dict[str, str], message: McpMessage) -> str:
        """Create the session, or get the one of this name, and get its key."""
        name = asked.get("session")
        client = message.params.get("clientInfo")
        said = client.get("name") if isinstance(client, dict) else None
        params: dict[str, Any] = {
            "labels": {LABEL: name or (said if isinstance(said, str) else "")[:MAX_NAME]},
            "call_id": message.meta.get(CALL_ID_KEY) if name is None else f"{LABEL}-{name}",
            **{each: asked[each] for each in ("task", "seed") if each in asked},
        }
        if "packs" in asked:
            params["toolpacks"] = asked["packs"].split(",")
        try:
            session = await self._gateway.service.invoke(caller, "create_session", params)
        except REFUSALS as error:
            described = shifted(describe(error))
            if isinstance(error, CallIdReusedError) and name is not None:
                text = f"The session {name!r} has other packs, another task or seed: give the address another name."
                described = ERROR_INVALID_PARAMS, f"Invalid params: {text}", {"detail": text}
            raise McpRefusedError(described, malformed=False, request_id=message.id) from None
        return str(session["mcp_path"]).rpartition("/")[2]

    async def other(self, exchange: Exchange) -> None:
        """End the session of the header, which is the client's own; one with a task is evaluated, and kept for that."""
        if exchange.scope["method"] != "DELETE":
            await super().other(exchange)
        if SESSION_ID not in exchange.headers:
            raise HttpRefusedError(400, "Which session? Send the header Mcp-Session-Id.")
        try:
            agent = await self.stranger(exchange)
            with self._gateway.admitted(exchange.scope, agent) as admission:
                admission.begin_answer()
                await self._end(Caller(agent.owner), {"session_id": agent.session_id})
        except SessionNotFoundError as error:
            raise HttpRefusedError(self.status[Fault.NO_SESSION], str(error)) from None
        except REFUSALS as error:
            raise HttpRefusedError(503, sentence(error)) from None
        except asyncio.CancelledError:  # the server can't wait any longer
            raise HttpRefusedError(503, CUT_OFF) from None
        await exchange.respond(NO_CONTENT, b"")

    async def _end(self, owner: Caller, session: dict[str, Any]) -> None:
        service = self._gateway.service
        if "task" not in await service.invoke(owner, "get_session", session):
            await service.invoke(owner, "close_session", session)
        else:
            how = {"record": True, "raise_on_error": False}
            await service.invoke(owner, "evaluate_session", {**session, **how})


def _asked(exchange: Exchange, message: McpMessage) -> dict[str, str]:
    """Read what the address asks for."""
    pairs = parse_qsl(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    asked = dict(pairs)
    text = ""
    if unknown := next((name for name in asked if name not in ASKED), None):
        text = f"The address asks for {unknown[:MAX_NAME]!r}: it may have {', '.join(ASKED)}."
    elif len(asked) < len(pairs):
        text = "The address asks for something twice: let it ask once."
    elif not 0 < len(asked.get("session", "x")) <= MAX_NAME:
        text = f"The address has a `session` that isn't a name of 1 to {MAX_NAME} characters: correct it."
    if text:
        described = ERROR_INVALID_PARAMS, f"Invalid params: {text}", {"detail": text}
        raise McpRefusedError(described, malformed=False, request_id=message.id)
    return asked
