"""Episodes as the Open Reward Standard knows them.

What the standard has its own words for is said in them here; all else is in `task_episodes`.
"""

import json
from typing import Any

from toolpack_server.features.api.core import App, Caller, HttpRefusedError, SessionNotFoundError
from toolpack_trainers.ors.settings import OrsSettings
from toolpack_trainers.task_episodes import (
    ANSWER,
    ANSWER_ABOUT,
    ANSWER_SCHEMA,
    TaskEpisode,
    TaskEpisodes,
    TaskSpec,
)

KNOWN = 10_000  # episodes whose sessions are remembered

ANSWER_TOOL = {"name": ANSWER, "description": ANSWER_ABOUT, "input_schema": ANSWER_SCHEMA}
TERMINAL_TOOL = {"name": ANSWER, "arg": "answer", "description": ANSWER_ABOUT}


class OrsEpisodes(TaskEpisodes):
    """Everything that the endpoints do with the episodes and tasks of one server."""

    label = "ors"

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._known: dict[tuple[str, str], TaskEpisode] = {}  # none of these can change

    async def tools_of(self, caller: Caller, env: str) -> dict[str, Any]:
        """Get the tools of a toolpack, before there is an episode."""
        return _tools(await self.functions_of(caller, env))

    async def create(self, caller: Caller, sid: str, spec: TaskSpec) -> None:
        """Create the session of an episode; the same request again makes no other."""
        settings = self.app.settings.of(OrsSettings)
        each = settings.rewards == "each"
        made, _ = await self.begin(caller, sid, spec, {self.label: sid}, each=each, ttl=settings.ttl_seconds)
        self._remember(caller, sid, made)

    async def find(self, caller: Caller, sid: str) -> TaskEpisode:
        """Find the episode that a request is about.

        Raises:
            HttpRefusedError: There is none.
        """
        known = self._known.get((caller.owner, sid))
        if known is not None:
            return known
        found = await self.newest(caller, sid)
        if found is None:
            raise _not_found()
        self._remember(caller, sid, found)
        return found

    def _remember(self, caller: Caller, sid: str, episode: TaskEpisode) -> None:
        if len(self._known) >= KNOWN:
            del self._known[next(iter(self._known))]
        self._known[caller.owner, sid] = episode

    async def renew(self, caller: Caller, sid: str) -> None:
        """Let an episode live for its time to live from now on."""
        episode = await self.find(caller, sid)
        try:
            await self.app.invoke(caller, "get_session", {"session_id": episode.session_id})
        except SessionNotFoundError:
            self.forget(caller, sid)
            raise _not_found() from None

    def forget(self, caller: Caller, sid: str) -> None:
        self._known.pop((caller.owner, sid), None)

    async def tools(self, caller: Caller, episode: TaskEpisode) -> dict[str, Any]:
        return _tools(await self.functions(caller, episode))

    async def output(self, caller: Caller, episode: TaskEpisode, tool: str, given: Any, task_id: str) -> dict[str, Any]:
        """Call a tool once, whatever is sent again with this `task_id`, and get what the protocol answers."""
        told = await self.call(caller, episode, tool, given, task_id)
        if told.reason is not None:
            return {"ok": False, "error": told.result, "reason": told.reason}
        output = {
            "blocks": _blocks(told.result),
            "metadata": told.metadata,
            "reward": told.reward,
            "finished": told.ended,
        }
        return {"ok": True, "output": output}


def _not_found() -> HttpRefusedError:
    return HttpRefusedError(404, "Active environment not found: it has expired, or was never created.")


def block_of(text: str) -> dict[str, Any]:
    return {"text": text, "detail": None, "type": "text"}


def _blocks(result: Any) -> list[dict[str, Any]]:
    """Get a result as blocks: a function's own text and images as they are, a string as text, all else as JSON."""
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
    texts = {"text": ("text",), "image": ("data", "mimeType")}
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind in texts and all(isinstance(block.get(name), str) for name in texts[kind])


def _tools(functions: list[dict[str, Any]]) -> dict[str, Any]:
    tools = [
        {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
        for each in functions
    ]
    return {
        "tools": [*tools, ANSWER_TOOL],
        "terminal_tool": TERMINAL_TOOL,
        "supports_score_group": False,
        "message_block_types": ["text", "image"],
    }
