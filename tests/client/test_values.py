"""The client's `values`: it estimates the value of each step of a rollout by playing forks to their end."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from math import comb

import httpx
import pytest
import server_process
from http_server import running
from redis_server import free_port
from serving import PACKS, PATIENCE, wait_until

from toolpack_server.base.errors import ReplyError
from toolpack_server.client import AsyncClient, Client
from toolpack_server.packs.loading import load_catalog
from toolpack_server.training import rollouts

DISHES = ("do", {"chore": "dishes"})


@pytest.fixture(scope="module")
def url():
    catalog = load_catalog((PACKS,), ("bank", "chores", "ledger"))
    with running(catalog, store="memory:", log_calls="off") as served:
        yield served


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client


def in_async_code(url, work):
    async def run_work():
        async with AsyncClient(url) as client:
            return await work(client)

    return asyncio.run(run_work())


def play_calls(client, *calls, task="chores/dishes", **options):
    """Play a rollout with these calls, and return its session's id."""
    session = client.create_session(task=task, **options)
    for function, kwargs in calls:
        client.agent(session).run_function(function, kwargs)
    return session["session_id"]


def saving_policy(chance, turns=3):
    """Return a policy that saves 100 euros with this probability in each of its turns."""

    async def play(agent, fork):
        labels = fork["labels"]
        chances = random.Random(f"{chance} {labels['step']} {labels['member']}")
        hundreds = sum(chances.random() < chance for _ in range(turns))
        await agent.run_function("move_to_savings", {"amount": f"{hundreds}00.00"})

    return play


def success_probability(chance, saved, turns=3):
    """Return the policy's probability of having saved 300 euros at the end, by enumeration."""
    missing = 3 - saved
    return comb(turns, missing) * chance**missing * (1 - chance) ** (turns - missing)


async def estimates(client, chances, k):
    """Return the estimate, its standard error and the true value, for each policy and each of its steps and calls."""
    path = [("move_to_savings", {"amount": "100.00"})] * 3
    rows = []
    for chance in chances:
        session = await client.create_session(task="bank/save-300")
        for function, kwargs in path:
            await client.run_function(session["session_id"], function, kwargs)
        values = await client.values(session["session_id"], k=k, finish=saving_policy(chance))
        assert [step.n for step in values.steps] == [k] * 4
        true = [success_probability(chance, saved) for saved in range(4)]
        rows += [(step.mean, step.standard_error, true[step.version]) for step in values.steps]
        rows += [
            (call.advantage, call.standard_error, true[call.after.version] - true[call.before.version])
            for call in values.calls
        ]
    return rows


def are_near(rows):
    return [abs(estimate - true) <= 3 * error for estimate, error, true in rows]


def test_values_and_advantages_equal_those_by_enumeration(url):
    rows = in_async_code(url, lambda client: estimates(client, [0.4], 24))
    assert len(rows) == 4 + 3
    assert all(are_near(rows)), rows
    assert max(abs(estimate - true) for estimate, _, true in rows) > 0  # the estimates differ from the true values


@pytest.mark.long
def test_ninety_nine_percent_are_within_three_standard_errors(url):
    chances = [0.35 + number / 40 for number in range(15)]
    near = are_near(in_async_code(url, lambda client: estimates(client, chances, 100)))
    assert len(near) == 105
    assert sum(near) >= 0.99 * len(near)


def test_a_call_that_changes_nothing_is_not_a_step(client):
    session_id = play_calls(client, ("look", {}), DISHES, ("do", {"chore": "nothing"}), ("look", {}), DISHES)
    values = client.values(session_id, finish=None)
    assert [(step.session_id, step.version, step.mean, step.n) for step in values.steps] == [
        (session_id, 0, 0.0, 1),
        (session_id, 1, 1.0, 1),
    ]
    assert [(call.record["function"], call.advantage) for call in values.calls] == [
        ("look", 0.0),
        ("do", 1.0),
        ("do", 0.0),  # it failed, and was the last one
    ]
    call = values.calls[1]
    assert call.record["by"] == "agent"
    assert call.before is values.steps[0]
    assert call.after is values.steps[1]
    assert values.calls[2].before is values.calls[2].after is values.steps[1]
    assert call.standard_error is None  # with one fork each, the error is unknown


