"""MCP tools that features offer at an address besides its functions, for example `say` for messages.

A function of a toolpack takes precedence over a tool with the same name.
"""

from typing import Any

from pydantic import ValidationError

from toolpack_server.base.errors import AnsweredError, InvalidParamsError, TooLargeError
from toolpack_server.features.protocols.mcp.results import tool_error, tool_value
from toolpack_server.jsonio.strict import dumps
from toolpack_server.packs.formats import without_repeated_titles
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.addresses import Addresses, AddressTool
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.sessions.manager import SessionManager


class Tools:
    """Lists the tools of an address and runs them."""

    def __init__(self, sessions: SessionManager, addresses: Addresses) -> None:
        self._sessions = sessions
        self._addresses = addresses

    async def find(self, caller: Caller, name: str) -> AddressTool | None:
        """Return the tool with this name, or None if the caller's address doesn't offer it."""
        for tool in self._addresses.tools:
            if tool.name == name:
                return tool if tool in await self._offered(caller) else None
        return None

    async def with_tools(self, caller: Caller, tools: bytes) -> bytes:
        """Append the tools of the caller's address to the JSON list of its functions."""
        others = [dumps(_describe(tool)) for tool in await self._offered(caller)]
        return b"[%b]" % b",".join(filter(None, [tools[1:-1], *others])) if others else tools

    async def use(self, tool: AddressTool, caller: Caller, request: CallRequest) -> bytes:
        """Run a tool and return the fields of its result. An error is a result with `isError`."""
        if request.problem is not None:
            return tool_error(f"ValidationError: {request.problem}")
        try:
            arguments = tool.parameters.model_validate(request.kwargs)
            value = await tool.use(caller.session_id or "", caller.owner, caller.by, arguments, request.call_id)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(map(str, problem["loc"])) or "arguments"
            return tool_error(f"ValidationError: {location}: {problem['msg']}")
        except (InvalidParamsError, AnsweredError, TooLargeError) as error:  # the agent can correct its call
            return tool_error(f"{type(error).__name__}: {error}")
        return tool_value(value)

    async def _offered(self, caller: Caller) -> list[AddressTool]:
        """Return the tools of the caller's address, without tools that have the name of a function of the session."""
        if not self._addresses.tools:
            return []
        session_id = caller.session_id or ""
        address = await self._sessions.address(session_id, caller.owner, caller.address)
        tools = [tool for tool in self._addresses.tools if tool.is_offered(address)]
        if not tools:
            return []
        functions = self._sessions.catalog.functions(await self._sessions.toolpacks(session_id, caller.owner))
        return [tool for tool in tools if tool.name not in functions]


def _describe(tool: AddressTool) -> dict[str, Any]:
    schema = without_repeated_titles(tool.parameters.model_json_schema())
    schema.pop("description", None)
    hints = {"readOnlyHint": False, "openWorldHint": False}
    return {"name": tool.name, "description": tool.description, "inputSchema": schema, "annotations": hints}
