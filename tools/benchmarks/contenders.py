"""The contenders: this server, bare Starlette, and servers of other projects that do the same work.

Each function starts a contender, and yields its cases: the kinds of calls to measure. The calls add to a counter, or
change an environment of AgentDojo.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.benchmarks import ours
from tools.benchmarks.load import Case, HttpCase, LoopCase
from tools.benchmarks.processes import free_port, listens
from tools.benchmarks.wire import JSON, Client, jsonrpc, request_bytes
from tools.benchmarks.workshop import Workshop

ONE = {"amount": 1}
ASYNC_NOTE = "an async function: no hop to a thread"


@dataclass(frozen=True)
class Contender:
    """A server, or a loop without a server.

    Attributes:
        name: The name. The table of results shows it if the contender can't be started.
        cases: Starts the contender and yields its cases. The contender is stopped when the block ends.
    """

    name: str
    cases: Callable[[Workshop], contextlib.AbstractContextManager[list[Case]]]


@contextlib.contextmanager
def bare(workshop: Workshop, *, plain: bool) -> Iterator[HttpCase]:
    """Start bare Starlette, the reference for all contenders. `plain` starts it without uvloop and httptools."""
    call = jsonrpc("run_function", {"session_id": "0" * 32, "function": "add", "kwargs": ONE})
    with _serve(workshop, "serve_bare", plain=plain) as (process, port):
        client = Client(port, "/rpc")
        requests = [request_bytes(port, "/rpc", call, ours.HEADERS)]
        add_nothing = {**call, "params": {"kwargs": {"amount": 0}}}
        yield HttpCase(
            "bare Starlette" if plain else "bare Starlette on uvloop and httptools",
            process,
            port,
            requests,
            '"error":null}',
            lambda: client.post(add_nothing)[0]["result"]["result"],
            note="parses and answers JSON",
        )


@contextlib.contextmanager
def _serve(
    workshop: Workshop, module: str, *arguments: str, requirements: str | None = None, plain: bool = False
) -> Iterator[Any]:
    port = free_port()
    with workshop.run(module, port, *arguments, requirements=requirements, plain=plain) as process:
        process.wait_until(lambda: listens(port))
        yield process, port


@contextlib.contextmanager
def _ours(store: str, workshop: Workshop) -> Iterator[list[Case]]:
    with ours.serving(workshop, store) as server:
        name = f"ours, {store}"
        cases: list[Case] = [
            server.case(f"{name} tiny, read", "get", note="8 sessions; recorded"),
            server.case(f"{name} tiny, read, 1 session", "get", sessions=1),
            server.case(f"{name} tiny, change", "add", ONE, note="8 sessions"),
            server.case(f"{name} tiny, change, 1 session", "add", ONE, sessions=1),
            server.case(f"{name} tiny, change, agents' address", "add", ONE, protocol="agents", note="8 sessions"),
            server.case(f"{name} tiny, change, MCP tool call", "add", ONE, protocol="mcp", note="8 sessions"),
        ]
        for size, (suite, function, kwargs) in ours.AGENTDOJO.items():
            note = f"8 sessions; {suite}: {function}"
            cases.append(
                server.case(f"{name} {size}, change", function, kwargs, toolpack=f"agentdojo-{suite}", note=note)
            )
        yield cases


@contextlib.contextmanager
def _ours_in_processes(store: str, workshop: Workshop) -> Iterator[list[Case]]:
    with ours.serving(workshop, store, isolation="process") as server:
        name = f"ours, {store}"
        suite, function, kwargs = ours.AGENTDOJO["110 KB"]
        yield [
            server.case(f"{name} tiny, read, in processes", "get", note="8 sessions; recorded"),
            server.case(f"{name} tiny, change, in processes", "add", ONE, note="8 sessions"),
            server.case(f"{name} 110 KB, change, in processes", function, kwargs, toolpack=f"agentdojo-{suite}"),
        ]


MCP_HEADERS = {"Accept": f"{JSON}, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
ADD_TOOL = jsonrpc("tools/call", {"name": "add", "arguments": ONE})
ADD_NOTHING = {"name": "add", "arguments": {"amount": 0}}
IDS = 512
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}


@contextlib.contextmanager
def _fastmcp(mode: str, workshop: Workshop) -> Iterator[list[Case]]:
    with _serve(workshop, "serve_fastmcp", mode, requirements="fastmcp") as (process, port):
        sessions = [_mcp_session(port) if mode == "sessions" else MCP_HEADERS for _ in range(ours.SESSIONS)]
        # Concurrent requests of one session need different ids.
        requests = [
            request_bytes(port, "/mcp", {**ADD_TOOL, "id": number + 10}, sessions[number % ours.SESSIONS])
            for number in range(IDS)
        ]
        client = Client(port, "/mcp", sessions[0])
        yield [
            HttpCase(
                f"FastMCP tool call, {mode}",
                process,
                port,
                requests,
                '"isError":false',
                lambda: client.call("tools/call", ADD_NOTHING)["structuredContent"]["result"],
                note=f"streamable HTTP, JSON answers; {ASYNC_NOTE}; one state for all",
            )
        ]


@contextlib.contextmanager
def _mcp_sdk(workshop: Workshop) -> Iterator[list[Case]]:
    with _serve(workshop, "serve_mcp_sdk", requirements="fastmcp") as (process, port):
        client = Client(port, "/mcp", MCP_HEADERS)
        requests = [request_bytes(port, "/mcp", {**ADD_TOOL, "id": number}, MCP_HEADERS) for number in range(IDS)]
        yield [
            HttpCase(
                "MCP Python SDK, low-level server, stateless",
                process,
                port,
                requests,
                '"isError":false',
                lambda: int(client.call("tools/call", ADD_NOTHING)["content"][0]["text"]),
                note=f"streamable HTTP, JSON answers; {ASYNC_NOTE}; one state for all",
            )
        ]


def _mcp_session(port: int) -> dict[str, str]:
    _, received = Client(port, "/mcp", MCP_HEADERS).post(jsonrpc("initialize", INITIALIZE))
    headers = {**MCP_HEADERS, "Mcp-Session-Id": received["mcp-session-id"]}
    Client(port, "/mcp", headers).post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return headers


@contextlib.contextmanager
def _openenv_step(workshop: Workshop) -> Iterator[list[Case]]:
    with _serve(workshop, "serve_openenv", "step", requirements="openenv") as (process, port):
        client = Client(port, "/step")
        yield [
            HttpCase(
                "OpenEnv /step",
                process,
                port,
                [request_bytes(port, "/step", {"action": ONE})],
                '"observation":{"value":',
                lambda: client.post({"action": {"amount": 0}})[0]["observation"]["value"],
                note=f"one state for all: steps have no sessions over HTTP; {ASYNC_NOTE}",
            )
        ]


@contextlib.contextmanager
def _openenv_tool(workshop: Workshop) -> Iterator[list[Case]]:
    with _serve(workshop, "serve_openenv", "tool", requirements="openenv") as (process, port):
        client = Client(port, "/mcp")
        ids = [client.call("openenv/session/create", {})["session_id"] for _ in range(ours.SESSIONS)]

        def call(session_id: str, amount: int) -> dict[str, Any]:
            arguments = {"session_id": session_id, "name": "add", "arguments": {"amount": amount}}
            return jsonrpc("tools/call", arguments)

        def read_count() -> int:
            results = [client.post(call(session_id, 0))[0]["result"] for session_id in ids]
            return sum(result["data"] for result in results)

        requests = [request_bytes(port, "/mcp", call(session_id, 1)) for session_id in ids]
        note = f"8 sessions; {ASYNC_NOTE}"
        yield [HttpCase("OpenEnv tool call", process, port, requests, '"is_error":false', read_count, note=note)]


@contextlib.contextmanager
def _fastapi_jsonrpc(workshop: Workshop) -> Iterator[list[Case]]:
    with _serve(workshop, "serve_jsonrpc", requirements="fastapi-jsonrpc") as (process, port):
        client = Client(port, "/rpc")
        requests = [request_bytes(port, "/rpc", jsonrpc("add", ONE))]
        note = f"no sessions, no records; {ASYNC_NOTE}"
        read_count = functools.partial(client.call, "add", {"amount": 0})
        yield [HttpCase("fastapi-jsonrpc", process, port, requests, '"result":', read_count, note=note)]


@contextlib.contextmanager
def _fastapi(workshop: Workshop) -> Iterator[list[Case]]:
    file = workshop.folder / "by-hand.db"
    with _serve(workshop, "serve_fastapi", str(file), requirements="fastapi") as (process, port):
        client = Client(port, "/call")
        ids = [f"session {number}" for number in range(ours.SESSIONS)]
        requests = [request_bytes(port, "/call", {"session": id_, "amount": 1}) for id_ in ids]

        def read_count() -> int:
            return sum(client.post({"session": id_, "amount": 0})[0]["result"] for id_ in ids)

        note = "8 sessions; aiosqlite, one transaction a call; uvloop and httptools"
        yield [HttpCase("FastAPI by hand, durable", process, port, requests, '"result":', read_count, note=note)]


@contextlib.contextmanager
def _agentdojo(size: str, workshop: Workshop) -> Iterator[list[Case]]:
    suite, function, kwargs = ours.AGENTDOJO[size]
    with workshop.run("loop_agentdojo", suite, function, json.dumps(kwargs), piped=True) as process:
        if process.popen.stdout is not None:
            process.popen.stdout.readline()
        yield [LoopCase(f"AgentDojo in-process, {size}", process, f"no HTTP: one loop, a deep copy per call; {suite}")]


CONTENDERS = [
    *(
        Contender(f"ours, {store}", functools.partial(_ours, store))
        for store in ("memory:", "sqlite:", "redis:", "postgres:")
    ),
    *(
        Contender(f"ours, {store} in processes", functools.partial(_ours_in_processes, store))
        for store in ("memory:", "sqlite:")
    ),
    Contender("FastAPI by hand, durable", _fastapi),
    Contender("fastapi-jsonrpc", _fastapi_jsonrpc),
    *(Contender(f"FastMCP tool call, {mode}", functools.partial(_fastmcp, mode)) for mode in ("sessions", "stateless")),
    Contender("MCP Python SDK, low-level server", _mcp_sdk),
    Contender("OpenEnv /step", _openenv_step),
    Contender("OpenEnv tool call", _openenv_tool),
    *(Contender(f"AgentDojo in-process, {size}", functools.partial(_agentdojo, size)) for size in ours.AGENTDOJO),
]
