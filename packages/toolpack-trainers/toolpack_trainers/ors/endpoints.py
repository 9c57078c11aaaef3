"""The paths of the Open Reward Standard, as the `openreward` SDK 0.1 asks for them.

A path only translates; what an episode is and does is in `episodes.py`. A refusal is `{"detail": …}`. An
overload, or a server that starts or stops, is 503, which clients repeat, and never 500, which they don't.
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

SIGN_SECONDS = 10.0  # between two signs of life; clients give up after 30 s of silence
CHUNK = 32 * 1024  # bytes of a result in one event; clients read lines of up to 128 KiB
MAX_ID = 64
CLIENTS_OWN = {"api_key", "OPENREWARD_API_KEY"}  # secrets that the SDK sends by itself: the token, once more

M = TypeVar("M", bound=BaseModel)


class OrsBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CreateBody(OrsBody):
    """What begins an episode: `task_spec`, or `split` and `index`."""

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


def _one_line(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise PydanticCustomError("one_line", "An id has no line breaks, and no spaces at its ends")
    return text


class CallBody(OrsBody):
    name: str
    input: Any = None
    task_id: Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_one_line)] | None = None


class NoBody(OrsBody):
    env: dict[str, Any] = Field(default_factory=dict, max_length=0)


class OrsEndpoint(EpisodeEndpoint):
    """What the paths have in common; the token comes as a bearer token, or as `X-API-Key`, as the SDK sends it."""

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
        found: M = await self.parsed(request, partial(read, kind))
        return found

    async def env(self, request: FeatureRequest, name: str | None = None) -> str:
        """Get the toolpack that stands before the path, or in a header as the SDK's name of an environment."""
        hint = request.headers.get("x-deployment", "").rpartition("/")[2]
        return await self.episodes.environment(request.caller, request.path.get("env", name), hint)


def _episode_id(request: FeatureRequest) -> str:
    sid = request.headers.get("x-session-id", "").strip()
    if not 0 < len(sid) <= MAX_ID:
        raise HttpRefusedError(
            400,
            f"Which episode? Send the header X-Session-ID, of at most {MAX_ID} characters, from POST /create_session.",
        )
    return sid


def _check_secrets(request: FeatureRequest) -> None:
    given = request.headers.get("x-secrets", "")
    try:
        names = set(json.loads(base64.b64decode(given, validate=True))) if given else set()
    except (ValueError, TypeError, RecursionError):
        names = {"it"}
    if not names <= CLIENTS_OWN:
        raise HttpRefusedError(400, "X-Secrets: the environments of this server take no secrets: send none.")


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
    """Gives an episode's id, before there is an episode."""

    async def answer(self, request: FeatureRequest) -> Response:
        _check_secrets(request)
        await self.body(NoBody, request)
        return stream_response(_events([("task_id", uuid.uuid4().hex), ("end", "")]))


class OldIdEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse({"sid": _episode_id(request)})


class CreateEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        _check_secrets(request)
        sid, body = _episode_id(request), await self.body(CreateBody, request)
        spec = body.task_spec
        if (spec is None) == (body.index is None):
            raise HttpRefusedError(400, "Provide either task_spec, or index with a split, not both and not neither.")
        if spec is None:
            env = await self.env(request, body.env_name)
            found = await self.episodes.task(request.caller, env, body.split or ALL, body.index or 0)
            spec = TaskSpec.model_validate(found)
        await self.episodes.create(request.caller, sid, spec)
        return JSONResponse({"sid": sid})


class PingEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        await self.episodes.renew(request.caller, _episode_id(request))
        return JSONResponse({"status": "ok"})


class DeleteEndpoint(OrsEndpoint):
    """Ends an episode: one without an answer is evaluated. It is kept, for whoever looks at runs, until it expires."""

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
        return JSONResponse(await self.episodes.described_splits(request.caller, await self.env(request)))


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
    """Gets a slice of a split's tasks, as Python's slices are."""

    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), await self.body(RangeBody, request)
        tasks = await self.episodes.tasks(request.caller, env, body.split)
        return JSONResponse({"tasks": tasks[body.start : body.stop], "env_name": env})


class PromptEndpoint(OrsEndpoint):
    """Gets the prompt as blocks: of one that is a conversation its texts, each with who says it."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        prompt = messages_of(await self.episodes.told(request.caller, episode))
        lone = len(prompt) == 1 and prompt[0]["role"] == "user"
        texts = [each["content"] if lone else f"{each['role']}: {each['content']}" for each in prompt]
        return JSONResponse([block_of(text) for text in texts])


class MessagesEndpoint(OrsEndpoint):
    """Gets the prompt as messages."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        prompt = messages_of(await self.episodes.told(request.caller, episode))
        return JSONResponse(
            [{"role": each["role"], "blocks": [block_of(each["content"])], "detail": None} for each in prompt]
        )


class TaskToolsEndpoint(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        return JSONResponse(await self.episodes.tools(request.caller, episode))


class ScoreGroupEndpoint(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        raise HttpRefusedError(404, "Groups aren't scored here: each episode has a reward of its own.")


class CallEndpoint(OrsEndpoint):
    """Calls a tool, once for a `task_id`: the stream begins with it, and one that broke is resumed by it."""

    async def answer(self, request: FeatureRequest) -> Response:
        sid, body = _episode_id(request), await self.body(CallBody, request)
        episode = await self.episodes.find(request.caller, sid)
        task_id = body.task_id or uuid.uuid4().hex
        work = partial(self.episodes.output, request.caller, episode, body.name, body.input, task_id)
        return stream_response(self._answered(task_id, work, request, sid))

    async def _answered(
        self, task_id: str, work: Callable[[], Coroutine[Any, Any, Any]], request: FeatureRequest, sid: str
    ) -> AsyncIterator[bytes]:
        """Give the id before the call begins, signs of life while it runs, and its result in pieces.

        A stream that ends without a result is resumed by the client, as after a lost connection.
        """
        yield _event("task_id", task_id)
        doing = asyncio.ensure_future(work())
        try:
            async for sign in signs_of_life(doing, SIGN_SECONDS):
                yield sign
            pieces = _pieces(doing.result())
        except REFUSALS as error:
            if self.status_of(error) != UNAVAILABLE:
                self.episodes.forget(request.caller, sid)
                yield _event("error", sentence(error))
            return
        finally:
            doing.cancel()
        request.holds(sum(map(len, pieces)))
        for piece in pieces[:-1]:
            yield _event("chunk", piece)
        yield _event("end", pieces[-1])


def _event(name: str, text: str) -> bytes:
    return event(name, " ".join(text.splitlines()).encode())


async def _events(events: list[tuple[str, str]]) -> AsyncIterator[bytes]:
    for name, data in events:
        yield _event(name, data)


def _pieces(result: Any) -> list[str]:
    """Divide a result's JSON among events; clients remove spaces at the beginning of each, so none begins with one."""
    text = json.dumps(result, separators=(",", ":"))  # so that spaces are in strings only
    if len(text) <= CHUNK:
        return [text]
    pieces = [text[at : at + CHUNK] for at in range(0, len(text), CHUNK)]
    return ["\\u0020" + piece[1:] if piece[0] == " " else piece for piece in pieces]
