"""Tasks: the reward of a session follows from its whole path, including parent sessions. Agents can't evaluate."""

import contextlib
import json
import sqlite3
import sys
import threading
from types import SimpleNamespace
from typing import Any

import http_endpoint
import jsonschema
import mcp_endpoint
import pytest
import serving
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import PACKS, Bench, refused

from toolpack_server import Check, Evaluation, Rollout, Toolpack, reached_solution
from toolpack_server.base.errors import Interrupted, InvalidParamsError, RegistrationError
from toolpack_server.features.evaluation.episodes.progress import ProgressChecker
from toolpack_server.features.evaluation.tasks.evaluation import seen_record
from toolpack_server.features.evaluation.tasks.rollouts import verdict as judge
from toolpack_server.features.evaluation.tasks.task import Task
from toolpack_server.features.protocols.mcp.protocol import Mcp
from toolpack_server.jsonio.equality import equal, equal_arguments
from toolpack_server.packs.loading import load_catalog
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.calls import CallKind
from toolpack_server.sessions.paths import PathRecord
from toolpack_server.sessions.record_kinds import RecordKind, RecordKinds

CATALOG = load_catalog((PACKS,), ("chores", "ledger"))
chores: Any = sys.modules["toolpacks.chores"]
DO = {"chore": "dishes"}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def bench(request, store_url, make_bench):
    return make_bench(CATALOG, store_url(request.param))


@pytest.fixture
def quick(make_bench):
    return make_bench(CATALOG)


@pytest.fixture(scope="module")
def isolated():
    with Bench(CATALOG, isolation="process", pack_dir=(PACKS,), packs=("chores", "ledger")) as server:
        yield server


@pytest.fixture(params=["quick", "isolated"])
def anywhere(request):
    """Return a server that runs toolpacks' code in threads, or a server that runs it in executors."""
    return request.getfixturevalue(request.param)


def begin(bench, task="chores/dishes", **params):
    """Create a session with a task. Return its id and its agent's key."""
    session = bench.rpc("create_session", task=task, **params)
    assert session["task"] == task
    return session["session_id"], session["agent_path"].removeprefix("/agents/")


def agent(bench, key, method="run_function", **params):
    return bench.rpc(method, agent_key=key, **params)


def verdict(bench, session_id, **params):
    return bench.rpc("evaluate_session", session_id=session_id, **params)


# The list of tasks


def test_tasks_are_listed_in_order_by_toolpack_split_and_tags(bench):
    first = bench.rpc("list_tasks", toolpack="chores", limit=2)
    assert [task["task"] for task in first["tasks"]] == ["chores/dishes", "chores/as-the-solution"]
    assert (first["total"], first["splits"]["train"], first["splits"]["made"]) == (first["total"], 1, 250)
    assert first["total"] == sum(first["splits"].values())
    tasks, after = [], -1
    while page := bench.rpc("list_tasks", split="made", after=after, limit=100)["tasks"]:
        tasks += page
        after = page[-1]["index"]
    assert [task["task"] for task in tasks] == [f"chores/made-{number}" for number in range(250)]
    names = [task["task"] for task in bench.rpc("list_tasks", tags=["wet"])["tasks"]]
    assert names == ["chores/dishes", "chores/ignoring"]
    assert [task["task"] for task in bench.rpc("list_tasks", tags=["easy", "wet"])["tasks"]] == ["chores/ignoring"]
    assert bench.rpc("list_tasks", split="none") == {"total": 0, "splits": first["splits"], "tasks": []}
    assert bench.rpc("list_tasks", toolpack="ledger")["total"] == 0
    assert "choose from chores, ledger" in refused(-32602, bench.rpc, "list_tasks", toolpack="x").data["detail"]
    (described,) = [pack for pack in bench.rpc("list_toolpacks") if pack["name"] == "chores"]
    assert described["tasks"] == first["total"]


def test_get_task_omits_evaluator_data_and_solution(quick):
    task = quick.rpc("get_task", task="chores/as-the-solution")
    assert task == {
        "task": "chores/as-the-solution",
        "index": 1,
        "prompt": [{"role": "user", "content": "Do the dishes, then say how often."}],
        "toolpacks": ["chores", "ledger"],
        "options": {"chores": {"money": 20}},
        "participants": {},
        "split": "test",
        "tags": [],
        "metadata": {"level": 3},
        "has_solution": True,
        "variants": [],
    }
    assert quick.rpc("list_tasks", after=0, limit=1)["tasks"] == [task]
    assert quick.rpc("get_task", task="chores/looks")["has_solution"] is False
    for unknown in ("chores/none", "none/dishes", "dishes", ""):
        assert "There is no task" in refused(-32602, quick.rpc, "get_task", task=unknown).data["detail"]


def test_loader_runs_once_and_only_when_needed():
    loads: list[int] = []
    pack = Toolpack("lazy")

    @pack.tasks
    def many():
        loads.append(1)
        yield from (Task(str(number), "Do it.", solution=[]) for number in range(10_000))

    assert not loads
    assert len(pack.task_list.all()) == len(pack.task_list.all()) == pack.task_count == 10_000
    assert loads == [1]


def test_failing_loader_is_an_error_with_its_name(quick, monkeypatch):
    def missing():
        raise KeyError("prompt")
        yield

    broken = Toolpack("chores", chores.chores)
    broken.tasks(missing)
    broken.add_task(Task("there", "Do it.", solution=[]))
    monkeypatch.setitem(CATALOG.toolpacks, "chores", broken)
    for method, params in (("list_tasks", {}), ("get_task", {"task": "chores/there"})):
        error = refused(-32013, quick.rpc, method, **params)
        assert error.data == {"type": "KeyError"}
        assert "missing` failed: KeyError: 'prompt'" in error.message
        assert "toolpack 'chores'" in error.message
    assert {pack["name"]: pack["tasks"] for pack in quick.rpc("list_toolpacks")} == {"chores": 1, "ledger": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b"}, "'a/b' isn't a valid task name"),
        ({"name": ""}, "isn't a valid task name"),
        ({"name": "x" * 129}, "isn't a valid task name"),
        ({"prompt": None}, "its prompt must be a string, or a list"),
        ({"prompt": [{"role": "tool", "content": ""}]}, "its prompt must be a string"),
        ({"evaluate": 3}, "its evaluator isn't callable"),
        ({"tags": "easy"}, "its tags must be a list of strings"),
        ({"functions": [1]}, "its functions must be a list"),
        ({"answer": [2]}, "its answer must be a list"),
        ({"answer": 2}, "its answer must be a list"),
        ({"max_calls": -1}, "its max_calls is -1"),
        ({"max_calls": True}, "its max_calls is True"),
        ({"split": 3}, "its split is 3"),
        ({"prompt": "\ud800"}, "one of its strings contains a lone surrogate"),
        ({"answer": ["a", "\ud800"]}, "one of its strings contains a lone surrogate"),
        ({"timeout_seconds": 0}, "its timeout_seconds is 0"),
        ({"options": {"x": object()}}, "its options can't be converted to JSON"),
        ({"metadata": [1]}, "its metadata is a list"),
    ],
)
def test_invalid_task_is_rejected(arguments, message):
    with pytest.raises(RegistrationError) as error:
        Task(**{"name": "a", "prompt": "Do it.", **arguments})
    assert message in str(error.value)


