"""Green agent, which is AgentBeats' term for an agent that judges other agents.

An A2A request contains the URL of an agent. The green agent lets this agent play the server's tasks, and replies with
the verdicts on the rollouts.
"""

import json
import logging
import uuid
from collections.abc import AsyncGenerator
from importlib.metadata import version
from typing import Any

import uvicorn
from a2a.helpers.proto_helpers import (
    get_message_text,
    new_data_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import Event, EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    SendMessageRequest,
    Task,
    TaskState,
)
from a2a.types.a2a_pb2 import Message as A2AMessage
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolpack_a2a.agent import AgentError, open_agent
from toolpack_a2a.judging import Judge, JudgedRollout, JudgeError
from toolpack_server import ToolpackServerError
from toolpack_server.client import AsyncClient
from toolpack_server.features.api.commands import echo

MAX_BODY_BYTES = 2**18
MAX_CONNECTIONS = 100
MAX_ASSESSMENTS = 4  # at the same time
MAX_ROLLOUTS = 1000  # of an assessment
MAX_SECONDS = 86_400  # for a rollout
MAX_FINISHED = 100  # finished assessments that are stored, so that their results can be read
FINAL_STATES = {
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
}
EXAMPLE = '{"participants": {"agent": "http://127.0.0.1:9010"}, "config": {"tasks": ["bank/save-300"]}}'


class AssessmentConfig(BaseModel):
    """The tasks that an assessment plays, and how often."""

    model_config = ConfigDict(extra="forbid")

    tasks: list[str] = Field(default_factory=list, max_length=MAX_ROLLOUTS, description="Tasks, as toolpack/name.")
    toolpack: str | None = Field(None, description="A toolpack. All its tasks are also played.")
    split: str | None = Field(None, description="The split of the toolpack's tasks.")
    attempts: int = Field(1, ge=1, le=MAX_ROLLOUTS, description="Rollouts of each task.")
    timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS, description="Seconds for a rollout.")


class Assessment(BaseModel):
    """AgentBeats' request for an assessment, which names the agent to judge."""

    participants: dict[str, str] = Field(min_length=1, max_length=1, description="The URL of the agent, by its role.")
    config: AssessmentConfig


