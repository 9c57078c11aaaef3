"""The number of Python function calls between a request's bytes and those of its answer.

A clock can't show a small slowdown, because it is within the noise, although a hundred small slowdowns aren't. The
counts here are exact on any machine. They include each start of a Python function and each resumption of a generator
(`call` of `sys.setprofile`) in all threads of the server, with uvicorn, jsonrpcserver and pydantic. The tests use
uvloop and httptools, so neither the event loop nor the HTTP parser is Python.

Not counted:

- functions in C, and those of the tests and their toolpacks
- threads that wake up now and then, independently of calls
- executors' own processes

Requests come one after the other on one connection, with a token, to a store in SQLite. The count of a request is the
least number of calls between the beginnings of two requests. The count of an episode is the sum over its requests.

Two sources of noise are switched off. Every call counts as quick, because slow calls take a longer way. The watcher of
deadlines doesn't tick, because the first job after a tick wakes it. A third source remains, with 24 function calls in
an episode: the store searches for its `call_id` among the ids of sessions, and reads another row if one follows.

The limits may only fall. An increase needs a line in CHANGELOG.md that names its benefit.
"""

import contextlib
import itertools
import re

import pytest
import serving
from whole_server import Frames, WholeServer, request

from toolpack_server.engine import pace, threads
from toolpack_server.packs.loading import load_catalog

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

# Heavy, so that no test has interrupted functions in the same process before; see `engine/interruption.py`. In Python
# 3.11, a cleared interruption leaves a flag that makes a profiled thread hang.
pytestmark = pytest.mark.heavy

NAMES = ("ledger", "stall", "bank")
READ, CHANGE = ("ledger", "total", {}), ("ledger", "add", {"amount": 1})
WARM, REQUESTS = 100, 200
ATTEMPTS = 4

