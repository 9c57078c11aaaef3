"""`toolpack-server green-agent`, which A2A clients such as AgentBeats ask to judge agents."""

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path

import httpx
import pytest
import redis_server
import server_process
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import new_text_message
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import CancelTaskRequest, Role, SendMessageRequest, Task, TaskState, TaskStatus
from a2a.utils.errors import A2AError
from a2a_serving import TASK
from google.protobuf.json_format import MessageToDict
from patience import PATIENCE

from toolpack_a2a import green_agent
from toolpack_a2a.green_agent import MAX_ASSESSMENTS, MAX_BODY_BYTES


@contextlib.contextmanager
def serve_green_agent(server, *arguments):
    command = server_process.command("green-agent", "--url", server.url, "--port", "0", *arguments)
    environment = server_process.environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process.stdout.readline().split()[3].rstrip(","), process
        finally:
            process.terminate()
            assert "Traceback" not in process.stderr.read()


@pytest.fixture(scope="module")
def green(server):
    with serve_green_agent(server) as (green, _):
        yield green


@contextlib.asynccontextmanager
async def connected(green):
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        card = await A2ACardResolver(http, green).get_agent_card()
        assert card.skills[0].id == "judge"
        yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


def request(text):
    message = text if isinstance(text, str) else json.dumps(text)
    return SendMessageRequest(message=new_text_message(message, role=Role.ROLE_USER))


def assess(green, text):
    """Send an assessment. Return the last state, the texts of all updates, and the data of the result."""

    async def run():
        states, texts, data = [], [], None
        async with connected(green) as client:
            async for event in client.send_message(request(text)):
                if event.HasField("status_update"):
                    status = event.status_update.status
                    states.append(TaskState.Name(status.state))
                    texts += [part.text for part in status.message.parts]
                elif event.HasField("artifact_update"):
                    (text_part, data_part) = event.artifact_update.artifact.parts
                    texts.append(text_part.text)
                    data = MessageToDict(data_part.data)
        return states[-1], texts, data

    return asyncio.run(run())


def assessment(agent, **config):
    return {"participants": {"agent": agent}, "config": {"tasks": [TASK], **config}}


def test_assessment_reports_the_verdict_on_each_rollout(green, url):
    state, texts, data = assess(green, assessment(f"{url}/solver/streaming", attempts=2))
    assert state == "TASK_STATE_COMPLETED"
    assert texts[0].startswith(f"{TASK}: passed, reward 1.0")
    assert texts[-1].endswith("2 of 2 passed.")
    assert (data["rollouts"], data["valid"], data["passed"], data["pass_rate"]) == (2, 2, 2, 1)
    assert data["participants"] == {"agent": f"{url}/solver/streaming"}
    assert [(each["task"], each["passed"], each["reward"]) for each in data["results"]] == [(TASK, True, 1)] * 2


def test_assessment_of_an_agent_that_lies_reports_a_failure(green, url):
    state, _, data = assess(green, assessment(f"{url}/liar/blocking"))
    assert (state, data["passed"], data["results"][0]["reward"]) == ("TASK_STATE_COMPLETED", 0, 0)


def test_assessment_without_an_agent_fails_with_a_reason(green):
    state, texts, data = assess(green, assessment(f"http://127.0.0.1:{redis_server.free_port()}"))
    assert (state, data) == ("TASK_STATE_FAILED", None)
    assert texts[-1].startswith("There is no A2A agent at http://127.0.0.1:")
    state, texts, _ = assess(green, assessment(green, tasks=["bank/nope"]))
    assert (state, "bank/nope" in texts[-1]) == ("TASK_STATE_FAILED", True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Hello", "The message isn't JSON: send an assessment, such as {"),
        ("[" * 100_000, "The message isn't JSON"),
        ("[]", "The message: Input should be"),
        ({"participants": {}, "config": {}}, "participants: Dictionary should have at least 1 item"),
        ({"participants": {"a": "x", "b": "y"}, "config": {}}, "participants: Dictionary should have at most 1 item"),
        ({"participants": {"a": "x"}}, "config: Field required"),
        ({"participants": {"a": "x"}, "config": {"attempt": 2}}, "config.attempt: Extra inputs are not permitted"),
        ({"participants": {"a": "x"}, "config": {"attempts": 0}}, "config.attempts: Input should be greater than"),
    ],
)
def test_wrong_assessment_is_refused_with_a_reason(green, text, problem):
    with pytest.raises(A2AError, match="^.*" + problem.replace("{", "").replace(".", r"\.")):
        assess(green, text)


def test_body_that_is_too_large_or_nested_is_refused(green):
    nested = b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": ' + b"[" * (MAX_BODY_BYTES - 100)
    assert "error" in httpx.post(green, content=nested, timeout=PATIENCE).json()
    large = httpx.post(green, content=b" " * (MAX_BODY_BYTES + 1), timeout=PATIENCE)
    assert (large.status_code, large.json()) == (413, {"error": "The body has more than 262144 bytes: send less."})
    assert httpx.get(f"{green}.well-known/agent-card.json").status_code == 200


def test_refused_messages_take_no_memory(server):
    text = "x" * (MAX_BODY_BYTES - 1000)
    part = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
    part["params"] = {"message": {"role": "ROLE_USER", "messageId": "1", "parts": [{"text": text}]}}
    with serve_green_agent(server) as (green, process), httpx.Client(timeout=PATIENCE) as client:

        def send(count):
            for _ in range(count):
                assert "error" in client.post(green, json=part, headers={"A2A-Version": "1.0"}).json()
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(status.partition("VmRSS:")[2].split()[0])

        assert send(120) - send(20) < 15_000  # KiB: the messages together have 25 MiB


def test_ended_assessments_are_forgotten(monkeypatch):
    monkeypatch.setattr(green_agent, "MAX_FINISHED", 2)

    async def run():
        store, context = green_agent.RecentTasks(), ServerCallContext()
        states = [TaskState.TASK_STATE_WORKING, *[TaskState.TASK_STATE_COMPLETED] * 4]
        for number, state in enumerate(states):
            await store.save(Task(id=str(number), context_id="1", status=TaskStatus(state=state)), context)
        return [number for number in range(5) if await store.get(str(number), context)]

    assert asyncio.run(run()) == [0, 3, 4]


def test_number_of_running_assessments_is_limited(green, url):
    slow = assessment(f"{url}/slow/streaming", timeout_seconds=PATIENCE)

    async def run():
        async with connected(green) as client, contextlib.AsyncExitStack() as stack:
            running = []
            for _ in range(MAX_ASSESSMENTS):
                events = client.send_message(request(slow))
                stack.push_async_callback(events.aclose)
                async for event in events:
                    if event.HasField("status_update"):
                        running.append(event.status_update.task_id)
                        break
            with pytest.raises(A2AError, match="assessments are running: send this one again later"):
                async for _ in client.send_message(request(slow)):
                    pass
            for task_id in running:
                cancelled = await client.cancel_task(CancelTaskRequest(id=task_id))
                assert cancelled.status.state == TaskState.TASK_STATE_CANCELED

    asyncio.run(run())
    assert assess(green, assessment(f"{url}/liar/blocking"))[0] == "TASK_STATE_COMPLETED"