def test_ignored_paths_must_be_json_pointers():
    with pytest.raises(RegistrationError, match="give JSON Pointers, such as '/bank/log'"):
        reached_solution("bank/log")


def test_task_name_must_be_unique():
    pack = Toolpack("twice")
    pack.add_task(Task("a", "Do it.", solution=[]))
    with pytest.raises(RegistrationError, match=r"test_tasks\.py:\d+: .*has a task 'a' already: rename one"):
        pack.task("a", "Do it.")(lambda _rollout: True)
    pack.tasks(lambda: [Task("b", "", solution=[]), Task("b", "", solution=[])])
    with pytest.raises(Exception, match="the toolpack has a task 'b' already"):
        pack.task_list.all()


def test_bundle_of_a_fork_has_consistent_progress():
    record = {"kind": "call", "function": "look", "by": "agent", "index": 0, "version": 0, "nested": [{}]}
    with pytest.raises(InvalidParamsError, match="Record 0 of the bundle has a progress that disagrees"):
        ProgressChecker(began_as_fork=True).add(CallKind(), record, {"progress": [1, None]})
    ProgressChecker(began_as_fork=True).add(CallKind(), record, {"progress": [2, None]})


# Sessions with a task


def test_session_options_override_those_of_the_task(bench):
    session_id, _ = begin(bench, "chores/as-the-solution")
    assert bench.rpc("get_session", session_id=session_id)["toolpacks"] == ["chores", "ledger"]
    assert bench.rpc("get_environment", session_id=session_id, pointer="/chores/money") == 20
    richer, _ = begin(bench, "chores/as-the-solution", options={"chores": {"money": 70}})
    assert bench.rpc("get_environment", session_id=richer, pointer="/chores/money") == 70
    with_more, _ = begin(bench, "chores/dishes", toolpacks=["ledger"])
    assert bench.rpc("get_session", session_id=with_more)["toolpacks"] == ["chores", "ledger"]
    with_environment, _ = begin(bench, "chores/as-the-solution", environment={"chores": {"money": 3}})
    assert bench.rpc("get_environment", session_id=with_environment, pointer="/chores/money") == 3
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    assert fork["task"] == "chores/as-the-solution"
    assert bench.rpc("get_session", session_id=bench.create("ledger")).get("task") is None
    assert "There is no task" in refused(-32602, bench.rpc, "create_session", task="chores/none").data["detail"]
    unloaded = refused(-32602, bench.rpc, "create_session", task="bells/none").data["detail"]
    assert unloaded == (
        "There is no task 'bells/none': no toolpack 'bells' is loaded. Add its folder with "
        "--pack-dir, or its name to --packs."
    )
    unqualified = refused(-32602, bench.rpc, "create_session", task="dishes").data["detail"]
    assert "begins with its toolpack, as in bank/save-300" in unqualified


def test_agent_sees_only_its_prompt_and_progress(bench):
    session_id, key = begin(bench)
    task = agent(bench, key, "get_task")
    assert task == {"prompt": "Do the dishes, once.", "max_calls": 3, "calls": 0, "done": False}
    assert [each["name"] for each in agent(bench, key, "list_functions")["result"]] == ["do", "look"]
    assert len(bench.rpc("list_functions", session_id=session_id)["result"]) == 3
    assert agent(bench, key, function="rest")["error"].startswith("ToolNotFoundError: The requested function `rest`")
    bench.result(session_id, "rest")  # The client may call all functions.
    agent(bench, key, function="do", kwargs=DO)
    assert agent(bench, key, "get_task") == task | {"calls": 2}
    for method in ("evaluate_session", "get_solution", "list_tasks", "add_message", "get_session"):
        refused(-32601, agent, bench, key, method)
    refused(-32602, agent, bench, key, "get_task", task="chores/dishes")
    refused(-32602, agent, bench, key, "get_task", session_id=session_id)
    key = bench.rpc("create_session", toolpacks=["ledger"])["agent_path"].removeprefix("/agents/")
    assert agent(bench, key, "get_task") == {"calls": 0, "done": False}
    assert "takes no answer" in refused(-32602, agent, bench, key, "submit_answer", answer="x").data["detail"]


def test_max_calls_stop_the_agent_but_not_the_client(bench):
    session_id, key = begin(bench)
    for chore in ("dishes", "nothing", "laundry"):  # A failed call counts too.
        agent(bench, key, function="do", kwargs={"chore": chore}, call_id=chore)
    why = "all 3 calls of the task are used, so no further one is run: submit an answer."
    over = {"result": "", "error": f"EpisodeOverError: {why}"}
    before = bench.rpc("get_trace", session_id=session_id)
    assert agent(bench, key, function="do", kwargs=DO) == over
    error = refused(-32002, agent, bench, key, function="do", kwargs=DO, raise_on_error=True)
    assert error.data["type"] == "EpisodeOverError"
    assert bench.rpc("get_trace", session_id=session_id) == before
    assert [record["by"] for record in before] == ["agent"] * 3
    # A repeated call_id.
    assert agent(bench, key, function="do", kwargs={"chore": "dishes"}, call_id="dishes")["error"] is None
    assert agent(bench, key, "get_task") == {"prompt": "Do the dishes, once.", "max_calls": 3, "calls": 3, "done": True}
    bench.result(session_id, "do", **DO)
    assert bench.rpc("get_trace", session_id=session_id)[-1]["by"] == "client"


def nested(function, **args):
    return {"$call": {"function": function, "args": args}}


def test_nested_calls_of_an_agent_count_towards_max_calls(anywhere):
    session_id, key = begin(anywhere)
    chores_twice = {"chore": nested("look"), "more": nested("look"), "most": nested("look")}
    error = agent(anywhere, key, function="do", kwargs=chores_twice)["error"]
    assert error == (
        "ValidationError: With its nested calls this counts as 4 calls; 3 of the task's 3 are left: nest fewer."
    )
    assert agent(anywhere, key, "get_task")["calls"] == 1  # The rejected call itself counts.
    assert agent(anywhere, key, function="do", kwargs={"chore": nested("look")})["error"].startswith("ValidationError")
    task = {"prompt": "Do the dishes, once.", "max_calls": 3, "calls": 3, "done": True}
    assert agent(anywhere, key, "get_task") == task
    assert agent(anywhere, key, function="do", kwargs=DO)["error"].startswith("EpisodeOverError: all 3 calls")
    (fork,) = anywhere.rpc("fork_session", session_id=session_id)
    assert agent(anywhere, fork["agent_path"].removeprefix("/agents/"), "get_task") == task
    assert anywhere.call(session_id, "do", chore=nested("look"))["error"].startswith("ValidationError: 1 validation")
    assert agent(anywhere, key, "get_task") == task  # Calls of a client don't count.


