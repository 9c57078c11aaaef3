"""Malformed arguments from models, over every protocol: the agent gets an error, and its rollout continues."""

import contextlib
import json

import pytest
import server_process
import serving
from hypothesis import given
from hypothesis import strategies as st
from mcp_endpoint import META, MODERN
from raw_websocket import RawWebSocket

TASK = "bank/save-300"
OPENENV = ("openenv", "openenv socket", "openenv mcp")
LEGACY_MCP, HTTP = "2025-06-18", {"content-type": "application/json"}


class Doors:
    """A session for each protocol. A protocol's name is called its door.

    `call` returns whether a call failed, and the text that the agent got. An error that ends a rollout, such as an HTTP
    or a protocol error, fails the test.
    """

    def __init__(self, server):
        self.server = server
        self.http = serving.http_client(server.url, headers=HTTP)
        created = {name: self._create() for name in ("rpc", "agents", LEGACY_MCP, MODERN)}
        self.sessions = {name: session["session_id"] for name, session in created.items()}
        self._agent_path = created["agents"]["agent_path"]
        self._mcp_paths = {era: created[era]["mcp_path"] for era in (LEGACY_MCP, MODERN)}
        self._ok(self.http.post("/create", json={"task_spec": {"task": TASK}}, headers={"x-session-id": "ors"}))
        for name in OPENENV:
            self._ok(self.http.post("/openenv/bank/reset", json={"task": TASK, "episode_id": name}))
        for label, name in [("ors", "ors"), *(("openenv", each) for each in OPENENV)]:
            (session,) = server.rpc("list_sessions", labels={label: name})
            self.sessions[name] = session["session_id"]
        self.gym = serving.http_client(server.url, headers=HTTP)
        self._ok(self.gym.post("/seed_session", json={"task": TASK}))
        self.sessions["nemo_gym"] = self.gym.cookies["toolpack_session"]

    def close(self):
        for each in (self.http, self.gym):
            each.close()

    def _create(self):
        return self.server.rpc("create_session", task=TASK)

    def trace(self, door):
        records, session_id = [], self.sessions[door]
        while page := self.server.rpc("get_trace", session_id=session_id, after=len(records) - 1, limit=1000):
            records += page
        return records

    @staticmethod
    def _ok(reply):
        assert reply.status_code == 200, reply.text
        return reply

    def call(self, door, function, *arguments):
        """Call a function over a protocol, with one value as its arguments, or without arguments."""
        return getattr(self, f"_{door.partition(' ')[0]}", self._mcp)(door, function, *arguments)

    def _rpc(self, _door, function, *kwargs):
        params = {"session_id": self.sessions["rpc"], "function": function}
        return self._envelope("/rpc", {**params, **({"kwargs": kwargs[0]} if kwargs else {})})

    def _agents(self, _door, function, *kwargs):
        return self._envelope(self._agent_path, {"function": function, **({"kwargs": kwargs[0]} if kwargs else {})})

    def _envelope(self, path, params):
        body = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params}
        envelope = self._ok(self.http.post(path, json=body)).json()["result"]
        return envelope["error"] is not None, envelope["error"] or envelope["result"]

    def _mcp(self, era, function, *arguments):
        params = {"name": function, **({"arguments": arguments[0]} if arguments else {})}
        headers = {"mcp-protocol-version": era}
        if era == MODERN:
            params["_meta"] = META
            headers |= {"mcp-method": "tools/call", "mcp-name": function}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result = self._ok(self.http.post(self._mcp_paths[era], json=body, headers=headers)).json()["result"]
        return result["isError"], result["content"][0]["text"]

    def _ors(self, _door, function, *arguments):
        body = {"name": function, **({"input": arguments[0]} if arguments else {})}
        reply = self._ok(self.http.post("/call", json=body, headers={"x-session-id": "ors"}))
        events = [
            dict(line.split(": ", 1) for line in event.split("\n")) for event in reply.text.split("\n\n") if event
        ]
        assert events[-1]["event"] == "end", events
        result = json.loads("".join(each["data"] for each in events[1:]))
        return not result["ok"], result["output"]["blocks"][0]["text"] if result["ok"] else result["error"]

    def _openenv(self, door, function, *arguments):
        optional = {"arguments": arguments[0]} if arguments else {}
        if door == "openenv mcp":
            params = {"name": function, "session_id": door, **optional}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            result = self._ok(self.http.post("/openenv/bank/mcp", json=body)).json()["result"]
            return result["is_error"], result["data"]
        action = {"type": "call_tool", "tool_name": function, **optional}
        if door == "openenv socket":
            with RawWebSocket(self.http.base_url.port, "/openenv/bank/ws?session_id=openenv%20socket") as socket:
                reply = socket.ask({"type": "step", "data": action})
            assert reply["type"] == "observation", reply
            step = reply["data"]
        else:
            step = self._ok(self.http.post("/openenv/bank/step", json={"action": action, "episode_id": door})).json()
        observation = step["observation"]
        wrong = observation["error"]
        return wrong is not None, wrong["message"] if wrong else observation["result"]

    def _nemo_gym(self, _door, function, *arguments):
        reply = self.gym.post(f"/{function}", content=json.dumps(arguments[0]) if arguments else b"")
        assert reply.status_code in {200, 422}, reply.text
        return reply.status_code != 200, reply.text


