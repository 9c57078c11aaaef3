"""Endpoints of the Open Reward Standard, for the `openreward` SDK 0.1.

The endpoints only translate requests and responses; `episodes.py` implements the operations. The body of a refusal is
`{"detail": …}`. An overloaded, starting or stopping server responds with 503, because clients retry after 503 but not
after 500.
"""

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse, Response

from toolpack_server.features.api.core import REFUSALS, HttpRefusedError, sentence
from toolpack_server.features.api.http import FeatureRequest, Gateway, event, signs_of_life, stream_response
from toolpack_trainers.endpoints import UNAVAILABLE, EpisodeEndpoint
from toolpack_trainers.ors.episodes import OrsEpisodes, block_of
from toolpack_trainers.task_episodes import ALL, TaskSpec, messages_of, read

SIGN_SECONDS = 10.0  # between keep-alive comments; clients give up after 30 s of silence
CHUNK = 32 * 1024  # max bytes of a result in one event; clients read lines of up to 128 KiB
MAX_ID = 64
SDK_SECRETS = {"api_key", "OPENREWARD_API_KEY"}  # secrets that the SDK sends unasked; they are copies of the token

M = TypeVar("M", bound=BaseModel)


class OrsBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CreateBody(OrsBody):
    """Parameters of a new episode: `task_spec`, or `split` and `index`."""

    env_name: str | None = None
    task_spec: TaskSpec | None = None
    split: str | None = None
    index: int | None = None
    toolset_name: None = None


class SplitBody(OrsBody):
    split: str = ALL


class TaskBody(SplitBody):
    index: int


class RangeBody(SplitBody):
    start: int | None = None
    stop: int | None = None


def _check_one_line(text: str) -> str:
    """Refuse an id that can't be the data of an event."""
    if not text.isprintable() or text != text.strip():
        raise PydanticCustomError("one_line", "An id can't contain line breaks, or begin or end with spaces")
    return text


class CallBody(OrsBody):
    name: str
    input: Any = None
    task_id: Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_check_one_line)] | None = None


class NoBody(OrsBody):
    env: dict[str, Any] = Field(default_factory=dict, max_length=0)


class OrsEndpoint(EpisodeEndpoint):
    """Base class of ORS's endpoints. The token is a bearer token, or in the SDK's header `X-API-Key`."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.episodes = self.app.feature(OrsEpisodes)

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        key = headers.get(b"x-api-key")
        if key is None or b"authorization" in headers:
            return headers
        return {**headers, b"authorization": b"Bearer " + key}

    def refusal(self, status: int, message: str) -> Response:
        starting = {"x-backend-state": "starting"} if status == UNAVAILABLE and not self.is_ready() else {}
        return JSONResponse({"detail": message}, status, starting)

    async def body(self, kind: type[M], request: FeatureRequest) -> M:
        body: M = await self.parsed(request, partial(read, kind))
        return body

    async def env(self, request: FeatureRequest, name: str | None = None) -> str:
        """Return the toolpack named before the path, or in the header in which the SDK names the environment."""
        hint = request.headers.get("x-deployment", "").rpartition("/")[2]
        return await self.episodes.environment(request.caller, request.path.get("env", name), hint)


def _episode_id(request: FeatureRequest) -> str:
    """Return the episode's id in the header, and refuse a request without a valid one."""
    sid = request.headers.get("x-session-id", "").strip()
    if not 0 < len(sid) <= MAX_ID:
        raise HttpRefusedError(
            400,
            f"The episode is missing: send its id from POST /create_session in the header X-Session-ID, of 1 to "
            f"{MAX_ID} characters.",
        )
    return sid


def _check_secrets(request: FeatureRequest) -> None:
    """Refuse a request with secrets for the environment, because no environment here uses them."""
    header = request.headers.get("x-secrets", "")
    try:
        names = set(json.loads(base64.b64decode(header, validate=True))) if header else set()
    except (ValueError, TypeError, RecursionError):
        names = {"invalid header"}
    if not names <= SDK_SECRETS:
        raise HttpRefusedError(400, "X-Secrets: the environments of this server don't accept secrets: send none.")


class HealthEndpoint(OrsEndpoint):
    verbs = ("GET",)
    needs_token = False

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse({"status": "ok"})


class VersionEndpoint(OrsEndpoint):
    verbs = ("GET",)
    needs_token = False

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse({"version": f"toolpack-server {version('toolpack-server')}", "build_sha": None})


class EnvironmentsEndpoint(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.environments(request.caller))


class NewIdEndpoint(OrsEndpoint):
    """Returns an id for a new episode. POST /create creates the episode."""

    async def answer(self, request: FeatureRequest) -> Response:
        _check_secrets(request)
        await self.body(NoBody, request)
        return stream_response(_events([("task_id", uuid.uuid4().hex), ("end", "")]))


class DeleteSessionEndpoint(OrsEndpoint):
    """Confirms that an id is deleted. It does nothing, because `DeleteEndpoint` has already ended the episode."""

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse({"sid": _episode_id(request)})


class CreateEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        """Create the episode with the id in the header, for a task by its specification or by its index in a split."""
        _check_secrets(request)
        sid, body = _episode_id(request), await self.body(CreateBody, request)
        spec = body.task_spec
        if (spec is None) == (body.index is None):
            raise HttpRefusedError(400, "Provide either task_spec, or index with a split, and not both.")
        if spec is None:
            env = await self.env(request, body.env_name)
            task = await self.episodes.task(request.caller, env, body.split or ALL, body.index or 0)
            spec = TaskSpec.model_validate(task)
        await self.episodes.create(request.caller, sid, spec)
        return JSONResponse({"sid": sid})


class PingEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        await self.episodes.renew(request.caller, _episode_id(request))
        return JSONResponse({"status": "ok"})


class DeleteEndpoint(OrsEndpoint):
    """Ends an episode, and evaluates it if it has no answer. Its session can be inspected until it expires."""

    async def answer(self, request: FeatureRequest) -> Response:
        sid = _episode_id(request)
        try:
            await self.episodes.end(request.caller, await self.episodes.find(request.caller, sid))
        except HttpRefusedError as error:
            if error.status != 404:  # noqa: PLR2004 - an HTTP status
                raise
        return JSONResponse({"sid": sid})


class ToolsEndpoint(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.tools_of(request.caller, await self.env(request)))


class SplitsEndpoint(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.typed_splits(request.caller, await self.env(request)))


class TasksEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), await self.body(SplitBody, request)
        return JSONResponse({"tasks": await self.episodes.tasks(request.caller, env, body.split), "env_name": env})


class NumTasksEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), await self.body(SplitBody, request)
        return JSONResponse({"num_tasks": len(await self.episodes.tasks(request.caller, env, body.split))})


class TaskEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), await self.body(TaskBody, request)
        task = await self.episodes.task(request.caller, env, body.split, body.index)
        return JSONResponse({"task": task, "env_name": env})


class TaskRangeEndpoint(OrsEndpoint):
    """Returns a slice of a split's tasks. `start` and `stop` have the same meaning as in Python."""

    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), await self.body(RangeBody, request)
        tasks = await self.episodes.tasks(request.caller, env, body.split)
        return JSONResponse({"tasks": tasks[body.start : body.stop], "env_name": env})


class PromptEndpoint(OrsEndpoint):
    """Returns the prompt as blocks. A prompt with several messages has one block per message, as `role: text`."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        prompt = messages_of(await self.episodes.agent_task(request.caller, episode))
        is_single = len(prompt) == 1 and prompt[0]["role"] == "user"
        texts = [message["content"] if is_single else f"{message['role']}: {message['content']}" for message in prompt]
        return JSONResponse([block_of(text) for text in texts])


class MessagesEndpoint(OrsEndpoint):
    """Returns the prompt as messages."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        prompt = messages_of(await self.episodes.agent_task(request.caller, episode))
        return JSONResponse(
            [{"role": message["role"], "blocks": [block_of(message["content"])], "detail": None} for message in prompt]
        )


class TaskToolsEndpoint(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        return JSONResponse(await self.episodes.tools(request.caller, episode))


class ScoreGroupEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        raise HttpRefusedError(404, "Groups aren't scored here: each episode has its own reward.")


class CallEndpoint(OrsEndpoint):
    """Calls a tool, once per `task_id`.

    The response is a stream that begins with the `task_id`. After a lost connection, the client sends the same
    `task_id` again to resume.
    """

    async def answer(self, request: FeatureRequest) -> Response:
        sid, body = _episode_id(request), await self.body(CallBody, request)
        episode = await self.episodes.find(request.caller, sid)
        task_id = body.task_id or uuid.uuid4().hex
        work = partial(self.episodes.output, request.caller, episode, body.name, body.input, task_id)
        return stream_response(self._stream(task_id, work, request, sid))

    async def _stream(
        self, task_id: str, work: Callable[[], Coroutine[Any, Any, Any]], request: FeatureRequest, sid: str
    ) -> AsyncIterator[bytes]:
        """Yield the id before the call begins, keep-alive comments while it runs, and its result in pieces.

        If the server is unavailable, the stream ends without a result, so that clients resume, just as they would after
        a lost connection.
        """
        yield _event("task_id", task_id)
        task = asyncio.ensure_future(work())
        try:
            async for sign in signs_of_life(task, SIGN_SECONDS):
                yield sign
            pieces = _pieces(task.result())
        except REFUSALS as error:
            if self.status_of(error) != UNAVAILABLE:
                self.episodes.forget(request.caller, sid)  # the session may have expired, so look it up next time
                yield _event("error", sentence(error))
            return
        finally:
            task.cancel()
        request.holds(sum(map(len, pieces)))
        for piece in pieces[:-1]:
            yield _event("chunk", piece)
        yield _event("end", pieces[-1])


def _event(name: str, text: str) -> bytes:
    """Return an event. Join the lines of its text, because an event's data must be one line."""
    return event(name, " ".join(text.splitlines()).encode())


async def _events(events: list[tuple[str, str]]) -> AsyncIterator[bytes]:
    for name, data in events:
        yield _event(name, data)


def _pieces(result: Any) -> list[str]:
    """Split a result's JSON into pieces for events. No piece begins with a space, because clients would remove it."""
    text = json.dumps(result, separators=(",", ":"))  # spaces occur only inside strings, where they can be escaped
    if len(text) <= CHUNK:
        return [text]
    pieces = [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]
    return ["\\u0020" + piece[1:] if piece[0] == " " else piece for piece in pieces]