def test_evaluator_sees_nested_calls_of_agents_and_clients(quick):
    session_id, key = begin(quick, "chores/looks")
    agent(quick, key, function="do", kwargs={"chore": nested("do", chore=nested("do", chore="dishes"))})
    quick.call(session_id, "look", unknown=nested("look"))
    verdict(quick, session_id)
    calls = chores.seen["calls"]
    assert [(call.function, call.index, call.by, call.version) for call in calls] == [
        ("do", 0, "agent", 0), ("do", 0, "agent", 0), ("do", 0, "agent", 0),
        ("look", 1, "client", 0), ("look", 1, "client", 0),
    ]  # fmt: skip
    assert [call.parent and calls.index(call.parent) for call in calls] == [1, 2, None, 4, None]
    assert calls[0].result == 1
    assert calls[1].error == calls[2].error
    assert (calls[3].result, calls[4].error.partition(":")[0]) == ({}, "ValidationError")


def test_evaluator_sees_nested_calls_in_any_process(anywhere):
    session_id, key = begin(anywhere, "chores/async")
    agent(anywhere, key, function="look", kwargs={"unknown": nested("look")})
    assert verdict(anywhere, session_id)["reward"] == 2


def test_call_ids_of_agents_and_clients_are_separate(bench):
    session_id, key = begin(bench, ttl_seconds=60)
    rest_call, do_call = {"function": "rest", "call_id": "c"}, {"function": "do", "kwargs": DO, "call_id": "d"}
    assert bench.rpc("run_function", session_id=session_id, **rest_call)["error"] is None
    assert agent(bench, key, **rest_call)["error"].startswith("ToolNotFoundError: The requested function `rest`")
    assert agent(bench, key, **do_call) == agent(bench, key, **do_call) == {"result": 1, "error": None}
    other = {"function": "do", "kwargs": {"chore": "laundry"}, "call_id": "d"}
    refused(-32009, agent, bench, key, **other)
    assert bench.rpc("run_function", session_id=session_id, **other)["error"] is None
    for call_id in ("agent:d", "client:d", "client:agent:d"):
        assert bench.rpc("run_function", session_id=session_id, **other | {"call_id": call_id})["result"] > 1
    recorded = [(record.get("call_id"), record["by"]) for record in bench.rpc("get_trace", session_id=session_id)]
    assert recorded == [("c", "client"), ("c", "agent"), ("d", "agent"), ("d", "client")] + [
        (call_id, "client") for call_id in ("agent:d", "client:d", "client:agent:d")
    ]
    moved = bench.rpc("import_bundle", bundle=bench.rpc("export_bundle", session_id=session_id)["bundle"])
    key = moved["agent_path"].removeprefix("/agents/")
    before = bench.rpc("get_trace", session_id=moved["session_id"])
    assert agent(bench, key, **do_call)["result"] == 1
    assert bench.rpc("run_function", session_id=moved["session_id"], **other)["result"] == 1
    assert bench.rpc("get_trace", session_id=moved["session_id"]) == before


def test_answer_ends_the_agents_part_once_per_path(bench):
    session_id, key = begin(bench)
    agent(bench, key, function="do", kwargs=DO)
    assert agent(bench, key, "submit_answer", answer="Done.") is True
    assert agent(bench, key, "submit_answer", answer="Done.") is True
    assert bench.rpc("submit_answer", session_id=session_id, answer="Done.") is True
    error = refused(-32014, agent, bench, key, "submit_answer", answer="Not done.")
    assert error.data == {"type": "AnsweredError"}
    assert agent(bench, key, function="look")["error"].startswith("EpisodeOverError: the answer has been submitted")
    assert agent(bench, key, "get_task")["done"] is True
    trace = bench.rpc("get_trace", session_id=session_id)
    assert [(record["kind"], record["version"]) for record in trace] == [("call", 1), ("answer", 1)]
    assert trace[1]["answer"] == "Done."
    assert bench.result(session_id, "look") == {"dishes": 1}
    assert verdict(bench, session_id)["passed"]
    bench.rpc("reset_session", session_id=session_id, version=1)  # The answer was submitted at this version.
    assert agent(bench, key, "get_task")["done"] is True
    bench.rpc("reset_session", session_id=session_id, version=0)
    assert agent(bench, key, "get_task") == {
        "prompt": "Do the dishes, once.",
        "max_calls": 3,
        "calls": 0,
        "done": False,
    }
    assert agent(bench, key, "submit_answer", answer="Another.") is True
    bench.rpc("reset_session", session_id=session_id, version=1)  # The first answer was submitted after this version.
    assert agent(bench, key, "get_task")["calls"] == 1
    refused(-32014, agent, bench, key, "submit_answer", answer="A third.")


def test_message_is_recorded_once_per_call_id(bench):
    session_id, _ = begin(bench)
    message = {"session_id": session_id, "role": "assistant", "content": "I begin.", "call_id": "m"}
    assert bench.rpc("add_message", **message) is bench.rpc("add_message", **message) is True
    refused(-32009, bench.rpc, "add_message", **(message | {"content": "I end."}))
    (record,) = bench.rpc("get_trace", session_id=session_id)
    assert {name: record[name] for name in ("kind", "role", "content", "call_id", "version")} == {
        "kind": "message", "role": "assistant", "content": "I begin.", "call_id": "m", "version": 0,
    }  # fmt: skip
    refused(-32602, bench.rpc, "add_message", session_id=session_id, role="tool", content="x")
    refused(-32007, bench.rpc, "add_message", session_id=session_id, role="user", content="x" * (2**18 + 1))
    plain = bench.create("ledger")
    assert bench.rpc("add_message", session_id=plain, role="user", content="Hello") is True


@pytest.fixture(scope="module")
def endpoint():
    with http_endpoint.served("h11", catalog=CATALOG, log_calls="off") as served:
        yield served


