"""Training environments of the client: a task's functions are methods, and each rollout has its own session.

A rollout without a valid verdict has no reward.
"""

import inspect
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import httpx
import pytest
import server_process
import serving
from serving import refused

from toolpack_server.base.errors import RemoteFunctionError, ReplyError
from toolpack_server.client import Client
from toolpack_server.training.environments import TrainingEnvironment, submit_answers
from toolpack_server.training.text_environments import TextEnvironment

SAVE = "bank/save-300"
RUN = {"run": "environments"}
DOOR = '''
"""A door, whose functions have the names of an environment's members."""

import time
from pathlib import Path

from toolpack_server import TaskEnvironment, Toolpack

toolpack = Toolpack("door", TaskEnvironment)


@toolpack.function(read_only=True)
def close() -> str:
    """Close the door."""
    return "closed"


@toolpack.function(read_only=True)
def close_() -> str:
    """Close it, too."""
    return "closed, too"


@toolpack.function(read_only=True)
def reset() -> str:
    """Open the door again."""
    return "reset"


@toolpack.function(read_only=True)
def session() -> list[dict[str, bool | None]]:
    """See what is open."""
    return [{"open": True, "locked": None}]


@toolpack.function(read_only=True)
def stand(begun: str) -> None:
    """Stand in the door.

    :param begun: The path of a file to make as soon as this begins.
    """
    Path(begun).touch()
    time.sleep(20)


toolpack.task("pass", "Pass the door.")(lambda rollout: len(rollout.calls) > 0)
'''


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs")
    (folder / "door.py").write_text(DOOR)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, packs):
    flags = ["--store", "memory:", "--pack-dir", str(packs), "--packs", "bank,chores,door"]
    with server_process.served(tmp_path_factory.mktemp("environments"), *flags) as running:
        yield running


@pytest.fixture
def environment(server):
    with TrainingEnvironment(server.url, task=SAVE, labels=RUN) as environment:
        yield environment
    assert server.rpc("list_sessions") == []  # nothing is left


def offered_methods(environment):
    """Return the methods that TRL's GRPOTrainer offers to a model: the plain functions of the class."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in {"reset", "get_reward"} and not name.startswith("_")]
    return {method.__name__: method for method in (getattr(environment, name) for name in names)}


def test_a_rollout_is_played_and_rewarded(environment):
    assert "300" in environment.reset()
    assert environment.get_reward() == 0.0
    environment.move_to_savings(amount="300.00")
    assert environment.call("get_balance") == environment.get_balance()
    assert (environment.get_reward(), environment.problem, environment.verdict["passed"]) == (1.0, None, True)


def test_a_model_is_offered_only_the_tasks_functions(environment, server):
    environment.reset()
    functions = server.rpc("list_functions", session_id=environment.session["session_id"])["result"]
    assert [*offered_methods(environment)] == sorted(each["name"] for each in functions)
    signature = inspect.signature(environment.send_money)
    assert list(signature.parameters) == ["recipient", "amount", "subject"]
    assert signature.parameters["subject"].annotation is str
    assert (
        inspect.signature(environment.create_standing_order).parameters["interval"].annotation
        == Literal["weekly", "monthly", "quarterly", "yearly"]
    )
    assert "Args:\n    recipient: " in inspect.getdoc(environment.send_money)


def test_a_rollout_keeps_nothing_of_the_last_one(environment, server):
    environment.reset()
    environment.move_to_savings(amount="300.00")
    first = environment.session["session_id"]
    environment.reset()
    assert environment.get_reward() == 0.0
    refused(-32001, server.rpc, "get_session", session_id=first)
    assert [each["labels"] for each in server.rpc("list_sessions")] == [{"environment": "trainer", **RUN}]


def test_a_function_error_goes_to_the_model_and_play_goes_on(environment):
    environment.reset()
    with pytest.raises(RemoteFunctionError, match="ToolNotFoundError"):
        environment.call("no_such_function")
    with pytest.raises(TypeError):
        environment.move_to_savings(1, 2, 3)
    assert environment.get_reward() == 0.0


def test_a_group_of_forks_diverges_and_closes_together(environment, server):
    with environment.group(3) as members:
        members[1].move_to_savings("300.00")
        assert [each.get_reward() for each in members] == [0.0, 1.0, 0.0]
        assert {type(each) for each in members} == {type(environment)}  # TRL distinguishes environments by class
        sessions = server.rpc("summarize_sessions", labels=RUN, evaluate=True)["sessions"]
        assert sorted(each["labels"]["rollout"] for each in sessions) == ["0", "1", "2"]
        parents = {each.get("parent")["session_id"] for each in server.rpc("list_sessions", labels=RUN)}
        assert len(parents) == 1


def test_an_evaluator_that_fails_gives_no_reward(server):
    with TrainingEnvironment(server.url, task="chores/raises") as environment:
        environment.reset()
        assert environment.get_reward() is None
        assert "KeyError" in environment.problem


def test_functions_named_like_members_keep_their_names(server):
    with TrainingEnvironment(server.url, task="door/pass") as environment:
        environment.reset()
        assert {name: method() for name, method in offered_methods(environment).items() if name != "stand"} == {
            "close": "closed",
            "close_": "closed, too",
            "reset": "reset",
            "session": '[{"open": true, "locked": null}]',
        }
        assert (environment.reset_(), environment.close__(), environment.close_()) == ("reset", "closed", "closed, too")
        assert environment.call("session") == [{"open": True, "locked": None}]
    assert server.rpc("list_sessions") == []


def test_a_subclass_may_replace_a_function_by_a_method(server):
    class Rich(TrainingEnvironment):
        def get_balance(self) -> str:
            """Return the balance."""
            return "rich"

    with Rich(server.url, task=SAVE) as environment:
        environment.reset()
        assert (environment.get_balance(), environment.call("get_balance")) == ("rich", "1840.25")
        assert {name for name in offered_methods(environment) if "balance" in name} == {
            "get_balance",
            "get_savings_balance",
        }


def test_a_lost_server_gives_an_invalid_sample_not_reward_0(tmp_path, packs):
    flags = ["--store", "memory:", "--pack-dir", str(packs), "--packs", "door"]
    with server_process.served(tmp_path, *flags) as server, ThreadPoolExecutor() as threads:
        environment = TrainingEnvironment(server.url, task="door/pass")
        environment._client = Client(server.url, retries=0)
        environment.reset()
        played = TextEnvironment(server.url, "door/pass")
        played.environment._client = Client(server.url, retries=0)
        played.reset()
        calling = threads.submit(environment.call, "stand", begun=str(tmp_path / "begun"))
        serving.wait_until((tmp_path / "begun").exists)
        server.kill()
        with pytest.raises(RuntimeError, match="the rollout is invalid"):
            calling.result()
    with pytest.raises(RuntimeError, match="the rollout is invalid"):
        environment.submit_answer("Done.")
    assert environment.get_reward() is None
    assert environment.reset() == ""
    assert environment.get_reward() is None
    assert environment.problem
    environment.close()
    _, reward, done_flag, cut, info = played.step('<tool_call>{"name": "close", "arguments": {}}</tool_call>')
    assert math.isnan(reward)
    assert (done_flag, cut, info["valid"]) == (False, True, False)
    assert "is the server running" in info.get("failure")
    played.close()


def test_closing_a_session_does_not_wait_for_a_lost_server(server):
    requests = []

    def lose(request):
        requests.append(json.loads(request.content)["method"])
        raise httpx.ConnectError("lost")

    environment = TrainingEnvironment(server.url, task=SAVE, labels=RUN)
    environment.reset()
    environment._client.close()
    environment._client = Client(server.url, retries=0, transport=httpx.MockTransport(lose))
    assert environment.get_reward() is None
    environment.close()
    assert requests == ["evaluate_session"]
    assert server.rpc("close_session", labels=RUN) == 1


def test_sessions_of_a_killed_trainer_are_closed_by_label(server):
    program = f"""
