"""Endpoint `/mcp`: MCP for clients that can't create a session first, such as an editor with a fixed URL.

The server creates the session for the client, with the limits of `create_session`. A client with a token reaches only
the sessions of its owner. The URL's query contains the parameters `packs`, `task` and `seed` of the session, and can
name it:

- With `session=NAME`, each message uses the session of this name, and its header `Mcp-Session-Id` is ignored. The first
  message creates the session.
- Without a name, `initialize` creates a session. The answer's header `Mcp-Session-Id` contains the key of its
  `mcp_path`.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from toolpack_server.base.errors import CallIdReusedError, HttpRefusedError, SessionNotFoundError
from toolpack_server.features.protocols.mcp.endpoint import NOT_ALLOWED_STATUS, Exchange, McpEndpoint
from toolpack_server.features.protocols.mcp.messages import (
    CALL_ID_KEY,
    LEGACY,
    MODERN,
    UNSUPPORTED_VERSION,
    McpMessage,
    McpRefusedError,
)
from toolpack_server.features.protocols.mcp.results import Fault, adapt_error
from toolpack_server.protocol.parameters import SessionRequest
from toolpack_server.protocol.senders import AGENT
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import ERROR_INVALID_PARAMS, ERROR_INVALID_REQUEST, REFUSALS, describe, sentence
from toolpack_server.web.endpoints import CUT_OFF
from toolpack_server.web.refusals import NO_CONTENT

SESSION_ID = b"mcp-session-id"
LABEL = "mcp"
QUERY_PARAMETERS = ("packs", "task", "seed", "session")
MAX_NAME = 64
UNUSED_SECONDS = 60.0  # a session expires after this time if its client sends only `initialize`
TRACE_PAGE = 100

NO_SESSION_ID = (
    "Which session? This client doesn't send Mcp-Session-Id back. Give the address a session name, as in "
    "/mcp?packs=bank&session=NAME, or use the mcp_path of a session."
)
NAMED_STAYS = "A named session isn't ended by its clients: close it with close_session, or use another name."
TOO_NEW = (
    f"Version {MODERN} of MCP has no sessions of its own: name a session in the address, as in "
    f"/mcp?session=NAME, use the mcp_path of a session, or use a version that begins with initialize."
)


class OwnSessionEndpoint(McpEndpoint):
    """The endpoint `/mcp`, for all HTTP methods. It creates sessions."""

    allowed = b"POST, DELETE"
    not_allowed = "Send MCP messages with POST: there is no stream to GET; DELETE ends the session of Mcp-Session-Id."
    # With the status 404, clients send `initialize` again.
    status: Mapping[Fault | None, int] = {**McpEndpoint.status, Fault.NO_SESSION: 404}

    async def authenticate(self, exchange: Exchange) -> Caller:
        """Return the agent of the session in `Mcp-Session-Id`.

        Without this header, or if the address names the session, return only the token's owner. `agent` then finds or
        creates the session.
        """
        owner = self._gateway.gate.owner(exchange.headers)
        if b"origin" in exchange.headers:
            exchange.extra.append((b"access-control-expose-headers", b"Mcp-Session-Id"))
        key = exchange.headers.get(SESSION_ID)
        if key is None or (exchange.scope["query_string"] and _is_named(exchange)):
            return Caller(owner)
        caller = await self._gateway.service.agent(key.decode("latin-1"))
        if caller.owner != owner:
            raise SessionNotFoundError
        return caller

    async def agent(self, exchange: Exchange, caller: Caller, message: McpMessage) -> Caller:
        """Return the agent of the session that the address names, or of a new session for `initialize`.

        Add the header `Mcp-Session-Id` to the response if the session has no name.
        """
        query = _read_query(exchange, message)
        name = query.get("session")
        if name is None:
            if message.modern:
                data = {"supported": [*LEGACY], "requested": MODERN}
                raise message.refusal((UNSUPPORTED_VERSION, TOO_NEW, data))
            if message.method != "initialize":
                described = ERROR_INVALID_REQUEST, f"Invalid Request: {NO_SESSION_ID}", {"detail": NO_SESSION_ID}
                raise McpRefusedError(described, request_id=message.id)
        key = await self._create(caller, query, message)
        if name is None:
            exchange.extra.append((SESSION_ID, key.encode()))
        return await self._gateway.service.agent(key)

    async def _create(self, caller: Caller, query: dict[str, str], message: McpMessage) -> str:
        """Create the session, or find the session that the address names, and return its key."""
        name = query.get("session")
        client = message.params.get("clientInfo")
        client_name = client.get("name") if isinstance(client, dict) else None
        params: dict[str, Any] = {
            "labels": {LABEL: name or (client_name if isinstance(client_name, str) else "")[:MAX_NAME]},
            "call_id": message.meta.get(CALL_ID_KEY) if name is None else f"{LABEL}-{name}",
            **{option: query[option] for option in ("task", "seed") if option in query},
        }
        if "packs" in query:
            params["toolpacks"] = query["packs"].split(",")
        prepare = _expire_unused if name is None else None
        try:
            session = await self._gateway.service.invoke(caller, "create_session", params, prepare)
        except REFUSALS as error:
            described = adapt_error(describe(error))
            if isinstance(error, CallIdReusedError) and name is not None:
                text = f"The session {name!r} has other packs, another task or another seed: use another session name."
                described = ERROR_INVALID_PARAMS, f"Invalid params: {text}", {"detail": text}
            raise McpRefusedError(described, malformed=False, request_id=message.id) from None
        return str(session["mcp_path"]).rpartition("/")[2]

    async def answer_other_method(self, exchange: Exchange) -> None:
        """Handle DELETE: end the session of the header `Mcp-Session-Id`.

        If the session has a task and its agent has acted, the session is evaluated and stays readable. Otherwise it is
        closed.
        """
        if exchange.scope["method"] != "DELETE":
            await super().answer_other_method(exchange)
        if _is_named(exchange):
            exchange.extra.append((b"allow", b"POST, OPTIONS"))
            raise HttpRefusedError(NOT_ALLOWED_STATUS, NAMED_STAYS)
        if SESSION_ID not in exchange.headers:
            raise HttpRefusedError(400, "The request names no session: send the header Mcp-Session-Id.")
        try:
            agent = await self.authenticate(exchange)
            with self._gateway.admitted(exchange.scope, agent) as admission:
                admission.begin_answer()
                await self._end(Caller(agent.owner), {"session_id": agent.session_id})
        except SessionNotFoundError as error:
            raise HttpRefusedError(self.status[Fault.NO_SESSION], str(error)) from None
        except REFUSALS as error:
            raise HttpRefusedError(503, sentence(error)) from None
        except asyncio.CancelledError:  # the server is stopping
            raise HttpRefusedError(503, CUT_OFF) from None
        await exchange.respond(NO_CONTENT, b"")

    async def _end(self, owner: Caller, session: dict[str, Any]) -> None:
        """Evaluate a session if it has a task and its agent has acted in it. Otherwise close it."""
        service = self._gateway.service
        if "task" in await service.invoke(owner, "get_session", session) and await self._has_acted(owner, session):
            options = {"record": True, "raise_on_error": False}
            await service.invoke(owner, "evaluate_session", {**session, **options})
        else:
            await service.invoke(owner, "close_session", session)

    async def _has_acted(self, owner: Caller, session: dict[str, Any]) -> bool:
        """Return whether a session's agent has called a function or submitted an answer."""
        after = -1
        while True:
            page = {**session, "after": after, "limit": TRACE_PAGE}
            records = await self._gateway.service.invoke(owner, "get_trace", page)
            if any(record.get("by") == AGENT or record["kind"] == "answer" for record in records):
                return True
            if len(records) < TRACE_PAGE:
                return False
            after = records[-1]["index"]


