"""The protocol of the Open Reward Standard over plain HTTP: episodes, rewards and errors."""

import asyncio
import base64
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
import server_process
import serving
from patience import PATIENCE

from toolpack_server.base.errors import DeadlineError, InvalidParamsError
from toolpack_server.web.app import create_app
from toolpack_trainers.ors.endpoints import OrsEndpoint, _pieces
from toolpack_trainers.ors.episodes import _blocks, block_of

TOKENS = {"TOOLPACK_TOKENS": "ann:token-of-ann,bob:token-of-bob"}
DISHES = "chores/dishes"  # at most three calls


class Player:
    """A client of the protocol. A test can repeat a `stream` or `call` with the same arguments."""

    def __init__(self, url, token=None, transport=None):
        headers = {"content-type": "application/json", **({} if token is None else {"x-api-key": token})}
        self.http = serving.http_client(url, headers=headers, transport=transport)

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
    """Parse a stream as the SDK does: line by line, without leading spaces in the data."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    parsed = []
    for event in reply.text.split("\n\n")[:-1]:
        lines = [line.split(":", 1) for line in event.split("\n") if not line.startswith(":")]
        assert max(len(line) for line in event.encode().split(b"\n")) < 2**16, "the SDK reads lines of 128 KiB at most"
        if lines:
            assert [field for field, _ in lines] == ["event", "data"]
            parsed.append(tuple(value.lstrip() for _, value in lines))
    return parsed


def detail(reply, status):
    assert reply.status_code == status, reply.text
    (said,) = reply.json().items()
    assert said[0] == "detail"
    return said[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("ors"), "--packs", "chores,ledger,bank") as served:
        yield served


@pytest.fixture(scope="module")
def player(server):
    with contextlib.closing(Player(server.url)) as player:
        yield player


def test_episode_is_rewarded_once_with_its_answer(player):
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
    assert (output["metadata"]["passed"], output["metadata"].get("failure")) == (True, None)
    # A call with the same id resumes the stream. A call with another id comes after the end of the episode.
    assert player.output(sid, "submit_answer", "the-answer", answer="Done.") == output
    for name, task_id, given in [
        ("submit_answer", None, {"answer": "Done."}),
        ("submit_answer", "a new id", {"answer": "Done."}),
        ("get_balance", None, {}),
    ]:
        refused = player.call(sid, name, task_id, **given)
        assert (refused["ok"], refused["reason"]) == (False, "episode_finished")
    assert player.call(sid, "submit_answer", "another", answer="No.")["reason"] == "episode_finished"


def test_repeated_id_returns_the_recorded_result(player):
    sid = player.begin("bank/save-300")
    first = player.output(sid, "move_to_savings", "mine", amount="300.00")
    assert player.output(sid, "move_to_savings", "mine", amount="300.00") == first
    assert player.text(sid, "get_balance") == "1540.25"
    ((task_id, known), (error, said)) = events(player.stream(sid, "get_balance", "mine"))
    assert (task_id, known, error) == ("task_id", "mine", "error")
    assert said == "The id 'mine' was used for another call, or with other arguments: use a new id."
    refused = player.call(sid, "submit_answer", "long", answer="x" * 300_000)
    assert (refused["reason"], refused["error"].split("; ")[0]) == ("input_validation", "The text has 300000 bytes")
    assert player.output(sid, "submit_answer", "last", answer="Done.")["reward"] == 1.0


def at_once(*works):
    """Run functions at the same moment, and return their results."""
    barrier = threading.Barrier(len(works))

    def do(work):
        barrier.wait(PATIENCE)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(do, work) for work in works]]


NAP = '''
"""A bed, in which one call is all that may be made."""

import time
from pathlib import Path

from toolpack_server import Toolpack

toolpack = Toolpack("bed")


@toolpack.function
def nap(mark: str) -> str:
    """Sleep.

    Args:
        mark: A file that says that the sleep has begun.
    """
    Path(mark).touch()
    time.sleep(0.3)
    return "Slept."


@toolpack.task("nap", "Sleep once.", max_calls=1)
def slept(rollout) -> bool:
    return bool(rollout.calls)
'''


def test_simultaneous_answer_and_last_call_get_one_reward(tmp_path):
    (tmp_path / "bed.py").write_text(NAP)
    with (
        server_process.served(tmp_path, "--pack-dir", str(tmp_path), "--packs", "bed") as served,
        contextlib.closing(Player(served.url)) as player,
        contextlib.closing(Player(served.url)) as other,
    ):
        for number in range(4):
            sid, mark = player.begin("bed/nap"), tmp_path / str(number)
            call = partial(player.call, sid, "nap", "last", mark=str(mark))
            answer = partial(other.call, sid, "submit_answer", "mine", answer="Done.")
            with ThreadPoolExecutor(2) as pool:
                calling = pool.submit(call)
                serving.wait_until(mark.exists)  # The call is running, so the answer must wait for it.
                both = [each.result(PATIENCE) for each in [calling, pool.submit(answer)]]
            rewards = [each["output"]["reward"] for each in both if each["ok"]]
            assert rewards == [1.0], both
            assert [call(), answer()] == both  # the same if the client sends both again


def test_calls_during_the_commit_of_an_answer_get_a_result(server):
    def sent(path, method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        with contextlib.closing(Player(server.url)) as player:
            return player.http.post(path, json=body).json()

    for _ in range(8):
        path = server.rpc("create_session", task=DISHES)["agent_path"]
        calls = [partial(sent, path, "run_function", function="look", kwargs={}) for _ in range(5)]
        answered, *results = at_once(partial(sent, path, "submit_answer", answer="Done."), *calls)
        assert answered["result"] is True
        assert all("result" in each for each in results), results


def test_call_that_reaches_max_calls_is_rewarded(player):
    sid = player.begin(DISHES)
    assert player.text(sid, "look") == "{}"
    assert player.output(sid, "do", "second", chore="dishes")["reward"] is None
    last = player.output(sid, "look", "last")
    assert (last["reward"], last["finished"], last["metadata"]["passed"]) == (1.0, True, True)
    assert player.output(sid, "look", "last") == last
    assert player.output(sid, "do", "second", chore="dishes")["reward"] is None
    for name, given in [("submit_answer", {"answer": "x"}), ("look", {})]:
        assert player.call(sid, name, **given)["reason"] == "episode_finished"
    assert player.call(sid, "submit_answer", "with-an-id", answer="x")["reason"] == "episode_finished"


def test_invalid_last_call_is_rewarded_too(player):
    sid = player.begin(DISHES)
    assert player.call(sid, "do", cat=1)["reason"] == "input_validation"
    assert player.output(sid, "do", chore="dishes")["reward"] is None
    last = player.output(sid, "do", dog=1)
    assert (last["reward"], last["finished"]) == (1.0, True)
    assert "chore" in last["blocks"][0]["text"]


def test_nested_calls_count_towards_max_calls(player):
    sid = player.begin(DISHES)
    player.text(sid, "look")
    last = player.output(sid, "do", chore={"$call": {"function": "look", "args": {}}})
    assert (last["reward"], last["finished"]) == (0.0, True)


def test_undone_calls_do_not_count_towards_max_calls(server, player):
    sid = player.begin(DISHES)
    for _ in range(2):
        assert player.output(sid, "do", chore="dishes")["reward"] is None
    (session,) = server.rpc("list_sessions", labels={"ors": sid})
    server.rpc("reset_session", session_id=session["session_id"])
    rewards = [player.output(sid, "do", chore=chore)["reward"] for chore in ("dishes", "nothing", "nothing")]
    assert rewards == [None, None, 1.0]


@pytest.mark.parametrize("failure", ["raises", "exits", "slow", "returns-nan"])
def test_invalid_verdict_is_no_reward(player, failure):
    output = player.output(player.begin(f"chores/{failure}"), "submit_answer", answer="x")
    assert (output["reward"], output["finished"], output["metadata"]["valid"]) == (None, True, False)
    assert output["metadata"].get("failure").keys() == {"kind", "type", "message"}


def test_rewards_each_returns_a_reward_with_each_call(player, tmp_path):
    sid = player.begin("bank/save-300", rewards="each")
    assert player.output(sid, "get_balance")["reward"] == 0.0
    moved = player.output(sid, "move_to_savings", amount="300.00")
    assert (moved["reward"], moved["finished"]) == (1.0, False)
    assert player.output(sid, "submit_answer", answer="x")["reward"] == 1.0
    with (
        server_process.served(tmp_path, "--packs", "bank", TOOLPACK_ORS_REWARDS="each") as other,
        contextlib.closing(Player(other.url)) as trainer,
    ):
        assert trainer.output(trainer.begin("bank/save-300"), "get_balance")["reward"] == 0.0
        assert trainer.text(trainer.begin("bank/save-300", rewards="end"), "get_balance") == "1840.25"


def test_failed_function_is_a_result(player):
    sid = player.begin("chores/looks")
    assert player.text(sid, "do", chore="nothing") == "ValueError: nothing is no chore"
    for name, given, reason in [("nope", {}, "not_found"), ("do", {"chore": [1]}, "input_validation")]:
        refused = player.call(sid, name, **given)
        assert (refused["ok"], refused["reason"]) == (False, reason)
        assert refused["error"]
    for given in [{"answer": 3}, {"text": "x"}]:
        refused = player.call(sid, "submit_answer", **given)
        error = "submit_answer has one argument: answer, a string."
        assert refused == {"ok": False, "error": error, "reason": "input_validation"}


CONTENT = [{"type": "text", "text": "a"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]


def test_mcp_content_becomes_blocks():
    assert _blocks(CONTENT) == [
        {"text": "a", "detail": None, "type": "text"},
        {"data": "aGk=", "mimeType": "image/png", "detail": None, "type": "image"},
    ]
    for plain in [[], {"type": "text"}, [{"type": "text"}], [{"type": ["x"]}], [*CONTENT, 1], 3, None]:
        assert _blocks(plain) == [block_of(json.dumps(plain))]
    assert _blocks("é \n") == [block_of("é \n")]


def test_long_result_is_split_into_lines_that_clients_can_read(player):
    sid = player.begin("bank/save-300")
    text = ("é" + " " * 70_000 + '\\"\\ \n\u2028\x85 ' + "\U0001f4b6" * 20_000) * 2
    refused = player.call(sid, text[:-1])
    assert text[:100] in refused["error"]
    for piece in [text, " " * 200_000, "x" * (2**15 - 1) + " y"]:
        pieces = _pieces(piece)
        assert json.loads("".join(each.lstrip() for each in pieces)) == piece
        assert len(pieces) > 1 or piece.startswith("x")


def test_prompt_may_be_a_conversation(player):
    sid = player.begin("chores/as-the-solution")
    said = "Do the dishes, then say how often."
    assert player.get("/prompt", sid).json() == [block_of(said)]
    assert player.get("/messages", sid).json() == [{"role": "user", "blocks": [block_of(said)], "detail": None}]
    sid = player.begin("bank/save-300")
    (message,) = player.get("/messages", sid).json()
    assert (message["role"], message["blocks"]) == ("user", player.get("/prompt", sid).json())


def test_tasks_are_listed_by_split_and_sliced_as_in_python(server, player):
    assert player.get("/list_environments").json() == ["chores", "bank"]
    splits = player.get("/chores/splits").json()
    assert {"name": "all", "type": "test"} in splits
    assert {"name": "train", "type": "train"} in splits
    listed = [each["task"] for each in server.rpc("list_tasks", toolpack="chores", limit=1000)["tasks"]]
    specs = [{"task": task} for task in listed]
    assert len(specs) > 250
    for body in [{"split": "all"}, {}, None]:
        assert player.post("/Chores/tasks", body).json() == {"tasks": specs, "env_name": "chores"}
    assert player.post("/chores/num_tasks", {"split": "made"}).json() == {"num_tasks": 250}
    for index in [0, 5, -1, -len(specs)]:
        got = player.post("/chores/task", {"split": "all", "index": index})
        assert got.json() == {"task": specs[index], "env_name": "chores"}
    for start, stop in [(None, None), (2, 4), (-3, None), (None, -250), (5, 2), (10**30, None), (0, 10**9)]:
        got = player.post("/chores/task_range", {"split": "all", "start": start, "stop": stop})
        assert got.json()["tasks"] == specs[start:stop]
    sid = events(player.post("/create_session"))[0][1]
    assert player.post("/create", {"env_name": "chores", "split": "train", "index": 0}, sid).status_code == 200
    (session,) = server.rpc("list_sessions", labels={"ors": sid})
    assert session["task"] == server.rpc("list_tasks", toolpack="chores", split="train")["tasks"][0]["task"]


def test_environment_is_named_by_path_or_deployment_header(player):
    assert detail(player.get("/tools"), 400) == "Name the environment before the path, one of: chores, bank."
    named = player.http.get("/tools", headers={"x-deployment": "me/Bank"}).json()
    assert named == player.get("/bank/tools").json()
    assert "get_balance" in [tool["name"] for tool in named["tools"]]


def secrets(**values):
    return base64.b64encode(json.dumps({name: {"value": value} for name, value in values.items()}).encode()).decode()


WRONG = [
    ("/nope/tasks", {}, 404, "There is no environment 'nope' with tasks: use chores, bank."),
    ("/bank/tasks", {"split": "nope"}, 400, "Invalid split: bank has all, test."),
    ("/bank/tasks", {"split": 3}, 400, "split: Input should be a valid string. The body can contain split."),
    ("/bank/tasks", {"spilt": "all"}, 400, "spilt: Extra inputs are not permitted. The body can contain split."),
    ("/bank/tasks", [1], 400, "The body: Input should be an object. The body can contain split."),
    ("/bank/task", {"index": 12}, 400, "Invalid index: the split all of bank has 12 tasks."),
    ("/bank/task", {"index": -13}, 400, "Invalid index: the split all of bank has 12 tasks."),
    ("/bank/task", {"index": True}, 400, "index: Input should be a valid integer."),
    ("/bank/task", {}, 400, "index: Field required. The body can contain split, index."),
    ("/bank/task_range", {"start": "1"}, 400, "start: Input should be a valid integer."),
    ("/create", {}, 400, "Provide either task_spec, or index with a split"),
    ("/create", {"task_spec": {"task": "bank/save-300"}, "index": 1}, 400, "Provide either task_spec, or index"),
    ("/create", {"index": 1}, 400, "Name the environment before the path, one of: chores, bank."),
    ("/create", {"task_spec": {"task": "bank/nope"}}, 400, "There is no task 'bank/nope'"),
    ("/create", {"task_spec": {"task": 7}}, 400, "task_spec.task: Input should be a valid string."),
    ("/create", {"task_spec": {}}, 400, "task_spec.task: Field required."),
    ("/create", {"task_spec": DISHES}, 400, "task_spec: Input should be an object."),
    ("/create", {"task_spec": {"task": DISHES, "reward": "each"}}, 400, "task_spec.reward: Extra inputs are not"),
    ("/create", {"task_spec": {"task": DISHES, "rewards": "x"}}, 400, "task_spec.rewards: Input should be 'end' or"),
    (
        "/create",
        {"task_spec": {"task": DISHES, "perturbations": {"x": 1}}},
        400,
        "perturbations.x: Extra inputs are not permitted.",
    ),
    ("/create", {"task_spec": {"task": DISHES, "seed": "1"}}, 400, "A session with a seed or a clock needs"),
    ("/create", {"task_spec": {"task": DISHES}, "toolset_name": "codex"}, 400, "toolset_name: Input should be None."),
    ("/create_session", {"env": {"A": "b"}}, 400, "env: Dictionary should have at most 0 items"),
    ("/ping", None, 404, "Active environment not found: it has expired, or was never created."),
    ("/call", {"name": "x", "input": {}}, 404, "Active environment not found"),
    ("/call", {"input": {}}, 400, "name: Field required. The body can contain name, input, task_id."),
    ("/call", {"name": [], "input": {}, "task_id": "a"}, 400, "name: Input should be "),
    ("/call", {"name": "x", "input": {}, "task_id": "a" * 65}, 400, "task_id: String should have at most 64"),
    ("/call", {"name": "x", "input": {}, "task_id": "a\nevent: end"}, 400, "task_id: An id can't contain line breaks"),
    ("/call", {"name": "x", "input": {}, "task_id": "a\u2028"}, 400, "task_id: An id can't contain line breaks"),
    ("/score_group", {"candidates": []}, 404, "Groups aren't scored here: each episode has its own reward."),
]


@pytest.mark.parametrize(("path", "body", "status", "sentence"), WRONG, ids=str)
def test_invalid_request_is_rejected_with_a_sentence(player, path, body, status, sentence):
    assert detail(player.post(path, body, "none"), status).startswith(sentence)


def test_unknown_members_are_named_even_if_they_are_many(player):
    body = {**{f"member_{number}": number for number in range(1000)}, "index": 0}
    assert detail(player.post("/bank/task", body, "none"), 400).startswith("member_0: Extra inputs are not permitted.")


def test_missed_deadline_is_a_503_that_clients_may_retry():
    late, wrong = DeadlineError("No."), InvalidParamsError("No.")
    endpoint = object.__new__(OrsEndpoint)
    assert (endpoint.status_of(late), endpoint.status_of(wrong)) == (503, 400)


def test_missing_headers_and_invalid_json_are_rejected(player):
    for path in ["/create", "/call", "/bank/tasks", "/bank/task"]:
        reply = player.http.post(path, content=b"{nope", headers={"x-session-id": "a"})
        assert detail(reply, 400).startswith("The body isn't JSON: ")
    for sid in ["", "a" * 65]:
        for path in ["/prompt", "/messages", "/task_tools"]:
            assert detail(player.get(path, sid), 400).startswith("The episode is missing: send its id")
        for path in ["/create", "/ping", "/delete", "/delete_session", "/call"]:
            assert detail(player.post(path, {}, sid), 400).startswith("The episode is missing: send its id")
    for path in ["/prompt", "/messages", "/task_tools"]:
        assert detail(player.get(path, "none"), 404).startswith("Active environment not found")
    assert player.post("/delete", sid="none").json() == {"sid": "none"}  # The original server also accepts this.


@pytest.mark.parametrize("depth", [100, 300, 900, 1500])
def test_deeply_nested_values_do_not_break_the_server(player, depth):
    sid, body = player.begin("bank/save-300"), b'{"name":"get_balance","input":{"x":%b1%b}}'
    reply = player.http.post("/call", content=body % (b"[" * depth, b"]" * depth), headers={"x-session-id": sid})
    assert reply.status_code in {200, 400}, reply.text
    assert reply.status_code == 400 or events(reply)[-1][0] in {"end", "error"}
    task = b'{"task_spec":{"task":"bank/save-300","perturbations":{"x":%b1%b}}}' % (b"[" * depth, b"]" * depth)
    assert detail(player.http.post("/create", content=task, headers={"x-session-id": "deep"}), 400)
    assert player.text(sid, "get_balance") == "1840.25"


def test_secrets_are_rejected_except_the_token_of_the_sdk(player):
    for header in [secrets(OPENAI_API_KEY="x"), "no base64", base64.b64encode(b"[[1]]").decode(), "MQ=="]:
        for path, body in [("/create_session", {}), ("/create", {"task_spec": {"task": DISHES}})]:
            reply = player.post(path, body, "mine", **{"x-secrets": header})
            assert detail(reply, 400) == "X-Secrets: the environments of this server don't accept secrets: send none."
    own = secrets(api_key="x", OPENREWARD_API_KEY="x")
    assert player.post("/create_session", {}, **{"x-secrets": own}).status_code == 200


def test_episode_is_created_once_and_its_fork_is_no_episode(server, player):
    sid = player.begin(DISHES)
    body = {"task_spec": {"task": DISHES}}
    assert player.post("/create", body, sid).json() == {"sid": sid}
    (session,) = server.rpc("list_sessions", labels={"ors": sid})
    server.rpc("fork_session", session_id=session["session_id"], count=20)
    player.output(sid, "do", chore="dishes")
    other = {"task_spec": {"task": "bank/save-300"}}
    assert detail(player.post("/create", other, sid), 400).startswith(f"The episode {sid} exists with another")
    records = server.rpc("get_trace", session_id=session["session_id"])
    assert [record["function"] for record in records] == ["do"]
    assert server.rpc("list_sessions", labels={"ors": sid, "x": "y"}) == []


def test_deleted_episode_has_a_verdict(server, player):
    sid = player.begin("bank/save-300")
    player.text(sid, "move_to_savings", amount="300.00")
    assert player.post("/delete", sid=sid).json() == {"sid": sid}
    assert player.post("/delete_session", sid=sid).json() == {"sid": sid}
    ((session),) = server.rpc("summarize_sessions", labels={"ors": sid})["sessions"]
    assert session.get("verdict")["reward"] == 1.0


def test_ping_renews_an_episode(tmp_path):
    with (
        server_process.served(tmp_path, "--packs", "bank", TOOLPACK_ORS_TTL_SECONDS="1") as server,
        contextlib.closing(Player(server.url)) as player,
    ):
        kept, left = player.begin("bank/save-300"), player.begin("bank/save-300")

        def is_gone():
            assert player.post("/ping", sid=kept).json() == {"status": "ok"}
            return not server.rpc("list_sessions", labels={"ors": left})

        serving.wait_until(is_gone)
        assert player.text(kept, "get_balance") == "1840.25"
        assert detail(player.post("/ping", sid=left), 404).startswith("Active environment not found: it has expired")


def test_lost_episode_is_an_error_in_the_stream_then_not_found(server, player):
    sid = player.begin("bank/save-300")
    server.rpc("close_session", labels={"ors": sid})
    assert events(player.stream(sid, "get_balance"))[-1][0] == "error"
    assert detail(player.post("/call", {"name": "get_balance", "input": {}}, sid), 404)
    sid = player.begin("bank/save-300")
    server.rpc("close_session", labels={"ors": sid})
    assert detail(player.get("/prompt", sid), 404)
    sid = player.begin("bank/save-300")
    server.rpc("close_session", labels={"ors": sid})
    for path, body in [("/ping", None), ("/call", {"name": "get_balance", "input": {}})]:
        assert detail(player.post(path, body, sid), 404)


def test_tokens_are_required_and_owners_separated(tmp_path):
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(server_process.served(tmp_path, "--packs", "bank", **TOKENS))
        ann, bob, nobody, wrong = (
            stack.enter_context(contextlib.closing(Player(served.url, token)))
            for token in ["token-of-ann", "token-of-bob", None, "token-of-eve"]
        )
        sid = ann.begin("bank/save-300")
        for other in [nobody, wrong]:
            for path in ["/create_session", "/create", "/ping", "/delete", "/call", "/bank/tasks", "/delete_session"]:
                assert detail(other.post(path, {}, sid), 401)
            for path in ["/prompt", "/task_tools", "/messages", "/list_environments", "/splits", "/tools"]:
                assert detail(other.get(path, sid), 401)
            assert other.get("/health").json() == {"status": "ok"}
            assert other.get("/version").json()["version"].startswith("toolpack-server ")
        for path in ["/prompt", "/task_tools", "/messages"]:
            assert detail(bob.get(path, sid), 404).startswith("Active environment not found")
        assert detail(bob.post("/ping", sid=sid), 404)
        assert detail(bob.stream(sid, "get_balance"), 404)
        bob.post("/delete", sid=sid)
        # Bob can create his own episode with the same id.
        assert bob.post("/create", {"task_spec": {"task": "bank/save-300"}}, sid).status_code == 200
        bob.text(sid, "move_to_savings", amount="300.00")
        assert ann.text(sid, "get_balance") == "1840.25"
        bearer = {"authorization": "Bearer token-of-ann", "x-session-id": sid}
        assert nobody.http.get("/prompt", headers=bearer).status_code == 200


def test_starting_server_answers_503(make_bench):
    app = create_app(make_bench().service)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            return [await http.get("/health"), await http.post("/create", json={}), await http.post("/ping")]

    for reply in asyncio.run(ask()):
        assert detail(reply, 503)
        assert (reply.headers["retry-after"], reply.headers["x-backend-state"]) == ("1", "starting")
