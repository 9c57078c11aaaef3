"""Endpoints of a resources server for NeMo Gym 0.7.

The endpoints only translate requests and responses; `episodes.py` implements the operations. The body of a refusal is
`{"detail": …}`, and its status is never 500. An agent calls a function by a POST to `/FUNCTION` with its episode's
cookie. If another endpoint has this path, that endpoint takes precedence.
"""

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, FailFast, Field
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from toolpack_server.features.api.core import REFUSALS, HttpRefusedError, sentence
from toolpack_server.features.api.http import FeatureRequest, Gateway
from toolpack_trainers.endpoints import BodyEndpoint, EpisodeEndpoint
from toolpack_trainers.nemo_gym.episodes import GymCall, GymEpisodes, GymRow
from toolpack_trainers.nemo_gym.feature import COOKIE
from toolpack_trainers.task_episodes import NO_TOOL, read, reason_of

SERVER_NAME = "toolpack"
TOKEN_HEADER = "X-NeMo-Gym-Session-Token"  # noqa: S105 - a header's name
MAX_ID = 128
MAX_CALLS = 1000  # max calls in a response of the model


class SeedBody(BaseModel):
    """Body of /seed_session from an environment server, with the episode's name. An agent sends only a row."""

    resources_session_id: str = Field(min_length=1, max_length=MAX_ID)
    task_data: GymRow


class CloseBody(BaseModel):
    resources_session_id: str = Field(min_length=1, max_length=MAX_ID)


class MetricsBody(BaseModel):
    verify_responses: Annotated[list[dict[str, Any]], FailFast()]


def _object(content: Any) -> dict[str, Any]:
    """Return a body that is a JSON object, and refuse any other."""
    if not isinstance(content, dict):
        raise HttpRefusedError(400, "The body must be a JSON object.")
    return content


class GymEndpoint(EpisodeEndpoint):
    """Base class of NeMo Gym's endpoints. The token is a bearer token, or the password in the server's URL."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.episodes = self.app.feature(GymEpisodes)

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return the headers with the token as a bearer token, because the server reads only these.

        A client that puts the token into the server's URL sends it as the password of basic authentication.
        """
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"basic":
            return headers
        try:
            token = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return headers
        return {**headers, b"authorization": b"Bearer " + token}

    def refusal(self, status: int, message: str) -> Response:
        return JSONResponse({"detail": message}, status)

    @staticmethod
    def cookie(request: FeatureRequest) -> str | None:
        """Return the session id in the request's cookie, or None without a cookie."""
        return cookie_parser(request.headers.get("cookie", "")).get(COOKIE)

    def session_id(self, request: FeatureRequest) -> str:
        """Return the session id in the request's cookie, and refuse a request without a cookie."""
        session_id = self.cookie(request)
        if not session_id:
            raise HttpRefusedError(400, f"The episode is missing: send the cookie {COOKIE} of POST /seed_session.")
        return session_id


class BeginEndpoint(GymEndpoint):
    """Base class of the endpoints that begin an episode. Their responses set the episode's cookie."""

    def check_no_cookie(self, request: FeatureRequest) -> None:
        """Refuse a request with an episode's cookie: it is a model's call of a tool that has the name of this path."""
        if self.cookie(request) is not None:
            raise HttpRefusedError(
                403, f"An episode can't begin another one: send the request without the cookie {COOKIE}."
            )

    def begin_response(self, session: Mapping[str, Any], content: Any) -> Response:
        """Return a response that sets the cookie of a new episode."""
        response = JSONResponse(content)
        response.set_cookie(COOKIE, session["session_id"], httponly=True)
        return response


class SeedEndpoint(BeginEndpoint):
    """Begins an episode for an agent or an environment server, which send and expect different JSON."""

    async def answer(self, request: FeatureRequest) -> Response:
        """Create an episode. An environment server sends an object with the episode's name, an agent sends a row."""
        self.check_no_cookie(request)
        content = await self.parsed(request, _object)
        body = read(SeedBody, content) if "resources_session_id" in content else None
        row = body.task_data if body else read(GymRow, content)
        name = body.resources_session_id if body else None
        session = await self.episodes.seed(request.caller, row, name)
        key = session["mcp_path"].rpartition("/")[2]
        tools = {
            "server_name": SERVER_NAME,
            "url_path": session["mcp_path"],
            "transport": "http",
            "headers": {TOKEN_HEADER: key},
        }
        return self.begin_response(
            session, {"resources_session_id": name, "resources_tools": tools} if body else {"mcp": tools}
        )


class GymResetEndpoint(BodyEndpoint, BeginEndpoint):
    """Begins an episode for the Gymnasium agent. It returns no observation, because the row contains the prompt."""

    def read(self, content: Any) -> GymRow:
        return read(GymRow, _object(content))

    async def answer_to(self, body: GymRow, request: FeatureRequest) -> Response:
        self.check_no_cookie(request)
        session = await self.episodes.seed(request.caller, body, None)
        info = {"session_id": session["session_id"], "task": session["task"], "supports_step_idempotency": True}
        return self.begin_response(session, {"observation": None, "info": info})


class StepBody(BaseModel):
    """The fields of a step that the endpoint reads: the model's response, and an id for safe repeats of the step."""

    response: dict[str, Any]
    request_id: str | None = Field(None, alias="_ng_step_request_id", min_length=1, max_length=MAX_ID)