def parse_assessment(text: str) -> Assessment:
    """Return the assessment that a message requests.

    Raises:
        InvalidParamsError: The message isn't a request for an assessment.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidParamsError(f"The message isn't JSON: send an assessment, such as {EXAMPLE}.") from None
    try:
        return Assessment.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, problem["loc"]))[:200] or "The message"
        raise InvalidParamsError(f"{location}: {problem['msg']}. Send an assessment, such as {EXAMPLE}.") from None


class GreenAgent(AgentExecutor):
    """Judges the agent of each request with the tasks of a server. `serve` creates one, and the SDK calls it.

    Args:
        url: URL of the server with the tasks, for this agent.
        public_url: URL of the same server, for the agents that it judges.
    """

    def __init__(self, url: str, public_url: str, token: str | None) -> None:
        self._url = url
        self._public_url = public_url
        self._token = token
        self._running = 0

    def check(self, message: A2AMessage) -> None:
        """Refuse a message that doesn't request an assessment, or any message while too many assessments run.

        Raises:
            A2AError: The message is refused.
        """
        parse_assessment(get_message_text(message))
        if self._running >= MAX_ASSESSMENTS:
            raise UnsupportedOperationError(f"{MAX_ASSESSMENTS} assessments are running: send this one again later.")

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Judge the agent named in a request. Send the task, each verdict, and the results or the failure as events."""
        assessment = parse_assessment(context.get_user_input())
        message = context.message
        assert message is not None  # noqa: S101 - its text was read
        task = context.current_task or new_task_from_user_message(message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        self._running += 1
        try:
            rollouts = await self._assess(assessment, updater)
        except (AgentError, JudgeError, ToolpackServerError, ValueError) as error:
            await updater.failed(new_text_message(str(error)))
        else:
            text, results = _results(assessment, rollouts)
            await updater.add_artifact([new_text_part(text), new_data_part(results)], name="Result")
            await updater.complete()
        finally:
            self._running -= 1

    async def _assess(self, assessment: Assessment, updater: TaskUpdater) -> list[JudgedRollout]:
        """Play all rollouts, and report each when it ends."""
        (agent_url,) = assessment.participants.values()
        config, rollouts = assessment.config, []
        async with AsyncClient(self._url, token=self._token) as client, open_agent(agent_url) as agent:
            judge = Judge(client, self._public_url, uuid.uuid4().hex[:8])
            tasks = await judge.tasks(config.tasks, config.toolpack, config.split)
            if len(tasks) * config.attempts > MAX_ROLLOUTS:
                raise JudgeError(f"An assessment has at most {MAX_ROLLOUTS} rollouts: play fewer tasks or attempts.")
            await updater.start_work()
            for task in tasks:
                for _ in range(config.attempts):
                    rollouts.append(await judge.play(agent, task, config.timeout_seconds))
                    await updater.start_work(new_text_message(rollouts[-1].line()))
        return rollouts

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Confirm that a task is cancelled. The SDK has already cancelled `execute`."""
        task = context.current_task
        if task is not None:
            await TaskUpdater(event_queue, task.id, task.context_id).cancel()


def _results(assessment: Assessment, rollouts: list[JudgedRollout]) -> tuple[str, dict[str, Any]]:
    """Return the results as text and as data."""
    valid, passed = [sum(getattr(rollout, name) for rollout in rollouts) for name in ("is_valid", "passed")]
    rate = passed / valid if valid else None
    text = "\n".join([*(rollout.line() for rollout in rollouts), f"{passed} of {len(rollouts)} passed."])
    counts = {"rollouts": len(rollouts), "valid": valid, "passed": passed, "pass_rate": rate}
    data = {"participants": assessment.participants, **counts, "results": [rollout.as_json() for rollout in rollouts]}
    return text, data


class CheckedHandler(DefaultRequestHandler):
    """Request handler that refuses messages before the SDK stores them.

    The SDK would store a message that the executor refuses as long as the process runs.
    """

    def __init__(self, executor: GreenAgent, card: AgentCard) -> None:
        super().__init__(agent_executor=executor, task_store=RecentTasks(), agent_card=card)
        self._check = executor.check

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> A2AMessage | Task:
        self._check(params.message)
        result: A2AMessage | Task = await super().on_message_send(params, context)
        return result

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        self._check(params.message)
        async for event in super().on_message_send_stream(params, context):
            yield event


class RecentTasks(InMemoryTaskStore):
    """Task store that keeps all running tasks, but only the latest `MAX_FINISHED` finished tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._finished: dict[str, ServerCallContext] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task's state. If too many tasks have finished, delete the task that finished first."""
        await super().save(task, context)
        if task.status.state in FINAL_STATES:
            self._finished[task.id] = context
        while len(self._finished) > MAX_FINISHED:
            oldest = next(iter(self._finished))
            await self.delete(oldest, self._finished.pop(oldest))


class BodyLimit:
    """ASGI middleware that responds with 413 to a request with a body larger than `MAX_BODY_BYTES`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body of an HTTP request, then call the application, which reads the body from memory."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                refusal = JSONResponse({"error": f"The body has more than {MAX_BODY_BYTES} bytes: send less."}, 413)
                await refusal(scope, receive, send)
                return
        is_replayed = False

        async def replay() -> Message:
            """Return the whole body at the first call, then pass on further messages."""
            nonlocal is_replayed
            if is_replayed:
                return await receive()
            is_replayed = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, replay, send)


def card_at(url: str) -> AgentCard:
    """Return the green agent's card, which tells clients its URL and its skill."""
    skill = AgentSkill(
        id="judge",
        name="Judge an agent",
        description="Has an agent play tasks with the tools of an MCP server, and evaluates the world that it left.",
        tags=["evaluation", "benchmark", "green agent"],
        examples=[EXAMPLE],
    )
    return AgentCard(
        name="Toolpack Server",
        description="Judges agents with tasks of a Toolpack Server.",
        version=version("toolpack-a2a"),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=each) for each in ("1.0", "0.3")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[skill],
    )


def create_app(card: AgentCard, executor: GreenAgent) -> ASGIApp:
    """Return the ASGI application: the card, and JSON-RPC at `/`."""
    rpc = create_jsonrpc_routes(CheckedHandler(executor, card), "/", enable_v0_3_compat=True)
    return BodyLimit(Starlette(routes=[*create_agent_card_routes(card), *rpc]))


def serve(host: str, port: int, card_url: str | None, url: str, public_url: str, token: str | None) -> None:
    """Serve a green agent until a signal stops it."""
    config = uvicorn.Config("", host=host, port=port, log_level=logging.WARNING, limit_concurrency=MAX_CONNECTIONS)
    listener = config.bind_socket()
    listener.listen(MAX_CONNECTIONS)  # clients that read the line below can connect at once
    address = f"http://{host}:{listener.getsockname()[1]}/"
    config.app = create_app(card_at(card_url or address), GreenAgent(url, public_url, token))
    echo(f"Green agent on {address}, with the tasks of {url}")
    uvicorn.Server(config).run(sockets=[listener])
