"""The client's `rollouts`: groups of parallel attempts that a restarted client resumes."""

import asyncio
import contextlib
import functools
from collections import Counter

import httpx
import pytest
import server_process
from http_server import running
from redis_server import free_port
from serving import PACKS, PATIENCE, wait_until

from toolpack_server.base.errors import ReplyError
from toolpack_server.client import AsyncClient
from toolpack_server.packs.loading import load_catalog
from toolpack_server.training import rollouts

TASKS = ["chores/dishes", "chores/returns-true"]
RUN = {"run": "1"}


@pytest.fixture(scope="module")
def url():
    with running(load_catalog((PACKS,), ("chores", "ledger")), store="memory:", log_calls="off") as served:
        yield served


@pytest.fixture
def run(url, request):
    """Run a function with a client and unique labels."""

    def run_async(work):
        async def run_work():
            async with AsyncClient(url) as client:
                return await work(client, {"run": request.node.name})

        return asyncio.run(run_work())

    return run_async


async def do_the_dishes(agent, session):
    assert (await agent.get_task())["prompt"]
    if session["labels"]["rollout"] != "0":
        await agent.run_function("do", {"chore": "dishes"})
    await agent.submit_answer("Done.")
    return session["labels"]["rollout"]


async def groups(client, play, labels, tasks=TASKS, **options):
    return [group async for group in rollouts(client, tasks, play, labels=labels, **{"group": 3, **options})]


def test_each_task_gets_a_group_with_verdicts(run):
    async def work(client, labels):
        results = await groups(client, do_the_dishes, labels, [*TASKS, *TASKS])
        run = await client.summarize_sessions(labels, evaluate=True)
        assert await client.list_sessions(labels=labels, passed=False) == [
            session
            for session in await client.list_sessions(labels=labels)
            if session["session_id"] == failed_session_id(results)
        ]
        return results, run

    def failed_session_id(results):
        return next(each.session["session_id"] for group in results for each in group if not each.verdict["passed"])

    results, evaluated = run(work)
    assert sorted(group[0].task for group in results) == TASKS
    for group in results:
        assert [each.number for each in group] == [0, 1, 2]
        assert [each.played for each in group] == ["0", "1", "2"]
        assert {each.task for each in group} == {group[0].task}
        expected = [group[0].task != "chores/dishes", True, True]
        assert [each.verdict["passed"] for each in group] == expected
    assert sum(rate["passed"] for rate in evaluated["rates"]) == 5


def test_concurrency_limits_parallel_rollouts(run):
    playing, full = Counter(), asyncio.Event()

    async def play(_agent, _session):
        playing["now"] += 1
        playing["most"] = max(playing["most"], playing["now"])
        if playing["most"] == 4:
            full.set()
        await full.wait()
        playing["now"] -= 1

    run(lambda client, labels: groups(client, play, labels, group=8, concurrency=4))
    assert playing == {"now": 0, "most": 4}


def test_a_run_resumes_where_its_killed_client_was(run):
    played = []

    async def play(agent, session):
        played.append(session["labels"]["rollout"])
        await agent.run_function("look")
        await client_of[0].fork_session(session["session_id"])
        await agent.submit_answer("Half.")
        if len(played) == 2:
            raise asyncio.CancelledError  # the program ends here
        await agent.run_function("do", {"chore": "dishes"})

    client_of = []

    async def work(client, labels):
        client_of[:] = [client]
        with pytest.raises(asyncio.CancelledError):
            await groups(client, play, labels, TASKS[:1], concurrency=1)
        (group,) = await groups(client, play, labels, TASKS[:1], concurrency=1)
        sessions = await client.list_sessions(labels=labels)
        return group, [session for session in sessions if session.get("parent") is None]

    group, sessions = run(work)
    assert played == ["0", "1", "1", "2"]
    assert len(sessions) == 3
    assert all(each.verdict and each.error is None for each in group)


