"""The paths of a resources server of NeMo Gym, as its version 0.7 asks for them.

A path only translates; what an episode is and does is in `episodes.py`. A refusal is `{"detail": …}`, and
none is 500. A path that is none of the server's is a function's, but only for whoever brings the cookie of an episode.
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
from toolpack_trainers.endpoints import EpisodeEndpoint
from toolpack_trainers.nemo_gym.episodes import GymEpisodes, GymRow
from toolpack_trainers.nemo_gym.feature import COOKIE
from toolpack_trainers.task_episodes import NO_TOOL, read, reason_of

SERVER_NAME = "toolpack"
TOKEN_HEADER = "X-NeMo-Gym-Session-Token"  # noqa: S105 - a header's name
MAX_ID = 128


class SeedBody(BaseModel):
    """An environment server names the episode; an agent only sends a row."""

    resources_session_id: str = Field(min_length=1, max_length=MAX_ID)
    task_data: GymRow


class CloseBody(BaseModel):
    resources_session_id: str = Field(min_length=1, max_length=MAX_ID)


class MetricsBody(BaseModel):
    verify_responses: Annotated[list[dict[str, Any]], FailFast()]


def _object(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise HttpRefusedError(400, "The body must be a JSON object.")
    return given


class GymEndpoint(EpisodeEndpoint):
    """What the paths have in common; the token comes as a bearer token, or as the password of the server's URL."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.episodes = self.app.feature(GymEpisodes)

    def credentials(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"basic":
            return headers
        try:
            token = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return headers
        return {**headers, b"authorization": b"Bearer " + token}

    def refusal(self, status: int, message: str) -> Response:
        return JSONResponse({"detail": message}, status)

    @staticmethod
    def cookie(request: FeatureRequest) -> str | None:
        """Return the session of the episode that sends the request; None if it brings no cookie."""
        return cookie_parser(request.headers.get("cookie", "")).get(COOKIE)

    def session_id(self, request: FeatureRequest) -> str:
        found = self.cookie(request)
        if not found:
            raise HttpRefusedError(400, f"Which episode? Send the cookie {COOKIE}, from POST /seed_session.")
        return found


class SeedEndpoint(GymEndpoint):
    """Begins an episode, for an agent or for an environment server, which each have another body and answer."""

    async def answer(self, request: FeatureRequest) -> Response:
        if self.cookie(request) is not None:  # its model has called a tool of this name
            raise HttpRefusedError(403, f"An episode begins no other one: send it without the cookie {COOKIE}.")
        given = await self.parsed(request, _object)
        named = read(SeedBody, given) if "resources_session_id" in given else None
        row = named.task_data if named else read(GymRow, given)
        name = named.resources_session_id if named else None
        session = await self.episodes.seed(request.caller, row, name)
        key = session["mcp_path"].rpartition("/")[2]
        tools = {
            "server_name": SERVER_NAME,
            "url_path": session["mcp_path"],
            "transport": "http",
            "headers": {TOKEN_HEADER: key},
        }
        told = {"resources_session_id": name, "resources_tools": tools} if named else {"mcp": tools}
        response = JSONResponse(told)
        response.set_cookie(COOKIE, session["session_id"], httponly=True)
        return response


class VerifyEndpoint(GymEndpoint):
    """Ends and evaluates an episode; what it was asked comes back with the reward."""

    async def answer(self, request: FeatureRequest) -> Response:
        given = await self.parsed(request, _object)
        verified = await self.episodes.verify(request.caller, self.session_id(request), _last_text(given))
        return JSONResponse({**given, **verified})


def _last_text(given: Mapping[str, Any]) -> str | None:
    """Get what the model has said last; None if it didn't end with a message."""
    response = given.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        raise HttpRefusedError(400, "response.output: must be the list of what the model has put out.")
    last = output[-1] if output else None
    if not isinstance(last, dict) or last.get("type") != "message":
        return None
    content = last.get("content")
    if isinstance(content, str):
        return content
    blocks = [block for block in content or () if isinstance(block, dict)] if isinstance(content, list) else []
    return "".join(text for block in blocks if isinstance(text := block.get("text"), str))


class CloseEndpoint(GymEndpoint):
    """Ends an episode; one that was seeded by an agent, which knows no name, expires.

    An environment server sends the cookie of the episode that it closes, and a model may name this path, too: so an
    episode's cookie closes no other episode.
    """

    async def answer(self, request: FeatureRequest) -> Response:
        name = read(CloseBody, await self.parsed(request, _object)).resources_session_id
        await self.episodes.end(request.caller, name, self.cookie(request))
        return JSONResponse({"resources_session_id": name})


class FunctionEndpoint(GymEndpoint):
    """Calls the function that the path names; whoever brings no episode's cookie is told what it would be without."""

    verbs = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cookies = b";".join(value for name, value in scope["headers"] if name == b"cookie")
        if scope["method"] == "POST" and COOKIE in cookie_parser(cookies.decode("latin-1")):
            await super().__call__(scope, receive, send)
            return
        for route in scope["app"].routes:
            if route.matches(scope)[0] is Match.PARTIAL:  # the path is another's, with other methods
                await route.handle(scope, receive, send)
                return
        raise HTTPException(404)

    async def answer(self, request: FeatureRequest) -> Response:
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
    """Sums up verifications: the mean reward of each task and of all, without those that are masked."""

    async def answer(self, request: FeatureRequest) -> Response:
        return JSONResponse(await self.parsed(request, _metrics))


def _metrics(given: Any) -> dict[str, Any]:
    rewards: dict[Any, list[float]] = defaultdict(list)
    for each in read(MetricsBody, _object(given)).verify_responses:
        reward = each.get("reward")
        if isinstance(reward, int | float) and not each.get("mask_sample"):
            rewards[json.dumps(each.get("_ng_task_index"))].append(reward)
    try:
        groups = [
            {"_ng_task_index": json.loads(task), "mean/reward": fmean(each)} for task, each in sorted(rewards.items())
        ]
        mean = {"mean/reward": fmean(reward for each in rewards.values() for reward in each)} if rewards else {}
    except OverflowError:
        raise HttpRefusedError(422, "verify_responses: the rewards are too large to be summed up.") from None
    return {"group_level_metrics": groups, "agent_metrics": mean, "key_metrics": mean}


class ReverifyEndpoint(GymEndpoint):
    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:  # noqa: ARG002
        return JSONResponse("unsupported")


class RowsEndpoint(GymEndpoint):
    """Gets a toolpack's tasks as the rows of a dataset."""

    verbs = ("GET",)

    async def answer(self, request: FeatureRequest) -> Response:
        rows = [json.dumps(row) async for row in self.episodes.rows(request.caller, request.path["toolpack"])]
        return PlainTextResponse("".join(f"{row}\n" for row in rows), media_type="application/jsonl")
