"""Environments for trainers: a task's functions as methods, a session for each rollout, no reward of nothing."""

import inspect
from typing import Literal

import pytest
import server_process
from serving import refused

from server.client import Client
from server.client.environments import Environment
from server.errors import RemoteFunctionError, ReplyError

SAVE = "bank/save-300"
RUN = {"run": "environments"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ["--store", "memory:", "--packs", "bank,chores,ledger"]
    with server_process.served(tmp_path_factory.mktemp("environments"), *flags) as running:
        yield running


@pytest.fixture
def environment(server):
    with Environment(server.url, task=SAVE, labels=RUN) as made:
        yield made
    assert server.rpc("list_sessions") == []  # nothing is left


def tools(environment):
    """What TRL offers to the model: the plain functions of the class, as its GRPOTrainer finds them."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return {name for name, _ in members if name not in {"reset", "get_reward"} and not name.startswith("_")}


def test_a_rollout_is_played_and_rewarded(environment):
    assert "300" in environment.reset()
    assert environment.get_reward() == 0.0
    environment.move_to_savings(amount="300.00")
    assert environment.call("get_balance") == environment.get_balance()
    assert (environment.get_reward(), environment.problem, environment.verdict["passed"]) == (1.0, None, True)


def test_a_model_is_offered_the_functions_of_the_task_and_nothing_else(environment, server):
    environment.reset()
    offered = server.rpc("list_functions", session_id=environment.session["session_id"])["result"]
    assert tools(environment) == {each["name"] for each in offered}
    signature = inspect.signature(environment.send_money)
    assert list(signature.parameters) == ["recipient", "amount", "subject"]
    assert signature.parameters["subject"].annotation is str
    assert (
        inspect.signature(environment.create_standing_order).parameters["interval"].annotation
        == Literal["weekly", "monthly", "quarterly", "yearly"]
    )
    assert "Args:\n    recipient: " in inspect.getdoc(environment.send_money)


def test_nothing_of_a_rollout_is_left_in_the_next(environment, server):
    environment.reset()
    environment.move_to_savings(amount="300.00")
    first = environment.session["session_id"]
    environment.reset()
    assert environment.get_reward() == 0.0
    refused(-32001, server.rpc, "get_session", session_id=first)
    assert [each["labels"] for each in server.rpc("list_sessions")] == [{"environment": "trainer", **RUN}]


def test_what_a_function_raises_the_model_hears_and_the_rollout_goes_on(environment):
    environment.reset()
    with pytest.raises(RemoteFunctionError, match="ToolNotFoundError"):
        environment.call("no_such_function")
    with pytest.raises(TypeError):
        environment.move_to_savings(1, 2, 3)
    assert environment.get_reward() == 0.0


def test_a_group_starts_alike_each_goes_its_own_way_and_all_are_closed_together(environment, server):
    with environment.group(3) as members:
        members[1].move_to_savings("300.00")
        assert [each.get_reward() for each in members] == [0.0, 1.0, 0.0]
        assert {type(each) for each in members} == {type(environment)}  # TRL tells them by their class
        found = server.rpc("evaluate_sessions", labels=RUN)["verdicts"]
        assert sorted(each["labels"]["rollout"] for each in found) == ["0", "1", "2"]
        parents = {each["parent"]["session_id"] for each in server.rpc("list_sessions", labels=RUN)}
        assert len(parents) == 1


def test_an_evaluator_that_fails_gives_no_reward(server):
    with Environment(server.url, task="chores/raises") as environment:
        environment.reset()
        assert environment.get_reward() is None
        assert "KeyError" in environment.problem


def test_a_lost_server_is_an_invalid_sample_and_no_reward_of_0(tmp_path):
    with server_process.served(tmp_path, "--store", "memory:", "--packs", "bank") as lost:
        environment = Environment(lost.url, task=SAVE)
        environment._client = Client(lost.url, retries=0)
        environment.reset()
    with pytest.raises(RuntimeError, match="the rollout is invalid"):
        environment.get_balance()
    assert environment.get_reward() is None
    assert environment.reset() == ""
    assert environment.get_reward() is None
    assert environment.problem
    environment.close()


def test_sessions_of_a_program_that_died_are_closed_by_their_label(server):
    environment = Environment(server.url, task=SAVE, labels={"run": "died"})
    environment.reset()
    with Client(server.url) as client:
        assert client.close_sessions({"run": "died"}) == 1
    with pytest.raises(RuntimeError, match="invalid"):
        environment.get_balance()
    assert environment.get_reward() is None
    environment.close()


def test_a_task_that_is_not_there_is_named(server):
    with pytest.raises(ReplyError, match="no-such"):
        Environment(server.url, task="bank/no-such")
