"""What the agent is asked to do, for clients of MCP: as a prompt, and as the server's instructions.

A session that asks for nothing has no prompts, nor their methods. MCP has messages of users and assistants
only, so one of the system comes as one of the user.
"""

from collections.abc import Sequence
from typing import Any

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.protocols.mcp.messages import McpMessage
from toolpack_server.jsonio.strict import dumps
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.manager import SessionManager

PROMPTS = ("prompts/list", "prompts/get")  # the methods; a session that asks for nothing hasn't them
NAME = "task"
_ABOUT = "What you are asked to do in this session."


class Prompts:
    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions

    async def messages(self, caller: Caller) -> Sequence[dict[str, Any]]:
        """Get the messages of the caller's prompt; none if it is asked for nothing."""
        address = await self._sessions.address(caller.session_id or "", caller.owner, caller.address)
        prompt = address.prompt
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else (prompt or ())

    async def introduction(self, caller: Caller) -> bytes:
        """Get the members of a server's introduction: what it is capable of, and its instructions."""
        messages = await self.messages(caller)
        if not messages:
            return b'"capabilities":{"tools":{}}'
        instructions = "\n\n".join(message["content"] for message in messages)
        return b'"capabilities":{"tools":{},"prompts":{}},"instructions":%b' % dumps(instructions)

    def list(self, message: McpMessage) -> bytes:
        if message.params.get("cursor") is not None:
            raise InvalidParamsError("There is one page of prompts: omit the cursor.")
        return b'"prompts":%b' % dumps([{"name": NAME, "title": "Task", "description": _ABOUT}])

    async def get(self, caller: Caller, message: McpMessage) -> bytes:
        messages = await self.messages(caller)
        if message.params.get("name") != NAME:
            raise InvalidParamsError(f"There is no such prompt: the only one is {NAME!r}.")
        told = [
            {
                "role": "assistant" if each["role"] == "assistant" else "user",
                "content": {"type": "text", "text": each["content"]},
            }
            for each in messages
        ]
        return b'"description":%b,"messages":%b' % (dumps(_ABOUT), dumps(told))
