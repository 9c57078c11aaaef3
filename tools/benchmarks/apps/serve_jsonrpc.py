"""fastapi-jsonrpc: a method that counts. The method is async, so it runs without a thread switch."""

import fastapi_jsonrpc
from fastapi import Body
from serving import serve

app = fastapi_jsonrpc.API()
entrypoint = fastapi_jsonrpc.Entrypoint("/rpc")
count = 0


@entrypoint.method()
async def add(amount: int = Body(...)) -> int:
    global count  # noqa: PLW0603 - one counter for all calls, because fastapi-jsonrpc has no sessions
    count += amount
    return count


app.bind_entrypoint(entrypoint)
serve(app)
