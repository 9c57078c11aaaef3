"""A FastMCP server for `toolpack-server conform --protocol mcp`: `python serve_fastmcp.py PORT`."""

import asyncio
import functools
import inspect
import sys
from collections import defaultdict

from fastmcp import Context, FastMCP
from world import FUNCTIONS, World

server = FastMCP("conform")
worlds = defaultdict(World)


def tool(method):
    """Turn a method of the world into a tool. The tool calls it with the world of the client's session."""

    def call(ctx: Context, **kwargs):
        return method(worlds[ctx.session_id], **kwargs)

    functools.update_wrapper(call, method)
    del call.__wrapped__
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    own = list(inspect.signature(method).parameters.values())[1:]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    call.__signature__ = inspect.signature(method).replace(parameters=[*keywords, context])
    call.__annotations__ = {**method.__annotations__, "ctx": Context}
    return call


for name in FUNCTIONS:
    if name != "add_and_wait":
        server.tool(tool(getattr(World, name)))


@server.tool
async def add_and_wait(amount: int, seconds: float, ctx: Context) -> int:
    """Wait without a thread, because the pool has only 40 threads."""
    world = worlds[ctx.session_id]
    world.add_and_wait(amount, 0)
    await asyncio.sleep(seconds)
    return world.total()


server.run(transport="http", port=int(sys.argv[1]), show_banner=False, log_level="error")
