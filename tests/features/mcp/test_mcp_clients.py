"""Real clients of MCP keep one world: across calls, connections, a killed server and two workers.

Each client is a context manager that connects to a URL and gives a function which calls a tool and returns its text.
"""

import asyncio
import contextlib
import sys

import httpx
import mcp_clients
import pytest
import server_process
from faults.world import Server
from patience import PATIENCE

TOOLS = 10  # at least, in the toolpacks
BY_HEADER = "?task=bank/save-300"
BY_NAME = "?task=bank/save-300&session=mine"


@contextlib.asynccontextmanager
async def python_sdk(url, mode):
    client = mcp_clients.imported("mcp.client.client")
    async with client.Client(url, mode=mode) as connected:
        assert len((await connected.list_tools()).tools) >= TOOLS

        async def call(name, arguments):
            return (await connected.call_tool(name, arguments)).content[0].text

        yield call


def python_sdk_modern(url):
    return python_sdk(url, "2026-07-28")


def python_sdk_legacy(url):
    return python_sdk(url, "legacy")


def python_sdk_auto(url):
    return python_sdk(url, "auto")


@contextlib.asynccontextmanager
async def python_sdk_stdio(url):
    mcp = mcp_clients.imported("mcp.client.client")
    stdio = mcp_clients.imported("mcp.client.stdio")
    command = stdio.StdioServerParameters(command=sys.executable, args=["-m", "server", "mcp", "--url", url])
    async with mcp.Client(stdio.stdio_client(command)) as connected:
        assert len((await connected.list_tools()).tools) >= TOOLS

        async def call(name, arguments):
            return (await connected.call_tool(name, arguments)).content[0].text

        yield call


@contextlib.asynccontextmanager
async def fastmcp(url):
    async with mcp_clients.imported("fastmcp").Client(url) as connected:
        assert len(await connected.list_tools()) >= TOOLS

        async def call(name, arguments):
            return (await connected.call_tool(name, arguments)).content[0].text

        yield call


@contextlib.asynccontextmanager
async def pydantic_ai(url):
    module = mcp_clients.imported("pydantic_ai.mcp")
    async with module.MCPToolset(url) as connected:
        assert len(await connected.list_tools()) >= TOOLS

        async def call(name, arguments):
            return str(await connected.direct_call_tool(name, arguments))

        yield call


@contextlib.asynccontextmanager
async def openai_agents(url):
    module = mcp_clients.imported("agents.mcp")
    async with module.MCPServerStreamableHttp(params={"url": url}) as connected:
        assert len(await connected.list_tools()) >= TOOLS

        async def call(name, arguments):
            return (await connected.call_tool(name, arguments)).content[0].text

        yield call


CLIENTS = [
    *(python_sdk_modern, python_sdk_legacy, python_sdk_auto, python_sdk_stdio),
    *(fastmcp, pydantic_ai, openai_agents),
]


@pytest.mark.filterwarnings("default")  # of the clients'
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_keeps_its_world(tmp_path, client):
    async def use(url, amounts, between=None):
        sums = []
        async with client(url) as call:
            for amount in amounts:
                sums.append(await call("add", {"amount": amount}))
                if between is not None:
                    await asyncio.to_thread(between)
        return sums

    with contextlib.ExitStack() as stack:
        served = stack.enter_context(server_process.served(tmp_path, "--workers", "2"))
        port = served.url.rpartition(":")[2]
        session = served.rpc("create_session", toolpacks=["ledger"])
        url = served.url + session["mcp_path"]

        def restart():
            stack.close()
            return stack.enter_context(server_process.served(tmp_path, "--workers", "2", "--port", port))

        assert asyncio.run(use(url, [1, 2])) == ["1", "3"]
        assert asyncio.run(use(url, [3])) == ["6"]  # another connection
        assert asyncio.run(use(url, [4, 5], restart)) == ["10", "15"]  # a server that was killed under it
        again = restart()
        records = again.rpc("get_trace", session_id=session["session_id"])
    assert [(record["function"], record["kwargs"]["amount"]) for record in records] == [
        ("add", amount) for amount in (1, 2, 3, 4, 5)
    ]


BY_ADDRESS = [
    *((client, BY_HEADER) for client in CLIENTS if client not in {python_sdk_modern, python_sdk_stdio}),
    *((client, BY_NAME) for client in CLIENTS if client is not python_sdk_stdio),
]


@pytest.mark.filterwarnings("default")  # of the clients'
@pytest.mark.parametrize(
    ("client", "query"), BY_ADDRESS, ids=lambda given: given if isinstance(given, str) else given.__name__
)
def test_a_client_plays_a_task_by_the_address_alone(tmp_path, client, query):
    async def play(url, between):
        async with client(url) as call:
            assert await call("get_balance", {}) == "1840.25"
            await call("move_to_savings", {"amount": "300.00"})
            await asyncio.to_thread(between)
            assert await call("get_balance", {}) == "1540.25"
            await call("submit_answer", {"answer": "Done."})

    with contextlib.ExitStack() as stack:
        served = stack.enter_context(server_process.served(tmp_path, "--workers", "2"))
        port = served.url.rpartition(":")[2]

        def restart():
            stack.close()
            return stack.enter_context(server_process.served(tmp_path, "--workers", "2", "--port", port))

        asyncio.run(play(f"{served.url}/mcp{query}", restart))
        again = restart()
        (session,) = again.rpc("list_sessions")
        assert again.rpc("evaluate_session", session_id=session["session_id"])["reward"] == 1.0


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")
def test_episodes_are_played_through_kills_on_two_workers_with_redis(tmp_path, redis_url):
    server = Server(tmp_path, redis_url, 2, packs="bank", log_calls="off")
    server.start()

    def kill():
        server.kill()
        server.start()

    async def play(number):
        async with python_sdk_auto(f"http://127.0.0.1:{server.port}/mcp{BY_HEADER}") as call:
            assert await call("get_balance", {}) == "1840.25"
            await call("move_to_savings", {"amount": "300.00"})
            if number % 10 == 0:
                await asyncio.to_thread(kill)
            assert await call("get_balance", {}) == "1540.25"
            await call("submit_answer", {"answer": "Done."})

    try:
        for number in range(31):
            asyncio.run(play(number))
        body = {"jsonrpc": "2.0", "id": 1, "method": "summarize_sessions", "params": {"evaluate": True}}
        found = httpx.post(f"http://127.0.0.1:{server.port}/rpc", json=body, timeout=PATIENCE).json()["result"]
    finally:
        server.kill()
    assert [(rate["rollouts"], rate["passed"]) for rate in found["rates"]] == [(31, 31)]