from toolpack_server.training.environments import TrainingEnvironment, submit_answers
environment = TrainingEnvironment({server.url!r}, task={SAVE!r}, labels={{"run": "killed"}})
with environment.group(2) as members:
    environment.reset()
    print("begun", flush=True)
    input()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "begun\n"
        trainer.kill()
    with Client(server.url) as client:
        assert client.close_session(labels={"run": "killed"}) == 3
    assert server.rpc("list_sessions") == []


def test_a_lost_session_invalidates_only_its_rollout(environment, server):
    environment.reset()
    server.rpc("close_session", labels=RUN)
    with pytest.raises(RuntimeError, match="invalid"):
        environment.get_balance()
    assert environment.get_reward() is None
    environment.reset()
    assert environment.get_reward() == 0.0


def test_an_agents_mistake_keeps_the_rollout_valid(environment):
    environment.reset()
    environment.move_to_savings(amount="300.00")
    for wrong in (
        lambda: environment.submit_answer("x" * 2_000_000),
        lambda: environment.call("get_balance", text="x" * 20_000_000),
        lambda: environment.call("get_balance", text="\ud800"),
        lambda: environment.call("get_balance", deep=json.loads("[" * 200 + "]" * 200)),
        lambda: environment.submit_answer("\ud800"),
    ):
        with pytest.raises(RemoteFunctionError):
            wrong()
    environment.submit_answer("Done.")
    with pytest.raises(RemoteFunctionError, match="answer"):
        environment.submit_answer("Or not.")
    with pytest.raises(RemoteFunctionError, match="EpisodeOverError"):
        environment.get_balance()
    assert environment.get_reward() == 1.0


def test_kept_rollouts_have_their_verdicts_as_records(server):
    labels = {"run": "kept"}
    with TrainingEnvironment(server.url, task=SAVE, labels=labels, keep=True) as environment:
        environment.reset()
        environment.move_to_savings(amount="300.00")
        assert environment.get_reward() == environment.get_reward() == 1.0
        environment.reset()
        assert environment.get_reward() == 0.0
        with environment.group(2) as members:
            members[1].move_to_savings(amount="300.00")
            assert [member.get_reward() for member in members] == [0.0, 1.0]
    sessions = server.rpc("summarize_sessions", labels=labels)["sessions"]
    assert sorted(each.get("verdict")["reward"] for each in sessions) == [0.0, 0.0, 1.0, 1.0]
    assert len(server.rpc("list_sessions", passed=True)) == 2
    assert server.rpc("close_session", labels=labels) == len(server.rpc("list_sessions")) + 4 == 4