@pytest.mark.parametrize("era", ["2025-06-18", mcp_endpoint.MODERN])
def test_mcp_agent_has_the_same_limits_and_an_answer_tool(endpoint, era):
    mcp = mcp_endpoint.Mcp(endpoint)
    mcp.session = endpoint.rpc("create_session", task="chores/dishes")
    mcp.path = mcp.session["mcp_path"]
    tools = mcp.send(era, "tools/list").json()["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["do", "look", "submit_answer"]
    assert list(tools[2]) == list(tools[0])
    jsonschema.Draft202012Validator.check_schema(tools[2]["inputSchema"])
    assert "is not available" in mcp.send(era, "tools/call", name="rest").json()["error"]["message"]
    assert mcp.call(era, "do", chore="dishes")["isError"] is False
    assert [record["by"] for record in mcp.rpc("get_trace")] == ["agent", "agent"]
    for wrong in ({"answer": 1}, {"answer": "x", "more": 1}):
        result = mcp.call(era, "submit_answer", **wrong)
        assert result["isError"], result
        assert result["content"][0]["text"].startswith("ValidationError: ")
    for _ in range(2):
        result = mcp.call(era, "submit_answer", answer="Done.")
        assert (result["isError"], result["content"][0]["text"]) == (False, "The answer has been submitted.")
    result = mcp.call(era, "submit_answer", answer="Not done.")
    assert result["isError"]
    assert result["content"][0]["text"].startswith("AnsweredError: ")
    result = mcp.call(era, "look")
    assert result["isError"]
    assert result["content"][0]["text"].startswith("EpisodeOverError: ")
    assert mcp.rpc("evaluate_session")["passed"]
    without = mcp_endpoint.Mcp(endpoint)
    assert "submit_answer" not in [tool["name"] for tool in without.send(era, "tools/list").json()["result"]["tools"]]
    assert "is not available" in without.send(era, "tools/call", name="submit_answer").json()["error"]["message"]


def at_task(endpoint, task):
    mcp = mcp_endpoint.Mcp(endpoint)
    mcp.session = endpoint.rpc("create_session", task=task)
    mcp.path = mcp.session["mcp_path"]
    return mcp


PROMPTS = [{"name": "task", "title": "Task", "description": "Your task in this session."}]


@pytest.mark.parametrize("era", ["2025-06-18", mcp_endpoint.MODERN])
def test_mcp_agent_gets_its_prompt_as_prompt_and_instructions(endpoint, era):
    begin_with = "server/discover" if era == mcp_endpoint.MODERN else "initialize"
    prompt = "Do the dishes, then say how often."
    mcp = at_task(endpoint, "chores/as-the-solution")
    greeting = mcp.send(era, begin_with).json()["result"]
    assert greeting["instructions"] == prompt
    assert greeting["capabilities"].keys() - {"extensions"} == {"tools", "prompts"}
    prompts = mcp.send(era, "prompts/list").json()["result"]
    assert prompts["prompts"] == PROMPTS
    assert ("ttlMs" in prompts) is (era == mcp_endpoint.MODERN)
    prompt_reply = mcp.send(era, "prompts/get", name="task").json()["result"]
    assert prompt_reply["description"] == PROMPTS[0]["description"]
    assert prompt_reply["messages"] == [{"role": "user", "content": {"type": "text", "text": prompt}}]
    wrong = mcp_endpoint.refusal(mcp.send(era, "prompts/get", name="other"), 200, -32602)
    assert wrong["message"] == "Invalid params: There is no such prompt: the only one is 'task'."
    mcp_endpoint.refusal(mcp.send(era, "prompts/list", cursor="2"), 200, -32602)
    if era == mcp_endpoint.MODERN:
        other = mcp.modern("prompts/get", {"Mcp-Name": "other"}, name="task")
        assert mcp_endpoint.refusal(other, 400, -32020)["data"] == {"header": "Mcp-Name"}


@pytest.mark.parametrize("era", ["2025-06-18", mcp_endpoint.MODERN])
def test_session_without_a_prompt_has_no_mcp_prompts(endpoint, era):
    mcp = mcp_endpoint.Mcp(endpoint)
    begin_with = "server/discover" if era == mcp_endpoint.MODERN else "initialize"
    greeting = mcp.send(era, begin_with).json()["result"]
    assert "instructions" not in greeting
    assert greeting["capabilities"].keys() - {"extensions"} == {"tools"}
    for method in ("prompts/list", "prompts/get"):
        reply = mcp.send(era, method, name="task")
        mcp_endpoint.refusal(reply, 404 if era == mcp_endpoint.MODERN else 200, -32601)


# Replays and bundles


@pytest.mark.parametrize("bundled", [False, True])
def test_replayed_session_is_at_the_same_point_of_its_task(bench, bundled):
    session_id, key = begin(bench)
    bench.rpc("add_message", session_id=session_id, role="user", content="Go.")
    agent(bench, key, function="do", kwargs=DO)
    agent(bench, key, function="rest")  # The agent doesn't have this function.
    bench.result(session_id, "rest")
    agent(bench, key, "submit_answer", answer="Done.")
    if bundled:
        bundle = bench.rpc("export_bundle", session_id=session_id)["bundle"]
        replay = bench.rpc("import_bundle", bundle=bundle, mode="replay")
        exact = bench.rpc("import_bundle", bundle=bundle)
        assert verdict(bench, exact["session_id"]) == verdict(bench, session_id)
        assert agent(bench, exact["agent_path"].removeprefix("/agents/"), "get_task")["calls"] == 2
    else:
        replay = bench.rpc("replay_session", session_id=session_id)
    assert (replay["replayed"], replay["complete"], replay.get("diverged")) == (5, True, None)
    replayed = replay["session"]
    assert replayed["task"] == "chores/dishes"
    task = agent(bench, replayed["agent_path"].removeprefix("/agents/"), "get_task")
    assert task == agent(bench, key, "get_task") == task | {"calls": 2, "done": True}
    assert verdict(bench, replayed["session_id"]) == verdict(bench, session_id)
    paths = [bench.rpc("get_trace", session_id=each, path=True) for each in (session_id, replayed["session_id"])]
    kinds = [[(record["kind"], record.get("by"), record["version"]) for record in path] for path in paths]
    assert kinds[0] == kinds[1]
    assert [record["path_index"] for record in paths[1]] == [0, 1, 2, 3, 4]


# Evaluation


@pytest.mark.parametrize(
    ("task", "reward", "passed"),
    [("true", 1, True), ("false", 0, False), ("number", 0.25, False), ("more", 2, True), ("evaluation", 0.5, True)],
)
def test_evaluator_may_return_bool_number_or_evaluation(anywhere, task, reward, passed):
    session_id, _ = begin(anywhere, f"chores/returns-{task}")
    outcome = verdict(anywhere, session_id)
    assert (outcome["task"], outcome["version"], outcome["reward"], outcome["passed"]) == (
        *(f"chores/returns-{task}", 0, reward, passed),
    )
    if task == "evaluation":
        assert outcome["checks"] == [{"name": "half", "passed": True, "detail": "of it"}]
        assert outcome["metrics"] == {"steps": [1, None]}
    else:
        assert (outcome["checks"], outcome["metrics"]) == ([], {})


def test_checks_determine_the_reward_if_nothing_is_returned(anywhere):
    session_id, _ = begin(anywhere)
    assert verdict(anywhere, session_id) == {
        "task": "chores/dishes",
        "version": 0,
        "reward": 0,
        "passed": False,
        "checks": [
            {"name": "the dishes are done", "passed": False, "detail": ""},
            {"name": "nothing else is", "passed": False, "detail": "{}"},
        ],
        "metrics": {},
        "valid": True,
        "perturbed": {},
    }
    anywhere.result(session_id, "do", **DO)
    assert verdict(anywhere, session_id)["reward"] == 1


def test_check_may_contain_text_that_utf_8_cannot_encode():
    outcome = judge("chores/dishes", 0, None, [Check("\ud800", passed=True, detail="a\ud800")])
    assert outcome["checks"] == [{"name": "?", "passed": True, "detail": "a?"}]


def test_failed_assertion_is_a_failed_check(anywhere):
    session_id, _ = begin(anywhere, "chores/asserts")
    outcome = verdict(anywhere, session_id)
    assert (outcome["reward"], outcome["passed"]) == (0, False)
    check = {"name": "assert", "passed": False, "detail": 'assert rollout.environment.done == {"dishes": 1}'}
    assert outcome["checks"] == [check]
    anywhere.result(session_id, "do", **DO)
    assert verdict(anywhere, session_id)["reward"] == 1


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("returns-none", "TypeError"),
        ("returns-nan", "ValueError"),
        ("returns-text", "TypeError"),
        ("returns-list", "TypeError"),
        ("returns-no-json", "ResultError"),
        ("raises", "KeyError"),
        ("exits", "SystemExit"),
        ("neither", "TypeError"),
        ("unsolvable", "ValueError"),
        ("replays-a-fault", "ValueError"),
    ],
)
def test_fault_of_an_evaluator_is_an_error_instead_of_a_reward(anywhere, task, kind):
    session_id, _ = begin(anywhere, f"chores/{task}")
    error = refused(-32013, verdict, anywhere, session_id)
    assert error.data == {"type": kind}
    assert error.message.startswith(f"The evaluator of 'chores/{task}' failed: ")
    assert anywhere.version(session_id) == 0
    assert anywhere.result(session_id, "do", **DO) == 1  # The session continues.


