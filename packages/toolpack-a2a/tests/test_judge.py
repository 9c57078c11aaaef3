"""`toolpack-server judge`: A2A agents of another process play tasks of a real server and get verdicts."""

import asyncio

import command_line
import pytest
import redis_server
from a2a_serving import TASK, serve_agents
from click.testing import CliRunner
from patience import PATIENCE

from toolpack_a2a import agent as agents
from toolpack_a2a.agent import AgentError, open_agent
from toolpack_a2a.judging import Judge, JudgeError
from toolpack_server.cli import cli
from toolpack_server.client import AsyncClient


def play(server, agent_url, task=TASK, seconds=PATIENCE):
    async def run():
        async with AsyncClient(server.url) as client, open_agent(agent_url) as agent:
            return await Judge(client, server.url, "test").play(agent, task, seconds)

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["streaming", "blocking"])
def test_agent_that_solves_a_task_over_mcp_passes(server, url, mode):
    rollout = play(server, f"{url}/solver/{mode}")
    assert (rollout.passed, rollout.ended, rollout.problem) == (True, "completed", None)
    trace = server.rpc("get_trace", session_id=rollout.session_id)
    assert [record["kind"] for record in trace] == ["call", "answer", "verdict"]
    assert server.rpc("get_session", session_id=rollout.session_id)["labels"] == {"judge": "test"}


@pytest.mark.parametrize(
    ("kind", "ended"),
    [("liar", "completed"), ("message", "completed"), ("asker", "input-required"), ("refuser", "rejected")],
)
def test_agent_that_only_says_that_it_did_the_task_fails(server, url, kind, ended):
    rollout = play(server, f"{url}/{kind}/streaming")
    assert (rollout.passed, rollout.is_valid, rollout.ended, rollout.problem) == (False, True, ended, None)


@pytest.mark.parametrize("mode", ["streaming", "blocking"])
@pytest.mark.parametrize("kind", ["slow", "silent"])
def test_agent_that_is_too_slow_is_judged_by_what_it_did(server, url, kind, mode):
    rollout = play(server, f"{url}/{kind}/{mode}", seconds=0.3)
    assert (rollout.passed, rollout.is_valid, rollout.ended) == (False, True, "timeout")
    assert rollout.problem == "The agent didn't finish within 0.3 s."


@pytest.mark.parametrize(
    ("kind", "ended"),
    [
        ("raises", "error"),
        ("html", "error"),
        ("nested", "invalid"),
        ("number", "invalid"),
        ("empty", "invalid"),
        ("gzip", "flood"),
    ],
)
def test_agent_that_breaks_the_protocol_gets_a_verdict(server, url, kind, ended):
    rollout = play(server, f"{url}/{kind}/blocking")
    assert (rollout.passed, rollout.is_valid, rollout.ended) == (False, True, ended)
    assert "Traceback" not in rollout.line()


@pytest.mark.parametrize("kind", ["line", "events"])
def test_flood_of_an_agent_ends_at_a_limit(server, url, kind, monkeypatch):
    monkeypatch.setattr(agents, "MAX_REPLY_BYTES", 2**18)
    rollout = play(server, f"{url}/{kind}/streaming")
    assert (rollout.passed, rollout.is_valid, rollout.ended) == (False, True, "flood")


def test_limit_of_bytes_holds_for_each_rollout(server, url, monkeypatch):
    received = []

    async def run(count):
        async with AsyncClient(server.url) as client, open_agent(f"{url}/solver/streaming") as agent:
            judge = Judge(client, server.url, "many")
            return [(await judge.play(agent, TASK, PATIENCE)).ended for _ in range(count)]

    original = agents._CountedStream.__aiter__

    async def counting(self):
        async for chunk in original(self):
            received.append(len(chunk))
            yield chunk

    monkeypatch.setattr(agents._CountedStream, "__aiter__", counting)
    assert asyncio.run(run(1)) == ["completed"]
    monkeypatch.setattr(agents, "MAX_REPLY_BYTES", 2 * sum(received))
    assert asyncio.run(run(8)) == ["completed"] * 8
    assert sum(received) > 3 * agents.MAX_REPLY_BYTES


