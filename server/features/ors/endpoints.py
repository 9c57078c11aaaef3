"""The paths of the Open Reward Standard, as the `openreward` SDK 0.1 asks for them.

The rule: a path only translates; what an episode is and does is in `episodes.py`. A refusal is `{"detail": …}`. An
overload, or a server that starts or stops, is 503, which clients repeat, and never 500, which they don't.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from server.features.api import HttpRefusedError, ReplyError
from server.features.api_http import FeatureEndpoint, FeatureRequest, Gateway
from server.features.ors.episodes import Episodes

SIGN_SECONDS = 10.0  # between two signs of life; clients give up after 30 s of silence
CHUNK = 64 * 1024  # characters of a result in one event
STREAM = {"cache-control": "no-cache", "x-accel-buffering": "no"}
MAX_ID = 64


class OrsEndpoint(FeatureEndpoint):
    """What the paths have in common; the token comes as a bearer token, or as `X-API-Key`, as the SDK sends it."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.episodes = Episodes(self.app)

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        key = headers.get(b"x-api-key")
        return (
            headers if key is None or b"authorization" in headers else {**headers, b"authorization": b"Bearer " + key}
        )

    def refusal(self, status: int, message: str) -> Response:
        starting = {"x-backend-state": "starting"} if status == 503 and not self.is_ready() else {}  # noqa: PLR2004
        return JSONResponse({"detail": message}, status, starting)

    def status_of(self, error: ReplyError) -> int:
        status = super().status_of(error)
        return 503 if status >= 500 else status  # noqa: PLR2004


def _body(request: FeatureRequest, **types: Any) -> dict[str, Any]:
    """Get the members of a request's body, of these types; one that may be missing is None then."""
    given = request.json()
    if not isinstance(given, dict):
        raise HttpRefusedError(400, f"The body must be a JSON object with {', '.join(types)}.")
    for name, kind in types.items():
        if not isinstance(given.get(name), kind) or isinstance(given.get(name), bool):
            raise HttpRefusedError(400, f"{name}: it is missing, or of another type than the protocol's.")
    return given


def _episode_id(request: FeatureRequest) -> str:
    sid = request.headers.get("x-session-id", "")
    if len(sid) > MAX_ID:
        raise HttpRefusedError(400, f"X-Session-ID: at most {MAX_ID} characters.")
    return sid


class Health(OrsEndpoint):
    verbs = ("GET",)
    needs_token = False

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse({"status": "ok"})


class Version(OrsEndpoint):
    verbs = ("GET",)
    needs_token = False

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse({"version": f"toolpack-server {version('toolpack-server')}", "build_sha": None})


class Environments(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.environments(request.caller))


class NewId(OrsEndpoint):
    """Gives an episode's id, before there is an episode."""

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return StreamingResponse(_events([("task_id", uuid.uuid4().hex), ("end", "")]), headers=STREAM, media_type=SSE)


class OldId(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse({"sid": _episode_id(request)})


class Create(OrsEndpoint):
    """Begins an episode: `task_spec`, or `split` and `index`."""

    async def answer(self, request: FeatureRequest) -> Response:
        if request.headers.get("x-secrets", "") not in {"", "{}"}:
            raise HttpRefusedError(400, "X-Secrets: the environments of this server take no secrets: omit it.")
        body, sid, none = request.json(), _episode_id(request), type(None)
        if not sid:
            raise HttpRefusedError(400, "Which episode? Send the header X-Session-ID, as POST /create_session gave it.")
        body = _body(request, env_name=(str, none), task_spec=(dict, none), split=(str, none), index=(int, none))
        spec = body.get("task_spec")
        if (spec is None) == (body.get("index") is None):
            raise HttpRefusedError(400, "Provide either task_spec, or index with a split, not both and not neither.")
        if body.get("toolset_name") is not None:
            raise HttpRefusedError(400, "toolset_name: an episode has the tools of its task and no others: omit it.")
        if spec is None:
            env = await self.episodes.environment(request.caller, body.get("env_name"))
            spec = await self.episodes.task(request.caller, env, body.get("split") or "all", body["index"])
        await self.episodes.create(request.caller, sid, spec)
        return JSONResponse({"sid": sid})


class Ping(OrsEndpoint):
    """Says whether an episode is there; it lives for its TTL after its last call."""

    async def answer(self, request: FeatureRequest) -> Response:
        sid = _episode_id(request)
        self.episodes.forget(request.caller, sid)
        await self.episodes.find(request.caller, sid)
        return JSONResponse({"status": "ok"})


class Delete(OrsEndpoint):
    """Ends an episode: one without an answer is evaluated. It is kept, for whoever looks at runs, until it expires."""

    async def answer(self, request: FeatureRequest) -> Response:
        sid = _episode_id(request)
        try:
            episode = await self.episodes.find(request.caller, sid)
        except HttpRefusedError as error:
            if error.status != 404:  # noqa: PLR2004
                raise
        else:
            await self.episodes.end(request.caller, episode)
        return JSONResponse({"sid": sid})


class _OfEnvironment(OrsEndpoint):
    """A path that is about a toolpack, which stands before it, or is the only one with tasks."""

    async def env(self, request: FeatureRequest) -> str:
        return await self.episodes.environment(request.caller, request.path.get("env"))


class Tools(_OfEnvironment):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.tools_of(request.caller, await self.env(request)))


