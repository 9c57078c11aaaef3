"""Episodes: sessions with a task, as the Open Reward Standard knows them.

The rule: an episode is a session, and everything that is done with it is a JSON-RPC request as its owner or its agent
would send it. Nothing is kept here that another worker or a restarted server would miss: the id that the protocol gives
to an episode is a label of the session, and the `call_id` of its creation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from server.features.api import App, Caller, HttpRefusedError, ReplyError
from server.features.ors.settings import OrsSettings

LABEL = "ors"
EACH = "ors-rewards"  # the label of an episode whose calls each get a reward
ALL = "all"  # the split of all tasks
ANSWER = "submit_answer"
PAGE = 1000
KNOWN = 10_000  # episodes whose sessions are remembered

HANDED_IN = "The answer was handed in."
ANSWER_TOOL = {
    "name": ANSWER,
    "description": "Hand in your answer, which ends the episode. Your work counts when it is handed in.",
    "input_schema": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
}
TERMINAL_TOOL = {"name": ANSWER, "arg": "answer", "description": ANSWER_TOOL["description"]}

REASONS = {-32003: "not_found", -32004: "input_validation"}
"""What the protocol calls a call that could not be made, by the JSON-RPC code."""

FAILED = {-32002, -32007, -32010}
"""The codes of a call that has failed, of which the agent hears."""

NOT_FOUND = -32001
INVALID = -32602
REUSED = -32009
ANSWERED = -32014


class TaskSpec(BaseModel):
    """What a trainer says of an episode."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(description="The task, as toolpack/name.")
    seed: str | None = None
    perturbations: dict[str, JsonValue] | None = None
    rewards: Literal["end", "each"] | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, by its session.

    Attributes:
        each: Whether each call gets the reward so far.
        max_calls: After how many calls it ends without an answer, if it does.
    """

    session_id: str
    each: bool
    max_calls: int | None


class OrsEpisodes:
    """Everything that the endpoints do with the episodes and tasks of one server."""

    def __init__(self, app: App) -> None:
        self._app = app
        # None of these can change: a server that is started again with other toolpacks is another process.
        self._known: dict[tuple[str, str], Episode] = {}
        self._environments: list[str] = []
        self._tasks: dict[tuple[str, str], list[str]] = {}

    # Tasks

    async def environments(self, caller: Caller) -> list[str]:
        """Get the toolpacks that have tasks."""
        if not self._environments:
            toolpacks = await self._app.request(caller, "list_toolpacks", {})
            self._environments = [toolpack["name"] for toolpack in toolpacks if toolpack["tasks"]]
        return self._environments

    async def environment(self, caller: Caller, name: str | None, hint: str = "") -> str:
        """Get the toolpack that a request means: the one it names, the one that it hints at, or the only one.

        Raises:
            HttpRefusedError: There is no such toolpack, or more than one.
        """
        found = await self.environments(caller)
        names = ", ".join(found) or "none has tasks"
        by_name = {each.lower(): each for each in found}
        if name is not None:
            if name.lower() not in by_name:
                raise HttpRefusedError(404, f"There is no environment {name[:200]!r} with tasks: use {names}.")
            return by_name[name.lower()]
        if hint.lower() in by_name:
            return by_name[hint.lower()]
        if len(found) != 1:
            raise HttpRefusedError(400, f"Which environment? Write its name before the path: {names}.")
        return found[0]

    async def splits(self, caller: Caller, env: str) -> list[str]:
        page = await self._app.request(caller, "list_tasks", {"toolpack": env, "limit": 1})
        return [ALL, *(split for split in page["splits"] if split and split != ALL)]

    async def tasks(self, caller: Caller, env: str, split: str) -> list[dict[str, str]]:
        """Get the specifications of a split's tasks, in the order of `list_tasks`."""
        names = self._tasks.get((env, split))
        if names is None:
            splits = await self.splits(caller, env)
            if split not in splits:
                raise HttpRefusedError(400, f"Invalid split: {env} has {', '.join(splits)}.")
            names = self._tasks[env, split] = await self._names(caller, env, None if split == ALL else split)
        return [{"task": name} for name in names]

    async def _names(self, caller: Caller, env: str, split: str | None) -> list[str]:
        names: list[str] = []
        after = -1
        while True:
            params = {"toolpack": env, "split": split, "after": after, "limit": PAGE}
            page = (await self._app.request(caller, "list_tasks", params))["tasks"]
            if not page:
                return names
            names += (task["task"] for task in page)
            after = page[-1]["index"]

    async def task(self, caller: Caller, env: str, split: str, index: int) -> dict[str, str]:
        tasks = await self.tasks(caller, env, split)
        if not -len(tasks) <= index < len(tasks):
            raise HttpRefusedError(400, f"Invalid index: the split {split} of {env} has {len(tasks)} tasks.")
        return tasks[index]

    async def tools_of(self, caller: Caller, env: str) -> dict[str, Any]:
        """Get the tools of a toolpack, before there is an episode."""
        listed = (await self._app.request(caller, "list_functions", {}))["result"]
        return _tools([each for each in listed if each["toolpack"] == env])

    # Episodes

    async def create(self, caller: Caller, sid: str, spec: TaskSpec) -> None:
        """Create the session of an episode; the same request again makes no other."""
        settings = self._app.settings_of(OrsSettings)
        each = (spec.rewards or settings.rewards) == "each"
        params = {
            "labels": {LABEL: sid, **({EACH: "each"} if each else {})},
            "call_id": f"{LABEL}-{sid}",
            "ttl_seconds": settings.ttl_seconds,
            **spec.model_dump(exclude={"rewards"}, exclude_none=True),
        }
        try:
            session = await self._app.request(caller, "create_session", params)
        except ReplyError as error:
            if error.code == REUSED:
                raise HttpRefusedError(400, "Session already exists: this X-Session-ID has another task.") from None
            raise
        await self._remember(caller, sid, session)

    async def find(self, caller: Caller, sid: str) -> Episode:
        """Find the episode that a request is about; a fork of one has its label, and is none.

        Raises:
            HttpRefusedError: There is none.
        """
        known = self._known.get((caller.owner, sid))
        if known is not None:
            return known
        found = await self._app.request(caller, "list_sessions", {"labels": {LABEL: sid}, "limit": PAGE})
        for session in found:
            if session["parent"] is None and session["task"] is not None:
                return await self._remember(caller, sid, session)
        raise _not_found()

    async def _remember(self, caller: Caller, sid: str, session: Mapping[str, Any]) -> Episode:
        session_id = session["session_id"]
        told = await self._as_agent(caller, session_id, "get_task")
        if len(self._known) >= KNOWN:
            del self._known[next(iter(self._known))]
        episode = self._known[caller.owner, sid] = Episode(session_id, EACH in session["labels"], told["max_calls"])
        return episode

    async def renew(self, caller: Caller, sid: str) -> None:
        """Let an episode live for its time to live from now on."""
        episode = await self.find(caller, sid)
        try:
            await self._app.request(caller, "get_session", {"session_id": episode.session_id})
        except ReplyError as error:
            if error.code != NOT_FOUND:
                raise
            self.forget(caller, sid)
            raise _not_found() from None

    def forget(self, caller: Caller, sid: str) -> None:
        self._known.pop((caller.owner, sid), None)

    async def prompt(self, caller: Caller, episode: Episode) -> list[dict[str, str]]:
        """Get the prompt as messages, each with `role` and `content`."""
        prompt = (await self._as_agent(caller, episode.session_id, "get_task"))["prompt"]
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []

    async def tools(self, caller: Caller, episode: Episode) -> dict[str, Any]:
        return _tools((await self._as_agent(caller, episode.session_id, "list_functions"))["result"])

    async def call(
        self, caller: Caller, episode: Episode, tool: str, given: Mapping[str, Any], task_id: str, *, again: bool
    ) -> dict[str, Any]:
        """Call a tool once, whatever is sent again with this `task_id`, and get what the protocol answers.

        Args:
            again: The client has given the id, so it may have been called before.
        """
        if tool == ANSWER:
            return await self._answer(caller, episode, given, again=again)
        call_id, refusal = f"{LABEL}-{task_id}", None
        try:
            envelope = await self._as_agent(
                caller,
                episode.session_id,
                "run_function",
                function=tool,
                kwargs=given,
                call_id=call_id,
                raise_on_error=True,
            )
            blocks = _blocks(envelope["result"])
        except ReplyError as error:
            if error.code not in {*FAILED, *REASONS}:
                raise
            if error.data.get("type") == "EpisodeOverError":
                return _refused(error.message, "episode_finished")
            if error.code in REASONS:
                refusal = _refused(error.message, REASONS[error.code])
            blocks = [block_of(f"{error.data['type']}: {error.message}")]
        ended = await self._is_end(caller, episode, call_id)
        return refusal if refusal and not ended else await self._output(caller, episode, blocks, ended=ended)

    async def _is_end(self, caller: Caller, episode: Episode, call_id: str) -> bool:
        """Whether a call has used up the last of the calls of an episode's agent."""
        if episode.max_calls is None:
            return False
        told = await self._as_agent(caller, episode.session_id, "get_task")
        if not told["done"]:
            return False
        left, after = episode.max_calls, -1
        while True:
            params = {"session_id": episode.session_id, "path": True, "after": after, "limit": PAGE}
            records = await self._app.request(caller, "get_trace", params)
            for record in records:
                if record["kind"] == "call" and record.get("by") != "client":
                    left -= 1 + len(record.get("nested", ()))
                    if left <= 0:
                        return bool(record["call_id"] == call_id)
            if not records:
                return False
            after += len(records)

    async def _answer(
        self, caller: Caller, episode: Episode, given: Mapping[str, Any], *, again: bool
    ) -> dict[str, Any]:
        """Hand in the answer, which gets the reward; another one, or the same with another id, gets none."""
        answer = given.get("answer", "")
        if not given.keys() <= {"answer"} or not isinstance(answer, str):
            return _refused(f"{ANSWER} takes one text, answer.", "input_validation")
        told = await self._as_agent(caller, episode.session_id, "get_task")
        used_up = told["max_calls"] is not None and told["calls"] >= told["max_calls"]
        if told["done"] and (used_up or not again):
            return _refused("The episode is over, so no further answer is taken.", "episode_finished")
        try:
            await self._as_agent(caller, episode.session_id, ANSWER, answer=answer)
        except ReplyError as error:
            if error.code not in {ANSWERED, INVALID}:
                raise
            reason = "episode_finished" if error.code == ANSWERED else "input_validation"
            return _refused(error.data.get("detail") or error.message, reason)
        return await self._output(caller, episode, [block_of(HANDED_IN)], ended=True)

    async def _output(
        self, caller: Caller, episode: Episode, blocks: list[dict[str, Any]], *, ended: bool
    ) -> dict[str, Any]:
        """Get a tool's output, with the reward if it ends the episode, or if each call gets one."""
        output: dict[str, Any] = {"blocks": blocks, "metadata": None, "reward": None, "finished": ended}
        if ended or episode.each:
            verdict = await self._verdict(caller, episode, record=ended)
            shown = ("task", "version", "passed", "checks", "valid", "failure")
            output["metadata"] = {"session_id": episode.session_id, **{name: verdict[name] for name in shown}}
            output["reward"] = verdict["reward"] if verdict["valid"] else None
        return {"ok": True, "output": output}

    async def _verdict(self, caller: Caller, episode: Episode, *, record: bool) -> dict[str, Any]:
        params = {"session_id": episode.session_id, "record": record, "raise_on_error": False}
        verdict: dict[str, Any] = await self._app.request(caller, "evaluate_session", params)
        return verdict

    async def end(self, caller: Caller, sid: str) -> None:
        """Record the verdict on an episode that ends without an answer."""
        episode = await self.find(caller, sid)
        if not (await self._as_agent(caller, episode.session_id, "get_task"))["done"]:
            await self._verdict(caller, episode, record=True)

    async def _as_agent(self, caller: Caller, session_id: str, method: str, **params: Any) -> Any:
        return await self._app.request(Caller(caller.owner, session_id), method, params)


def _not_found() -> HttpRefusedError:
    return HttpRefusedError(404, "Active environment not found: it has expired, or was never created.")


def _refused(error: str, reason: str) -> dict[str, Any]:
    return {"ok": False, "error": error, "reason": reason}


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
        if each["name"] != ANSWER
    ]
    return {
        "tools": [*tools, ANSWER_TOOL],
        "terminal_tool": TERMINAL_TOOL,
        "supports_score_group": False,
        "message_block_types": ["text", "image"],
    }
