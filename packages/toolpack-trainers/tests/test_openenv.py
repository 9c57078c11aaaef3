"""OpenEnv's protocol over plain HTTP and WebSocket frames: episodes, rewards and errors."""

import contextlib
import json
import time

import pytest
import server_process
import serving
from raw_websocket import RawWebSocket, frame

from toolpack_server import Task, TaskEnvironment, Toolpack
from toolpack_server.base.errors import CallFailedError, DeadlineError
from toolpack_server.execution.failure import CallFailure, Failure
from toolpack_server.features.api.core import Caller
from toolpack_server.packs.catalog import Catalog
from toolpack_trainers.openenv.episodes import OpenEnvEpisodes
from toolpack_trainers.openenv.messages import AnswerAction, CallTool, ResetData
from toolpack_trainers.task_episodes import failure_text

TOKENS = {"TOOLPACK_TOKENS": "ann:token-of-ann,bob:token-of-bob"}
DISHES = "chores/dishes"  # at most three calls
SAVE = "bank/save-300"


class Player:
    """A client of the protocol, on a WebSocket or over HTTP."""

    def __init__(self, url, pack="bank", token=None, query=""):
        self.path = f"/openenv/{pack}"
        self.socket = RawWebSocket(int(url.rpartition(":")[2]), f"{self.path}/ws{query}", token)
        headers = {
            "content-type": "application/json",
            **({} if token is None else {"authorization": f"Bearer {token}"}),
        }
        self.http = serving.http_client(url, headers=headers)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.http.close()
        self.socket.__exit__()

    def get(self, path, **query):
        return self.http.get(self.path + path, params=query)

    def post(self, path, body=None):
        return self.http.post(self.path + path, json=body)

    def asked(self, kind, data=None):
        return self.socket.ask({"type": kind, **({} if data is None else {"data": data})})

    def reset(self, task, **more):
        return observation_of(self.asked("reset", {"task": task, **more}))

    def call(self, name, call_id=None, **given):
        metadata = {} if call_id is None else {"metadata": {"call_id": call_id}}
        return observation_of(
            self.asked("step", {"type": "call_tool", "tool_name": name, "arguments": given, **metadata})
        )

    def answer(self, text="x", **metadata):
        return observation_of(self.asked("step", {"type": "submit_answer", "answer": text, "metadata": metadata}))

    def result(self, name, **given):
        told = self.call(name, **given)
        assert told.keys() == {"observation", "reward", "done"}
        assert (told["reward"], told["done"], told["observation"]["error"]) == (None, False, None)
        return told["observation"]["result"]

    def state(self):
        reply = self.asked("state")
        assert reply["type"] == "state", reply
        return reply["data"]

    def mcp(self, method, **params):
        reply = self.post("/mcp", {"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert reply.status_code == 200, reply.text
        assert (reply.json()["id"], reply.json()["jsonrpc"]) == (7, "2.0")
        return reply.json()


def observation_of(reply):
    assert reply["type"] == "observation", reply
    assert reply["data"]["observation"]["metadata"] == {}, "agents may see the metadata"
    return reply["data"]


def refused(reply, code):
    assert reply.keys() == {"type", "data"}
    assert (reply["type"], reply["data"].keys(), reply["data"]["code"]) == ("error", {"message", "code"}, code), reply
    return reply["data"]["message"]


def detail(reply, status):
    assert reply.status_code == status, reply.text
    (member,) = reply.json().items()
    assert member[0] == "detail"
    return member[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("openenv"), "--packs", "chores,ledger,bank") as served:
        yield served


@pytest.fixture
def player(server):
    with Player(server.url) as player:
        yield player


@pytest.fixture
def cook(server):
    with Player(server.url, "chores") as player:
        yield player


def test_reset_without_a_task_draws_one_by_seed_or_at_random(server, player):
    def drawn(**data):
        begun = observation_of(player.asked("reset", data))
        assert begun["observation"]["prompt"]
        return begun["metadata"]["task"]

    every = {task["task"] for task in server.rpc("list_tasks", toolpack="bank")["tasks"]}
    tasks = [drawn() for _ in range(12)]
    assert 1 < len({*tasks}) <= len({*tasks} & every)
    seeded = [drawn(seed=seed) for seed in range(12)]
    assert seeded == [drawn(seed=seed) for seed in range(12)]
    assert len({*seeded}) > 1
    assert drawn(episode_id="drawn") == drawn(episode_id="drawn")  # The same id continues the episode.
    assert player.post("/reset", {}).json()["metadata"]["task"] in every
    assert "Invalid split" in player.asked("reset", {"split": "nope"})["data"]["message"]


def test_episode_is_rewarded_once_with_its_answer(server, player):
    begun = player.reset(SAVE, episode_id="mine")
    prompt = "Please put 300 euros aside on my savings account."
    assert begun["observation"]["prompt"] == prompt
    assert begun["observation"]["messages"] == [{"role": "user", "content": prompt}]
    (session,) = server.rpc("list_sessions", labels={"openenv": "mine"})
    assert begun["metadata"] == {"episode_id": "mine", "session_id": session["session_id"], "task": SAVE}
    tools = observation_of(player.asked("step", {"type": "list_tools"}))["observation"]["tools"]
    assert [tool["name"] for tool in tools][-1] == "submit_answer"
    assert tools[0].keys() == {"name", "description", "input_schema"}
    assert float(player.result("get_balance")) == 1840.25
    assert player.result("move_to_savings", amount="300.00")["amount"] == "-300.00"
    assert player.state()["reward"] is None
    done = player.answer("Done.")
    assert (done["reward"], done["done"], done["observation"]["error"]) == (1.0, True, None)
    assert (done["metadata"]["passed"], done["metadata"].get("failure")) == (True, None)
    for late in [player.answer("Done."), player.call("get_balance")]:
        assert (late["reward"], late["done"]) == (None, True)
        assert late["observation"]["error"]["error_type"] == "execution_error"
    state = player.state()
    assert (state["episode_id"], state["done"], state["reward"], state["task"]) == ("mine", True, 1.0, SAVE)


def test_repeated_id_returns_the_recorded_result(player):
    player.reset(SAVE)
    first = player.call("move_to_savings", "one", amount="300.00")
    assert player.call("move_to_savings", "one", amount="300.00") == first
    assert player.state()["step_count"] == 1
    reused = refused(
        player.asked("step", {"type": "call_tool", "tool_name": "get_balance", "metadata": {"call_id": "one"}}),
        "EXECUTION_ERROR",
    )
    assert reused == "The id 'one' was used for another call, or with other arguments: use a new id."
    answered = player.answer("Done.", call_id="two")
    assert answered["reward"] == 1.0
    assert player.answer("Done.", call_id="two") == answered
    assert player.answer("No.", call_id="three")["observation"]["error"]["error_type"] == "execution_error"


def test_call_that_reaches_max_calls_is_rewarded(cook):
    cook.reset(DISHES)
    assert cook.result("look") == {}
    assert cook.call("do", "second", chore="dishes")["reward"] is None
    last = cook.call("look", "last")
    assert (last["reward"], last["done"], last["metadata"]["passed"]) == (1.0, True, True)
    assert cook.call("look", "last") == last
    assert cook.call("do", "second", chore="dishes")["reward"] is None
    assert cook.answer()["done"]


def test_rewards_each_returns_a_reward_with_each_call(player, tmp_path):
    player.reset(SAVE, rewards="each")
    assert player.call("get_balance")["reward"] == 0.0
    moved = player.call("move_to_savings", amount="300.00")
    assert (moved["reward"], moved["done"]) == (1.0, False)
    assert player.answer()["reward"] == 1.0
    with (
        server_process.served(tmp_path, "--packs", "bank", TOOLPACK_OPENENV_REWARDS="each") as other,
        Player(other.url) as trainer,
    ):
        trainer.reset(SAVE)
        assert trainer.call("get_balance")["reward"] == 0.0
        trainer.reset(SAVE, rewards="end")
        assert trainer.call("get_balance")["reward"] is None


@pytest.mark.parametrize("failure", ["raises", "exits", "slow", "returns-nan"])
def test_invalid_verdict_is_no_reward(cook, failure):
    cook.reset(f"chores/{failure}")
    done = cook.answer()
    assert (done["reward"], done["done"], done["metadata"]["valid"]) == (None, True, False)
    assert done["metadata"].get("failure").keys() == {"kind", "type", "message"}


def test_reward_after_an_infrastructure_failure_is_null(make_bench):
    pack = Toolpack("shaky", TaskEnvironment)

    @pack.function(timeout_seconds=0.1)
    def spin() -> None:
        """Run until the time limit."""
        while True:
            time.sleep(0.001)

    pack.add_task(Task("any", "Do anything.", lambda _rollout: True))
    bench = make_bench(Catalog({"shaky": pack}))
    episodes, caller = bench.service.feature(OpenEnvEpisodes), Caller("")

    async def play():
        episode, _ = await episodes.reset(caller, "shaky", ResetData(task="shaky/any"))
        await episodes.step(caller, episode, CallTool(type="call_tool", tool_name="spin"), None)
        done = await episodes.step(caller, episode, AnswerAction(type="submit_answer", answer="x"), None)
        return done, await episodes.state(caller, episode)

    done, state = bench._run(play())
    assert (done["metadata"]["passed"], done["metadata"]["failure"]["kind"]) == (True, "infrastructure")
    assert (done["done"], done["reward"], state["done"], state["reward"]) == (True, None, True, None)


def test_failed_function_is_a_result_and_invalid_call_an_error(cook):
    cook.reset("chores/looks")
    assert cook.result("do", chore="nothing") == "ValueError: nothing is no chore"
    for name, given, kind in [
        ("nope", {}, "tool_not_found"),
        ("do", {"chore": [1]}, "invalid_args"),
        ("submit_answer", {"answer": 3}, "invalid_args"),
        ("submit_answer", {"text": "x"}, "invalid_args"),
    ]:
        told = cook.call(name, **given)
        assert (told["reward"], told["done"], told["observation"]["result"]) == (None, False, None)
        assert told["observation"]["error"].keys() == {"error_type", "message"}
        assert told["observation"]["error"]["error_type"] == kind
        assert told["observation"]["error"]["message"]


def test_action_without_a_type_is_a_call_if_it_names_a_tool(cook):
    cook.reset("chores/looks")
    assert observation_of(cook.asked("step", {"tool_name": "submit_answer", "arguments": {"answer": "x"}}))["done"]


def test_text_of_a_failure_equals_its_record():
    def text(kind, message, why=Failure.RAISED):
        return failure_text(CallFailedError(CallFailure(kind, message, why), "a"))

    late = "`f` took longer than 1 s: it was given up"
    assert text("TimeoutError", late, Failure.DEADLINE) == f"TimeoutError: {late}"
    assert failure_text(DeadlineError(f"Toolpack 'a': {late}")) == f"DeadlineError: {late}"
    assert text("ValueError", "No: x") == "ValueError: No: x"
    assert text("KeyError", "") == "KeyError"


def test_episode_continues_on_another_websocket(server, player):
    player.reset(SAVE, episode_id="long")
    player.result("move_to_savings", amount="300.00")
    with Player(server.url) as again:
        assert again.reset(SAVE, episode_id="long")["metadata"]["episode_id"] == "long"
        assert again.state()["step_count"] == 1
        other = refused(
            again.asked("reset", {"task": "bank/savings-balance", "episode_id": "long"}), "VALIDATION_ERROR"
        )
        assert other == "The episode long exists with another task or seed."
    with Player(server.url, query="?session_id=long") as attached:
        assert attached.answer()["reward"] == 1.0
        assert attached.reset(SAVE, episode_id="long")["done"] is True
    assert len(server.rpc("list_sessions", labels={"openenv": "long"})) == 1


def test_episode_continues_in_another_session_that_owns_it_then(server):
    with Player(server.url, query="?session_id=before") as player:
        begun = player.reset(SAVE, episode_id="moving")["metadata"]
        player.result("get_balance")
    with Player(server.url, query="?session_id=after") as player:
        other = player.reset("bank/savings-balance")["metadata"]
        assert player.reset(SAVE, episode_id="moving")["metadata"] == begun
        assert player.state()["step_count"] == 1
        moved = player.mcp("tools/call", name="move_to_savings", arguments={"amount": "300.00"}, session_id="after")
        assert moved["result"]["data"]["amount"] == "-300.00"
        assert player.state()["step_count"] == 2
        for wrong in [{"task": "bank/savings-balance"}, {"task": SAVE, "rewards": "each"}]:
            error = refused(player.asked("reset", {**wrong, "episode_id": "moving"}), "VALIDATION_ERROR")
            assert error == "The episode moving exists with another task or seed."
    for sid in ["before", "after"]:
        with Player(server.url, query=f"?session_id={sid}") as player:
            assert player.state()["session_id"] == begun["session_id"]
    with Player(server.url) as player:
        assert player.reset(SAVE, episode_id="moving")["metadata"] == begun
        assert player.get("/state", episode_id="moving").json()["step_count"] == 2
    with Player(server.url, query="?session_id=after") as player:
        assert player.answer()["reward"] == 1.0
        server.rpc("close_session", session_id=begun["session_id"])
    with Player(server.url, query="?session_id=after") as player:
        assert player.state()["session_id"] == other["session_id"]


def test_session_plays_episodes_one_after_the_other(server):
    with Player(server.url, query="?session_id=series") as player:
        assert player.state() == {
            "episode_id": None,
            "step_count": 0,
            "done": False,
            "reward": None,
            "task": None,
            "session_id": None,
        }
        first = player.reset(SAVE)
        player.result("move_to_savings", amount="300.00")
        second = player.reset(SAVE)
        assert player.state()["step_count"] == 0
    sessions = server.rpc("summarize_sessions", labels={"openenv": "series"})["sessions"]
    rewards = {each["session_id"]: each.get("verdict") and each.get("verdict")["reward"] for each in sessions}
    assert rewards == {first["metadata"]["session_id"]: 1.0, second["metadata"]["session_id"]: None}
    with Player(server.url, query="?session_id=series") as player:
        assert player.state()["session_id"] == second["metadata"]["session_id"]


def test_closed_episode_has_a_verdict_and_broken_connection_none(server, player):
    player.reset(SAVE, episode_id="closed")
    player.result("move_to_savings", amount="300.00")
    player.socket.say({"type": "close"})
    assert player.socket.closed() == (1000, "")
    with Player(server.url) as other:
        other.reset(SAVE, episode_id="broken")

    def verdict(sid):
        (session,) = server.rpc("summarize_sessions", labels={"openenv": sid})["sessions"]
        return session.get("verdict")

    serving.wait_until(lambda: verdict("closed"))
    assert (verdict("closed")["reward"], verdict("broken")) == (1.0, None)


def test_closing_a_named_session_ends_no_episode(server):
    with Player(server.url, query="?session_id=leaves") as player:
        player.reset(SAVE)
        player.socket.say({"type": "close"})
        assert player.socket.closed() == (1000, "")
    (session,) = server.rpc("summarize_sessions", labels={"openenv": "leaves"})["sessions"]
    assert "verdict" not in session


def test_fork_of_an_episode_is_not_an_episode(server, player):
    begun = player.reset(SAVE, episode_id="forked")["metadata"]
    server.rpc("fork_session", session_id=begun["session_id"])
    assert player.get("/state", episode_id="forked").json()["session_id"] == begun["session_id"]


def test_session_that_took_over_an_episode_lives_while_used(tmp_path):
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(
            server_process.served(tmp_path, "--packs", "bank", TOOLPACK_OPENENV_TTL_SECONDS="1")
        )
        players = [stack.enter_context(Player(served.url, query=f"?session_id={sid}")) for sid in ("first", "a", "b")]
        for player in players:
            player.reset(SAVE, episode_id="shared")

        def is_gone():
            assert players[0].get("/state", episode_id="a").status_code == 200
            return not served.rpc("list_sessions", labels={"openenv": "b"})

        serving.wait_until(is_gone, "the end of the session that nobody uses")
        assert players[0].get("/state", episode_id="a").json()["episode_id"] == "shared"


def test_http_client_keeps_an_episode_by_its_id(player):
    begun = player.post("/reset", {"task": SAVE}).json()
    assert begun["observation"]["prompt"].startswith("Please put 300")
    sid = begun["metadata"]["episode_id"]

    def step(action, **more):
        reply = player.post("/step", {"action": action, "episode_id": sid, **more})
        assert reply.status_code == 200, reply.text
        return reply.json()

    assert step({"type": "list_tools"})["observation"]["tools"][-1]["name"] == "submit_answer"
    move = {"type": "call_tool", "tool_name": "move_to_savings", "arguments": {"amount": "300.00"}}
    assert step(move, request_id="once", timeout_s=5.0) == step(move, request_id="once", timeout_s=5.0)
    assert player.get("/state", episode_id=sid).json()["step_count"] == 1
    done = step({"type": "submit_answer", "answer": "x"})
    assert (done["reward"], done["done"]) == (1.0, True)
    assert player.get("/state", episode_id=sid).json()["reward"] == 1.0
    assert player.get("/state").json()["episode_id"] is None


def test_mcp_over_post(player):
    sid = player.mcp("openenv/session/create")["result"]["session_id"]
    tools = player.mcp("tools/list", session_id=sid)["result"]["tools"]
    assert tools[0]["inputSchema"] == tools[0]["input_schema"]
    assert player.mcp("tools/list")["result"]["tools"] == tools
    early = player.mcp("tools/call", name="get_balance", session_id=sid)["error"]
    assert (early["code"], early["message"][:11]) == (-32602, "The session")
    with Player(str(player.http.base_url).rstrip("/"), query=f"?session_id={sid}") as socket:
        socket.reset(SAVE)
        called = player.mcp("tools/call", name="move_to_savings", arguments={"amount": "300.00"}, session_id=sid)
        assert (called["result"]["data"]["amount"], called["result"]["is_error"]) == ("-300.00", False)
        assert player.mcp("tools/call", name="nope", arguments={}, session_id=sid)["result"]["is_error"]
        inner = {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "get_balance"}}
        reply = socket.asked("mcp", inner)
        assert (reply["type"], reply["data"]["id"]) == ("mcp", "x")
        assert float(reply["data"]["result"]["data"]) == 1540.25
        closing = {**inner, "method": "openenv/session/close", "params": {"session_id": sid}}
        assert socket.asked("mcp", closing)["data"]["error"]["code"] == -32600
    assert player.mcp("openenv/session/close", session_id=sid)["result"] == {"session_id": sid, "closed": True}


def test_mcp_over_its_own_websocket(server, player):
    player.reset(SAVE, episode_id="of-mcp")
    port = int(server.url.rpartition(":")[2])
    with RawWebSocket(port, "/openenv/bank/mcp?session_id=of-mcp") as one:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_balance"}}
        assert float(one.ask(request)["result"]["data"]) == 1840.25
        one.write(frame(b"nope"))
        assert one.hear()["error"]["code"] == -32700
        assert one.ask([])["error"]["code"] == -32600


WRONG_RPC = [
    ({"method": "x", "id": 1, "jsonrpc": "2.0"}, -32601, "Method not found: x. There are tools/list, "),
    ({"method": "tools/call", "id": 1, "jsonrpc": "2.0"}, -32602, "name: Field required. params can contain name,"),
    ({"method": "tools/call", "id": 1, "jsonrpc": "2.0", "params": {"name": "x"}}, -32602, "session_id is missing"),
    ({"method": "tools/list", "id": 1, "jsonrpc": "2.0", "params": {"a": 1}}, -32602, "a: Extra inputs are not"),
    ({"method": "openenv/session/close", "id": 1, "jsonrpc": "2.0"}, -32602, "session_id: Field required."),
    ({"method": "tools/list", "id": [], "jsonrpc": "2.0"}, -32600, "id."),
    ({"method": "tools/list", "params": [], "jsonrpc": "2.0"}, -32600, "params: "),
    ([], -32600, "A request: Input should be"),
]


@pytest.mark.parametrize(("body", "code", "sentence"), WRONG_RPC, ids=str)
def test_invalid_mcp_request_is_a_json_rpc_error(player, body, code, sentence):
    reply = player.post("/mcp", body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (200, code)
    assert reply.json()["error"]["message"].startswith(sentence)


def test_tasks_equal_those_of_ors(server, player, cook):
    assert cook.get("/list_environments").json() == ["chores"]
    assert cook.get("/chores/splits").json() == server.http.get("/chores/splits").json()
    listed = [each["task"] for each in server.rpc("list_tasks", toolpack="chores", limit=1000)["tasks"]]
    specs = [{"task": task} for task in listed]
    assert cook.post("/Chores/tasks", {"split": "all"}).json() == {"tasks": specs, "env_name": "chores"}
    assert cook.post("/chores/num_tasks", {"split": "made"}).json() == {"num_tasks": 250}
    assert cook.post("/chores/task", {"split": "all", "index": -1}).json() == {"task": specs[-1]}
    assert cook.post("/chores/task_range", {"start": 2, "stop": 4}).json() == {"tasks": specs[2:4]}
    train = server.rpc("list_tasks", toolpack="chores", split="train")["tasks"][0]["task"]
    begun = observation_of(cook.asked("reset", {"split": "train", "index": 0}))
    assert begun["metadata"]["task"] == train
    begun = cook.post("/reset", specs[5]).json()
    assert begun["metadata"]["task"] == specs[5]["task"]
    assert detail(player.post("/chores/tasks", {}), 404) == "There is no environment 'chores' here: use bank."


def test_metadata_and_schemas_are_served(player):
    assert player.get("/health").json() == {"status": "healthy"}
    described = player.get("/metadata").json()
    assert described["name"] == "bank"
    assert described["description"]
    assert described.keys() == {"name", "description", "version", "author", "readme_content", "documentation_url"}
    schemas = player.get("/schema").json()
    assert schemas.keys() == {"action", "observation", "state", "reset_observation"}
    assert {"list_tools", "call_tool", "submit_answer"} == schemas["action"]["discriminator"]["mapping"].keys()
    assert schemas["action"]["title"] == "Action"  # The title makes clients ask for the tools.


def test_toolpack_without_a_distribution_has_no_version(server):
    assert server.http.get("/openenv/chores/metadata").json()["version"] is None


def test_openapi_lists_the_paths(player):
    document = player.get("/openapi.json").json()
    assert document["info"]["title"] == "bank"
    assert {"/reset", "/step", "/state", "/health", "/{env}/tasks"} <= document["paths"].keys()
    assert document["paths"]["/mcp"].keys() == {"get", "post"}


def test_root_paths_serve_the_only_toolpack(server, tmp_path):
    port = int(server.url.rpartition(":")[2])
    with RawWebSocket(port, "/ws") as one:
        assert one.status == 400
        assert json.loads(one.body)["detail"].startswith("Name the environment before the path, one of: ")
    with server_process.served(tmp_path, "--packs", "bank") as alone:
        with RawWebSocket(int(alone.url.rpartition(":")[2]), "/ws") as one:
            assert one.ask({"type": "reset", "data": {"task": SAVE}})["type"] == "observation"
        assert alone.http.post("/reset", json={"index": 0}).json()["metadata"]["task"].startswith("bank/")
        assert alone.http.get("/metadata").json()["name"] == "bank"


WRONG_MESSAGES = [
    (
        {"type": "nope"},
        "UNKNOWN_TYPE",
        "Unknown message type: 'nope'. Send an object with one of the types reset, step",
    ),
    ([], "UNKNOWN_TYPE", "Unknown message type: None."),
    ({"type": ["reset"]}, "UNKNOWN_TYPE", "Unknown message type: ['reset']."),
    ({"type": "state", "data": {}}, "VALIDATION_ERROR", "data: Extra inputs are not permitted."),
    ({"type": "step"}, "VALIDATION_ERROR", "data: Field required. The message can contain type, data."),
    ({"type": "step", "data": {"type": "x"}}, "VALIDATION_ERROR", "data: Input tag 'x' found using 'type' does not"),
    ({"type": "step", "data": {"type": "call_tool"}}, "VALIDATION_ERROR", "data.call_tool.tool_name: Field required."),
    ({"type": "step", "data": {"type": "call_tool", "tool_name": "x"}}, "SESSION_ERROR", "There is no episode on this"),
    ({"type": "step", "data": {"type": "submit_answer"}}, "SESSION_ERROR", "There is no episode on this WebSocket:"),
    ({"type": "reset", "data": {"task": SAVE, "index": 1}}, "VALIDATION_ERROR", "Reset either with task,"),
    ({"type": "reset", "data": {"task": "bank/nope"}}, "VALIDATION_ERROR", "There is no task 'bank/nope'"),
    ({"type": "reset", "data": {"task": DISHES}}, "VALIDATION_ERROR", "The task 'chores/dishes' isn't in bank:"),
    (
        {"type": "reset", "data": {"index": 12}},
        "VALIDATION_ERROR",
        "Invalid index: the split all of bank has 12 tasks.",
    ),
    ({"type": "reset", "data": {"index": 0, "split": "x"}}, "VALIDATION_ERROR", "Invalid split: bank has all, test."),
    ({"type": "reset", "data": {"index": True}}, "VALIDATION_ERROR", "data.index: Input should be a valid integer."),
    ({"type": "reset", "data": {"task": SAVE, "seed": -1}}, "VALIDATION_ERROR", "data.seed: Input should be greater"),
    (
        {"type": "reset", "data": {"task": SAVE, "seed": 1}},
        "VALIDATION_ERROR",
        "A session with a seed or a clock needs",
    ),
    (
        {"type": "reset", "data": {"task": SAVE, "options": {}}},
        "VALIDATION_ERROR",
        "data.options: Extra inputs are not",
    ),
    ({"type": "reset", "data": {"task": SAVE, "episode_id": "x" * 65}}, "VALIDATION_ERROR", "data.episode_id: String"),
    ({"type": "mcp", "data": []}, "VALIDATION_ERROR", "data: Input should be a valid dictionary."),
]


@pytest.mark.parametrize(("message", "code", "sentence"), WRONG_MESSAGES, ids=str)
def test_invalid_message_is_an_error_on_an_open_websocket(player, message, code, sentence):
    assert refused(player.socket.ask(message), code).startswith(sentence)
    assert player.reset(SAVE)["done"] is False


@pytest.mark.parametrize("text", [b"{nope", b"", b'{"type": NaN}', b"[" * 2000 + b"]" * 2000, b'{"a":"\\ud800"}'])
def test_message_that_is_not_json_is_an_error(player, text):
    player.socket.write(frame(text))
    reply = player.socket.hear()
    assert refused(reply, "INVALID_JSON" if text else "UNKNOWN_TYPE")
    assert player.state()["step_count"] == 0


@pytest.mark.parametrize("depth", [100, 300, 900, 1500])
def test_deeply_nested_values_do_not_break_the_server(player, depth):
    player.reset(SAVE)
    nested = b"[" * depth + b"1" + b"]" * depth
    call = b'{"type":"step","data":{"type":"call_tool","tool_name":"get_balance","arguments":{"x":%b}}}'
    player.socket.write(frame(call % nested))
    assert player.socket.hear()["type"] in {"observation", "error"}
    player.socket.write(frame(b'{"type":"reset","data":{"task":"bank/save-300","perturbations":{"x":%b}}}' % nested))
    assert player.socket.hear()["type"] == "error"
    reply = player.http.post("/openenv/bank/mcp", content=b'{"jsonrpc":"2.0","method":"tools/list","id":%b}' % nested)
    assert (reply.status_code, "error" in reply.json()) == (200, True)
    assert player.state()["step_count"] <= 1


WRONG_BODIES = [
    ("/reset", {"task": SAVE, "seed": 1}, 400, "A session with a seed or a clock needs"),
    ("/reset", {"task": 7}, 422, "task: Input should be a valid string. The body can contain seed, "),
    ("/step", {}, 422, "action: Field required. The body can contain action, episode_id, timeout_s, request_id."),
    ("/step", {"action": {"type": "list_tools"}}, 422, "episode_id: Field required."),
    ("/step", {"action": {"type": "list_tools"}, "episode_id": "none"}, 404, "The session 'none' has no episode:"),
    ("/step", {"action": {"type": "list_tools"}, "episode_id": "x", "timeout_s": 0}, 422, "timeout_s: Input should be"),
    ("/bank/tasks", {"split": "nope"}, 400, "Invalid split: bank has all, test."),
    ("/bank/task", {"split": "all"}, 422, "index: Field required."),
    ("/nope/task", {"split": "all", "index": 0}, 404, "There is no environment 'nope' here: use bank."),
]


@pytest.mark.parametrize(("path", "body", "status", "sentence"), WRONG_BODIES, ids=str)
def test_invalid_http_request_is_rejected_with_a_sentence(player, path, body, status, sentence):
    assert detail(player.post(path, body), status).startswith(sentence)


def test_wrong_paths_bodies_and_methods_are_rejected(server, player):
    for path in ["/reset", "/step", "/bank/tasks"]:
        assert detail(player.http.post(player.path + path, content=b"{nope"), 400).startswith("The body isn't JSON: ")
    assert player.http.post(player.path + "/mcp", content=b"{nope").json()["error"]["code"] == -32700
    for path in ["/ws", "/mcp"]:
        assert detail(player.get(path), 426).startswith("This path is a WebSocket")
    assert detail(player.get("/state", episode_id="none"), 404)
    assert detail(player.get("/state", episode_id="x" * 65), 400) == "episode_id must have 1 to 64 characters."
    assert detail(server.http.get("/openenv/nope/schema"), 404).startswith("There is no environment 'nope' with tasks")
    port = int(server.url.rpartition(":")[2])
    for path, status in [("/openenv/nope/ws", 404), ("/openenv/bank/ws?session_id=" + "x" * 65, 400)]:
        with RawWebSocket(port, path) as one:
            assert one.status == status
            assert json.loads(one.body).keys() == {"detail"}


def test_lost_episode_is_an_error(server, player):
    player.reset(SAVE, episode_id="gone")
    server.rpc("close_session", labels={"openenv": "gone"})
    call = {"type": "call_tool", "tool_name": "get_balance"}
    assert refused(player.asked("step", call), "SESSION_ERROR")
    assert refused(player.asked("state"), "SESSION_ERROR")
    assert player.reset(SAVE)["done"] is False  # The lost episode gets no verdict.


def test_tokens_are_required_and_owners_separated(tmp_path):
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(server_process.served(tmp_path, "--packs", "bank", **TOKENS))
        port = int(served.url.rpartition(":")[2])
        for token in [None, "token-of-eve"]:
            for path in ["/ws", "/openenv/bank/ws", "/openenv/bank/mcp"]:
                with RawWebSocket(port, path, token) as one:
                    assert one.status == 401
            for path in ["/reset", "/step", "/mcp", "/bank/tasks"]:
                assert detail(served.http.post("/openenv/bank" + path, json={}), 401)
        assert served.http.get("/openenv/bank/health").status_code == 200
        ann, bob = (stack.enter_context(Player(served.url, token=f"token-of-{name}")) for name in ["ann", "bob"])
        ann.reset(SAVE, episode_id="same")
        call = {"action": {"type": "list_tools"}, "episode_id": "same"}
        assert detail(bob.post("/step", call), 404)
        assert detail(bob.get("/state", episode_id="same"), 404)
        assert bob.mcp("tools/call", name="get_balance", session_id="same")["error"]
        with Player(served.url, token="token-of-bob", query="?session_id=same") as other:
            assert refused(other.asked("step", {"type": "submit_answer"}), "SESSION_ERROR")
        bob.reset(SAVE, episode_id="same")  # Bob's own episode
        bob.result("move_to_savings", amount="300.00")
        assert float(ann.result("get_balance")) == 1840.25
