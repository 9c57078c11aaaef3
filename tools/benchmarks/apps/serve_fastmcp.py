"""FastMCP over streamable HTTP: one tool that counts. It is async, so it runs without a thread switch.

The second argument is `sessions` or `stateless`. Both modes answer with JSON instead of an event stream, which is
faster.
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