class GymStepEndpoint(BodyEndpoint, GymEndpoint):
    """Plays a model's response for the Gymnasium agent: calls its functions, or submits its answer."""

    def read(self, content: Any) -> tuple[list[GymCall], str | None, str | None]:
        body = read(StepBody, _object(content))
        output = _output(body.response)
        return _calls(output), _last_text(output), body.request_id

    async def answer_to(self, body: tuple[list[GymCall], str | None, str | None], request: FeatureRequest) -> Response:
        return JSONResponse(await self.episodes.step(request.caller, self.session_id(request), *body))


def _calls(output: list[Any]) -> list[GymCall]:
    """Return the calls in a model's output."""
    calls = [item for item in output if isinstance(item, dict) and item.get("type") == "function_call"]
    if len(calls) > MAX_CALLS:
        raise HttpRefusedError(400, f"response.output: has {len(calls)} calls: a step can have at most {MAX_CALLS}.")
    return [read(GymCall, call, "A function_call of response.output") for call in calls]


class VerifyEndpoint(GymEndpoint):
    """Ends and evaluates an episode. The response is the request's body with the reward added."""

    async def answer(self, request: FeatureRequest) -> Response:
        content = await self.parsed(request, _object)
        answer = _last_text(_output(content.get("response")))
        verification = await self.episodes.verify(request.caller, self.session_id(request), answer)
        return JSONResponse({**content, **verification})


def _output(response: Any) -> list[Any]:
    """Return the output items of a model's response, and refuse a response without them."""
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        raise HttpRefusedError(400, "response.output: must be the list of the model's output items.")
    return output


def _last_text(output: list[Any]) -> str | None:
    """Return the model's last message, or None if the output doesn't end with a message."""
    last = output[-1] if output else None
    if not isinstance(last, dict) or last.get("type") != "message":
        return None
    message = last.get("content")
    if isinstance(message, str):
        return message
    blocks = [block for block in message or () if isinstance(block, dict)] if isinstance(message, list) else []
    return "".join(text for block in blocks if isinstance(text := block.get("text"), str))


class CloseEndpoint(GymEndpoint):
    """Ends an episode by its name. An episode begun by an agent has no name, so it expires instead.

    An environment server sends the cookie of the episode that it closes. A model can also request this path, so a
    request with an episode's cookie can't close another episode.
    """

    async def answer(self, request: FeatureRequest) -> Response:
        name = read(CloseBody, await self.parsed(request, _object)).resources_session_id
        await self.episodes.end(request.caller, name, self.cookie(request))
        return JSONResponse({"resources_session_id": name})


class FunctionEndpoint(GymEndpoint):
    """Calls the function with the name in the path.

    The path of this endpoint matches any path. So a request without an episode's cookie gets the response that it would
    get without this endpoint: 404 or 405.
    """

    verbs = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST with an episode's cookie. Respond to any other request as if this endpoint didn't exist."""
        cookies = b";".join(value for name, value in scope["headers"] if name == b"cookie")
        if scope["method"] == "POST" and COOKIE in cookie_parser(cookies.decode("latin-1")):
            await super().__call__(scope, receive, send)
            return
        for route in scope["app"].routes:
            if route.matches(scope)[0] is Match.PARTIAL:  # another endpoint has this path, with other HTTP methods
                await route.handle(scope, receive, send)
                return
        raise HTTPException(404)

    async def answer(self, request: FeatureRequest) -> Response:
        """Call the function, and return its result as text, which the agent passes to the model."""
        function = request.path["function"]
        try:
            text = await self.episodes.call(
                request.caller, self.session_id(request), function, await self.parsed(request)
            )
        except REFUSALS as error:
            reason = reason_of(error)
            if reason is None:
                raise
            raise HttpRefusedError(404 if reason == NO_TOOL else 422, sentence(error)) from None
        return PlainTextResponse(text)


class MetricsEndpoint(GymEndpoint):
    """Aggregates verifications into the mean reward of each task and of all tasks. It leaves out masked samples."""

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.parsed(request, _metrics))


def _metrics(content: Any) -> dict[str, Any]:
    """Return the mean rewards in NeMo Gym's form. A task is identified by the index that NeMo Gym gave it."""
    rewards: dict[Any, list[float]] = defaultdict(list)
    for response in read(MetricsBody, _object(content)).verify_responses:
        reward = response.get("reward")
        if isinstance(reward, int | float) and not response.get("mask_sample"):
            rewards[json.dumps(response.get("_ng_task_index"))].append(reward)
    try:
        groups = [
            {"_ng_task_index": json.loads(task), "mean/reward": fmean(group)} for task, group in sorted(rewards.items())
        ]
        mean = {"mean/reward": fmean(reward for group in rewards.values() for reward in group)} if rewards else {}
    except OverflowError:
        raise HttpRefusedError(422, "verify_responses: the sum of the rewards is too large for a float.") from None
    return {"group_level_metrics": groups, "agent_metrics": mean, "key_metrics": mean}


class ReverifyEndpoint(GymEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse("unsupported")


class RowsEndpoint(GymEndpoint):
    """Returns a toolpack's tasks as the rows of a dataset."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        rows = [json.dumps(row) async for row in self.episodes.rows(request.caller, request.path["toolpack"])]
        return PlainTextResponse("".join(f"{row}\n" for row in rows), media_type="application/jsonl")