def test_evaluator_may_be_async(anywhere):
    session_id, _ = begin(anywhere, "chores/async")
    for _ in range(2):
        anywhere.result(session_id, "look")
    assert verdict(anywhere, session_id)["reward"] == 2


def test_slow_evaluator_is_ended_at_its_deadline_without_a_log(anywhere, caplog):
    session_id, _ = begin(anywhere, "chores/slow")
    error = refused(-32010, verdict, anywhere, session_id)
    assert (
        error.message == "The evaluator of 'chores/slow' took longer than 0.2 s and was given up; nothing has changed."
    )
    assert anywhere.result(session_id, "do", **DO) == 1
    serving.wait_until(lambda: not anywhere.sessions.queues.threads._stuck, "the end of the evaluator")
    assert "failed" not in caplog.text


def test_slow_copy_of_task_data_is_ended_at_the_deadline(quick, monkeypatch):
    is_over, ended = threading.Event(), []

    class Endless:
        def __deepcopy__(self, memo):
            try:
                while not is_over.wait(0.001):
                    pass
            except BaseException as error:
                ended.append(type(error))
                raise

    pack = Toolpack("chores", chores.chores)
    pack.add_task(Task("endless", "Anything.", lambda _: True, data=Endless(), timeout_seconds=0.2))
    monkeypatch.setitem(CATALOG.toolpacks, "chores", pack)
    session_id, _ = begin(quick, "chores/endless")
    try:
        refused(-32010, verdict, quick, session_id)
        serving.wait_until(lambda: ended == [Interrupted], "the end of the copy")
    finally:
        is_over.set()


def test_evaluator_sees_the_whole_path_and_changes_nothing(bench):
    session_id, key = begin(bench, "chores/looks", options={"chores": {"money": 4}})
    bench.rpc("add_message", session_id=session_id, role="user", content="Go.")
    agent(bench, key, function="do", kwargs=DO, call_id="one")
    bench.call(session_id, "do", chore="nothing")
    bench.rpc("add_message", session_id=session_id, role="assistant", content="Gone.")
    before = bench.store.get(session_id)[1], bench.rpc("get_trace", session_id=session_id)
    outcome = verdict(bench, session_id)
    assert verdict(bench, session_id) == outcome
    assert (bench.store.get(session_id)[1], bench.rpc("get_trace", session_id=session_id)) == before
    assert bench.result(session_id, "look") == {"dishes": 1}
    first, second = chores.seen["calls"]
    assert (first.index, first.function, first.kwargs, first.result, first.error, first.version, first.by) == (
        *(1, "do", DO, 1, None, 1, "agent"),
    )
    assert (second.index, second.error, second.version, second.by) == (
        2,
        "ValueError: nothing is no chore",
        1,
        "client",
    )
    assert [(m.index, m.role, m.content, m.version) for m in chores.seen["messages"]] == [
        (0, "user", "Go.", 0),
        (3, "assistant", "Gone.", 1),
    ]
    assert {name: chores.seen[name] for name in ("answer", "options", "version", "data", "initial", "done", "all")} == {
        "answer": "Gone.",
        "options": {"money": 4},
        "version": 1,
        "data": {"secret": 7},
        "initial": {},
        "done": {"dishes": 1},
        "all": ["chores"],
    }
    assert (chores.seen["replayed"], chores.seen["failed"]) == ({"dishes": 2}, {"dishes": 1})


def test_evaluators_cannot_affect_each_other(anywhere):
    session_id, key = begin(anywhere, "chores/greedy")
    agent(anywhere, key, function="do", kwargs=DO)
    for _ in range(3):
        outcome = verdict(anywhere, session_id)
        assert (outcome["passed"], outcome["checks"]) == (True, [])
    assert anywhere.rpc("get_task", task="chores/greedy")["metadata"] == {"of": ["client"]}


def test_answer_is_the_passed_submitted_or_last_message(bench):
    session_id, _ = begin(bench, "chores/looks")
    verdict(bench, session_id)
    assert chores.seen["answer"] == ""
    for content in ("First.", "Last."):
        bench.rpc("add_message", session_id=session_id, role="assistant", content=content)
    bench.rpc("add_message", session_id=session_id, role="user", content="Thanks.")
    verdict(bench, session_id)
    assert chores.seen["answer"] == "Last."
    bench.rpc("submit_answer", session_id=session_id, answer="Submitted.")
    verdict(bench, session_id)
    assert chores.seen["answer"] == "Submitted."
    verdict(bench, session_id, answer="Given.")
    assert chores.seen["answer"] == "Given."
    bench.result(session_id, "do", **DO)
    verdict(bench, session_id, version=0)
    assert chores.seen["answer"] == "Submitted."


