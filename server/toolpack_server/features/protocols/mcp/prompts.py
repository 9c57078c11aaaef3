"""The agent's prompt for MCP clients, as an MCP prompt and as the server's instructions.

A session without a prompt doesn't offer MCP's methods for prompts. MCP knows only user and assistant messages, so
system messages become user messages.
"""

from collections.abc import Sequence
from typing import Any

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.protocols.mcp.messages import McpMessage
from toolpack_server.jsonio.strict import dumps
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.manager import SessionManager

PROMPTS = ("prompts/list", "prompts/get")  # methods that only a session with a prompt offers
NAME = "task"
_DESCRIPTION = "Your task in this session."


class Prompts:
    """Answers MCP's methods for prompts, and writes the server's introduction for a client."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions

    async def messages(self, caller: Caller, *, renew: bool = True) -> Sequence[dict[str, Any]]:
        """Return the messages of the caller's prompt, or an empty sequence if its address has no prompt.

        Args:
            renew: Extend the session's expiry.
        """
        address = await self._sessions.address(caller.session_id or "", caller.owner, caller.address, renew=renew)
        prompt = address.prompt
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else (prompt or ())

    async def introduction(self, caller: Caller, extensions: bytes = b"", *, renew: bool = True) -> bytes:
        """Return the fields `capabilities` and `instructions` of the server's introduction, as JSON.

        Args:
            extensions: Further fields of the capabilities as JSON, each after a comma.
            renew: Extend the session's expiry.
        """
        messages = await self.messages(caller, renew=renew)
        if not messages:
            return b'"capabilities":{"tools":{}%b}' % extensions
        instructions = "\n\n".join(message["content"] for message in messages)
        return b'"capabilities":{"tools":{},"prompts":{}%b},"instructions":%b' % (extensions, dumps(instructions))

    def list(self, message: McpMessage) -> bytes:
        """Answer `prompts/list` with one prompt, the task."""
        if message.params.get("cursor") is not None:
            raise InvalidParamsError("There is one page of prompts: omit the cursor.")
        return b'"prompts":%b' % dumps([{"name": NAME, "title": "Task", "description": _DESCRIPTION}])

    async def get(self, caller: Caller, message: McpMessage) -> bytes:
        """Answer `prompts/get` with the messages of the caller's prompt."""
        messages = await self.messages(caller)
        if message.params.get("name") != NAME:
            raise InvalidParamsError(f"There is no such prompt: the only one is {NAME!r}.")
        prompt = [
            {
                "role": "assistant" if part["role"] == "assistant" else "user",
                "content": {"type": "text", "text": part["content"]},
            }
            for part in messages
        ]
        return b'"description":%b,"messages":%b' % (dumps(_DESCRIPTION), dumps(prompt))
