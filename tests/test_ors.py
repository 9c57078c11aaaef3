"""The Open Reward Standard's protocol, by plain HTTP: episodes, their rewards, and every refusal in a sentence."""

import contextlib
import json

import httpx
import pytest
import server_process
import serving

TOKENS = {"TOOLPACK_TOKENS": "ann:token-of-ann,bob:token-of-bob"}
DISHES = "chores/dishes"  # three calls at most


class Player:
    """A client of the protocol; `send` may be repeated by a test with the same arguments."""

    def __init__(self, url, token=None, transport=None):
        headers = {} if token is None else {"x-api-key": token}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=serving.PATIENCE, transport=transport)

    def close(self):
        self.http.close()

    def get(self, path, sid=""):
        return self.http.get(path, headers={"x-session-id": sid})

    def post(self, path, body=None, sid="", **headers):
        return self.http.post(path, json=body, headers={"x-session-id": sid, **headers})

    def begin(self, task, **more):
        ((name, sid), end) = events(self.post("/create_session", {}))
        assert (name, end) == ("task_id", ("end", ""))
        created = self.post("/create", {"task_spec": {"task": task, **more}}, sid)
        assert (created.status_code, created.json()) == (200, {"sid": sid})
        return sid

    def stream(self, sid, name, task_id=None, **given):
        body = {"name": name, "input": given, **({} if task_id is None else {"task_id": task_id})}
        return self.post("/call", body, sid)

    def call(self, sid, name, task_id=None, **given):
        (first, known), *pieces, (last, _) = told = events(self.stream(sid, name, task_id, **given))
        assert first == "task_id"
        assert task_id in {None, known}
        assert {piece for piece, _ in pieces} <= {"chunk"}
        assert last == "end"
        return json.loads("".join(data for _, data in told[1:]))

    def output(self, sid, name, task_id=None, **given):
        result = self.call(sid, name, task_id, **given)
        assert result["ok"], result
        return result["output"]

    def text(self, sid, name, **given):
        output = self.output(sid, name, **given)
        assert (output["reward"], output["metadata"], output["finished"]) == (None, None, False)
        return "".join(block["text"] for block in output["blocks"])


def events(reply):
    """Read a stream as the SDK does: line by line, without the spaces at the beginning of what is said."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in reply.text.split("\n\n")[:-1]:
        lines = [line.split(":", 1) for line in event.split("\n") if not line.startswith(":")]
        assert max(len(line) for line in event.encode().split(b"\n")) < 2**16, "the SDK reads lines of 128 KiB at most"
        if lines:
            assert [field for field, _ in lines] == ["event", "data"]
            found.append(tuple(value.lstrip() for _, value in lines))
    return found


def detail(reply, status):
    assert reply.status_code == status, reply.text
    (said,) = reply.json().items()
    assert said[0] == "detail"
    return said[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("ors"), "--packs", "chores,pages,bank") as served:
        yield served


@pytest.fixture(scope="module")
def player(server):
    with contextlib.closing(Player(server.url)) as player:
        yield player


def test_an_episode_gets_its_reward_with_the_answer_and_once(player):
    sid = player.begin("bank/save-300")
    (block,) = player.get("/prompt", sid).json()
    assert block == {"text": "Please put 300 euros aside on my savings account.", "detail": None, "type": "text"}
    tools = player.get("/task_tools", sid).json()
    assert [tool["name"] for tool in tools["tools"]][-1] == tools["terminal_tool"]["name"] == "submit_answer"
    assert tools["tools"][0].keys() == {"name", "description", "input_schema"}
    assert player.text(sid, "get_balance") == "1840.25"
    assert json.loads(player.text(sid, "move_to_savings", amount="300.00"))["amount"] == "-300.00"
    output = player.output(sid, "submit_answer", "the-answer", answer="Done.")
    assert (output["reward"], output["finished"]) == (1.0, True)
    assert (output["metadata"]["passed"], output["metadata"]["failure"]) == (True, None)
    # The stream is resumed; any other call is one too many.
    assert player.output(sid, "submit_answer", "the-answer", answer="Done.") == output
    for name, given in [("submit_answer", {"answer": "Done."}), ("get_balance", {})]:
        refused = player.call(sid, name, **given)
        assert (refused["ok"], refused["reason"]) == (False, "episode_finished")
    assert player.call(sid, "submit_answer", "another", answer="No.")["reason"] == "episode_finished"