def test_any_retained_version_can_be_evaluated(make_bench):
    bench = make_bench(CATALOG, keep_versions=1)
    session_id, _ = begin(bench, "chores/looks-back")
    bench.result(session_id, "do", **DO)
    assert verdict(bench, session_id)["reward"] == 1
    assert verdict(bench, session_id, task="chores/dishes", version=0)["passed"] is False
    for _ in range(130):
        bench.result(session_id, "rest")
    serving.wait_until(lambda: bench.store._rows[session_id].oldest > 1, "the deletion of old versions")
    assert refused(-32011, verdict, bench, session_id).data["type"] == "VersionNotRetainedError"
    refused(-32011, verdict, bench, session_id, version=1, task="chores/dishes")


def test_agent_can_run_only_the_functions_of_its_task(anywhere):
    session_id, key = begin(anywhere)
    assert agent(anywhere, key, function="rest")["error"].startswith("ToolNotFoundError")
    assert anywhere.rpc("get_environment", session_id=session_id, pointer="/chores/log/lines") == []
    assert agent(anywhere, key, function="do", kwargs=DO)["result"] == 1
    assert anywhere.call(session_id, "rest")["error"] is None
    session_id, key = begin(anywhere)
    kwargs = {"chore": nested("rest")}
    assert agent(anywhere, key, function="do", kwargs=kwargs)["error"].startswith("ToolNotFoundError")
    assert anywhere.rpc("get_environment", session_id=session_id, pointer="/chores/log/lines") == []


def test_evaluator_can_read_older_versions_in_any_process(anywhere):
    session_id, _ = begin(anywhere, "chores/looks-back")
    error = refused(-32011, verdict, anywhere, session_id)
    assert error.data["type"] == "VersionNotRetainedError"
    anywhere.result(session_id, "do", **DO)
    assert verdict(anywhere, session_id)["reward"] == 1
    call = {"function": "do", "kwargs": DO, "by": "agent"}
    assert anywhere.rpc("get_solution", session_id=begin(anywhere)[0])["calls"] == [call]


def test_session_may_be_evaluated_by_any_task_of_its_toolpacks(anywhere):
    session_id = anywhere.create("chores")
    assert verdict(anywhere, session_id, task="chores/dishes")["passed"] is False
    assert "has no task" in refused(-32602, verdict, anywhere, session_id).data["detail"]
    ledger = anywhere.create("ledger")
    error = refused(-32602, verdict, anywhere, ledger, task="chores/dishes").data["detail"]
    assert "needs the toolpack 'chores'; the session has ledger" in error
    refused(-32602, verdict, anywhere, session_id, task="chores/none")
    refused(-32001, verdict, anywhere, session_id, owner="bob", task="chores/dishes")


def test_reached_solution_compares_environment_and_answer(bench):
    session_id, _ = begin(bench, "chores/as-the-solution")
    solution = bench.rpc("get_solution", session_id=session_id)
    call = {"function": "do", "kwargs": DO}
    calls = [{**call, "by": "agent"}] * 2
    assert solution == {"calls": calls, "answer": "1,000 times\nDISHES", "rest": calls}
    outcome = verdict(bench, session_id)
    assert [check["passed"] for check in outcome["checks"]] == [False, False, False]
    assert outcome["checks"][0]["detail"] == "/chores/done/dishes is missing"
    for _ in solution["calls"]:
        bench.rpc("run_function", session_id=session_id, **call)
    assert [check["passed"] for check in verdict(bench, session_id)["checks"]] == [True, False, False]
    assert verdict(bench, session_id, answer="The Dishes? 1000 TIMES!")["passed"]
    bench.result(session_id, "do", **DO)
    outcome = verdict(bench, session_id, answer=solution["answer"])
    assert outcome["checks"][0]["detail"] == "/chores/done/dishes is 3, not 2"
    assert refused(-32602, bench.rpc, "get_solution", session_id=begin(bench, "chores/looks")[0])


def test_ignored_paths_may_differ_and_answers_are_required(anywhere):
    session_id, _ = begin(anywhere, "chores/ignoring")
    anywhere.result(session_id, "rest")
    anywhere.result(session_id, "do", **DO)
    assert verdict(anywhere, session_id)["passed"]
    session_id, _ = begin(anywhere, "chores/patient")
    assert verdict(anywhere, session_id)["passed"]
    session_id, _ = begin(anywhere, "chores/question")
    assert not verdict(anywhere, session_id)["passed"]
    assert verdict(anywhere, session_id, answer="Nothing!")["passed"]


# Forks


def test_forks_are_evaluated_from_the_start_of_the_root_session(bench):
    session_id, key = begin(bench)
    agent(bench, key, function="do", kwargs=DO)
    bench.rpc("add_message", session_id=session_id, role="assistant", content="One.")
    bench.rpc("submit_answer", session_id=session_id, answer="Done.")
    forks = bench.rpc("fork_session", session_id=session_id, count=3)
    keys = [fork["agent_path"].removeprefix("/agents/") for fork in forks]
    bench.rpc("close_session", session_id=session_id)
    task = {"prompt": "Do the dishes, once.", "max_calls": 3, "calls": 1, "done": False}
    assert agent(bench, keys[0], "get_task") == task  # The answer belongs only to the parent.
    agent(bench, keys[0], function="do", kwargs=DO)
    agent(bench, keys[1], "submit_answer", answer="I leave it at that.")
    rewards = [verdict(bench, fork["session_id"])["reward"] for fork in forks]
    assert rewards == [0, 1, 1]
    assert agent(bench, keys[0], "get_task")["calls"] == 2
    verdict(bench, forks[0]["session_id"], task="chores/looks")
    assert [(c.index, c.version, c.by) for c in chores.seen["calls"]] == [(0, None, "agent"), (2, 1, "agent")]
    assert [(m.index, m.version) for m in chores.seen["messages"]] == [(1, None)]
    assert (chores.seen["initial"], chores.seen["done"], chores.seen["answer"]) == ({}, {"dishes": 2}, "One.")
    path = bench.rpc("get_trace", session_id=forks[0]["session_id"], path=True)
    assert [(record["kind"], record["session_id"]) for record in path] == [
        ("call", session_id),
        ("message", session_id),
        ("call", forks[0]["session_id"]),
    ]


def test_nested_forks_are_evaluated_after_their_parents_closed(bench):
    session_id, key = begin(bench)
    agent(bench, key, function="do", kwargs={"chore": "laundry"})
    agent(bench, key, function="do", kwargs={"chore": "windows"})
    (child,) = bench.rpc("fork_session", session_id=session_id, version=0)
    bench.rpc("run_function", session_id=child["session_id"], function="do", kwargs=DO)
    bench.rpc("run_function", session_id=child["session_id"], function="rest")
    (grandchild,) = bench.rpc("fork_session", session_id=child["session_id"], version=1)
    bench.rpc("reset_session", session_id=child["session_id"], version=0)
    (cleaned,) = bench.rpc("fork_session", session_id=child["session_id"])
    for closed in (session_id, child["session_id"]):
        bench.rpc("close_session", session_id=closed)
    assert verdict(bench, grandchild["session_id"])["passed"]
    assert not verdict(bench, cleaned["session_id"])["passed"]
    verdict(bench, cleaned["session_id"], task="chores/looks")
    assert (chores.seen["calls"], chores.seen["done"]) == ([], {})


