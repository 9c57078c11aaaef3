"""The protocol of NeMo Gym's resources servers over plain HTTP: episodes, verification and errors."""

import base64
import contextlib
import json
from functools import reduce

import pytest
import server_process
import serving

TOKENS = {"TOOLPACK_TOKENS": "ann:token-of-ann,bob:token-of-bob"}


class Agent:
    def __init__(self, url, auth=None):
        self.http = serving.http_client(url, auth=auth)
        self.prefix = ""  # prefix of the paths /reset and /step

    def close(self):
        self.http.close()

    def post(self, path, body=None):
        return self.http.post(path, json=body)

    def seed(self, task, **more):
        self.http.cookies.clear()  # NeMo Gym's agents keep no cookie between episodes.
        reply = self.post("/seed_session", {"task": task, "responses_create_params": {"input": "x"}, **more})
        assert reply.status_code == 200, reply.text
        return reply.json()["mcp"]

    def seed_as(self, name, task, **more):
        self.http.cookies.clear()
        body = {
            "resources_session_id": name,
            "episode_id": {"a": 1},
            "task_id": {},
            "task_data": {"task": task, **more},
        }
        return self.post("/seed_session", body)

    def verify(self, *output, **more):
        reply = self.post("/verify", {"task": "x", "response": {"id": "0", "output": [*output]}, **more})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def reset(self, task, **more):
        self.http.cookies.clear()
        body = {"task": task, "responses_create_params": {"input": "x"}, **more}
        return self.post(f"{self.prefix}/reset", body)

    def step(self, *output, **more):
        body = {"responses_create_params": {"input": "x"}, "response": {"id": "0", "output": [*output]}, **more}
        return self.post(f"{self.prefix}/step", body)

    def mcp(self, tools, method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self.http.post(tools["url_path"], json=body, headers=tools["headers"]).json()["result"]


def message(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def called(name, call_id="1", **kwargs):
    return {"type": "function_call", "name": name, "arguments": json.dumps(kwargs), "call_id": call_id}


FAILING = {"add_and_await": {}, "add_then": {"how": "raise"}, "add_and_return": {"what": "much"}}
CALL = {"type": "function_call", "name": "get_balance", "arguments": "{}", "call_id": "1"}


PURSE = '''
"""A purse, whose function has the name of one of a bank's."""

from toolpack_server import Toolpack

toolpack = Toolpack("purse")


@toolpack.function(read_only=True)
def get_balance() -> int:
    """Look inside."""
    return 7


@toolpack.function(read_only=True)
def shake() -> str:
    """Listen."""
    return "It rattles."


@toolpack.task("look", "How much is in it?")
def look(rollout) -> bool:
    return rollout.answer == "7"


@toolpack.task("compare", "Is more in it than in the bank?", toolpacks={"bank": {}})
def compare(rollout) -> bool:
    return rollout.answer == "No."


@toolpack.task("count", "How much is where?", toolpacks={"bank": {}}, functions=["get_balance"])
def count(rollout) -> bool:
    return rollout.answer == "7 and 1840.25"
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("gym"), "--packs", "chores,ledger,bank") as served:
        yield served


@pytest.fixture
def agent(server):
    with contextlib.closing(Agent(server.url)) as agent:
        yield agent


def detail(reply, status):
    assert reply.status_code == status, reply.text
    ((name, text),) = reply.json().items()
    assert name == "detail"
    return text


def test_agent_plays_over_http_and_verify_returns_its_extras(agent, server):
    agent.seed("bank/save-300")
    assert agent.post("/get_balance", {}).text == "1840.25"
    assert agent.post("/move_to_savings", {"amount": "300.00"}).json()["amount"] == "-300.00"
    for _ in range(2):  # A client that lost the answer sends the verification again.
        verified = agent.verify(CALL, message("Done."), extra={"kept": [1]})
        assert (verified["reward"], verified["mask_sample"], verified["passed"]) == (1.0, False, True)
        assert (verified["extra"], verified["task"]) == ({"kept": [1]}, "bank/save-300")
    session = server.rpc("get_session", session_id=verified["session_id"])
    assert session["labels"] == {"nemo_gym": ""}
    assert agent.post("/get_balance", {}).text.startswith("EpisodeOverError: ")


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/7"])
def test_gymnasium_agent_plays_by_reset_and_step(agent, server, prefix):
    agent.prefix = prefix
    begun = agent.reset("bank/save-300").json()
    assert (begun["observation"], begun["info"]["task"]) == (None, "bank/save-300")
    output = [called("get_balance"), called("move_to_savings", "2", amount="300.00"), message("One moment.")]
    played = agent.step(*output, _ng_step_request_id="one").json()
    assert (played["observation"], played["reward"]) == (None, 0.0)
    assert (played["terminated"], played["truncated"]) == (False, False)
    first, second = played["info"]["tool_outputs"]
    assert first == {"call_id": "1", "output": "1840.25"}
    assert json.loads(second["output"])["amount"] == "-300.00"
    for _ in range(2):
        ended = agent.step(message("Done."), _ng_step_request_id="two").json()
        assert (ended["reward"], ended["terminated"], ended["truncated"]) == (1.0, True, False)
        assert ended["info"]["passed"] is True
    (late,) = agent.step(called("get_balance")).json()["info"]["tool_outputs"]
    assert late["output"].startswith("EpisodeOverError: ")
    session = server.rpc("get_session", session_id=begun["info"]["session_id"])
    assert session["labels"] == {"nemo_gym": ""}


def test_repeated_step_runs_its_calls_once(agent, server):
    session_id = agent.reset("bank/save-300").json()["info"]["session_id"]
    output = [called("get_balance"), called("move_to_savings", amount="300.00")]
    first, again = (agent.step(*output, _ng_step_request_id="one").json() for _ in range(2))
    assert first == again
    trace = server.rpc("get_trace", session_id=session_id)
    assert [record["function"] for record in trace] == ["get_balance", "move_to_savings"]
    error = detail(agent.step(called("get_iban"), _ng_step_request_id="one"), 409)
    assert "was used for another" in error


def test_step_that_uses_up_the_calls_is_truncated_with_reward(agent):
    agent.reset("chores/dishes")
    assert agent.step(called("do", chore="dishes")).json()["truncated"] is False
    ended = agent.step(*[called("look", str(number)) for number in range(3)]).json()
    assert (ended["terminated"], ended["truncated"], ended["reward"]) == (False, True, 1.0)
    texts = [output["output"] for output in ended["info"]["tool_outputs"]]
    assert [text.startswith("EpisodeOverError: ") for text in texts] == [False, False, True]


def test_step_returns_the_errors_of_failed_calls(agent):
    agent.reset("chores/looks")
    output = [
        called("nope"),
        called("do", chore=[1]),
        {**called("do"), "arguments": "{"},
        called("do", chore="nothing"),
    ]
    outputs = [each["output"] for each in agent.step(*output).json()["info"]["tool_outputs"]]
    assert "nope" in outputs[0]
    assert "chore" in outputs[1]
    assert "JSON" in outputs[2]
    assert outputs[3] == "ValueError: nothing is no chore"


@pytest.mark.parametrize("failure", ["raises", "exits"])
def test_step_without_valid_verdict_is_refused(agent, failure):
    agent.reset(f"chores/{failure}")
    for _ in range(2):
        assert detail(agent.step(message("x")), 422).startswith("The episode has no valid verdict, and so no reward: ")


def test_agent_plays_over_mcp(agent):
    tools = agent.seed("bank/save-300")
    assert (tools["server_name"], tools["transport"]) == ("toolpack", "http")
    assert tools["headers"].keys() == {"X-NeMo-Gym-Session-Token"}
    called = agent.mcp(tools, "tools/call", name="move_to_savings", arguments={"amount": "300.00"})
    assert called["isError"] is False
    assert agent.verify(message("Done."))["reward"] == 1.0


def test_no_action_has_reward_0_and_truncated_output_no_answer(agent, server):
    agent.seed("bank/save-300")
    verified = agent.verify(CALL)
    assert (verified["reward"], verified["mask_sample"]) == (0.0, False)
    kinds = [record["kind"] for record in server.rpc("get_trace", session_id=verified["session_id"])]
    assert kinds == ["verdict"]


@pytest.mark.parametrize("failure", ["raises", "exits", "slow", "returns-nan"])
def test_invalid_verdict_is_masked(agent, failure):
    agent.seed(f"chores/{failure}")
    verified = agent.verify(message("x"))
    assert (verified["reward"], verified["mask_sample"], verified["failure_kind"]) == (0.0, True, "verifier_error")
    assert verified["failure_reason"]


def test_lost_session_is_masked(agent, server):
    agent.seed("bank/save-300")
    assert "response.output: must be the list" in detail(agent.post("/verify", {}), 400)
    server.rpc("close_session", session_id=agent.http.cookies["toolpack_session"])
    verified = agent.verify(message("x"))
    assert (verified["reward"], verified["mask_sample"], verified["failure_kind"]) == (0.0, True, "session_lost")


def test_environment_server_names_its_episode(agent, server):
    first = agent.seed_as("one", "bank/save-300")
    assert first.json()["resources_session_id"] == "one"
    assert agent.seed_as("one", "bank/save-300").json() == first.json()
    agent.mcp(first.json()["resources_tools"], "tools/call", name="get_balance")
    assert agent.seed_as("one", "bank/save-300").json() == first.json()
    for _ in range(2):
        assert agent.post("/close_session", {"resources_session_id": "one", "episode_id": {}}).json() == {
            "resources_session_id": "one"
        }
    # An episode can't be created after it has ended, or after a close of an episode that wasn't created yet.
    agent.http.cookies.clear()
    assert agent.post("/close_session", {"resources_session_id": "two"}).status_code == 200
    for name in ("one", "two"):
        error = detail(agent.seed_as(name, "bank/save-300"), 409)
        assert error == f"The episode '{name}' has ended, or has another task: use another name."
    (session,) = server.rpc("list_sessions", labels={"nemo_gym": "one"})
    kinds = [record["kind"] for record in server.rpc("get_trace", session_id=session["session_id"])]
    assert kinds == ["call", "verdict"]


def test_failed_function_is_a_result_and_invalid_call_an_error(agent):
    agent.seed("chores/looks")
    assert agent.post("/do", {"chore": "nothing"}).text == "ValueError: nothing is no chore"
    assert "nope" in detail(agent.post("/nope", {}), 404)
    assert "chore" in detail(agent.post("/do", {"chore": [1]}), 422)
    assert detail(agent.post("/do", [1]), 422) == 'the arguments aren\'t a JSON object, like {"name": "value"}'
    bad = agent.http.post("/do", content=b"{", headers={"content-type": "application/json"})
    assert detail(bad, 400).startswith("The body isn't JSON: ")


def test_agent_sees_the_error_that_is_recorded(agent, server):
    agent.seed("chores/as-the-solution")
    errors = [agent.post(f"/{function}", kwargs).text for function, kwargs in FAILING.items()]
    verified = agent.verify()
    trace = server.rpc("get_trace", session_id=verified["session_id"])
    assert errors == [record["error"] for record in trace if record["kind"] == "call"]
    assert errors[0].startswith("TimeoutError: ")


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/seed_session", {}, 400, "task: "),
        ("/seed_session", [], 400, "The body must be a JSON object."),
        ("/seed_session", {"task": "bank/nope"}, 400, "bank/nope"),
        ("/seed_session", {"task": 3}, 400, "task: "),
        ("/seed_session", {"resources_session_id": "", "task_data": {"task": "x"}}, 400, "resources_session_id: "),
        ("/seed_session", {"resources_session_id": "x" * 129, "task_data": {"task": "x"}}, 400, "at most 128"),
        ("/seed_session", {"resources_session_id": "x"}, 400, "task_data: "),
        ("/seed_session", {"task": "bank/save-300", "seed": [1]}, 400, "seed: "),
        ("/verify", {"response": {"output": []}}, 400, "The episode is missing: send the cookie toolpack_session"),
        ("/close_session", {}, 400, "resources_session_id: "),
        ("/reset", {"responses_create_params": {}}, 400, "task: "),
        ("/reset", {"responses_create_params": {}, "task": "bank/nope"}, 400, "bank/nope"),
        (
            "/step",
            {"responses_create_params": {}},
            400,
            "response: Field required. The body can contain response, _ng_step_request_id.",
        ),
        ("/step", {"responses_create_params": {}, "response": {}}, 400, "response.output: must be the list"),
        ("/step", {"responses_create_params": {}, "response": {"output": []}}, 400, "The episode is missing: "),
        (
            "/step",
            {"responses_create_params": {}, "response": {"output": [{"type": "function_call"}]}},
            400,
            "name: Field required. A function_call of response.output can contain name, arguments, call_id.",
        ),
        (
            "/step",
            {"responses_create_params": {}, "response": {"output": [called("get_balance")] * 1001}},
            400,
            "response.output: has 1001 calls",
        ),
        (
            "/step",
            {"responses_create_params": {}, "response": {"output": []}, "_ng_step_request_id": "x" * 129},
            400,
            "_ng_step_request_id: ",
        ),
        ("/aggregate_metrics", {"verify_responses": 3}, 400, "verify_responses: "),
        ("/aggregate_metrics", {"verify_responses": [{"reward": 1e308}] * 2}, 422, "verify_responses: "),
        ("/aggregate_metrics", reduce(lambda inner, _: [inner], range(300), 1), 400, "nested more than 128 deep"),
        ("/aggregate_metrics", [0] * 250_001, 413, "more than 250000 values"),
    ],
)
def test_invalid_request_is_rejected_with_a_sentence(agent, path, body, status, says):
    assert says in detail(agent.post(path, body), status)


@pytest.mark.parametrize("path", ["/seed_session", "/reset"])
def test_task_may_follow_many_other_members_of_a_row(agent, path):
    agent.http.cookies.clear()
    others = {f"member_{number}": number for number in range(1000)}
    reply = agent.post(path, {**others, "responses_create_params": {}, "task": "bank/save-300"})
    assert reply.status_code == 200, reply.text


def test_paths_of_episodes_are_unknown_without_an_episode(agent):
    for reply in (agent.post("/get_balance", {}), agent.http.get("/get_balance"), agent.http.get("/register")):
        assert reply.status_code == 404
        assert "There is nothing at this path" in reply.json()["error"]["message"]
    for reply in (agent.http.get("/rpc"), agent.post("/openrpc.json", {}), agent.http.get("/seed_session")):
        assert reply.status_code == 405
        assert reply.headers["allow"]
    agent.http.cookies.set("toolpack_session", "nobody")
    assert "No session has this id" in detail(agent.post("/get_balance", {}), 404)


def ended(server, session_id):
    kinds = [record["kind"] for record in server.rpc("get_trace", session_id=session_id)]
    return kinds[-1:] == ["verdict"]


PATHS = [
    "rpc",
    "%72pc",
    "rpc/",
    "/rpc",
    "./rpc",
    "..%2Frpc",
    "rpc?x=1",
    "agents/x",
    "mcp",
]
PATHS += ["call", "bank/call", "bank%2Fcall", "openenv/bank/step", "openenv/bank/mcp", "ws", "create", "delete", "ping"]
PATHS += [
    "healthz",
    "readyz",
    "metrics",
    "openrpc.json",
    "console/",
    "console",
    "a/b/c",
    "ng-rollout/call",
    "",
    "%00/x",
]


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_episode_cookie_reaches_only_the_paths_of_nemo_gym(agent, server, method):
    agent.seed("bank/save-300")
    session_id = agent.http.cookies["toolpack_session"]
    body = {"jsonrpc": "2.0", "id": 1, "method": "get_solution", "params": {"session_id": session_id}}
    for path in PATHS:
        reply = agent.http.request(method, f"{server.url}/{path}", json=body)
        assert reply.status_code == 403, path
    with contextlib.closing(Agent(server.url)) as other:  # Clients may send several cookies, in one header or in two.
        for cookies in (
            f"a=b; toolpack_session={session_id}",
            "toolpack_session=",
            'toolpack_session="x"; toolpack_session',
        ):
            assert other.http.post("/rpc", json=body, headers={"cookie": cookies}).status_code == 403
        headers = [("cookie", f"toolpack_session={session_id}"), ("cookie", "a=b")]
        assert other.http.post("/rpc", json=body, headers=headers).status_code == 403
        assert other.http.post("/rpc", json=body, headers={"cookie": "a=b"}).status_code == 200
    assert agent.post("/get_balance", {}).text == "1840.25"
    assert agent.post("/ng-rollout/7/get_balance", {}).text == "1840.25"


def test_model_cannot_begin_or_close_another_episode(agent, server):
    assert agent.seed_as("other", "bank/save-300").status_code == 200
    agent.seed("bank/save-300")
    for prefix in ("", "/ng-rollout/7"):
        for name in ("other", "unknown"):
            body = {"resources_session_id": name}
            assert "can't close another" in detail(agent.post(f"{prefix}/close_session", body), 403)
        for body in ({"task": "bank/save-300"}, {}, []):
            assert "can't begin another" in detail(agent.post(f"{prefix}/seed_session", body), 403)
    (other,) = server.rpc("list_sessions", labels={"nemo_gym": "other"})
    assert not ended(server, other["session_id"])
    assert server.rpc("list_sessions", labels={"nemo_gym": "unknown"}) == []


@pytest.mark.parametrize("output", [CALL, message("Done."), message("x" * 300_000)])
def test_verify_ends_the_episode_before_it_answers(agent, server, output):
    tools = agent.seed("bank/save-300")
    early = agent.verify(output)  # the model calls it as a tool
    assert early["reward"] == 0.0
    answer = agent.post("/move_to_savings", {"amount": "300.00"}).text
    assert answer.startswith("EpisodeOverError: ")
    called = agent.mcp(tools, "tools/call", name="move_to_savings", arguments={"amount": "300.00"})
    assert called["isError"] is True
    last = agent.verify(message("Done."))
    assert (last["reward"], last["checks"]) == (0.0, early["checks"])
    assert ended(server, last["session_id"])


@pytest.mark.parametrize("failure", ["raises", "exits"])
def test_failing_evaluator_still_ends_the_episode(agent, failure):
    agent.seed(f"chores/{failure}")
    assert agent.verify(CALL)["failure_kind"] == "verifier_error"
    assert agent.post("/do", {"chore": "x"}).text.startswith("EpisodeOverError: ")


def test_metrics_are_means_without_masked_rewards(agent):
    verified = [
        {"_ng_task_index": 0, "reward": 1.0},
        {"_ng_task_index": 0, "reward": 0.0},
        {"_ng_task_index": 1, "reward": 0.5},
        {"_ng_task_index": 1, "reward": 0.0, "mask_sample": True},
        {"reward": None},
    ]
    metrics = agent.post("/aggregate_metrics", {"verify_responses": verified}).json()
    assert metrics["agent_metrics"] == metrics["key_metrics"] == {"mean/reward": 0.5}
    assert metrics["group_level_metrics"] == [
        {"_ng_task_index": 0, "mean/reward": 0.5},
        {"_ng_task_index": 1, "mean/reward": 0.5},
    ]
    assert agent.post("/aggregate_metrics", {"verify_responses": []}).json()["agent_metrics"] == {}
    assert agent.http.get("/reverify_mode").json() == "unsupported"


def test_rows_have_the_prompt_and_the_functions_of_each_task(agent, server):
    rows = [json.loads(line) for line in agent.http.get("/nemo_gym/bank.jsonl").text.splitlines()]
    tasks = server.rpc("list_tasks", toolpack="bank", limit=1000)["tasks"]
    assert [row["task"] for row in rows] == [task["task"] for task in tasks]
    assert [row["responses_create_params"]["input"] for row in rows] == [task["prompt"] for task in tasks]
    names = [tool["name"] for tool in rows[0]["responses_create_params"]["tools"]]
    assert names[0] == "get_iban"
    assert "add" not in names
    assert "nope" in detail(agent.http.get("/nemo_gym/nope.jsonl"), 400)


def test_rows_use_the_prefixed_names_of_functions(tmp_path):
    (tmp_path / "purse.py").write_text(PURSE)
    with server_process.served(tmp_path, "--pack-dir", str(tmp_path), "--packs", "purse,bank") as served:
        rows = [*map(json.loads, served.http.get("/nemo_gym/purse.jsonl").text.splitlines())]
        tools = {row["task"]: row["responses_create_params"]["tools"] for row in rows}
        described = [(tool["name"], tool["description"]) for tool in tools["purse/look"]]
        assert described == [("get_balance", "Look inside."), ("shake", "Listen.")]
        both = ["purse__get_balance", "bank__get_balance"]
        assert [tool["name"] for tool in tools["purse/count"]] == both
        for task, listed in tools.items():
            agent = served.rpc("create_session", task=task)["agent_path"]
            body = {"jsonrpc": "2.0", "id": 1, "method": "list_functions", "params": {"format": "openai"}}
            session = served.http.post(agent, json=body).json()["result"]["result"]
            assert [each["name"] for each in listed] == [each["function"]["name"] for each in session]
        with contextlib.closing(Agent(served.url)) as agent:
            agent.seed("purse/count")
            assert [agent.post(f"/{name}", {}).text for name in both] == ["7", "1840.25"]


def test_answer_that_is_too_long_is_ignored(agent):
    agent.seed("bank/save-300")
    agent.post("/move_to_savings", {"amount": "300.00"})
    assert agent.verify(message("x" * 300_000))["reward"] == 1.0


def test_episode_belongs_to_its_owner(tmp_path):
    with server_process.served(tmp_path, "--packs", "bank", **TOKENS) as served:
        ann, bob = (Agent(served.url, ("me", f"token-of-{name}")) for name in ("ann", "bob"))
        stranger, bearer = Agent(served.url), Agent(served.url)
        bearer.http.headers["authorization"] = "Bearer token-of-ann"
        wrong = Agent(served.url)
        wrong.http.headers["authorization"] = "Basic " + base64.b64encode(b"a:b").decode()[:-1]
        with contextlib.ExitStack() as stack:
            for each in (ann, bob, stranger, bearer, wrong):
                stack.callback(each.close)
            ann.seed("bank/save-300")
            for other in (bob, stranger, bearer, wrong):
                other.http.cookies.update(ann.http.cookies)
            assert bearer.post("/get_balance", {}).text == "1840.25"
            assert "No session has this id" in detail(bob.post("/get_balance", {}), 404)
            assert bob.verify(message("x"))["failure_kind"] == "session_lost"
            for other in (stranger, wrong):
                assert "token" in detail(other.post("/get_balance", {}), 401)
                assert "token" in detail(other.post("/seed_session", {"task": "bank/save-300"}), 401)
