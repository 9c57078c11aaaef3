"""Bare Starlette, the reference of the benchmark: one route parses a JSON-RPC call of `add`, and answers with a sum."""

from serving import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

count = 0


async def rpc(request: Request) -> JSONResponse:
    global count  # noqa: PLW0603 - the simplest state
    call = await request.json()
    count += call["params"]["kwargs"]["amount"]
    return JSONResponse({"jsonrpc": "2.0", "result": {"result": count, "error": None}, "id": call["id"]})


serve(Starlette(routes=[Route("/rpc", rpc, methods=["POST"])]))
