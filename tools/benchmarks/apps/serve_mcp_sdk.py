"""The low-level server of the MCP Python SDK over streamable HTTP: a tool that counts, without sessions."""

from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from serving import serve

count = 0
schema = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


async def list_tools(_context, _params):
    return ListToolsResult(tools=[Tool(name="add", description="Add to the counter.", inputSchema=schema)])


async def call_tool(_context, params):
    global count  # noqa: PLW0603 - one counter for all calls, so that the benchmark can check it
    count += params.arguments["amount"]
    return CallToolResult(content=[TextContent(type="text", text=str(count))], isError=False)


server = Server("counter", on_list_tools=list_tools, on_call_tool=call_tool)
serve(server.streamable_http_app(json_response=True, stateless_http=True))