def test_the_answer_has_a_value(client):
    session_id = play_calls(client, DISHES, task="chores/as-the-solution")
    client.agent(client.get_session(session_id)).submit_answer("Nothing.")
    values = client.values(session_id)
    assert [call.advantage for call in values.calls] == [0.0]
    assert (values.answer.record["answer"], values.answer.before) == ("Nothing.", values.steps[-1])
    assert (values.answer.advantage, values.answer.after.finish) == (-1.0, "rollout")
    assert client.values(session_id, steps=[0]).answer is None
    assert client.values(play_calls(client, DISHES)).answer is None


SLACK_DEPOSIT = {"recipient": "DE89370400440532013000", "amount": "2160.00", "subject": "Deposit of the new flat"}


def test_a_value_is_that_of_the_best_way_to_finish(client):
    """The rollout pays the deposit with another text than the solution, then cancels a wrong order.

    After the payment, the solution's calls would pay twice, but the missing calls alone still lead to a reward of 1.
    """
    session_id = play_calls(
        client,
        ("move_from_savings", {"amount": "3000.00"}),
        ("send_money", SLACK_DEPOSIT),
        ("cancel_standing_order", {"order_id": 3}),
        task="bank/moving-out",
    )
    exact = client.values(session_id, finish="solution")
    assert [step.mean for step in exact.steps] == [1.0, 1.0, 0.0, 0.0]  # it would pay twice
    best = client.values(session_id)
    assert [step.mean for step in best.steps] == [1.0, 1.0, 1.0, 0.0]
    assert [step.finish for step in best.steps[:3]] == ["solution", "solution", "solution-by-function"]
    functions = [call["function"] for call in best.steps[2].calls]
    assert "send_money" not in functions
    assert "create_standing_order" in functions
    assert [call.advantage for call in best.calls] == [0.0, 0.0, -1.0]


def test_a_value_is_never_below_the_rollouts_own_reward(client):
    """Without a solution only the rollout itself shows that the task can be done."""
    session_id = play_calls(client, DISHES, task="chores/raises")
    assert not client.get_task("chores/raises")["has_solution"]
    values = client.values(play_calls(client, ("do", {"chore": "missing"}), task="chores/raises"))
    assert [(step.mean, step.finish) for step in values.steps] == [(1.0, "rollout"), (1.0, "nothing")]
    assert [step.mean for step in client.values(session_id).steps] == [None, None]


def test_kept_forks_show_the_best_line(client):
    session_id = play_calls(client, DISHES, DISHES, task="chores/as-the-solution")
    for _ in range(2):  # the second time, the rewards are cached
        values = client.values(session_id, keep=True, labels={"review": "1"})
        assert len({step.fork for step in values.steps}) == 3
        for step in values.steps:
            trace = client.get_trace(step.fork)
            assert [each["kwargs"] for each in trace if each["kind"] == "call"] == [
                each["kwargs"] for each in step.calls
            ]
            assert client.evaluate_session(step.fork)["reward"] == step.mean == 1.0
    assert len(client.list_sessions(parent=session_id)) == 4  # with the ledger
    assert all(step.fork is None for step in client.values(session_id).steps)


def test_a_forks_agent_has_the_rollouts_remaining_calls(client):
    """`dishes` allows three calls. The fork of the last step has none left, so `spoil` can't change its world."""
    attempts = []

    def spoil(agent, fork):
        attempts.append((fork["parent"]["version"], agent.run_function("do", {"chore": "windows"})["error"] is None))

    session_id = play_calls(client, DISHES, ("look", {}), ("look", {}))
    assert [step.mean for step in client.values(session_id, finish=spoil).steps] == [0.0, 1.0]
    assert sorted(attempts) == [(0, True), (1, False)]


