"""Episodes in the terms of the Open Reward Standard. `task_episodes` implements what all protocols share."""

import json
from typing import Any

from toolpack_server.features.api.core import App, Caller, HttpRefusedError, SessionNotFoundError
from toolpack_trainers.ors.settings import OrsSettings
from toolpack_trainers.task_episodes import (
    ANSWER,
    ANSWER_DESCRIPTION,
    ANSWER_SCHEMA,
    TaskEpisode,
    TaskEpisodes,
    TaskSpec,
)

MAX_CACHED = 10_000  # max number of cached episodes

ANSWER_TOOL = {"name": ANSWER, "description": ANSWER_DESCRIPTION, "input_schema": ANSWER_SCHEMA}
TERMINAL_TOOL = {"name": ANSWER, "arg": "answer", "description": ANSWER_DESCRIPTION}


class OrsEpisodes(TaskEpisodes):
    """ORS's operations on episodes and tasks."""

    label = "ors"

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._cache: dict[tuple[str, str], TaskEpisode] = {}  # by owner and id; the entries are immutable

    async def tools_of(self, caller: Caller, env: str) -> dict[str, Any]:
        """Return the tools of a toolpack, for requests without an episode."""
        return _tools(await self.functions_of(caller, env))

    async def create(self, caller: Caller, sid: str, spec: TaskSpec) -> None:
        """Create the session of an episode. A repeated request changes nothing."""
        settings = self.app.settings.of(OrsSettings)
        rewards_each_call = settings.rewards == "each"
        episode, _ = await self.begin(
            caller, sid, spec, {self.label: sid}, rewards_each_call=rewards_each_call, ttl=settings.ttl_seconds
        )
        self._remember(caller, sid, episode)

    async def find(self, caller: Caller, sid: str) -> TaskEpisode:
        """Return the episode with this id.

        Raises:
            HttpRefusedError: No episode has this id.
        """
        cached = self._cache.get((caller.owner, sid))
        if cached is not None:
            return cached
        episode = await self.newest(caller, sid)
        if episode is None:
            raise _not_found()
        self._remember(caller, sid, episode)
        return episode

    def _remember(self, caller: Caller, sid: str, episode: TaskEpisode) -> None:
        if len(self._cache) >= MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[caller.owner, sid] = episode

    async def renew(self, caller: Caller, sid: str) -> None:
        """Restart the time to live of an episode."""
        episode = await self.find(caller, sid)
        try:
            await self.app.invoke(caller, "get_session", {"session_id": episode.session_id})
        except SessionNotFoundError:
            self.forget(caller, sid)
            raise _not_found() from None

    def forget(self, caller: Caller, sid: str) -> None:
        """Remove an episode from the cache."""
        self._cache.pop((caller.owner, sid), None)

    async def tools(self, caller: Caller, episode: TaskEpisode) -> dict[str, Any]:
        """Return the tools of an episode."""
        return _tools(await self.functions(caller, episode))

    async def output(
        self, caller: Caller, episode: TaskEpisode, tool: str, arguments: Any, task_id: str
    ) -> dict[str, Any]:
        """Call a tool and return the result in ORS's form.

        If a request with the same `task_id` was executed before, run nothing again.
        """
        played = await self.call(caller, episode, tool, arguments, task_id)
        if played.reason is not None:
            return {"ok": False, "error": played.result, "reason": played.reason}
        output = {
            "blocks": _blocks(played.result),
            "metadata": played.metadata,
            "reward": played.reward,
            "finished": played.ended,
        }
        return {"ok": True, "output": output}


def _not_found() -> HttpRefusedError:
    return HttpRefusedError(404, "Active environment not found: it has expired, or was never created.")


def block_of(text: str) -> dict[str, Any]:
    """Return a string as a text block."""
    return {"text": text, "detail": None, "type": "text"}


def _blocks(result: Any) -> list[dict[str, Any]]:
    """Return a result as blocks. Keep text and image blocks. A string becomes a text block, another value its JSON."""
    if isinstance(result, str):
        return [block_of(result)]
    if isinstance(result, list) and result and all(map(_is_content, result)):
        return [
            block_of(block["text"])
            if block["type"] == "text"
            else {"data": block["data"], "mimeType": block["mimeType"], "detail": None, "type": "image"}
            for block in result
        ]
    return [block_of(json.dumps(result, ensure_ascii=False))]


def _is_content(block: Any) -> bool:
    """Return whether a value is a text block or an image block in MCP's form."""
    texts = {"text": ("text",), "image": ("data", "mimeType")}
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind in texts and all(isinstance(block.get(name), str) for name in texts[kind])


def _tools(functions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the list of tools: the functions, and the tool that submits the answer."""
    tools = [
        {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
        for function in functions
    ]
    return {
        "tools": [*tools, ANSWER_TOOL],
        "terminal_tool": TERMINAL_TOOL,
        "supports_score_group": False,
        "message_block_types": ["text", "image"],
    }
