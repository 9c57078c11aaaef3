"""Fuzz test of very many connections at once, most of them silent.

The server must answer new connections. Above its limit, it must close the oldest connections.
"""

import asyncio
import resource
import time

from tools.fuzz.oracle import parse_strict, require

STEP = 1000
RECEIVE_SECONDS = 900.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def allow_files(number):
    """Raise the limit of open files of this process and of the servers that it starts. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(soft, limit)


async def open_many(port, connections):
    """Open more connections than the server allows, in steps. Return the seconds of the slowest answer meanwhile."""
    opened, slowest = [], 0.0
    try:
        while len(opened) < connections:
            opened += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(STEP)))
            began = time.monotonic()
            require(b" 200 OK" in await _answer(port), "a server with many connections doesn't answer", len(opened))
            slowest = max(slowest, time.monotonic() - began)
        async with asyncio.timeout(10):
            refused = await opened[0][0].read()
        require(b" 503 " in refused, "the oldest connection wasn't closed for a new one", refused)
        error = parse_strict(refused.partition(b"\r\n\r\n")[2])["error"]
        require(error["data"] == {"status": 503}, "a refusal has an unexpected form", refused)
    finally:
        for _, writer in opened:
            writer.transport.abort()
    return slowest


async def _answer(port):
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()