MOST = {
    "read": 235,
    "change": 264,
    "read at an agent's address": 245,
    "read over MCP": 272,
    "change with a call_id": 275,
    "read of a database": 309,
    "change of a database": 394,
    "read in an executor": 293,
    "change in an executor": 310,
}
MOST_AT_DOORS = {
    "episode of ORS": 2509,
    "call of NeMo Gym": 336,
    "call at /mcp": 327,
}
TASK, TOOL = "bank/save-300", "get_balance"
MCP_VERSION = "2026-07-28"
MCP_META = {
    "io.modelcontextprotocol/protocolVersion": MCP_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "a test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MCP_ACCEPTED = {"Accept": "application/json, text/event-stream"}
MCP_HEADERS = {**MCP_ACCEPTED, "MCP-Protocol-Version": MCP_VERSION}
OLD_MCP = "2025-06-18"


class Counted:
    """A server with a session for each toolpack. It counts the function calls that a request takes."""

    def __init__(self, frames, folder, **settings):
        settings_of_server = {"data_dir": folder, "pack_dir": (serving.PACKS,), "packs": NAMES, **settings}
        self.server = WholeServer(load_catalog((serving.PACKS,), NAMES), **settings_of_server)
        self._frames = frames
        self._sessions = {name: self.server.rpc("create_session", toolpacks=[name]) for name in NAMES}
        self._call_ids = map(str, itertools.count())

    def of_calls(self, toolpack, function, kwargs, door="rpc", *, call_ids=False):
        session = self._sessions[toolpack]

        def one():
            params = {"function": function, "kwargs": kwargs}
            if call_ids:
                params["call_id"] = next(self._call_ids)
            if door == "agent":
                return post(session["agent_path"], "run_function", params)
            if door == "mcp":
                headers = {**MCP_HEADERS, "Mcp-Method": "tools/call", "Mcp-Name": function}
                params = {"name": function, "arguments": kwargs, "_meta": MCP_META}
                return post(session["mcp_path"], "tools/call", params, headers)
            return post("/rpc", "run_function", {"session_id": session["session_id"], **params})

        return self._least([[one()] for _ in range(WARM + REQUESTS)], b'"error":null', b'"isError":false')

    def of_door(self, door):
        """Count an episode, or a call in one."""
        number = range(WARM + REQUESTS)
        if door == "episode of ORS":
            return self._least([ors_episode(f"{next(self._call_ids)}-{door}") for _ in number], b'"sid"', b'"ok":true')
        if door == "call of NeMo Gym":
            ((reply,),) = self.server.burst([[request("/seed_session", {"task": TASK})]])
            (session,) = re.findall(rb"toolpack_session=(\w+)", reply)
            call = request(f"/{TOOL}", {}, {"Cookie": f"toolpack_session={session.decode()}"})
            return self._least([[call] for _ in number], b"200 OK")
        initialize = {"protocolVersion": OLD_MCP, "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
        ((reply,),) = self.server.burst([[post(f"/mcp?task={TASK}", "initialize", initialize, MCP_ACCEPTED)]])
        (session,) = re.findall(rb"mcp-session-id: (\w+)", reply)
        headers = {**MCP_ACCEPTED, "Mcp-Session-Id": session.decode(), "MCP-Protocol-Version": OLD_MCP}
        call = post("/mcp", "tools/call", {"name": TOOL, "arguments": {}}, headers)
        return self._least([[call] for _ in number], b'"isError":false')

    def _least(self, groups, *right):
        """Send groups of requests one after the other. Return the least number of function calls of a group."""
        counts = []
        requests = [each for group in groups for each in group]
        (replies,) = self.server.burst([requests], lambda: counts.append(self._frames.counted.total()))
        assert all(any(text in reply for text in right) for reply in replies)
        counts_of_requests = [after - before for before, after in itertools.pairwise(counts)]
        size = len(groups[0])
        return sum(min(counts_of_requests[WARM * size + index :: size]) for index in range(size))


def ors_episode(sid):
    return [
        request(path, body, {"X-Session-ID": sid})
        for path, body in (
            ("/create", {"task_spec": {"task": TASK}}),
            ("/bank/call", {"name": TOOL, "input": {}}),
            ("/bank/call", {"name": "submit_answer", "input": {"answer": ""}}),
        )
    ]


def post(path, method, params, headers=()):
    return request(path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, dict(headers))


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Return a server for each isolation."""
    with contextlib.ExitStack() as closing, pytest.MonkeyPatch.context() as patch:
        for module in (pace, threads):
            patch.setattr(module, "QUICK_SECONDS", serving.PATIENCE)
        patch.setattr(threads, "TICK_SECONDS", serving.PATIENCE)
        frames = Frames()
        closing.enter_context(frames.watching())
        counts = {}

        def get(isolation, *, anew=False):
            if isolation not in counts or anew:
                with serving.zygotes_shared(isolation == "process"):
                    counts[isolation] = Counted(frames, tmp_path_factory.mktemp(isolation), isolation=isolation)
                closing.callback(counts[isolation].server.close)
            return counts[isolation]

        yield get


WAYS = {
    "read": (READ, {}),
    "change": (CHANGE, {}),
    "read at an agent's address": (READ, {"door": "agent"}),
    "read over MCP": (READ, {"door": "mcp"}),
    "change with a call_id": (CHANGE, {"call_ids": True}),
    "read of a database": (("stall", "count_orders", {}), {}),
    "change of a database": (("stall", "place_order", {"product": 1, "quantity": 0}), {}),
    "read in an executor": (READ, {}),
    "change in an executor": (CHANGE, {}),
}


@pytest.mark.parametrize("way", MOST)
def test_a_call_takes_no_more_function_calls_than_it_did(servers, way):
    call, how = WAYS[way]
    # On a busy machine, a function that was slow once may take the longer way from then on, so try again.
    counts = []
    while len(counts) < ATTEMPTS and not (counts and counts[-1] <= MOST[way]):
        isolation = "process" if "executor" in way else "thread"
        counts.append(servers(isolation, anew=len(counts) > 1).of_calls(*call, **how))
    assert min(counts) <= MOST[way], f"a {way} takes {min(counts):g} function calls"


@pytest.mark.parametrize("way", MOST_AT_DOORS)
def test_a_protocol_takes_no_more_function_calls_than_it_did(servers, way):
    counts = []
    while len(counts) < ATTEMPTS and not (counts and counts[-1] <= MOST_AT_DOORS[way]):
        counts.append(servers("thread", anew=len(counts) > 1).of_door(way))
    assert min(counts) <= MOST_AT_DOORS[way], f"a door: {way} takes {min(counts):g} function calls"


def test_concurrent_calls_on_a_session_are_one_commit(servers):
    server = servers("thread").server
    call = {"session_id": server.rpc("create_session", toolpacks=["ledger"])["session_id"]}
    call |= {"function": "add", "kwargs": {"amount": 1}}
    together = [[post("/rpc", "run_function", call)]] * 8
    commits = [server.commits() for _ in range(30) if server.burst(together)]
    # On a busy machine some batches are cut in two, but never all.
    assert min(after - before for before, after in itertools.pairwise(commits[10:])) == 1