def test_undone_calls_are_not_steps(client):
    session_id = play_calls(client, DISHES, DISHES)
    client.reset_session(session_id, version=1)
    client.agent(client.get_session(session_id)).run_function("do", {"chore": "windows"})
    values = client.values(session_id, finish=None)
    assert [(step.version, step.mean) for step in values.steps] == [(0, 0.0), (1, 1.0), (3, 1.0), (4, 0.0)]
    assert [call.advantage for call in values.calls] == [1.0, -1.0]
    (fork,) = client.fork_session(session_id, version=1)
    assert [(step.version, step.mean) for step in client.values(fork["session_id"], finish=None).steps] == [(0, 1.0)]


def test_the_remaining_solution_omits_calls_already_made(client):
    session_id = play_calls(client, DISHES, task="chores/as-the-solution")
    client.agent(client.get_session(session_id)).submit_answer("Nothing.")
    values = client.values(
        session_id, finish="solution"
    )  # the calls that solve `dishes`, twice, and an answer, which forks don't have
    assert [step.mean for step in values.steps] == [1.0, 1.0]
    assert [step.mean for step in client.values(session_id, finish=None).steps] == [0.0, 0.0]
    half = play_calls(client, ("move_from_savings", {"amount": 559.75}), task="bank/short-for-the-trip")
    assert [step.mean for step in client.values(half, finish="solution").steps] == [1.0, 1.0]  # "559.75" there
    spoilt = play_calls(client, ("do", {"chore": "windows"}))
    assert [step.mean for step in client.values(spoilt, finish="solution").steps] == [1.0, 0.0]


def test_values_are_computed_only_for_the_chosen_steps(client):
    session_id = play_calls(client, DISHES, DISHES)
    values = client.values(session_id, finish=None, steps=[2, 1, 1])
    assert [step.version for step in values.steps] == [1, 2]
    assert [call.advantage for call in values.calls] == [-1.0]
    values = client.values(session_id, finish=None, steps=[0, 2])
    assert (len(values.steps), values.calls) == (2, [])


def test_invalid_forks_are_omitted_and_do_not_count_as_0(client):
    def some(agent, fork):
        if int(fork["labels"]["member"]) % 2:
            agent.run_function("do", {"chore": "missing"})  # without this argument, the evaluator fails

    (step,) = client.values(play_calls(client, task="chores/raises"), k=5, finish=some).steps
    assert (step.rewards, step.n, step.mean, step.standard_error, step.invalid) == ((1.0, 1.0), 2, 1.0, 0.0, 3)
    values = client.values(play_calls(client, DISHES, task="chores/raises"), k=2)
    assert [(step.mean, step.standard_error, step.invalid) for step in values.steps] == [(None, None, 2)] * 2
    assert values.calls[0].advantage is None


def test_a_fork_whose_finish_raises_is_reported_and_repeated(client):
    def breaks(agent, fork):
        if fork["labels"]["member"] == "1":
            raise ValueError("broken")
        agent.run_function(*DISHES)

    session_id = play_calls(client)
    (step,) = client.values(session_id, k=3, finish=breaks).steps
    assert (step.n, step.mean, step.invalid, [str(each) for each in step.errors]) == (2, 1.0, 0, ["broken"])
    finished = []
    breaks_no_more = lambda _agent, fork: finished.append(fork["labels"]["member"])  # noqa: E731
    breaks_no_more.__name__ = "breaks"
    (step,) = client.values(session_id, k=3, finish=breaks_no_more).steps
    assert (finished, step.rewards, step.errors) == (["1"], (1.0, 0.0, 1.0), ())
    assert len(client.list_sessions(parent=session_id)) == 1  # the ledger


def test_other_finishes_and_labels_have_separate_values(client):
    session_id = play_calls(client)
    assert [client.values(session_id, finish=each).steps[0].mean for each in (None, "solution")] == [0.0, 1.0]
    client.run_function(session_id, *DISHES)
    assert [step.mean for step in client.values(session_id, finish=None, k=2).steps] == [0.0, 1.0]
    assert client.values(session_id, finish=None, labels={"policy": "2"}).steps[0].n == 1
    ledgers = [session["labels"] for session in client.list_sessions(labels={"values": session_id})]
    assert sorted(each["finish"] for each in ledgers) == ["nothing", "nothing", "solution"]