def test_stored_size_of_a_fork_does_not_grow_with_its_past(quick):
    session_id, _ = begin(quick)
    for _ in range(20):
        quick.result(session_id, "do", **DO)
    before = quick.store.stored_bytes("")
    quick.rpc("fork_session", session_id=session_id, count=100)
    assert quick.store.stored_bytes("") - before < 4000


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_calls_and_answer_always_follow_from_the_path(data):
    """Agents and clients make random calls, forks, resets and answers, and close sessions."""
    bench = Bench(CATALOG)
    session_id, key = begin(bench, "chores/looks")
    sessions = [(session_id, key)]
    for number in range(data.draw(st.integers(1, 15))):
        session_id, key = data.draw(st.sampled_from(sessions))
        match data.draw(st.sampled_from(["agent", "client", "look", "message", "answer", "reset", "fork", "close"])):
            case "agent":
                agent(bench, key, function="do", kwargs=DO)
            case "client":
                bench.result(session_id, "do", **DO)
            case "look":
                agent(bench, key, function="look")
            case "message":
                bench.rpc("add_message", session_id=session_id, role="user", content=str(number))
            case "answer":
                with contextlib.suppress(serving.RpcError):
                    agent(bench, key, "submit_answer", answer=str(number))
            case "reset":
                version = data.draw(st.integers(0, bench.version(session_id)))
                bench.rpc("reset_session", session_id=session_id, version=version)
            case "fork":
                version = data.draw(st.integers(0, bench.version(session_id)))
                (fork,) = bench.rpc("fork_session", session_id=session_id, version=version)
                sessions.append((fork["session_id"], fork["agent_path"].removeprefix("/agents/")))
            case "close" if len(sessions) > 1:
                sessions.remove((session_id, key))
                bench.rpc("close_session", session_id=session_id)
    for session_id, key in sessions:
        path = bench.rpc("get_trace", session_id=session_id, path=True, limit=1000)
        task = agent(bench, key, "get_task")
        assert task["calls"] == sum(record.get("by") == "agent" for record in path)
        answers = [record["answer"] for record in path if record["kind"] == "answer"]
        assert len(answers) <= 1
        assert task["done"] == bool(answers)
        verdict(bench, session_id)
        assert chores.seen["answer"] == "".join(answers)
        assert chores.seen["done"] == bench.result(session_id, "look")
        changes = [r for r in path if r["kind"] == "call" and r["function"] == "do" and r["error"] is None]
        assert chores.seen["done"].get("dishes", 0) == len(changes)
    bench.close()


# Restarts and damage


def test_another_server_returns_the_same_verdict(tmp_path, make_bench):
    url = f"sqlite:///{tmp_path}/sessions.db"
    bench = make_bench(CATALOG, store=url)
    session_id, key = begin(bench)
    agent(bench, key, function="do", kwargs=DO)
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    bench.rpc("submit_answer", session_id=session_id, answer="Done.")
    bench.rpc("close_session", session_id=bench.create("ledger"))
    verdicts = verdict(bench, session_id), verdict(bench, fork["session_id"])
    bench.close()
    bench = make_bench(CATALOG, store=url)
    assert (verdict(bench, session_id), verdict(bench, fork["session_id"])) == verdicts
    assert agent(bench, key, function="look")["error"].startswith("EpisodeOverError")
    fork_key = fork["agent_path"].removeprefix("/agents/")
    assert agent(bench, fork_key, "get_task")["calls"] == 1


def test_tampered_past_in_the_store_is_rejected(tmp_path, make_bench):
    bench = make_bench(CATALOG, store=f"sqlite:///{tmp_path}/sessions.db")
    families = []
    for chore in ("dishes", "laundry"):
        session_id, _ = begin(bench)
        bench.result(session_id, "do", chore=chore)
        families.append(bench.rpc("fork_session", session_id=session_id)[0]["session_id"])
    good, bad = families
    assert [verdict(bench, each)["passed"] for each in families] == [True, False]
    with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as store, store:
        past = "(SELECT parent, parent_record FROM sessions WHERE id = ?)"
        store.execute(f"UPDATE sessions SET (parent, parent_record) = {past} WHERE id = ?", (good, bad))
    assert "fails its keyed hash" in refused(-32012, verdict, bench, bad).message
    assert "fails its keyed hash" in refused(-32012, bench.rpc, "get_trace", session_id=bad, path=True).message
    with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as store, store:
        key = "(SELECT key FROM sessions WHERE id = (SELECT parent FROM sessions WHERE id = ?))"
        store.execute(f"DELETE FROM records WHERE session = {key}", (good,))
    assert "are missing from the store" in refused(-32012, verdict, bench, good).message


def test_missing_task_stops_the_agent_but_not_the_client(quick, monkeypatch):
    session_id, key = begin(quick)
    monkeypatch.setitem(CATALOG.toolpacks, "chores", Toolpack("chores", chores.chores, [chores.do, chores.look]))
    assert "is no longer loaded" in refused(-32008, agent, quick, key, function="look").message
    refused(-32602, verdict, quick, session_id)
    assert quick.result(session_id, "do", **DO) == 1


def test_loader_error_reaches_log_and_client_but_not_the_agent(quick, monkeypatch, caplog):
    session_id, key = begin(quick)

    def leaks():
        raise KeyError("solution=42")
        yield

    broken = Toolpack("chores", chores.chores, [chores.do, chores.look])
    broken.tasks(leaks)
    monkeypatch.setitem(CATALOG.toolpacks, "chores", broken)
    message_text = "The session's task can't be loaded; the server's log says why."
    for method, params in (
        ("get_task", {}),
        ("list_functions", {}),
        ("run_function", {"function": "look"}),
        ("run_function", {"function": "none", "raise_on_error": True}),
    ):
        error = refused(-32013, agent, quick, key, method, **params)
        assert (error.message, error.data) == (message_text, {"type": "EvaluationError"})
    mcp = quick.service.feature(Mcp)
    for method, params in (("tools/list", {}), ("tools/call", {"name": "look"})):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        message = quick._run(mcp.read(body.encode(), ""))
        reply = json.loads(quick._run(mcp.answer(Caller("", session_id), message)).body)
        assert reply["error"] == {"code": -33013, "message": message_text, "data": {"type": "EvaluationError"}}
    assert "solution=42" in caplog.text
    assert "in leaks" in caplog.text
    assert "solution=42" in refused(-32013, verdict, quick, session_id).message


class HintKind(RecordKind):
    name = "hint"

    def message(self, shown):
        return {"role": "user", "content": f"Hint: {shown['hint']}"}


