"""The tool by which an agent that speaks MCP submits its answer, in a session that asks for one.

The rule: it isn't a function of a toolpack, so a session that asks for no answer doesn't have it, and where a toolpack
has a function of its name, that one is meant.
"""

from collections.abc import Mapping
from typing import Any

from server.base.errors import AnsweredError
from server.features.api import Caller
from server.features.mcp.results import tool_error
from server.jsonio.strict import dumps
from server.sessions.addresses import Addresses, TakeAnswer
from server.sessions.manager import SessionManager

NAME = "submit_answer"
TOOL: dict[str, Any] = {
    "name": NAME,
    "description": "Submit the answer, which ends your part: after it, no tool can be called any more.",
    "inputSchema": {
        "type": "object",
        "properties": {"answer": {"type": "string", "default": "", "description": "The answer."}},
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": False},
}


class Answering:
    """Offers the tool, and answers its calls."""

    def __init__(self, sessions: SessionManager, addresses: Addresses) -> None:
        self._sessions = sessions
        self._addresses = addresses

    async def taker(self, caller: Caller) -> TakeAnswer | None:
        """Get what takes the caller's answer; None if its address doesn't have the tool."""
        session_id = caller.session_id or ""
        address = await self._sessions.address(session_id, caller.owner, caller.address)
        if not address.answers:
            return None
        toolpacks = await self._sessions.toolpacks(session_id, caller.owner)
        return None if NAME in self._sessions.catalog.functions(toolpacks) else self._addresses.take_answer

    async def with_tool(self, caller: Caller, tools: bytes) -> bytes:
        """Add the tool to the JSON of a session's tools, if the session has it."""
        if await self.taker(caller) is None:
            return tools
        return b"[%b]" % b",".join(filter(None, [tools[1:-1], dumps(TOOL)]))

    async def call(self, take: TakeAnswer, caller: Caller, arguments: Mapping[str, Any]) -> bytes:
        """Submit the answer, and get the members of the tool's result."""
        answer = arguments.get("answer", "")
        if not isinstance(answer, str) or arguments.keys() - {"answer"}:
            return tool_error("ValidationError: submit_answer takes `answer`, a string, and nothing else.")
        try:
            await take(caller.session_id or "", caller.owner, caller.by, answer)
        except AnsweredError as error:
            return tool_error(f"AnsweredError: {error}")
        return b'"content":[{"type":"text","text":"The answer has been submitted."}],"isError":false'
