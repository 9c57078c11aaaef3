"""Toolpack Server as a contender, with a token and its defaults: limits, records, metrics and the call log are on."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import postgres_server

from tools.benchmarks.load import HttpCase
from tools.benchmarks.processes import Process, UnavailableError, free_port, listens, running
from tools.benchmarks.wire import Client, jsonrpc, request_bytes, status
from tools.benchmarks.workshop import PACKS, Workshop

TOKEN = "a-token-for-this-benchmark"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SESSIONS = 8
MCP_VERSION = "2026-07-28"
MCP_META = {
    "io.modelcontextprotocol/protocolVersion": MCP_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MCP_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": MCP_VERSION,
    "Mcp-Method": "tools/call",
}

# AgentDojo's environments by the size of their JSON, each with a call that changes it but keeps its size.
AGENTDOJO = {
    "2 KB": ("banking", "update_password", {"password": "correct horse battery staple"}),
    "20 KB": (
        "travel",
        "reserve_car_rental",
        {"company": "Green Motion", "start_time": "2024-11-10 10:00", "end_time": "2024-11-12 10:00"},
    ),
    "110 KB": (
        "workspace",
        "share_file",
        {"file_id": "11", "email": "emma.johnson@bluesparrowtech.com", "permission": "r"},
    ),
}


@dataclass
class Server:
    """A running Toolpack Server."""

    process: Process
    port: int
    store: str
    data: Path
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.connect()

    def connect(self) -> Client:
        return Client(self.port, "/rpc", HEADERS)

    def create(self, toolpack: str, options: Mapping[str, Any] | None = None) -> str:
        params = {"toolpacks": [toolpack], "options": {toolpack: dict(options or {})}}
        return self.client.call("create_session", params)["session_id"]

    def case(
        self,
        name: str,
        function: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        toolpack: str = "counter",
        options: Mapping[str, Any] | None = None,
        sessions: int = SESSIONS,
        connections: int = 8,
        protocol: str = "rpc",
        note: str = "",
    ) -> HttpCase:
        """Create sessions, and return a case that calls a function in the sessions by turns.

        Args:
            name: The case's name in the table.
            function: The function.
            kwargs: The function's arguments.
            toolpack: The toolpack of the sessions.
            options: The toolpack's options.
            sessions: Number of sessions.
            connections: Number of concurrent connections.
            protocol: One of `PROTOCOLS`.
            note: A remark for readers of the table.
        """
        ids = [self.create(toolpack, options) for _ in range(sessions)]
        calls = [{"session_id": id_, "function": function, "kwargs": dict(kwargs or {})} for id_ in ids]
        requests = [PROTOCOLS[protocol](self, call) for call in calls]
        for call in calls:
            envelope = self.client.call("run_function", call)
            if envelope["error"] is not None:
                raise UnavailableError(f"{function}: {envelope['error']}")
        counts = dict.fromkeys(ids, 0)

        def read_count() -> int:
            for id_ in ids:
                counts[id_] = self._count_records(id_, counts[id_])
            return sum(counts.values())

        expected = '"isError":false' if protocol == "mcp" else '"error":null}'
        return HttpCase(name, self.process, self.port, requests, expected, read_count, connections, note)

    def rpc_request(self, call: Mapping[str, Any]) -> bytes:
        """Return a request to `/rpc`."""
        return request_bytes(self.port, "/rpc", jsonrpc("run_function", call), HEADERS)

    def agent_request(self, call: Mapping[str, Any]) -> bytes:
        """Return a request to the session's `agent_path`."""
        session = self.client.call("get_session", {"session_id": call["session_id"]})
        params = {"function": call["function"], "kwargs": call["kwargs"]}
        return request_bytes(self.port, session["agent_path"], jsonrpc("run_function", params))

    def mcp_request(self, call: Mapping[str, Any]) -> bytes:
        """Return a request to the session's `mcp_path`, in the form of MCP's version 2026-07-28."""
        session = self.client.call("get_session", {"session_id": call["session_id"]})
        name = call["function"]
        params = {"name": name, "arguments": call["kwargs"], "_meta": MCP_META}
        headers = {**MCP_HEADERS, "Mcp-Name": name}
        return request_bytes(self.port, session["mcp_path"], jsonrpc("tools/call", params), headers)

    def _count_records(self, session_id: str, at_least: int) -> int:
        """Return the number of a session's records, which is at least `at_least`.

        Indices start at 0 and have no gaps, so a binary search finds the last index.
        """
        low, high = at_least, at_least + 1024
        while self._has_record(session_id, high):
            low, high = high, high * 2
        while low < high:
            middle = (low + high) // 2
            if self._has_record(session_id, middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _has_record(self, session_id: str, index: int) -> bool:
        return bool(self.client.call("get_trace", {"session_id": session_id, "after": index - 1, "limit": 1}))


PROTOCOLS = {"rpc": Server.rpc_request, "agents": Server.agent_request, "mcp": Server.mcp_request}


@contextlib.contextmanager
def serving(
    workshop: Workshop,
    store: str = "sqlite:",
    *,
    bundled: bool = False,
    wait: bool = True,
    workers: int = 1,
    isolation: str = "thread",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Run a server until the block ends, and yield it.

    Args:
        workshop: The workshop.
        store: `memory:`, `sqlite:`, `redis:` or `postgres:`.
        bundled: Serve the bundled toolpacks instead of the benchmark's.
        wait: Wait until the server is ready.
        workers: Number of workers.
        isolation: Where functions run: `thread` or `process`.
        settings: More settings, as environment variables.
    """
    with contextlib.ExitStack() as stack:
        data = workshop.folder / f"data-{isolation}"
        shutil.rmtree(data, ignore_errors=True)
        port = free_port()
        arguments: list[object] = ["serve", "--port", port, "--data-dir", data, "--workers", workers]
        if store in STORE_SERVERS:
            arguments += ["--store", stack.enter_context(STORE_SERVERS[store](workshop))]
        elif store != "sqlite:":
            arguments += ["--store", store]
        if not bundled:
            packs = [
                "counter",
                "waiter",
                "bank",
                "books",
                "register",
                *(f"agentdojo-{suite}" for suite, _, _ in AGENTDOJO.values()),
            ]
            arguments += ["--pack-dir", PACKS, "--packs", ",".join(packs)]
        environment = {"TOOLPACK_TOKENS": f"benchmark:{TOKEN}", "TOOLPACK_SECRET_KEY": "a key for this benchmark alone"}
        environment |= {"TOOLPACK_ISOLATION": isolation, **settings}
        process = stack.enter_context(workshop.run("toolpack_server", *arguments, environment=environment))
        if wait:
            process.wait_until(lambda: status(port, "/readyz") == 200)
        yield Server(process, port, store, data)


@contextlib.contextmanager
def _redis(workshop: Workshop) -> Iterator[str]:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise UnavailableError("redis-server isn't installed")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(workshop.folder)]
    with running(command, workshop.folder / "redis.log") as process:
        process.wait_until(lambda: listens(port))
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def _postgres(_workshop: Workshop) -> Iterator[str]:
    if postgres_server.find() is None:
        raise UnavailableError("postgresql isn't installed")
    with postgres_server.start() as server:
        yield server.url


STORE_SERVERS = {"redis:": _redis, "postgres:": _postgres}