class RetryKind(CallKind):
    name = "retry"


class GivingUpKind(RecordKind):
    name = "giving_up"

    def answer(self, shown):  # noqa: ARG002 - the signature of RecordKind
        return "I give up."


@pytest.mark.parametrize("own", [True, False])
def test_record_kind_determines_what_an_evaluator_sees(own):
    kinds = RecordKinds({kind.name: kind() for kind in (HintKind, RetryKind, GivingUpKind)})
    call = {"function": "add", "kwargs": {"amount": 1}, "result": 1, "error": None, "by": "agent"}
    path = [{"kind": "hint", "hint": "look"}, {"kind": "retry", **call}, {"kind": "giving_up"}, {"kind": "unknown"}]
    records = [seen_record(PathRecord({**record, "version": 3}, own=own), kinds) for record in path]
    assert [each.version for each in records] == [3 if own else None] * 4
    assert [each.message for each in records] == [{"role": "user", "content": "Hint: look"}, None, None, None]
    assert [each.call for each in records] == [None, call, None, None]
    assert [each.answer for each in records] == [None, None, "I give up." if own else None, None]


# Equal worlds, and checks


SHOP = """
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from pydantic import BaseModel
from toolpack_server import Database, Depends, Task, TaskEnvironment, Toolpack

class Line(BaseModel):
    amount: Decimal
    at: datetime | None = None

class Shop(TaskEnvironment):
    balance: Decimal = Decimal("0")
    lines: list[Line] = []
    levels: dict[Decimal, int] = {}
    total: float = 0.0
    free: Any = None
    books: Database = Database("CREATE TABLE sums (id INTEGER PRIMARY KEY, total REAL)")

toolpack = Toolpack("shop", Shop)
Whole = Annotated[Shop, Depends(lambda shop: shop)]

@toolpack.function
def book(shop: Whole, amount: Decimal, at: datetime) -> None:
    '''Book.

    :param amount: How much.
    :param at: When.
    '''
    shop.balance += amount
    shop.lines.append(Line(amount=amount, at=at))
    shop.levels[amount] = 1

@toolpack.function
def add(shop: Whole, numbers: list[float], free: Any) -> None:
    '''Add.

    :param numbers: Numbers.
    :param free: Anything.
    '''
    for number in numbers:
        shop.total += number
    shop.free = free
    with shop.books.connect() as books:
        books.execute("INSERT INTO sums (total) VALUES (?)", (shop.total,))

toolpack.add_task(Task("book", "Book.", solution=[("book", {"amount": "955.00", "at": "2026-03-05T10:00:00Z"})]))
toolpack.add_task(Task("add", "Add.", solution=[("add", {"numbers": [0.1, 0.2, 0.3, -0.6], "free": 7})]))
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs")
    (folder / "till.py").write_text(SHOP)
    with Bench(load_catalog((folder,), ("shop",))) as server:
        yield server


@pytest.mark.parametrize(
    ("function", "kwargs", "passed"),
    [
        ("book", {"amount": 955, "at": "2026-03-05T11:00:00+01:00"}, True),
        ("book", {"amount": "955", "at": "2026-03-05T10:00:00+00:00"}, True),
        ("book", {"amount": "0955.000", "at": "2026-03-05T10:00:00Z"}, True),
        ("book", {"amount": 955.01, "at": "2026-03-05T10:00:00Z"}, False),
        ("book", {"amount": "955.00", "at": "2026-03-05T11:00:00Z"}, False),
        ("add", {"numbers": [-0.6, 0.3, 0.2, 0.1], "free": 7}, True),
        ("add", {"numbers": [0.1, 0.2, 0.3, -0.6], "free": 7.0}, True),
        ("add", {"numbers": [0.1, 0.2, 0.3, -0.6], "free": "7"}, False),
        ("add", {"numbers": [0.1, 0.2, 0.3, -0.6], "free": 8}, False),
        ("add", {"numbers": [0.1, 0.2, 0.3, -0.59999], "free": 7}, False),
    ],
)
def test_equal_numbers_and_times_make_equal_worlds(shop, function, kwargs, passed):
    session_id, key = begin(shop, f"shop/{function}")
    assert agent(shop, key, function=function, kwargs=kwargs)["error"] is None
    outcome = verdict(shop, session_id)
    assert outcome["passed"] is passed, outcome


def test_boolean_differs_from_a_number():
    assert not equal(1, True)
    assert not equal(0, False)
    assert not equal(2**53, 2**53 + 1)
    assert not equal(10**400, 1.0)
    assert equal(1, 1.0)


def test_numbers_in_arguments_may_be_written_as_text():
    assert equal_arguments({"lines": [{"amount": "955.00"}]}, {"lines": [{"amount": 955}]})
    assert equal_arguments("87.4", "87.40")
    assert not equal_arguments("007", "7")
    assert not equal_arguments({"amount": True}, {"amount": 1})
    assert not equal_arguments("955.01", 955)


async def _not_awaited():
    return True


class _Mail:
    def was_sent(self):
        return True


def _rollout():
    return Rollout(SimpleNamespace(plain=()), "chores", None, options={}, calls=(), messages=(), answer="", version=0)


@pytest.mark.parametrize(
    ("passed", "advice"),
    [
        (lambda: _Mail().was_sent, "call it"),
        (lambda: _Mail, "call it"),
        (_not_awaited, "await it"),
        (lambda: (each for each in [False]), "compare it"),
        (lambda: (False, "why"), "compare it"),
        (lambda: "False", "compare it"),
        (lambda: 1, "compare it"),
    ],
)
def test_check_must_be_true_false_or_none(passed, advice):
    with pytest.raises(TypeError, match=f"the check 'sent' got a .* instead of True or False: {advice}"):
        _rollout().check("sent", passed())
    with pytest.raises(TypeError, match="the check 'sent' got a"):
        judge("chores/dishes", 0, Evaluation(1, checks=[Check("sent", passed())]), [])
    with pytest.raises(TypeError, match="the check 'passed' got a"):
        judge("chores/dishes", 0, Evaluation(0, passed=passed()), [])


def test_check_accepts_numpy_booleans():
    numpy = pytest.importorskip("numpy")
    assert _rollout().check("near", numpy.float64(1) > 0) is True
    assert _rollout().check("far", numpy.bool_(False)) is False
    assert _rollout().check("nothing", None) is False


def test_invalid_check_value_is_the_evaluators_fault(quick, monkeypatch):
    pack = Toolpack("chores", chores.chores)
    pack.add_task(Task("uncalled", "Anything.", lambda rollout: rollout.check("sent", _Mail().was_sent)))
    monkeypatch.setitem(CATALOG.toolpacks, "chores", pack)
    session_id = quick.create("chores")
    error = refused(-32013, verdict, quick, session_id, task="chores/uncalled")
    assert "the check 'sent' got a method instead of True or False: call it" in error.message