def test_agent_that_dies_is_judged_by_what_it_did(server):
    with serve_agents(server) as (url, process):
        rollout = play(server, f"{url}/crash/streaming")
        assert process.wait(PATIENCE) == 1
    assert (rollout.passed, rollout.is_valid, rollout.ended) == (False, True, "disconnected")


def test_agent_that_is_gone_is_not_judged(server, url):
    async def run():
        async with AsyncClient(server.url) as client, open_agent(f"{url}/solver/streaming") as agent:
            agent._client._transport.url = f"http://127.0.0.1:{redis_server.free_port()}/"
            return await Judge(client, server.url, "gone").play(agent, TASK, PATIENCE)

    rollout = asyncio.run(run())
    assert (rollout.verdict, rollout.ended, rollout.is_valid) == (None, "unreachable", False)
    assert server.rpc("list_sessions", labels={"judge": "gone"}) == []


@pytest.mark.parametrize("kind", ["html", "nested", "number", "flood"])
def test_wrong_card_is_an_error(url, kind):
    async def run():
        async with open_agent(f"{url}/card/{kind}"):
            pass

    with pytest.raises(AgentError, match=r"^(There is no A2A agent at|The card of the agent at) http"):
        asyncio.run(run())


def test_nothing_can_be_called_after_the_verdict(server, url):
    rollout = play(server, f"{url}/liar/blocking")
    path = server.rpc("get_session", session_id=rollout.session_id)["mcp_path"]
    params = {"name": "move_to_savings", "arguments": {"amount": "300.00"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    late = server.http.post(path, json=body).json()["result"]
    assert late["isError"] is True
    assert server.rpc("evaluate_session", session_id=rollout.session_id)["passed"] is False


def test_tasks_are_named_or_those_of_a_toolpack(server):
    async def tasks(*arguments):
        async with AsyncClient(server.url) as client:
            return await Judge(client, server.url, "test").tasks(*arguments)

    assert asyncio.run(tasks([TASK, TASK])) == [TASK, TASK]
    assert len(asyncio.run(tasks([], "bank"))) == 12
    for arguments, problem in [(["bank/nope"], "bank/nope"), ([], "There is no task"), (["pair/talk"], "alone")]:
        with pytest.raises(JudgeError, match=problem):
            asyncio.run(tasks(arguments))


def test_command_prints_verdicts_and_how_to_evaluate_them(server, url):
    result = command_line.run(
        "judge", "--a2a", f"{url}/solver/streaming", "--url", server.url, "--task", TASK, "--attempts", "2"
    )
    first, second, count, more = result.stdout.splitlines()
    assert first.startswith(f"{TASK}: passed, reward 1.0 (session ")
    assert second.endswith(", completed)")
    assert count == "2 of 2 passed."
    label = more.rpartition(" ")[2].partition("=")
    assert len(server.rpc("list_sessions", labels={label[0]: label[2]})) == 2
    assert (result.returncode, result.stderr) == (0, "")


def test_command_explains_what_is_wrong(server, url):
    port = redis_server.free_port()
    gone, here = f"http://127.0.0.1:{port}", ("--url", server.url)
    agent = f"{url}/solver/streaming"
    for arguments, problem in [
        (("--a2a", gone, "--task", TASK, *here), "There is no A2A agent at http://127.0.0.1:"),
        (("--a2a", "nonsense", "--task", TASK, *here), "There is no A2A agent at nonsense: "),
        (("--a2a", agent, "--task", TASK, "--url", "nonsense"), "A server's URL begins with http://"),
        (("--a2a", agent, "--task", "bank/nope", *here), "bank/nope"),
        (("--a2a", agent, *here), "Name the tasks to play: --task bank/save-300, or --toolpack bank."),
        (("--a2a", agent, "--task", TASK, "--split", "x", *here), "--split chooses among the tasks of a toolpack"),
    ]:
        result = CliRunner().invoke(cli, ["judge", *arguments])
        assert problem in result.output
        assert isinstance(result.exception, SystemExit)
        assert result.exit_code > 0
