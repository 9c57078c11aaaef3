"""Very many connections at once, most of them silent: the server goes on answering, and refuses what is too many."""

import asyncio
import resource
import time

from fuzz.oracle import require, strict

STEP = 1000
LIMITS = {"TOOLPACK_HEADER_TIMEOUT_SECONDS": "300", "TOOLPACK_LOG_CALLS": "off"}
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def allow_files(wanted):
    """Raise this process's limit of open files, which servers that it starts inherit; get what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


async def crowd(port, connections, allowed):
    """Open connections in steps, up to more than are allowed; get the slowest answer meanwhile, in seconds."""
    held, slowest = [], 0.0
    try:
        while len(held) < connections:
            opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(STEP)))
            held += opened
            if len(held) < allowed:
                began = time.monotonic()
                require(b" 200 OK" in await _answer(port), "a server with many connections doesn't answer", len(held))
                slowest = max(slowest, time.monotonic() - began)
        refused = await _answer(port)
        require(b" 503 " in refused, "a connection too many is not refused", refused)
        require(strict(refused.partition(b"\r\n\r\n")[2])["error"]["data"] == {"status": 503}, "its shape", refused)
    finally:
        for _, writer in held:
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
