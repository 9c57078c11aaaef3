"""Episodes as OpenEnv knows them: what a reset, a step and a question for the state are answered.

What OpenEnv has its own words for is said in them here; all else is in `task_episodes`. A session of
OpenEnv's is an id that a client has, before there is an episode and from one to the next: a label. A client that goes
on with an episode may have another id by then; labels don't change, so a session without toolpacks is made that has
this id, and says which one is meant.
"""

import random
import uuid
from typing import Any

from toolpack_server.features.api.core import Caller, HttpRefusedError, SessionNotFoundError
from toolpack_trainers.openenv.messages import AnswerAction, CallTool, ResetData
from toolpack_trainers.openenv.settings import OpenEnvSettings
from toolpack_trainers.task_episodes import (
    ANSWER,
    ANSWER_ABOUT,
    ANSWER_SCHEMA,
    NO_TOOL,
    OVER,
    PAGE,
    WRONG_INPUT,
    PlayedCall,
    TaskEpisode,
    TaskEpisodes,
    TaskSpec,
    messages_of,
)

EPISODE = "openenv-episode"  # the label that has an episode's id
PLAYS = "openenv-plays"  # the label of a session that stands for another one
ANSWER_TOOL = {"name": ANSWER, "description": ANSWER_ABOUT, "input_schema": ANSWER_SCHEMA}
NO_STATE = {"episode_id": None, "step_count": 0, "done": False, "reward": None, "task": None, "session_id": None}

ERROR_TYPES = {NO_TOOL: "tool_not_found", WRONG_INPUT: "invalid_args", OVER: "execution_error"}
"""What OpenEnv calls a call that was not made, by its reason."""