def _expire_unused(request: SessionRequest) -> None:
    """Let a new session expire soon if its client sends nothing after `initialize`."""
    request.expire_unused(UNUSED_SECONDS)


def _query_pairs(exchange: Exchange) -> list[tuple[str, str]]:
    return parse_qsl(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _is_named(exchange: Exchange) -> bool:
    """Return whether the address names its session."""
    return any(parameter == "session" for parameter, _ in _query_pairs(exchange))


def _read_query(exchange: Exchange, message: McpMessage) -> dict[str, str]:
    """Return the parameters in the query of the address.

    Raises:
        McpRefusedError: A parameter is unknown, duplicated, or a name of an invalid length.
    """
    pairs = _query_pairs(exchange)
    query = dict(pairs)
    text = ""
    if unknown := next((name for name in query if name not in QUERY_PARAMETERS), None):
        text = f"The address has an unknown parameter {unknown[:MAX_NAME]!r}: use {', '.join(QUERY_PARAMETERS)}."
    elif len(query) < len(pairs):
        text = "The address has a parameter twice: give each parameter once."
    elif not 0 < len(query.get("session", "x")) <= MAX_NAME:
        text = f"The parameter `session` of the address must have 1 to {MAX_NAME} characters."
    if text:
        described = ERROR_INVALID_PARAMS, f"Invalid params: {text}", {"detail": text}
        raise McpRefusedError(described, malformed=False, request_id=message.id)
    return query
