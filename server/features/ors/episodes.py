"""Episodes: sessions with a task, as the Open Reward Standard knows them.

The rule: an episode is a session, and everything that is done with it is a JSON-RPC request as its owner or its agent
would send it. Nothing is kept here that another worker or a restarted server would miss: the id that the protocol gives
to an episode is a label of the session, and the `call_id` of its creation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from server.features.api import App, Caller, HttpRefusedError, ReplyError
from server.features.ors.settings import OrsSettings

LABEL = "ors"
ALL = "all"  # the split of all tasks
ANSWER = "submit_answer"
PAGE = 1000
KNOWN = 10_000  # episodes whose addresses are remembered

ANSWER_TOOL = {
    "name": ANSWER,
    "description": "Hand in your answer, which ends the episode. Only what is handed in counts.",
    "input_schema": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
}
TERMINAL_TOOL = {"name": ANSWER, "arg": "answer", "description": ANSWER_TOOL["description"]}

REASONS = {-32003: "not_found", -32004: "input_validation"}
"""What the protocol calls a call that could not be made, by the JSON-RPC code."""


class TaskSpec(BaseModel):
    """What a trainer says of an episode."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(description="The task, as toolpack/name.")
    seed: str | None = None
    perturbations: dict[str, JsonValue] | None = None
    rewards: str | None = Field(None, pattern="^(end|each)$")


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, by the addresses of its session.

    Attributes:
        env: The toolpack of its task.
        each: Whether each call gets the reward so far.
    """

    session_id: str
    agent_key: str
    env: str
    each: bool


class Episodes:
    """Everything that the endpoints do with the episodes and tasks of one server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known: dict[tuple[str, str], Episode] = {}

    # Tasks

    async def environments(self, caller: Caller) -> list[str]:
        """Get the toolpacks that have tasks."""
        page = await self._app.request(caller, "list_toolpacks", {})
        found = []
        for toolpack in page:
            tasks = await self._app.request(caller, "list_tasks", {"toolpack": toolpack["name"], "limit": 1})
            if tasks["total"]:
                found.append(toolpack["name"])
        return found

    async def environment(self, caller: Caller, env: str | None) -> str:
        """Get the toolpack that a path means: the one it names, or the only one.

        Raises:
            HttpRefusedError: There is no such toolpack, or more than one.
        """
        found = await self.environments(caller)
        named = next((each for each in found if env is not None and each.lower() == env.lower()), None)
        if named is not None:
            return named
        if env is None and len(found) == 1:
            return found[0]
        if env is None:
            raise HttpRefusedError(400, f"Which environment? Write its name before the path: {', '.join(found)}.")
        raise HttpRefusedError(404, f"There is no environment {env[:200]!r} with tasks: use {', '.join(found)}.")

    async def splits(self, caller: Caller, env: str) -> list[str]:
        page = await self._app.request(caller, "list_tasks", {"toolpack": env, "limit": 1})
        return [ALL, *(split for split in page["splits"] if split and split != ALL)]

    async def tasks(self, caller: Caller, env: str, split: str) -> list[dict[str, str]]:
        """Get the specifications of a split's tasks, in the order of `list_tasks`."""
        if split not in await self.splits(caller, env):
            raise HttpRefusedError(400, f"Invalid split: {env} has {', '.join(await self.splits(caller, env))}.")
        params: dict[str, Any] = {"toolpack": env, "limit": PAGE}
        if split != ALL:
            params["split"] = split
        names: list[str] = []
        while True:
            page = (await self._app.request(caller, "list_tasks", params))["tasks"]
            names += (task["task"] for task in page)
            if len(page) < PAGE:
                return [{"task": name} for name in names]
            params["after"] = page[-1]["index"]

    async def task(self, caller: Caller, env: str, split: str, index: int) -> dict[str, str]:
        tasks = await self.tasks(caller, env, split)
        if not -len(tasks) <= index < len(tasks):
            raise HttpRefusedError(400, f"Invalid index: the split {split} of {env} has {len(tasks)} tasks.")
        return tasks[index]

    # Episodes

    async def create(self, caller: Caller, sid: str, spec: Mapping[str, Any]) -> None:
        """Create the session of an episode; the same request again makes no other."""
        try:
            wanted = TaskSpec.model_validate(spec)
        except ValueError as error:
            problem = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
            place = ".".join(map(str, problem["loc"])) or "task_spec"
            raise HttpRefusedError(400, f"task_spec: {place}: {problem['msg']}.") from None
        settings = self._app.settings_of(OrsSettings)
        each = (wanted.rewards or settings.rewards) == "each"
        params: dict[str, Any] = {
            "task": wanted.task,
            "labels": {LABEL: sid, **({"rewards": "each"} if each else {})},
            "call_id": f"{LABEL}-{sid}",
            "ttl_seconds": settings.ttl_seconds,
        }
        params |= {
            name: value
            for name, value in (("seed", wanted.seed), ("perturbations", wanted.perturbations))
            if value is not None
        }
        self._remember(caller, sid, await self._app.request(caller, "create_session", params))

    async def find(self, caller: Caller, sid: str | None) -> Episode:
        """Find the episode that a request is about.

        Raises:
            HttpRefusedError: There is none.
        """
        if not sid:
            raise HttpRefusedError(400, "Which episode? Send the header X-Session-ID.")
        known = self._known.get((caller.owner, sid))
        if known is not None:
            return known
        found = await self._app.request(caller, "list_sessions", {"labels": {LABEL: sid}, "limit": 1})
        if not found:
            raise HttpRefusedError(404, "Active environment not found: it has ended, or was never created.")
        return self._remember(caller, sid, found[0])

    def _remember(self, caller: Caller, sid: str, session: Mapping[str, Any]) -> Episode:
        if len(self._known) >= KNOWN:
            del self._known[next(iter(self._known))]
        key = session["agent_path"].rpartition("/")[2]
        env = session["task"].partition("/")[0]
        episode = Episode(session["session_id"], key, env, "rewards" in session["labels"])
        self._known[caller.owner, sid] = episode
        return episode

    def forget(self, caller: Caller, sid: str) -> None:
        self._known.pop((caller.owner, sid), None)

    async def prompt(self, episode: Episode) -> list[dict[str, Any]]:
        """Get the prompt as blocks; one that is a conversation becomes its texts, each with who says it."""
        prompt = (await self._as_agent(episode, "get_task"))["prompt"]
        if isinstance(prompt, str):
            return [_text(prompt)]
        return [_text(f"{each['role']}: {each['content']}") for each in prompt or ()]

    async def tools(self, episode: Episode) -> dict[str, Any]:
        listed = await self._as_agent(episode, "list_functions", format="mcp")
        return _tools(listed["result"])

    async def tools_of(self, caller: Caller, env: str) -> dict[str, Any]:
        """Get the tools of a toolpack, before there is an episode: of a session that ends at once."""
        session = await self._app.request(caller, "create_session", {"toolpacks": [env], "ttl_seconds": 60})
        params = {"session_id": session["session_id"]}
        try:
            listed = await self._app.request(caller, "list_functions", {**params, "format": "mcp"})
        finally:
            await self._app.request(caller, "close_session", params)
        return _tools(listed["result"])

    async def call(self, caller: Caller, episode: Episode, tool: str, given: Mapping[str, Any], call_id: str) -> Any:
        """Call a tool once, whatever is sent again with this `call_id`, and get what the protocol answers."""
        if tool == ANSWER:
            return await self._answer(caller, episode, given)
        try:
            result = await self._as_agent(
                episode, "run_function", function=tool, kwargs=given, call_id=call_id, raise_on_error=True
            )
        except ReplyError as error:
            if error.code in REASONS:
                return {"ok": False, "error": error.message, "reason": REASONS[error.code]}
            if error.data.get("type") == "EpisodeOverError":
                return {"ok": False, "error": error.message, "reason": "episode_finished"}
            if error.code not in {-32002, -32007, -32010}:
                raise
            return await self._output(caller, episode, [_text(error.message)])
        return await self._output(caller, episode, _blocks(result["result"]))

    async def _answer(self, caller: Caller, episode: Episode, given: Mapping[str, Any]) -> Any:
        answer = given.get("answer", "") if given.keys() <= {"answer"} else None
        if not isinstance(answer, str):
            return {"ok": False, "error": "submit_answer takes one text, answer.", "reason": "input_validation"}
        try:
            await self._as_agent(episode, ANSWER, answer=answer)
        except ReplyError as error:
            if error.code != -32014:  # noqa: PLR2004 - another answer was submitted before
                raise
            return {"ok": False, "error": error.message, "reason": "episode_finished"}
        return await self._output(caller, episode, [_text("The answer was handed in.")], done=True)

    async def _output(
        self, caller: Caller, episode: Episode, blocks: list[dict[str, Any]], *, done: bool = False
    ) -> dict[str, Any]:
        """Get a tool's output, with the reward if the episode has ended, or if each call gets one."""
        done = done or (await self._as_agent(episode, "get_task"))["done"]
        output: dict[str, Any] = {"blocks": blocks, "metadata": None, "reward": None, "finished": done}
        if done or episode.each:
            output["reward"], output["metadata"] = await self.verdict(caller, episode, record=done)
        return {"ok": True, "output": output}

    async def verdict(self, caller: Caller, episode: Episode, *, record: bool) -> tuple[float | None, dict[str, Any]]:
        """Evaluate an episode: its reward, None if none could be had, and what the trainer may want to know of it."""
        params = {"session_id": episode.session_id, "record": record, "raise_on_error": False}
        verdict = await self._app.request(caller, "evaluate_session", params)
        about = {name: verdict[name] for name in ("task", "version", "passed", "checks", "valid", "failure")}
        return verdict["reward"] if verdict["valid"] else None, {"session_id": episode.session_id, **about}

    async def end(self, caller: Caller, episode: Episode) -> None:
        """Record the verdict on an episode that ends without an answer, if it can be evaluated."""
        if not (await self._as_agent(episode, "get_task"))["done"]:
            await self.verdict(caller, episode, record=True)

    async def _as_agent(self, episode: Episode, method: str, **params: Any) -> Any:
        return await self._app.request(await self._app.agent(episode.agent_key), method, params)


def _text(text: str) -> dict[str, Any]:
    return {"text": text, "detail": None, "type": "text"}


def _blocks(result: Any) -> list[dict[str, Any]]:
    """Get a result as blocks: a function's own text and images as they are, a string as text, all else as JSON."""
    if isinstance(result, str):
        return [_text(result)]
    if isinstance(result, list) and result and all(_is_content(block) for block in result):
        return [
            _text(block["text"])
            if block["type"] == "text"
            else {"data": block["data"], "mimeType": block["mimeType"], "detail": None, "type": "image"}
            for block in result
        ]
    return [_text(json.dumps(result, ensure_ascii=False))]


def _is_content(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    texts = ("text",) if block.get("type") == "text" else ("data", "mimeType") if block.get("type") == "image" else ()
    return bool(texts) and all(isinstance(block.get(name), str) for name in texts)


def _tools(functions: list[dict[str, Any]]) -> dict[str, Any]:
    tools = [
        {"name": each["name"], "description": each.get("description", ""), "input_schema": each["inputSchema"]}
        for each in functions
    ]
    return {
        "tools": [*tools, ANSWER_TOOL],
        "terminal_tool": TERMINAL_TOOL,
        "supports_score_group": False,
        "message_block_types": ["text", "image"],
    }
