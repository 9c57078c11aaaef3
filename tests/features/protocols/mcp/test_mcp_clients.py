"""Real MCP clients keep one world: across calls, connections, a killed server and two workers.

Each client is a context manager that connects to a URL. It yields a function that calls a tool and returns its text.
"""

import asyncio
import contextlib
import sys
import threading
import time
import uuid

import killed_episodes
import mcp_clients
import pytest
import server_process
from patience import PATIENCE

TOOLS = 10  # the toolpacks have at least so many tools
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
    command = stdio.StdioServerParameters(command=sys.executable, args=["-m", "toolpack_server", "mcp", "--url", url])
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


@pytest.mark.filterwarnings("default")  # warnings of the clients
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_client_keeps_its_world(tmp_path, client):
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
        assert asyncio.run(use(url, [4, 5], restart)) == ["10", "15"]  # The server restarts after each call.
        restarted_url = restart()
        records = restarted_url.rpc("get_trace", session_id=session["session_id"])
    assert [(record["function"], record["kwargs"]["amount"]) for record in records] == [
        ("add", amount) for amount in (1, 2, 3, 4, 5)
    ]


@pytest.mark.filterwarnings("default")  # warnings of the client
def test_fastmcp_polls_a_long_call_that_happens_once(tmp_path):
    mcp_clients.imported("fastmcp_tasks")  # with it, FastMCP's client accepts handles

    async def use(url):
        async with fastmcp(url) as call:
            return await call("slow_compute", {"seconds": 1.5, "label": "once"})

    with server_process.served(tmp_path, "--packs", "conformance") as served:
        assert asyncio.run(use(f"{served.url}/mcp?packs=conformance&session=mine")) == "computed once in 1.5 s"
        (session,) = served.rpc("list_sessions", labels={"mcp": "mine"})
        (record,) = served.rpc("get_trace", session_id=session["session_id"])
    assert len(record["call_id"]) == 32  # the server's call_id, because the client sends none


BY_ADDRESS = [
    *((client, BY_HEADER) for client in CLIENTS if client not in {python_sdk_modern, python_sdk_stdio}),
    *((client, BY_NAME) for client in CLIENTS if client is not python_sdk_stdio),
]


@pytest.mark.filterwarnings("default")  # warnings of the clients
@pytest.mark.parametrize(
    ("client", "query"), BY_ADDRESS, ids=lambda param: param if isinstance(param, str) else param.__name__
)
def test_client_plays_a_task_by_its_address_alone(tmp_path, client, query):
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
        restarted_url = restart()
        (session,) = restarted_url.rpc("list_sessions")
        assert restarted_url.rpc("evaluate_session", session_id=session["session_id"])["reward"] == 1.0


@contextlib.asynccontextmanager
async def knows_calls(address, name):
    """Connect the SDK under this client name. Yield a function that calls a tool with a call_id."""
    client = mcp_clients.imported("mcp.client.client")
    streamable_http = mcp_clients.imported("mcp.client.streamable_http")
    about = mcp_clients.imported("mcp.types").Implementation(name=name, version="1")
    headers = {"Authorization": f"Bearer {killed_episodes.TOKEN}"}
    async with mcp_clients.imported("httpx2").AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport = streamable_http.streamable_http_client(address, http_client=http)
        async with client.Client(transport, mode="legacy", client_info=about) as sdk:

            async def call(function, kwargs, call_id):
                result = await sdk.call_tool(function, kwargs, meta={"toolpack-server/call_id": call_id})
                assert not result.is_error, result

            yield call


def steps(episode):
    """Return the numbered calls of an episode. The last one submits its answer."""
    return list(enumerate([*episode["calls"], ["submit_answer", {"answer": episode["answer"]}]]))


def is_amid(episode, number):
    # Never before the first call: the SDK exits if the notification after `initialize` isn't answered.
    return episode["pause"] and number == max(len(episode["calls"]) // 2, 1)


async def in_a_session_of_its_own(address, name, episode, kill, start):
    """Play in the session that `initialize` created.

    The client stays connected, and is idle while the server is down.
    """
    async with knows_calls(address, name) as call:
        for number, (function, kwargs) in steps(episode):
            if is_amid(episode, number):
                await asyncio.to_thread(lambda: (kill(), start()))
            await call(function, kwargs, str(number))


async def in_a_session_of_a_name(address, name, episode, kill, start):
    """Play in the session that the address names. If a client fails, maybe during a call, another one continues."""
    restarts, remaining, deadline = [], steps(episode), time.monotonic() + PATIENCE
    while remaining:
        assert time.monotonic() < deadline, remaining
        with contextlib.suppress(Exception):  # any error of a client whose server is down
            async with knows_calls(f"{address}&session={name}", name) as call:
                while remaining:
                    number, (function, kwargs) = remaining[0]
                    if is_amid(episode, number) and not restarts:
                        restarts.append(threading.Thread(target=lambda: (kill(), start())))
                        restarts[0].start()
                    await call(function, kwargs, str(number))
                    del remaining[0]
    for thread in restarts:
        await asyncio.to_thread(thread.join, PATIENCE)


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # warnings of the clients
@pytest.mark.parametrize("played", [in_a_session_of_its_own, in_a_session_of_a_name])
@pytest.mark.parametrize("store", killed_episodes.STORES)
def test_client_continues_after_kills_of_the_server(tmp_path, store, played, request):
    def play(url, episodes, kill, start):
        for episode in episodes:
            name = f"played-{uuid.uuid4().hex}"
            address = f"{url}/mcp?task={episode['task']}"
            asyncio.run(played(address, name, episode, kill, start))
            (session,) = killed_episodes.asked(url, "list_sessions", labels={"mcp": name})
            yield [killed_episodes.asked(url, "evaluate_session", session_id=session["session_id"])["reward"]]

    killed_episodes.plays_on(tmp_path, store, request, "mcp", play)