class Splits(_OfEnvironment):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        names = await self.episodes.splits(request.caller, await self.env(request))
        kinds = {"train": "train", "validation": "validation"}
        return JSONResponse([{"name": name, "type": kinds.get(name, "test")} for name in names])


class Tasks(_OfEnvironment):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), _body(request, split=str)
        return JSONResponse({"tasks": await self.episodes.tasks(request.caller, env, body["split"]), "env_name": env})


class NumTasks(_OfEnvironment):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), _body(request, split=str)
        return JSONResponse({"num_tasks": len(await self.episodes.tasks(request.caller, env, body["split"]))})


class Task(_OfEnvironment):
    async def answer(self, request: FeatureRequest) -> Response:
        env, body = await self.env(request), _body(request, split=str, index=int)
        task = await self.episodes.task(request.caller, env, body["split"], body["index"])
        return JSONResponse({"task": task, "env_name": env})


class TaskRange(_OfEnvironment):
    async def answer(self, request: FeatureRequest) -> Response:
        none = type(None)
        env, body = await self.env(request), _body(request, split=str, start=(int, none), stop=(int, none))
        tasks = await self.episodes.tasks(request.caller, env, body["split"])
        return JSONResponse({"tasks": tasks[body.get("start") : body.get("stop")], "env_name": env})


class Prompt(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        return JSONResponse(await self.episodes.prompt(episode))


class TaskTools(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        episode = await self.episodes.find(request.caller, _episode_id(request))
        return JSONResponse(await self.episodes.tools(episode))


class Messages(OrsEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        raise HttpRefusedError(404, "Prompts are at /prompt here: ask there.")


class ScoreGroup(OrsEndpoint):
    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        raise HttpRefusedError(404, "Groups aren't scored here: each episode has a reward of its own.")


class Call(OrsEndpoint):
    """Calls a tool, once for a `task_id`: the stream begins with it, and one that broke is resumed by it."""

    async def answer(self, request: FeatureRequest) -> Response:
        body = _body(request, name=str, input=dict, task_id=(str, type(None)))
        task_id = body.get("task_id") or uuid.uuid4().hex
        if len(task_id) > MAX_ID:
            raise HttpRefusedError(400, f"task_id: at most {MAX_ID} characters.")
        sid = _episode_id(request)
        episode = await self.episodes.find(request.caller, sid)

        async def events() -> AsyncIterator[bytes]:
            yield _event("task_id", task_id)
            call = asyncio.ensure_future(
                self.episodes.call(request.caller, episode, body["name"], body["input"], f"ors-{task_id}")
            )
            try:
                while not (await asyncio.wait({call}, timeout=SIGN_SECONDS))[0]:
                    yield b": still running\n\n"
                text = json.dumps(call.result(), ensure_ascii=False)
            except ReplyError as error:
                if self.status_of(error) == 503:  # noqa: PLR2004 - the client resumes a stream that ends early
                    return
                self.episodes.forget(request.caller, sid)
                yield _event("error", error.message)
                return
            finally:
                call.cancel()
            while len(text) > CHUNK:
                yield _event("chunk", text[:CHUNK])
                text = text[CHUNK:]
            yield _event("end", text)

        return StreamingResponse(events(), headers=STREAM, media_type=SSE)


SSE = "text/event-stream"


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


async def _events(events: list[tuple[str, str]]) -> AsyncIterator[bytes]:
    for name, data in events:
        yield _event(name, data)
