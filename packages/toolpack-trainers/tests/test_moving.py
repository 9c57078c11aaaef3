"""Tasks with events, played over MCP, the Open Reward Standard and OpenEnv: over each, agents wait for events."""

import json
import uuid
from contextlib import contextmanager

import pytest
import server_process
from killed_episodes import solved
from raw_websocket import RawWebSocket

MODERN = "2026-07-28"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("moving"), "--packs", "errands") as served:
        yield served


@contextmanager
def over_mcp(server, task):
    session = server.rpc("create_session", task=task)

    def call(name, kwargs):
        if name == "submit_answer":
            server.rpc("submit_answer", session_id=session["session_id"], **kwargs)
            return server.rpc("evaluate_session", session_id=session["session_id"])["reward"]
        params = {"name": name, "arguments": kwargs}
        reply = server.http.post(
            session["mcp_path"],
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
            headers={"Accept": "application/json, text/event-stream"},
        )
        result = reply.json().get("result")  # the server refuses a function that isn't available now
        return result["content"][0]["text"] if result else ""

    yield call


@contextmanager
def over_ors(server, task):
    def post(path, body, sid=""):
        return server.http.post(path, json=body, headers={"x-session-id": sid})

    sid = uuid.uuid4().hex
    assert post("/create", {"task_spec": {"task": task}}, sid).status_code == 200

    def call(name, kwargs):
        lines = post("/call", {"name": name, "input": kwargs}, sid).text.splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        output = json.loads("".join(data[1:])).get("output", {"finished": False, "blocks": [{"text": ""}]})
        return output["reward"] if output["finished"] else output["blocks"][0]["text"]

    yield call


@contextmanager
def over_openenv(server, task):
    port = int(server.url.rpartition(":")[2])
    with RawWebSocket(port, "/openenv/errands/ws", None) as socket:
        assert socket.status == 101, socket.body
        assert socket.ask({"type": "reset", "data": {"task": task}})["type"] == "observation"

        def call(name, kwargs):
            action = {"type": "call_tool", "tool_name": name, "arguments": kwargs}
            if name == "submit_answer":
                action = {"type": "submit_answer", **kwargs}
            data = socket.ask({"type": "step", "data": action})["data"]
            result = data["observation"].get("result")
            return data["reward"] if data["done"] else (result if isinstance(result, str) else json.dumps(result))

        yield call


@pytest.mark.parametrize("door", [over_mcp, over_ors, over_openenv])
def test_agents_wait_and_are_in_time_at_each_door(server, door):
    episodes = solved(server.rpc, ["errands"])
    assert len(episodes) >= 8
    for episode in episodes:
        for patient in (True, False):
            with door(server, episode["task"]) as call:
                for name, kwargs in episode["calls"]:
                    if name != "wait":
                        call(name, kwargs)
                    elif patient:
                        assert json.loads(call(name, kwargs)).keys() == {"time", "waited", "news"}
                reward = call("submit_answer", {"answer": episode["answer"] or "Done."})
                assert reward == float(patient), (episode["task"], patient)


def test_mcp_clients_keep_no_list_that_events_change(server):
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "a script", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": MODERN}
    session = server.rpc("create_session", task="errands/swim-lane")

    def listed():
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
        reply = server.http.post(session["mcp_path"], json=message, headers=headers | {"Mcp-Method": "tools/list"})
        result = reply.json()["result"]
        return result["ttlMs"], "book_lane" in [tool["name"] for tool in result["tools"]]

    assert listed() == (0, False)
    server.call(session["session_id"], "wait", seconds=3600, until_something_happens=False)
    assert listed() == (0, True)
    server.call(session["session_id"], "wait", seconds=180, until_something_happens=False)
    assert listed() == (0, False)


@pytest.mark.parametrize("door", [over_mcp, over_ors, over_openenv])
def test_an_agent_notices_the_courier_and_the_mail_at_each_door(server, door):
    """The agent knows no times of events, so it waits until the news name the event."""
    with door(server, "errands/shoes") as call:
        wait_for = lambda text: any(text in json.loads(call("wait", {}))["news"] for _ in range(3))  # noqa: E731
        call("send_mail", {"recipient": "jonas@home.example", "subject": "Size?"})
        assert wait_for("A mail from Jonas arrives.")
        size = int(json.loads(call("list_mails", {}))[-1]["text"][:2])
        call("order", {"item": "shoes", "size": size})
        assert wait_for("The doorbell rings.")
        call("take_in", {})
        assert call("submit_answer", {"answer": "Done."}) == 1.0