def test_a_failed_rollout_has_its_error_and_is_played_again(run):
    async def breaks(agent, session):
        if session["labels"]["rollout"] == "1":
            raise ValueError("broken")
        return await do_the_dishes(agent, session)

    async def work(client, labels):
        return await groups(client, breaks, labels), await groups(client, do_the_dishes, labels)

    first, second = run(work)
    for group in first:
        assert [type(each.error) for each in group] == [type(None), ValueError, type(None)]
        assert group[1].verdict is None
    for group in second:
        assert [each.played for each in group] == [None, "1", None]
        assert all(each.verdict for each in group)


def test_an_evaluator_that_fails_is_an_error_and_no_verdict(run):
    ((result,),) = run(lambda client, labels: groups(client, do_the_dishes, labels, ["chores/raises"], group=1))
    assert (result.verdict, result.error.code) == (None, -32013)


def test_a_failed_evaluation_ends_no_other_rollout(run, monkeypatch):
    async def work(client, labels):
        await groups(client, do_the_dishes, labels)
        evaluate = client.evaluate_session

        async def fails_once(_session_id):
            monkeypatch.setattr(client, "evaluate_session", evaluate)
            raise ReplyError(-32008, "The classes have changed.", {})

        monkeypatch.setattr(client, "evaluate_session", fails_once)
        return await groups(client, do_the_dishes, labels)

    results = [each for group in run(work) for each in group]
    assert [(each.verdict, each.error.code) for each in results if each.error] == [(None, -32008)]
    assert len(results) == 6


def test_a_fork_with_a_verdict_is_not_a_finished_rollout(run):
    async def work(client, labels):
        own = {**labels, "rollout": "0"}
        session = await client.create_session(task=TASKS[0], labels=own)
        (fork,) = await client.fork_session(session["session_id"], labels=own)
        await client.evaluate_session(fork["session_id"], record=True)
        return await groups(client, do_the_dishes, labels, TASKS[:1], group=1)

    ((result,),) = run(work)
    assert result.played == "0"


def test_a_run_continues_if_the_answer_to_a_close_is_lost(run):
    async def work(client, labels):
        half = await client.create_session(task=TASKS[0], labels={**labels, "rollout": "0"})
        lost_closes = []
        send = client._http.send

        async def loses(request, **options):
            response = await send(request, **options)
            if b"close_session" in request.content and not lost_closes:
                lost_closes.append(await response.aread())
                raise httpx.ReadError("The server was killed.")
            return response

        client._http.send = loses
        results = await groups(client, do_the_dishes, labels)
        assert lost_closes
        assert half["session_id"] not in {each["session_id"] for each in await client.list_sessions(labels=labels)}
        return results

    assert all(each.verdict for group in run(work) for each in group)


def test_closing_the_iterator_ends_running_rollouts(run):
    waiting, ended, two_wait = [], [], asyncio.Event()

    async def play(_agent, session):
        if session["labels"]["rollout"] != "0":
            waiting.append(session["task"])
            if len(waiting) == 2:
                two_wait.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(session["task"])

    async def work(client, labels):
        playing = rollouts(client, TASKS, play, labels=labels, group=1)
        assert [each.number for each in await anext(playing)] == [0]
        await playing.aclose()
        playing = rollouts(client, TASKS, play, labels={**labels, "more": "1"}, group=2)
        first = asyncio.ensure_future(anext(playing))
        await asyncio.wait_for(two_wait.wait(), PATIENCE)
        first.cancel()
        await asyncio.wait([first])

    run(work)
    assert sorted(ended) == sorted(waiting) == sorted(TASKS)


def test_a_run_needs_labels_and_an_existing_task(run):
    with pytest.raises(ValueError, match="labels must name the run"):
        run(lambda client, _labels: groups(client, do_the_dishes, {}))
    with pytest.raises(ValueError, match="labels can't contain 'rollout'"):
        run(lambda client, _labels: groups(client, do_the_dishes, {"rollout": "first"}))
    for wrong in ("group", "concurrency"):
        with pytest.raises(ValueError, match=f"{wrong} must be a whole number, at least 1, not 0"):
            run(lambda client, labels, wrong=wrong: groups(client, do_the_dishes, labels, **{wrong: 0}))
    with pytest.raises(ReplyError, match="There is no task 'chores/none'"):
        run(lambda client, labels: groups(client, do_the_dishes, labels, ["chores/none"]))