def test_interrupted_forks_are_closed_and_created_again(client):
    session_id = play_calls(client)
    client.values(session_id, finish=None, k=2)
    labels = {"values": session_id, "finish": "nothing"}
    cut = client.fork_session(session_id, labels={**labels, "step": "0", "member": "2"})[0]["session_id"]
    reported_steps = []
    assert client.values(session_id, finish=None, k=3, progress=reported_steps.append).steps == reported_steps
    assert [each.n for each in reported_steps] == [3]
    with pytest.raises(ReplyError, match="session"):
        client.get_session(cut)


class Busy(httpx.HTTPTransport):
    """A transport that refuses the first fork of each batch, as a server without room does."""

    refused = 0

    def handle_request(self, request):
        body = json.loads(request.content)
        forks = [each for each in body if each["method"] == "fork_session"] if isinstance(body, list) else []
        if not forks:
            return super().handle_request(request)
        self.refused += 1
        body.remove(forks[0])
        replies = [{"id": forks[0]["id"], "error": {"code": -32006, "message": "No room.", "data": {}}}]
        if body:
            headers = {name: value for name, value in request.headers.items() if name != "content-length"}
            reply = super().handle_request(httpx.Request("POST", request.url, headers=headers, json=body))
            replies += json.loads(reply.read())
        return httpx.Response(200, json=replies)


def test_forks_refused_for_lack_of_room_are_retried_once(url):
    busy = Busy()
    with Client(url, transport=busy) as client:
        session_id = play_calls(client, DISHES)
        assert [(step.n, step.mean) for step in client.values(session_id, finish=None, k=3).steps] == [
            (3, 0.0),
            (3, 1.0),
        ]
    assert busy.refused


def test_concurrency_limits_open_forks(url):
    """The server must respond while policies wait for each other."""
    counts, waiting = [], set()

    async def work(client):
        session = await client.create_session(task="chores/dishes")
        values = {"values": session["session_id"]}
        full = asyncio.Event()

        async def play(_agent, fork):
            waiting.add(fork["labels"]["member"])
            if len(waiting) == 5:
                full.set()
            await full.wait()
            counts.append(len([1 for each in await client.list_sessions(labels=values) if "step" in each["labels"]]))

        return await client.values(session["session_id"], k=23, finish=play, concurrency=5)

    result = in_async_code(url, work)
    assert result.steps[0].n == len(counts) == 23
    assert max(counts) == 5


def test_forks_of_a_seeded_rollout_draw_their_own_chance(client):
    rules = {"rules": [{"error": "ConnectionError: down", "rate": 0.5}], "seed": "own"}
    seeds = []

    def look(_agent, fork):
        seeds.append((fork["perturbations"]["seed"], fork["perturbations"]["rules"] == rules["rules"]))

    client.values(play_calls(client, perturbations=rules), k=2, finish=look)
    assert sorted(seeds) == [("0/0", True), ("0/1", True)]


def test_wrong_arguments_are_a_one_sentence_error(client, url):
    async def coroutine_function(_agent, _fork):
        raise AssertionError

    session_id = play_calls(client, DISHES)
    for wrong, kwargs in {
        "k must be a whole number, at least 1, not 0": {"k": 0},
        "concurrency must be a whole number, at least 1, not 0": {"concurrency": 0},
        "None or a list of them, not 'soluton'": {"finish": "soluton"},
        "one or several different ways": {"finish": []},
        "one or several different ways, not ": {"finish": [None, None]},
        "labels can't contain 'step', which the forks already have": {"labels": {"step": "1"}},
        f"version 7 isn't a step of session {session_id}: use 0, 1": {"steps": [0, 7]},
    }.items():
        with pytest.raises(ValueError, match=wrong):
            client.values(session_id, **kwargs)
    with pytest.raises(TypeError, match=r"finish is a coroutine function: use AsyncClient\.values"):
        client.values(session_id, finish=coroutine_function)
    with pytest.raises(TypeError, match="finish must be a coroutine function"):
        in_async_code(url, lambda other: other.values(session_id, finish=lambda _agent, _fork: None))
    with pytest.raises(ValueError, match="has no task, so it has no reward: create the session with a task"):
        client.values(client.create_session(["chores"])["session_id"])

    async def waits(_client):
        client.values(session_id)

    with pytest.raises(ValueError, match=r"use AsyncClient\.values"):
        in_async_code(url, waits)
    client.close_session(session_id)
    with pytest.raises(ReplyError, match="it is unknown, closed or expired"):
        client.values(session_id)


