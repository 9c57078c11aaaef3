"""Endpoints of OpenEnv 0.10: HTTP, WebSockets, and task lists.

The endpoints only translate requests and responses; `episodes.py` implements the operations. The body of a refusal is
`{"detail": …}`. On a WebSocket, a refusal is an `error` message, and the WebSocket stays open. A connection holds no
state of its own, so another connection can continue any episode.
"""

import json
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from toolpack_server.features.api.core import (
    REFUSALS,
    Caller,
    HttpRefusedError,
    InvalidParamsError,
    OverloadedError,
    SessionNotFoundError,
    sentence,
)
from toolpack_server.features.api.http import FeatureRequest, FeatureSocket, Gateway
from toolpack_trainers.endpoints import UNAVAILABLE, BodyEndpoint, EpisodeEndpoint
from toolpack_trainers.openenv.episodes import NO_STATE, OpenEnvEpisodes
from toolpack_trainers.openenv.feature import TOOLPACK, OpenEnvFeature
from toolpack_trainers.openenv.mcp import PARSE_ERROR, OpenEnvMcp, failure
from toolpack_trainers.openenv.messages import (
    ACTION_SCHEMA,
    MAX_ID,
    MESSAGES,
    OBSERVATION_SCHEMA,
    RESET_OBSERVATION_SCHEMA,
    STATE_SCHEMA,
    AnyAction,
    ListTools,
    OpenEnvMcpMessage,
    OpenEnvRangeBody,
    OpenEnvResetMessage,
    OpenEnvSplitBody,
    OpenEnvStepMessage,
    OpenEnvTaskBody,
    ResetData,
    StepBody,
    read_message,
)
from toolpack_trainers.task_episodes import TaskEpisode

INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED, SESSION_ERROR = "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
"""OpenEnv's codes for errors on a WebSocket."""

CODES = {404: SESSION_ERROR, UNAVAILABLE: CAPACITY_REACHED}
"""The code of an `HttpRefusedError` by its HTTP status. Other statuses: VALIDATION_ERROR."""

REFUSED_CODES = {
    SessionNotFoundError: SESSION_ERROR,
    OverloadedError: CAPACITY_REACHED,
    InvalidParamsError: VALIDATION_ERROR,
}
"""The code of a method's error by its class. Other classes: EXECUTION_ERROR."""

M = TypeVar("M", bound=BaseModel)


class OpenEnvEndpoint(EpisodeEndpoint):
    """Base class of OpenEnv's endpoints."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.episodes = self.app.feature(OpenEnvEpisodes)

    def refusal(self, status: int, message: str) -> Response:
        return JSONResponse({"detail": message}, status)

    async def body(self, kind: type[M], request: FeatureRequest) -> M:
        """Return the body as a model, and refuse an invalid one."""
        body: M = await self.parsed(request, partial(read_message, kind, what="The body"))
        return body

    async def env(self, request: FeatureRequest) -> str:
        """Return the toolpack in the path, or the only one with tasks."""
        return await self.episodes.environment(request.caller, request.path.get("toolpack"))

    async def task_env(self, request: FeatureRequest) -> str:
        """Return the toolpack of a task list's path.

        The path names the toolpack twice, and both names must be equal.
        """
        env = await self.env(request)
        if request.path["env"].lower() != env.lower():
            raise HttpRefusedError(404, f"There is no environment {request.path['env'][:200]!r} here: use {env}.")
        return env


def _query_id(request: FeatureRequest, name: str) -> str | None:
    """Return an id from the query string, or None. Refuse an empty or too long one."""
    value = request.query.get(name)
    if value is not None and not 0 < len(value) <= MAX_ID:
        raise HttpRefusedError(400, f"{name} must have 1 to {MAX_ID} characters.")
    return value


class OpenEnvHealthEndpoint(OpenEnvEndpoint):
    verbs = ("GET",)
    needs_token = False

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse({"status": "healthy"})


class OpenEnvMetadataEndpoint(OpenEnvEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        """Return the toolpack's name, description and version. Other fields of OpenEnv's metadata are null."""
        env = await self.env(request)
        toolpacks = await self.app.invoke(request.caller, "list_toolpacks", {})
        (toolpack,) = [each for each in toolpacks if each["name"] == env]
        unset_members = {"readme_content": None, "author": None, "documentation_url": None}
        given_members = {"name": env, "description": toolpack["description"], "version": toolpack.get("version")}
        return JSONResponse({**given_members, **unset_members})


class OpenEnvPathsEndpoint(OpenEnvEndpoint):
    """Returns the paths as an OpenAPI document, from which `openenv validate` reads which requests are possible."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        operation = {"responses": {"200": {"description": "As OpenEnv defines it."}}}
        paths = {
            path.removeprefix(TOOLPACK): {verb.lower(): operation for verb in resolve_name(endpoint).verbs}
            for path, endpoint in OpenEnvFeature.routes.items()
            if path.startswith(TOOLPACK)
        }
        return JSONResponse(
            {
                "openapi": "3.1.0",
                "info": {"title": await self.env(request), "version": version("toolpack-server")},
                "paths": paths,
            }
        )


