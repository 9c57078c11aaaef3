"""Episodes in OpenEnv's terms, with the responses to reset, step and state. `task_episodes` implements the rest.

An OpenEnv session is an id that a client uses for several episodes in turn, and that exists before the first episode.
This server stores the id as a label of its own sessions. A client can continue an episode under another OpenEnv
session, but labels can't be changed. So the server creates an *alias*: a session without toolpacks that carries the new
id and refers to the episode's session.
"""

import random
import uuid
from typing import Any

from toolpack_server.features.api.core import Caller, HttpRefusedError, SessionNotFoundError
from toolpack_trainers.openenv.messages import AnswerAction, CallTool, ResetData
from toolpack_trainers.openenv.settings import OpenEnvSettings
from toolpack_trainers.task_episodes import (
    ANSWER,
    ANSWER_DESCRIPTION,
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

EPISODE = "openenv-episode"  # label that holds the episode's id
PLAYS = "openenv-plays"  # label of an alias that holds the id of the session that the alias refers to
ANSWER_TOOL = {"name": ANSWER, "description": ANSWER_DESCRIPTION, "input_schema": ANSWER_SCHEMA}
NO_STATE = {"episode_id": None, "step_count": 0, "done": False, "reward": None, "task": None, "session_id": None}

ERROR_TYPES = {NO_TOOL: "tool_not_found", WRONG_INPUT: "invalid_args", OVER: "execution_error"}
"""OpenEnv's error type for each reason of a refused call."""


class OpenEnvEpisodes(TaskEpisodes):
    """OpenEnv's operations on episodes and tasks."""

    label = "openenv"

    async def find(self, caller: Caller, sid: str) -> TaskEpisode:
        """Return the current episode of an OpenEnv session.

        Raises:
            HttpRefusedError: The session has no episode.
        """
        episode = await self.newest(caller, sid)
        if episode is None:
            raise HttpRefusedError(
                404, f"The session {sid[:200]!r} has no episode: it has expired, or was never reset with a task."
            )
        return episode

    async def reset(
        self, caller: Caller, env: str, data: ResetData, sid: str | None = None
    ) -> tuple[TaskEpisode, dict[str, Any]]:
        """Begin an episode, or continue the episode with the given id. Return the episode and its first observation.

        Args:
            sid: The OpenEnv session that plays the episode. None: the episode's id is used as the session's id.
        """
        if data.task is not None and data.index is not None:
            raise HttpRefusedError(400, "Reset either with task, or with index and its split, not with both.")
        episode_id = data.episode_id or uuid.uuid4().hex
        task = data.task
        if task is None:
            index = data.index
            if index is None:  # the same seed, or else the same episode id, selects the same task
                draw_seed = str(episode_id if data.seed is None else data.seed)
                index = random.Random(draw_seed).randrange(len(await self.tasks(caller, env, data.split)))  # noqa: S311
                if self.app.settings.isolation != "process":  # without executors a session can't use the seed
                    data = data.model_copy(update={"seed": None})
            task = (await self.task(caller, env, data.split, index))["task"]
        elif not task.startswith(f"{env}/"):
            raise HttpRefusedError(400, f"The task {task[:200]!r} isn't in {env}: its tasks are {env}/<name>.")
        player, spec = sid or episode_id, data.spec(task)
        try:
            episode, agent_task = await self._begin(caller, episode_id, spec, player)
        except HttpRefusedError:
            # The episode might have begun under another OpenEnv session, whose label it then carries.
            first = await self._first_sid(caller, episode_id)
            if first is None or first == player:
                raise
            episode, agent_task = await self._begin(caller, episode_id, spec, first)
        if episode.labels[self.label] != player or (sid is not None and data.episode_id is not None):
            await self._make_current(caller, player, episode)
        prompt = messages_of(agent_task)
        is_single = len(prompt) == 1 and prompt[0]["role"] == "user"
        text = "\n\n".join(
            message["content"] if is_single else f"{message['role']}: {message['content']}" for message in prompt
        )
        metadata = {"episode_id": episode_id, "session_id": episode.session_id, "task": episode.task}
        # Only a continued episode can already be done.
        done = data.episode_id is not None and (await self.agent_task(caller, episode))["done"]
        return episode, _observation({"prompt": text, "messages": prompt}, done=done, metadata=metadata)

    async def _begin(
        self, caller: Caller, episode_id: str, spec: TaskSpec, sid: str
    ) -> tuple[TaskEpisode, dict[str, Any]]:
        """Create the session of an episode with the label of an OpenEnv session, or find it. See `begin`."""
        settings = self.app.settings.of(OpenEnvSettings)
        labels, rewards_each_call = {self.label: sid, EPISODE: episode_id}, settings.rewards == "each"
        return await self.begin(
            caller, episode_id, spec, labels, rewards_each_call=rewards_each_call, ttl=settings.ttl_seconds
        )

    async def _first_sid(self, caller: Caller, episode_id: str) -> str | None:
        """Return the OpenEnv session that began an episode, or None if there is no such episode."""
        sessions = await self.app.invoke(caller, "list_sessions", {"labels": {EPISODE: episode_id}, "limit": PAGE})
        return next((session["labels"][self.label] for session in sessions if "parent" not in session), None)

    async def _make_current(self, caller: Caller, sid: str, episode: TaskEpisode) -> None:
        """Make this episode the current one of an OpenEnv session, with an alias if needed."""
        newest = await self.newest(caller, sid)
        if newest is None or newest.session_id != episode.session_id:
            labels = {self.label: sid, PLAYS: episode.session_id}
            ttl = self.app.settings.of(OpenEnvSettings).ttl_seconds
            await self.app.invoke(caller, "create_session", {"toolpacks": [], "labels": labels, "ttl_seconds": ttl})

    async def resolve(self, caller: Caller, session: dict[str, Any]) -> dict[str, Any] | None:
        """Return the session that an alias refers to, or None if the alias or that session has expired.

        Return a session that isn't an alias unchanged.
        """
        if PLAYS not in session["labels"]:
            return session
        try:
            await self.app.invoke(caller, "get_session", {"session_id": session["session_id"]})  # renews the alias
            params = {"session_id": session["labels"][PLAYS]}
            target: dict[str, Any] = await self.app.invoke(caller, "get_session", params)
        except SessionNotFoundError:
            return None
        return target

    async def step(
        self,
        caller: Caller,
        episode: TaskEpisode,
        action: CallTool | AnswerAction,
        call_id: str | None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Run an action and return its observation. If an action with the same id was run before, run nothing again."""
        name, arguments = ANSWER, {}
        if isinstance(action, CallTool):
            name, arguments = action.tool_name, action.arguments
        else:
            arguments = {"answer": action.answer}
        played = await self.play(caller, episode, name, arguments, call_id, seconds)
        error = None
        if played.reason is not None:
            error = {"error_type": ERROR_TYPES[played.reason], "message": played.result}
        content = {"tool_name": name, "result": None if error else played.result, "error": error}
        done = played.ended or played.reason == OVER
        return _observation(content, reward=played.reward, done=done, metadata=played.metadata)

    async def play(
        self,
        caller: Caller,
        episode: TaskEpisode,
        name: str,
        arguments: Any,
        call_id: str | None,
        seconds: float | None = None,
    ) -> PlayedCall:
        """Call a tool. Without a `call_id`, the call gets a new id, so it can't be repeated safely."""
        return await self.call(caller, episode, name, arguments, call_id or uuid.uuid4().hex, seconds=seconds)

    async def tools(self, caller: Caller, env: str, episode: TaskEpisode | None) -> list[dict[str, Any]]:
        """Return the tools of an episode, or of the toolpack if there is no episode."""
        functions = await (self.functions_of(caller, env) if episode is None else self.functions(caller, episode))
        tools = [
            {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
            for function in functions
        ]
        return [*tools, ANSWER_TOOL]

    async def list_tools(self, caller: Caller, env: str, episode: TaskEpisode | None) -> dict[str, Any]:
        return _observation({"tools": await self.tools(caller, env, episode)})

    async def state(self, caller: Caller, episode: TaskEpisode) -> dict[str, Any]:
        """Return the state of an episode, with its reward if it is done."""
        agent_task = await self.agent_task(caller, episode)
        reward = None
        if agent_task["done"]:
            verdict = await self.verdict(caller, episode, record=False)
            reward = verdict["reward"] if verdict["valid"] else None
        return {
            "episode_id": episode.labels[EPISODE],
            "step_count": agent_task["calls"],
            "done": agent_task["done"],
            "reward": reward,
            "task": episode.task,
            "session_id": episode.session_id,
        }


def _observation(
    content: dict[str, Any], *, reward: float | None = None, done: bool = False, metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return an observation in OpenEnv's form.

    The metadata is placed beside the observation, so that clients don't show it to a model.
    """
    trainer_only = {"metadata": metadata} if metadata else {}
    return {"observation": {**content, "metadata": {}}, "reward": reward, "done": done, **trainer_only}