class OpenEnvEpisodes(TaskEpisodes):
    """Everything that the endpoints do with the episodes and tasks of one server."""

    label = "openenv"

    async def find(self, caller: Caller, sid: str) -> TaskEpisode:
        """Find the episode that a session of OpenEnv plays.

        Raises:
            HttpRefusedError: It plays none.
        """
        found = await self.newest(caller, sid)
        if found is None:
            raise HttpRefusedError(
                404, f"The session {sid[:200]!r} has no episode: it has expired, or was never reset with a task."
            )
        return found

    async def reset(
        self, caller: Caller, env: str, data: ResetData, sid: str | None = None
    ) -> tuple[TaskEpisode, dict[str, Any]]:
        """Begin an episode, or go on with it if there is one with its id; get it and the first observation.

        Args:
            sid: The session of OpenEnv that plays it; None: one with the episode's id.
        """
        if data.task is not None and data.index is not None:
            raise HttpRefusedError(400, "Which task? Reset with either task, or index and its split.")
        episode_id = data.episode_id or uuid.uuid4().hex
        task = data.task
        if task is None:
            index = data.index
            if index is None:  # the same one again by the same seed, or by the id of the episode
                drawn_by = str(episode_id if data.seed is None else data.seed)
                index = random.Random(drawn_by).randrange(len(await self.tasks(caller, env, data.split)))  # noqa: S311
                if self.app.settings.isolation != "process":  # no session has a seed there: it has drawn the task
                    data = data.model_copy(update={"seed": None})
            task = (await self.task(caller, env, data.split, index))["task"]
        elif not task.startswith(f"{env}/"):
            raise HttpRefusedError(400, f"The task {task[:200]!r} is none of {env}: these are {env}/<name>.")
        player, spec = sid or episode_id, data.spec(task)
        try:
            begun, told = await self._begin(caller, episode_id, spec, player)
        except HttpRefusedError:
            first = await self._first_sid(caller, episode_id)
            if first is None or first == player:
                raise
            begun, told = await self._begin(caller, episode_id, spec, first)
        if begun.labels[self.label] != player or (sid is not None and data.episode_id is not None):
            await self._play_with(caller, player, begun)
        prompt = messages_of(told)
        lone = len(prompt) == 1 and prompt[0]["role"] == "user"
        text = "\n\n".join(each["content"] if lone else f"{each['role']}: {each['content']}" for each in prompt)
        metadata = {"episode_id": episode_id, "session_id": begun.session_id, "task": begun.task}
        done = data.episode_id is not None and (await self.told(caller, begun))["done"]  # a new one isn't
        return begun, _observation({"prompt": text, "messages": prompt}, done=done, metadata=metadata)

    async def _begin(
        self, caller: Caller, episode_id: str, spec: TaskSpec, sid: str
    ) -> tuple[TaskEpisode, dict[str, Any]]:
        settings = self.app.settings.of(OpenEnvSettings)
        labels, each = {self.label: sid, EPISODE: episode_id}, settings.rewards == "each"
        return await self.begin(caller, episode_id, spec, labels, each=each, ttl=settings.ttl_seconds)

    async def _first_sid(self, caller: Caller, episode_id: str) -> str | None:
        """Get the session of OpenEnv that an episode was begun with."""
        listed = await self.app.invoke(caller, "list_sessions", {"labels": {EPISODE: episode_id}, "limit": PAGE})
        return next((each["labels"][self.label] for each in listed if "parent" not in each), None)

    async def _play_with(self, caller: Caller, sid: str, episode: TaskEpisode) -> None:
        """Let a session of OpenEnv play this episode, whichever it has played last."""
        newest = await self.newest(caller, sid)
        if newest is None or newest.session_id != episode.session_id:
            labels = {self.label: sid, PLAYS: episode.session_id}
            ttl = self.app.settings.of(OpenEnvSettings).ttl_seconds
            await self.app.invoke(caller, "create_session", {"toolpacks": [], "labels": labels, "ttl_seconds": ttl})

    async def meant(self, caller: Caller, session: dict[str, Any]) -> dict[str, Any] | None:
        if PLAYS not in session["labels"]:
            return session
        try:
            await self.app.invoke(caller, "get_session", {"session_id": session["session_id"]})  # which renews it
            params = {"session_id": session["labels"][PLAYS]}
            found: dict[str, Any] = await self.app.invoke(caller, "get_session", params)
        except SessionNotFoundError:
            return None
        return found

    async def step(
        self,
        caller: Caller,
        episode: TaskEpisode,
        action: CallTool | AnswerAction,
        call_id: str | None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Do what an action says, once, whatever is sent again with its id."""
        name, given = ANSWER, {}
        if isinstance(action, CallTool):
            name, given = action.tool_name, action.arguments
        else:
            given = {"answer": action.answer}
        told = await self.play(caller, episode, name, given, call_id, seconds)
        error = None
        if told.reason is not None:
            error = {"error_type": ERROR_TYPES[told.reason], "message": told.result}
        called = {"tool_name": name, "result": None if error else told.result, "error": error}
        done = told.ended or told.reason == OVER
        return _observation(called, reward=told.reward, done=done, metadata=told.metadata)

    async def play(
        self,
        caller: Caller,
        episode: TaskEpisode,
        name: str,
        given: Any,
        call_id: str | None,
        seconds: float | None = None,
    ) -> PlayedCall:
        return await self.call(caller, episode, name, given, call_id or uuid.uuid4().hex, seconds=seconds)

    async def tools(self, caller: Caller, env: str, episode: TaskEpisode | None) -> list[dict[str, Any]]:
        """Get the tools of an episode, or before there is one, those of the toolpack."""
        functions = await (self.functions_of(caller, env) if episode is None else self.functions(caller, episode))
        tools = [
            {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
            for each in functions
        ]
        return [*tools, ANSWER_TOOL]

    async def list_tools(self, caller: Caller, env: str, episode: TaskEpisode | None) -> dict[str, Any]:
        return _observation({"tools": await self.tools(caller, env, episode)})

    async def state(self, caller: Caller, episode: TaskEpisode) -> dict[str, Any]:
        """Get where an episode is; its reward, if it is done."""
        told = await self.told(caller, episode)
        reward = None
        if told["done"]:
            verdict = await self.verdict(caller, episode, record=False)
            reward = verdict["reward"] if verdict["valid"] else None
        return {
            "episode_id": episode.labels[EPISODE],
            "step_count": told["calls"],
            "done": told["done"],
            "reward": reward,
            "task": episode.task,
            "session_id": episode.session_id,
        }


def _observation(
    said: dict[str, Any], *, reward: float | None = None, done: bool = False, metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Get an observation as OpenEnv sends it; the metadata stands beside it, so that no model is shown it with it."""
    beside = {"metadata": metadata} if metadata else {}
    return {"observation": {**said, "metadata": {}}, "reward": reward, "done": done, **beside}