class OpenEnvSchemaEndpoint(OpenEnvEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        await self.env(request)
        schemas = {"action": ACTION_SCHEMA, "observation": OBSERVATION_SCHEMA, "state": STATE_SCHEMA}
        return JSONResponse({**schemas, "reset_observation": RESET_OBSERVATION_SCHEMA})


class OpenEnvResetEndpoint(BodyEndpoint, OpenEnvEndpoint):
    def read(self, content: Any) -> ResetData:
        return read_message(ResetData, content, "The body")

    async def answer_to(self, body: ResetData, request: FeatureRequest) -> Response:
        _, observation = await self.episodes.reset(request.caller, await self.env(request), body)
        return JSONResponse(observation)


class OpenEnvStepEndpoint(BodyEndpoint, OpenEnvEndpoint):
    """Runs a step in the episode with the given id. A `request_id` makes a step safe to repeat."""

    def read(self, content: Any) -> StepBody:
        return read_message(StepBody, content, "The body")

    async def answer_to(self, body: StepBody, request: FeatureRequest) -> Response:
        env = await self.env(request)
        episode = await self.episodes.find(request.caller, body.episode_id)
        if isinstance(body.action, ListTools):
            return JSONResponse(await self.episodes.list_tools(request.caller, env, episode))
        call_id = body.request_id or body.action.metadata.call_id
        observation = await self.episodes.step(request.caller, episode, body.action, call_id, body.timeout_s)
        return JSONResponse(observation)


class OpenEnvStateEndpoint(OpenEnvEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode_id = _query_id(request, "episode_id")
        if episode_id is None:
            return JSONResponse(NO_STATE)
        episode = await self.episodes.find(request.caller, episode_id)
        return JSONResponse(await self.episodes.state(request.caller, episode))


class OpenEnvEnvironmentsEndpoint(OpenEnvEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse([await self.env(request)])


class OpenEnvSplitsEndpoint(OpenEnvEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.typed_splits(request.caller, await self.task_env(request)))


class OpenEnvTasksEndpoint(OpenEnvEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.task_env(request), await self.body(OpenEnvSplitBody, request)
        return JSONResponse({"tasks": await self.episodes.tasks(request.caller, env, body.split), "env_name": env})


class OpenEnvNumTasksEndpoint(OpenEnvEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.task_env(request), await self.body(OpenEnvSplitBody, request)
        return JSONResponse({"num_tasks": len(await self.episodes.tasks(request.caller, env, body.split))})


class OpenEnvTaskEndpoint(OpenEnvEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.task_env(request), await self.body(OpenEnvTaskBody, request)
        return JSONResponse({"task": await self.episodes.task(request.caller, env, body.split, body.index)})


class OpenEnvTaskRangeEndpoint(OpenEnvEndpoint):
    """Returns a slice of a split's tasks. `start` and `stop` have the same meaning as in Python."""

    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.task_env(request), await self.body(OpenEnvRangeBody, request)
        tasks = await self.episodes.tasks(request.caller, env, body.split)
        return JSONResponse({"tasks": tasks[body.start : body.stop]})


class OpenEnvSocket(OpenEnvEndpoint, FeatureSocket):
    """Base class of the WebSockets. Each belongs to a toolpack and, with `?session_id=`, to an OpenEnv session."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.mcp = OpenEnvMcp(self.episodes)

    async def on_connect(self, handshake: FeatureRequest) -> None:
        await self.env(handshake)
        _query_id(handshake, "session_id")


class OpenEnvMcpEndpoint(OpenEnvSocket):
    """MCP by POST or on a WebSocket. A request can name its OpenEnv session."""

    verbs = ("GET", "POST")

    async def answer(self, request: FeatureRequest) -> Response:
        if request.method != "POST":
            return await super().answer(request)
        return JSONResponse(await self._reply(request, None))

    async def on_message(self, message: FeatureRequest, memory: dict[str, Any]) -> str | None:  # noqa: ARG002
        return _text(await self._reply(message, _query_id(message, "session_id")))

    async def _reply(self, request: FeatureRequest, sid: str | None) -> dict[str, Any]:
        try:
            content = await self.parsed(request)
        except HttpRefusedError as error:
            return failure(None, PARSE_ERROR, str(error))
        return await self.mcp.answer(request.caller, await self.env(request), content, sid)


class EpisodeSocket(OpenEnvSocket):
    """A WebSocket that plays episodes one after the other. With `?session_id=`, they belong to an OpenEnv session.

    An episode doesn't end when its WebSocket is closed. Another WebSocket can continue the episode by a reset with the
    episode's id, or by using the same OpenEnv session.
    """

    async def on_message(self, message: FeatureRequest, memory: dict[str, Any]) -> str | None:
        """Return the response to a message as JSON, or None if it gets none. Errors become `error` messages."""
        try:
            try:
                parsed = await self.parsed(message, _read)
            except HttpRefusedError as error:
                if error.status == UNAVAILABLE:  # the server is overloaded, so the JSON might be valid
                    raise
                return _error(INVALID_JSON, str(error))
            if isinstance(parsed, str):  # `_read` returned an error message
                return parsed
            reply = await self._reply(message, parsed, memory)
        except HttpRefusedError as error:
            return _error(CODES.get(error.status, VALIDATION_ERROR), str(error))
        except REFUSALS as error:
            code = next((code for kind, code in REFUSED_CODES.items() if isinstance(error, kind)), EXECUTION_ERROR)
            return _error(code, sentence(error))
        return None if reply is None else _text(reply)

    async def _reply(self, request: FeatureRequest, message: BaseModel, memory: dict[str, Any]) -> Any:
        """Return the response to a message. `memory` caches this WebSocket's current episode."""
        caller, sid = request.caller, _query_id(request, "session_id")
        env = await self.env(request)
        episode: TaskEpisode | None = memory.get("episode")
        if episode is None and sid is not None:
            episode = memory["episode"] = await self.episodes.newest(caller, sid)
        if isinstance(message, OpenEnvResetMessage):
            next_episode, observation = await self.episodes.reset(caller, env, message.data, sid)
            if episode is not None and episode.session_id != next_episode.session_id:
                await self._end(caller, episode)
            memory["episode"] = next_episode
            return {"type": "observation", "data": observation}
        if isinstance(message, OpenEnvStepMessage):
            return {"type": "observation", "data": await self._step(caller, env, episode, message.data)}
        if isinstance(message, OpenEnvMcpMessage):
            session = sid or (None if episode is None else episode.labels[self.episodes.label])
            return {"type": "mcp", "data": await self.mcp.answer(caller, env, message.data, session)}
        if message.type == "state":  # type: ignore[attr-defined]
            state = NO_STATE if episode is None else await self.episodes.state(caller, episode)
            return {"type": "state", "data": state}
        if episode is not None and sid is None:  # an OpenEnv session is closed by its client
            await self._end(caller, episode)
        return None

    async def _step(self, caller: Caller, env: str, episode: TaskEpisode | None, action: AnyAction) -> dict[str, Any]:
        if isinstance(action, ListTools):
            return await self.episodes.list_tools(caller, env, episode)
        if episode is None:
            raise HttpRefusedError(404, "There is no episode on this WebSocket: send reset with a task first.")
        return await self.episodes.step(caller, episode, action, action.metadata.call_id)

    async def _end(self, caller: Caller, episode: TaskEpisode) -> None:
        with suppress(SessionNotFoundError):  # it has expired
            await self.episodes.end(caller, episode)


def _read(content: Any) -> BaseModel | str:
    """Return a client's message. If it is invalid, return the error to send, as a string."""
    kind = content.get("type") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in MESSAGES:
        problem = f"Unknown message type: {kind!r}"[:200]
        return _error(UNKNOWN_TYPE, f"{problem}. Send an object with one of the types {', '.join(MESSAGES)}.")
    try:
        return read_message(MESSAGES[kind], content, "The message")
    except HttpRefusedError as error:
        return _error(CODES.get(error.status, VALIDATION_ERROR), str(error))


def _error(code: str, message: str) -> str:
    return _text({"type": "error", "data": {"message": message, "code": code}})


def _text(reply: Any) -> str:
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":"))
