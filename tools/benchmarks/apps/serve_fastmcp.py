"""FastMCP over streamable HTTP: a tool that counts. The tool is async, so it runs without a thread switch.

The second argument is `sessions` or `stateless`. Both modes answer with JSON, because this is faster than an event
stream.
"""

import sys

from fastmcp import FastMCP
from serving import serve

server = FastMCP("counter")
count = 0


@server.tool
async def add(amount: int) -> int:
    """Add to the counter and return the sum."""
    global count  # noqa: PLW0603 - one counter for all sessions, so that both modes can be checked
    count += amount
    return count


serve(server.http_app(path="/mcp", json_response=True, stateless_http=sys.argv[2] == "stateless"))