def test_a_models_last_text_is_its_answer(server):
    task = "bank/savings-balance"
    with Client(server.url) as client:
        session = client.create_session(task=task)
        answer = client.get_solution(session["session_id"])["answer"]
        client.close_session(session["session_id"])
    call = {"type": "function", "function": {"name": "get_balance", "arguments": {}}}
    messages = [
        (1.0, {"role": "assistant", "content": answer}),
        (1.0, {"role": "assistant", "content": [{"type": "text", "text": answer}]}),
        (0.0, {"role": "assistant", "content": answer, "tool_calls": [call]}),
        (0.0, {"role": "tool", "name": "get_balance", "content": answer}),
        (0.0, {"role": "assistant", "content": "x" * 2_000_000}),
    ]
    with TrainingEnvironment(server.url, task=task) as environment, environment.group(len(messages)) as members:
        assert submit_answers([[last] for _, last in messages], members, prompts=[]) == [None] * len(messages)
        assert [member.get_reward() for member in members] == [reward for reward, _ in messages]


def test_a_fork_continues_from_the_rollouts_state(environment):
    environment.reset()
    environment.move_to_savings(amount="300.00")
    with environment.fork() as fork:
        assert fork.get_reward() == 1.0
        fork.move_from_savings(amount="300.00")
        assert (fork.get_reward(), environment.get_reward()) == (0.0, 1.0)


def test_a_programming_error_is_raised_instead_of_a_sample(server):
    refusal = pytest.raises(ReplyError, match="TOOLPACK_ISOLATION=process")
    with TrainingEnvironment(server.url, task=SAVE, seed=7) as environment, refusal:
        environment.reset()


def test_an_unknown_task_is_named(server):
    with pytest.raises(ReplyError, match="no-such"):
        TrainingEnvironment(server.url, task="bank/no-such")


def call(function, **arguments):
    return f"<tool_call>{json.dumps({'name': function, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def text_environment(server):
    environment = TextEnvironment(server.url, SAVE, labels=RUN, max_turns=4)
    yield environment
    environment.close()
    assert server.rpc("list_sessions") == []


def test_a_text_contains_calls_or_is_the_answer(text_environment):
    first = text_environment.reset()
    assert "300 euros" in first
    assert all(json.dumps(function, ensure_ascii=False) in first for function in text_environment.environment.functions)
    balance = call("get_balance")
    text, *rest = text_environment.step(
        f"Let me see. {balance}{call('move_to_savings', amount='300.00')} And {balance}"
    )
    before, moved, after = text.split("\n</tool_response>\n<tool_response>\n")
    assert (before, after) == ("<tool_response>\n1840.25", "1540.25\n</tool_response>")
    assert json.loads(moved)["amount"] == "-300.00"
    assert rest == [0.0, False, False, {"valid": True, "failure": None}]
    fork = text_environment.fork()
    assert text_environment.step("Done.") == ("", 1.0, True, False, {"valid": True, "failure": None})
    assert fork.step(balance)[1:3] == (0.0, False)
    fork.close()


def test_a_text_rollout_ends_after_its_last_turn(text_environment):
    for _ in range(2):
        text_environment.reset()
        text_environment.step(call("move_to_savings", amount="300.00"))
        ends = [text_environment.step(call("get_balance"))[1:4] for _ in range(3)]
        assert ends == [(0.0, False, False), (0.0, False, False), (1.0, False, True)]
    text_environment.reset()
    assert text_environment.step("Done.")[1:4] == (0.0, True, False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>{", "JSON object with `name`"),
        ('<tool_call>["get_balance"]</tool_call>', "JSON object with `name`"),
        ('<tool_call>{"name": "get_balance"}</tool_call>', "arguments"),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', "`name`, a string"),
        ('<tool_call>{"name": "get_balance", "arguments": null}</tool_call>', "`arguments`, an object."),
        ('<tool_call>{"name": "get_balance", "arguments": {"x": NaN}}</tool_call>', "JSON object with `name`"),
        ('<tool_call>{"name": "get_balance", "arguments": {"x": "\\ud800"}}</tool_call>', "no low surrogate"),
        (call("get_balance", x=json.loads("[" * 200 + "]" * 200)), "nested more than 128 deep"),
        ("<tool_call>" + "[" * 100_000, "nested too deeply"),
        (call("no_such"), "ToolNotFoundError"),
        (call("move_to_savings", amount="-1"), "Error: "),
    ],
)
def test_a_wrong_text_is_answered_and_the_rollout_goes_on(text_environment, text, why):
    text_environment.reset()
    observation, *rest = text_environment.step(text)
    assert why in observation
    assert rest == [0.0, False, False, {"valid": True, "failure": None}]