DOORS = ("rpc", "agents", LEGACY_MCP, MODERN, "ors", *OPENENV, "nemo_gym")


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    bank = server_process.served(tmp_path_factory.mktemp("doors"), "--packs", "bank")
    with bank as server, contextlib.closing(Doors(server)) as doors:
        yield doors


def nested(depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    return value


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
OBJECTS = st.dictionaries(st.text(), JSON, min_size=1).filter(lambda each: "$text" not in each)
TEXTS = st.one_of(
    st.text().filter(str.strip),
    JSON.filter(lambda value: not isinstance(value, dict)).map(json.dumps),
    OBJECTS.map(json.dumps).flatmap(
        lambda text: st.sampled_from([text[:-1], text + "}", json.dumps(text), f"x{text}"])
    ),
    OBJECTS.map(json.dumps),
    st.sampled_from(["null", "NaN", '{"amount": NaN}', '{"amount": 1e999}', '{"a": "\\ud800"}', "[" * 200, "{'a': 1}"]),
    st.integers(120, 140).map(lambda depth: json.dumps({"amount": nested(depth)})),
)
DEEP = st.integers(115, 122).map(lambda depth: {"amount": nested(depth)})
MALFORMED = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(JSON),
    TEXTS,
    OBJECTS,
    DEEP,
)


@pytest.mark.parametrize("door", DOORS)
@given(malformed=MALFORMED)
def test_malformed_arguments_are_an_error_of_the_tool(doors, door, malformed):
    wrong, text = doors.call(door, "get_balance", malformed)
    assert wrong, text
    assert text
    assert doors.call(door, "get_balance", "{}") == (False, doors.call(door, "get_balance", {})[1])


@pytest.mark.parametrize("door", DOORS)
def test_null_absent_and_empty_mean_no_arguments(doors, door):
    answers = {
        doors.call(door, "get_balance", *arguments) for arguments in [(), (None,), ({},), ("",), (" ",), ("{}",)]
    }
    assert answers == {(False, "1840.25")}


@pytest.mark.parametrize("door", DOORS)
def test_malformed_arguments_are_recorded_unchanged(doors, door):
    doors.call(door, "get_balance", [1, "two"])
    doors.call(door, "get_balance", '{"a": 1')
    records = doors.trace(door)[-2:]
    assert [each["kwargs"] for each in records] == [{"$text": '[1,"two"]'}, {"$text": '{"a": 1'}]
    assert {each["failure"] for each in records} == {"arguments"}


@pytest.mark.parametrize("door", [LEGACY_MCP, MODERN, "ors", *OPENENV])
@pytest.mark.parametrize("malformed", [[1], 5, True, '{"answer"', '["x"]', {"answer": 5}, {"answer": None}, {"x": "y"}])
def test_malformed_answer_does_not_end_the_episode(doors, door, malformed):
    wrong, _ = doors.call(door, "submit_answer", malformed)
    assert wrong
    assert doors.call(door, "get_balance", {})[0] is False