def test_only_a_coroutine_function_can_play_and_finish(run):
    def plain(_agent, _session):
        raise AssertionError

    with pytest.raises(TypeError, match=r"^play must be a coroutine function, made with `async def`, not <function"):
        run(lambda client, labels: groups(client, plain, labels))
    with pytest.raises(TypeError, match=r"^finish must be a coroutine function"):
        run(lambda client, labels: groups(client, do_the_dishes, labels, tree={"finish": plain}))
    assert run(lambda client, labels: client.list_sessions(labels=labels)) == []


def test_any_async_callable_can_play(run):
    class Player:
        async def __call__(self, agent, session):
            return await do_the_dishes(agent, session)

        async def play(self, agent, session):
            return await do_the_dishes(agent, session)

    @functools.wraps(do_the_dishes)
    def wrapped(agent, session):
        return do_the_dishes(agent, session)

    for number, play in enumerate([Player(), Player().play, functools.partial(do_the_dishes), wrapped]):
        labels = {"player": str(number)}
        ((result,),) = run(lambda client, _, play=play, labels=labels: groups(client, play, labels, TASKS[:1], group=1))
        assert result.played == "0"


def test_further_parameters_go_to_the_sessions(run):
    ((result,),) = run(
        lambda client, labels: groups(client, do_the_dishes, labels, TASKS[:1], group=1, toolpacks=["ledger"])
    )
    assert result.session["toolpacks"] == ["chores", "ledger"]


def test_an_agent_shares_connections_but_not_the_token(url):
    async def work():
        async with AsyncClient(url, token="secret-token") as client:
            session = await client.create_session(["chores"])
            async with client.agent(session) as agent:
                assert (await agent.run_function("look"))["result"] == {}
                assert agent._http is client._http
                assert "authorization" not in {name.lower() for name in (*agent._http.headers, *agent._headers)}
            await client.get_session(session["session_id"])  # closing the agent leaves the client's connections open

    asyncio.run(work())


def test_each_rollout_of_a_group_has_its_own_perturbations(run):
    rules = {"rules": [{"error": "ConnectionError: down", "rate": 0.5}]}

    async def seeds(client, labels, **options):
        results = await groups(client, do_the_dishes, labels, ["chores/dishes"], perturbations={**rules, **options})
        return [each.session.get("perturbations")["seed"] for each in results[0]]

    async def work(client, labels):
        return await seeds(client, labels), await seeds(client, {"run": "the same"}, seed="mine")

    assert run(work) == (["0", "1", "2"], ["mine"] * 3)


def test_a_kill_of_the_server_ends_no_rollout(tmp_path, caplog):
    """With the client's defaults, `play` gets no error, no call runs twice, and the log has one line on the outage."""
    flags = ["--port", str(free_port()), "--packs", "chores"]
    chores = ["1", "2", "dishes"]
    playing, killed, traces = [], asyncio.Event(), []
    caplog.set_level("WARNING")

    async def play(agent, session):
        for chore in chores:
            assert (await agent.run_function("do", {"chore": chore}))["error"] is None
            if chore == "1":
                playing.append(session["session_id"])
                await killed.wait()

    async def everything():
        with contextlib.ExitStack() as servers:
            first = servers.enter_context(server_process.served(tmp_path, *flags))
            async with AsyncClient(first.url) as client:
                work = asyncio.ensure_future(groups(client, play, RUN, TASKS[:1], group=4))
                await asyncio.to_thread(wait_until, lambda: len(playing) == 4)
                await asyncio.to_thread(first.kill)
                killed.set()
                await asyncio.to_thread(wait_until, lambda: caplog.records)  # the log's line on the outage
                second = server_process.served(tmp_path, *flags)
                await asyncio.to_thread(servers.enter_context, second)
                (results,) = await work
                traces.extend([await client.get_trace(session_id) for session_id in playing])
                return results

    results = asyncio.run(everything())
    assert [each.error for each in results] == [None] * 4
    assert [each.verdict["valid"] for each in results] == [True] * 4
    assert [[each["kwargs"]["chore"] for each in trace if each["kind"] == "call"] for trace in traces] == [chores] * 4
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"http://127.0.0.1:{flags[1]} doesn't answer. Idempotent requests are retried."
    ]