def test_closing_the_session_ends_values_and_leaves_no_fork(client):
    session_id = play_calls(client)

    def close(_agent, fork):
        client.close_session(fork["session_id"])

    with pytest.raises(ReplyError):
        client.values(session_id, k=3, finish=close)
    assert [each["labels"].get("step") for each in client.list_sessions(labels={"values": session_id})] == [None]


async def play_rollout(agent, session):
    if session["labels"]["rollout"] != "0":
        await agent.run_function(*DISHES)
    await agent.submit_answer("Done.")


async def groups(client, **options):
    tasks = ["chores/dishes", "chores/raises"]
    return {group[0].task: group async for group in rollouts(client, tasks, play_rollout, group=2, **options)}


def test_rollouts_come_with_the_values_of_their_steps(url):
    sessions_played = []
    tree = {"k": 2, "finish": None, "progress": lambda value: sessions_played.append(value.session_id)}

    async def work(client):
        results = [await groups(client, labels={"run": "tree"}, concurrency=3, tree=tree) for _ in range(2)]
        return results, await client.list_sessions(labels={"run": "tree"})

    (first, repeated), sessions = in_async_code(url, work)
    assert [[step.mean for step in each.values.steps] for each in first["chores/dishes"]] == [[0.0], [0.0, 1.0]]
    assert all(each.values is None and each.error for each in first["chores/raises"])
    assert [each.values for each in repeated["chores/dishes"]] == [each.values for each in first["chores/dishes"]]
    assert len(sessions) == 4  # a run has none of the forks
    assert len(sessions_played) == 2 * 3
    with pytest.raises(ValueError, match="k must be"):
        in_async_code(url, lambda client: groups(client, labels={"run": "wrong"}, tree={"k": -1}))


PROGRAM = """
import sys
from toolpack_server import Client

def play(agent, fork):
    agent.run_function("do", {"chore": "dishes"})

with Client(sys.argv[1]) as client:
    values = client.values(sys.argv[2], k=334, finish=play, concurrency=16)
    print([(step.n, step.mean, step.invalid, step.errors) for step in values.steps])
"""


@pytest.mark.long
def test_a_thousand_forks_survive_kills_of_both_sides(tmp_path):
    flags = ["--port", str(free_port()), "--packs", "chores"]
    with contextlib.ExitStack() as ending:
        server = ending.enter_context(server_process.served(tmp_path, *flags))
        with Client(server.url) as client:
            session_id = play_calls(client, DISHES, ("do", {"chore": "windows"}))

        def program():
            line = [sys.executable, "-c", PROGRAM, server.url, session_id]
            started = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for pipe in (started.stdout, started.stderr):
                ending.enter_context(pipe)
            ending.callback(started.kill)
            return started

        def ledger_records():
            with Client(server.url) as client:
                forks = client.list_sessions(labels={"values": session_id}, limit=1000)
                ledger = [each["session_id"] for each in forks if "step" not in each["labels"]]
                assert len(forks) - len(ledger) <= 16
                pages = [client.get_trace(each, after=after, limit=1000) for each in ledger for after in (-1, 999)]
            notes = [record for page in pages for record in page]
            assert len({(note["metadata"]["values"]["step"], note["call_id"]) for note in notes}) == len(notes)
            return len(notes)

        first = program()
        wait_until(lambda: ledger_records() > 100)
        first.kill()
        first.wait(PATIENCE)
        before = ledger_records()
        assert 100 < before < 1002
        second = program()
        wait_until(lambda: ledger_records() > before + 100)
        server.kill()
        server = ending.enter_context(server_process.served(tmp_path, *flags))
        printed, complained = second.communicate(timeout=PATIENCE * 3)
        assert printed == f"{[(334, 0.0 + (step == 0), 0, ()) for step in range(3)]}\n", complained
        assert ledger_records() == 1002
