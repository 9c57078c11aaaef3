"""OpenEnv's variant of MCP: tools over JSON-RPC, for clients that call tools without asking for rewards.

If a request is refused, the response is a JSON-RPC error. If a function fails, the response is a result that contains
the error message.
"""

import json
import uuid
from typing import Any

from toolpack_server.features.api.core import REFUSALS, Caller, HttpRefusedError, sentence
from toolpack_trainers.openenv.episodes import OpenEnvEpisodes
from toolpack_trainers.openenv.messages import (
    OpenEnvCallParams,
    OpenEnvListParams,
    OpenEnvMcpRequest,
    OpenEnvSessionParams,
    OpenEnvShape,
    read_message,
)
from toolpack_trainers.task_episodes import PlayedCall

PARSE_ERROR = -32700  # the codes of JSON-RPC 2.0, section 5.1
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
REFUSED = -32000  # OpenEnv's code for all other errors


class OpenEnvMcpError(Exception):
    """Refusal of a request, with a JSON-RPC error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class OpenEnvMcp:
    """Handler of MCP requests."""

    def __init__(self, episodes: OpenEnvEpisodes) -> None:
        self._episodes = episodes

    async def answer(self, caller: Caller, env: str, content: Any, sid: str | None = None) -> dict[str, Any]:
        """Return the response to a request.

        Args:
            sid: The OpenEnv session of the WebSocket, or None without one.
        """
        id_: Any = None
        try:
            try:
                request = read_message(OpenEnvMcpRequest, content, "A request")
            except HttpRefusedError as error:
                raise OpenEnvMcpError(INVALID_REQUEST, str(error)) from None
            id_ = request.id
            method = METHODS.get(request.method)
            if method is None:
                raise OpenEnvMcpError(
                    METHOD_NOT_FOUND, f"Method not found: {request.method[:200]}. There are {', '.join(METHODS)}."
                )
            kind, handle = method
            try:
                result = await handle(self, caller, env, read_message(kind, request.params, "params"), sid)
            except HttpRefusedError as error:
                raise OpenEnvMcpError(INVALID_PARAMS, str(error)) from None
        except OpenEnvMcpError as error:
            return failure(id_, error.code, str(error))
        except REFUSALS as error:
            return failure(id_, REFUSED, sentence(error))
        return {"jsonrpc": "2.0", "id": id_, "result": result}

    async def _create(self, _caller: Caller, _env: str, _params: OpenEnvShape, sid: str | None) -> dict[str, Any]:
        """Return a new session id. A later reset begins its episode."""
        return {"session_id": sid or uuid.uuid4().hex}

    async def _close(self, caller: Caller, _env: str, params: OpenEnvSessionParams, sid: str | None) -> dict[str, Any]:
        """End a session. Its episode is evaluated if it has no answer, and is kept until it expires."""
        if params.session_id == sid:
            raise OpenEnvMcpError(
                INVALID_REQUEST, "This is the session of this WebSocket: close the WebSocket instead."
            )
        episode = await self._episodes.newest(caller, params.session_id)
        if episode is not None:
            await self._episodes.end(caller, episode)
        return {"session_id": params.session_id, "closed": True}

    async def _list(self, caller: Caller, env: str, params: OpenEnvListParams, sid: str | None) -> dict[str, Any]:
        session = params.session_id or sid
        episode = None if session is None else await self._episodes.newest(caller, session)
        tools = await self._episodes.tools(caller, env, episode)
        return {"tools": [{**tool, "inputSchema": tool["input_schema"]} for tool in tools]}

    async def _call(self, caller: Caller, _env: str, params: OpenEnvCallParams, sid: str | None) -> dict[str, Any]:
        session = params.session_id or sid
        if session is None:
            raise OpenEnvMcpError(INVALID_PARAMS, "session_id is missing: send the one of openenv/session/create.")
        episode = await self._episodes.find(caller, session)
        return _result(await self._episodes.play(caller, episode, params.name, params.arguments, None))


METHODS: dict[str, tuple[type[OpenEnvShape], Any]] = {
    "tools/list": (OpenEnvListParams, OpenEnvMcp._list),  # noqa: SLF001 - of this module
    "tools/call": (OpenEnvCallParams, OpenEnvMcp._call),  # noqa: SLF001
    "openenv/session/create": (OpenEnvShape, OpenEnvMcp._create),  # noqa: SLF001
    "openenv/session/close": (OpenEnvSessionParams, OpenEnvMcp._close),  # noqa: SLF001
}


def failure(id_: Any, code: int, message: str) -> dict[str, Any]:
    """Return a JSON-RPC error response."""
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message, "data": None}}


def _result(played: PlayedCall) -> dict[str, Any]:
    """Return a tool's result in the form of FastMCP's client. OpenEnv's client reads only `data`."""
    text = played.result if isinstance(played.result, str) else json.dumps(played.result, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structured_content": None,
        "data": played.result,
        "is_error": played.reason is not None,
        "meta": None,
    }
