"""Episodes of tasks, shared by all trainers' protocols. Each protocol's feature only translates its messages.

An episode is a session. All operations on it are methods that its owner or its agent could also call. This module keeps
no state that another worker or a restarted server would need. Each protocol identifies an episode by an id. The session
carries this id as a label, and the `call_id` of its creation contains the id.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolpack_server.features.api.core import (
    AGENT,
    REFUSALS,
    AnsweredError,
    App,
    Caller,
    CallError,
    CallFailedError,
    CallIdReusedError,
    DeadlineError,
    Failure,
    HttpRefusedError,
    InvalidParamsError,
    RequestError,
    TooLargeError,
    sentence,
)

ALL = "all"  # the split of all tasks
ANSWER = "submit_answer"
PAGE = 1000
MAX_MEMBERS = 100  # max members of a client's JSON object that are validated, besides those of the model

ANSWER_RECEIVED = "The answer was handed in."
EPISODE_OVER = "The episode is over, so no further answer is accepted."
ANSWER_DESCRIPTION = "Hand in your answer, which ends the episode. Your work counts when it is handed in."
ANSWER_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}

NO_TOOL, WRONG_INPUT, OVER = "not_found", "input_validation", "episode_finished"
"""Reasons why a call was refused without running a function."""

REASONS = {Failure.NOT_FOUND: NO_TOOL, Failure.ARGUMENTS: WRONG_INPUT}
"""The reason of a refused call, by the kind of its failure."""


M = TypeVar("M", bound=BaseModel)


class EpisodeCallReusedError(CallIdReusedError):
    """The id of a call was used for another call. The message contains the client's id, without the label."""

    def __init__(self, call: str) -> None:
        RequestError.__init__(
            self, f"The id {call!r} was used for another call, or with other arguments: use a new id."
        )


class TaskSpec(BaseModel):
    """A trainer's specification of an episode: its task and the options of its session."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(description="The task, as toolpack/name.")
    seed: str | None = None
    perturbations: dict[str, Any] | None = None
    rewards: Literal["end", "each"] | None = None


@dataclass(frozen=True, slots=True)
class TaskEpisode:
    """An episode and its session.

    Attributes:
        task: The task, as toolpack/name.
        labels: The session's labels.
        rewards_each_call: Whether the result of each call includes the reward so far.
        max_calls: Number of calls after which the episode ends, even without an answer. None: no limit.
    """

    session_id: str
    task: str
    labels: Mapping[str, str]
    rewards_each_call: bool
    max_calls: int | None


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """The outcome of a call.

    Attributes:
        result: The function's result, or the error message if the call failed or was refused.
        reason: Why the call was refused. None if a function ran.
        ended: Whether the episode ends with this call.
        reward: The reward that comes with this call, or None.
        metadata: Parts of the verdict if a reward comes with this call. Only the trainer sees them, not the model.
    """

    result: Any
    reason: str | None = None
    ended: bool = False
    reward: float | None = None
    metadata: dict[str, Any] | None = None


class TaskEpisodes:
    """One protocol's operations on the server's episodes and tasks. Each protocol has a subclass.

    Attributes:
        label: Name of the label that holds an episode's id in this protocol. It is also the prefix of call ids.
    """

    label: str

    def __init__(self, app: App) -> None:
        self.app = app
        # These are cached without limit of time, because toolpacks change only with a restart.
        self._environments: list[str] = []
        self._tasks: dict[tuple[str, str], list[str]] = {}
        self._prompts: dict[str, dict[str, Any]] = {}

    # Tasks

    async def environments(self, caller: Caller) -> list[str]:
        """Return the names of the toolpacks that have tasks."""
        if not self._environments:
            toolpacks = await self.app.invoke(caller, "list_toolpacks", {})
            self._environments = [toolpack["name"] for toolpack in toolpacks if toolpack["tasks"]]
        return self._environments

    async def environment(self, caller: Caller, name: str | None, hint: str = "") -> str:
        """Return the toolpack of a request.

        It is the toolpack with this name, in upper or lower case. Without a name it is the toolpack that `hint` names,
        or else the only toolpack with tasks.

        Args:
            name: Name in the request, or None.
            hint: Name to try if the request has no name. An unknown hint is ignored.

        Raises:
            HttpRefusedError: No toolpack with tasks has this name, or the request names no toolpack although several
                have tasks.
        """
        environments = await self.environments(caller)
        if name in environments:
            return name
        names = ", ".join(environments) or "none has tasks"
        by_name = {environment.lower(): environment for environment in environments}
        if name is not None:
            if name.lower() not in by_name:
                raise HttpRefusedError(404, f"There is no environment {name[:200]!r} with tasks: use {names}.")
            return by_name[name.lower()]
        if hint.lower() in by_name:
            return by_name[hint.lower()]
        if len(environments) != 1:
            raise HttpRefusedError(400, f"Name the environment before the path, one of: {names}.")
        return environments[0]

    async def splits(self, caller: Caller, env: str) -> list[str]:
        """Return the names of a toolpack's splits. The first one contains all tasks."""
        page = await self.app.invoke(caller, "list_tasks", {"toolpack": env, "limit": 1})
        return [ALL, *(split for split in page["splits"] if split and split != ALL)]

    async def typed_splits(self, caller: Caller, env: str) -> list[dict[str, str]]:
        """Return the splits, each with its type in the protocols: `train`, `validation` or `test`."""
        names = await self.splits(caller, env)
        return [{"name": name, "type": name if name in {"train", "validation"} else "test"} for name in names]

    async def tasks(self, caller: Caller, env: str, split: str) -> list[dict[str, str]]:
        """Return the specifications of a split's tasks, in the order of `list_tasks`."""
        names = self._tasks.get((env, split))
        if names is None:
            splits = await self.splits(caller, env)
            if split not in splits:
                raise HttpRefusedError(400, f"Invalid split: {env} has {', '.join(splits)}.")
            names = self._tasks[env, split] = await self._names(caller, env, None if split == ALL else split)
        return [{"task": name} for name in names]

    async def _names(self, caller: Caller, env: str, split: str | None) -> list[str]:
        """Return the names of a toolpack's tasks in a split, or in all splits if it is None. Read them page by page."""
        names: list[str] = []
        after = -1
        while True:
            params = {"toolpack": env, "split": split, "after": after, "limit": PAGE}
            page = (await self.app.invoke(caller, "list_tasks", params))["tasks"]
            if not page:
                return names
            names += (task["task"] for task in page)
            after = page[-1]["index"]

    async def task(self, caller: Caller, env: str, split: str, index: int) -> dict[str, str]:
        """Return the specification of a task. A negative index counts from the end."""
        tasks = await self.tasks(caller, env, split)
        if not -len(tasks) <= index < len(tasks):
            raise HttpRefusedError(400, f"Invalid index: the split {split} of {env} has {len(tasks)} tasks.")
        return tasks[index]

    async def functions_of(self, caller: Caller, env: str) -> list[dict[str, Any]]:
        """Return a toolpack's functions, for requests without an episode.

        A function with the same name as the tool that submits the answer isn't offered.
        """
        functions = (await self.app.invoke(caller, "list_functions", {}))["result"]
        return [function for function in functions if function["toolpack"] == env and function["name"] != ANSWER]

    # Episodes

    async def begin(
        self,
        caller: Caller,
        episode_id: str,
        spec: TaskSpec,
        labels: Mapping[str, str],
        *,
        rewards_each_call: bool,
        ttl: float,
    ) -> tuple[TaskEpisode, dict[str, Any]]:
        """Create the session of an episode. Return the episode, and a dictionary with `prompt` and `max_calls`.

        A repeated request returns the same episode.

        Args:
            labels: Labels of the session.
            rewards_each_call: Whether a reward comes with each call, unless the specification decides this.
            ttl: Time to live of the session after its last use, in seconds.

        Raises:
            HttpRefusedError: The id belongs to another episode.
        """
        rewards_each_call = rewards_each_call if spec.rewards is None else spec.rewards == "each"
        params = {
            "labels": {**labels, **({f"{self.label}-rewards": "each"} if rewards_each_call else {})},
            "call_id": f"{self.label}-{episode_id}",
            "ttl_seconds": ttl,
            **{name: value for name, value in spec if value is not None and name != "rewards"},
        }
        try:
            session = await self.app.invoke(caller, "create_session", params)
        except CallIdReusedError:
            raise HttpRefusedError(400, f"The episode {episode_id} exists with another task or seed.") from None
        return await self._episode_of(caller, session)

    async def newest(self, caller: Caller, sid: str) -> TaskEpisode | None:
        """Return the newest episode with this id in the protocol, or None.

        A fork of an episode's session also carries the label, but isn't an episode.
        """
        params = {"labels": {self.label: sid}, "limit": PAGE, "order": "-created"}
        for listed in await self.app.invoke(caller, "list_sessions", params):
            if "parent" not in listed:
                session = await self.resolve(caller, listed)
                if session is not None and "task" in session:
                    return (await self._episode_of(caller, session))[0]
        return None

    async def resolve(self, caller: Caller, session: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the session behind an alias, or None if it was closed. Protocols with aliases override this method."""
        return session

    async def _episode_of(self, caller: Caller, session: Mapping[str, Any]) -> tuple[TaskEpisode, dict[str, Any]]:
        """Return the episode of a session, and a dictionary with `prompt` and `max_calls`."""
        session_id, labels, task = session["session_id"], session["labels"], session["task"]
        agent_task = self._prompts.get(task)
        if agent_task is None:
            agent_task = await self._as_agent(caller, session_id, "get_task")
            if "name" not in agent_task:  # sessions with participants can have different prompts, so don't cache them
                agent_task = {name: agent_task[name] for name in ("prompt", "max_calls") if name in agent_task}
                self._prompts[task] = agent_task
        rewards_each_call = f"{self.label}-rewards" in labels
        return TaskEpisode(session_id, task, labels, rewards_each_call, agent_task.get("max_calls")), agent_task

    async def agent_task(self, caller: Caller, episode: TaskEpisode) -> dict[str, Any]:
        """Return the task as the agent sees it: `prompt`, `calls`, `max_calls` and `done`."""
        agent_task: dict[str, Any] = await self._as_agent(caller, episode.session_id, "get_task")
        return agent_task

    async def functions(self, caller: Caller, episode: TaskEpisode) -> list[dict[str, Any]]:
        """Return an episode's functions, without a function that has the name of the tool that submits the answer."""
        functions = (await self._as_agent(caller, episode.session_id, "list_functions"))["result"]
        return [function for function in functions if function["name"] != ANSWER]

    async def call(
        self,
        caller: Caller,
        episode: TaskEpisode,
        tool: str,
        arguments: Any,
        call: str,
        *,
        seconds: float | None = None,
    ) -> PlayedCall:
        """Call a tool. A repeated request with the same call id runs nothing and returns the same outcome.

        Args:
            arguments: The arguments, as the model wrote them.
            call: The client's id for the call.
            seconds: Time limit. It can only shorten the function's own time limit.
        """
        if tool == ANSWER:
            return await self._answer(caller, episode, arguments, call)
        reason = None
        limit = {} if seconds is None else {"timeout_seconds": seconds}
        try:
            envelope = await self._as_agent_once(
                caller,
                episode.session_id,
                "run_function",
                call,
                function=tool,
                kwargs=arguments,
                raise_on_error=True,
                **limit,
            )
            result = envelope["result"]
        except REFUSALS as error:
            if isinstance(error, CallFailedError) and error.failure.why is Failure.EPISODE_OVER:
                return PlayedCall(sentence(error), OVER)
            reason = reason_of(error)
            result = sentence(error) if reason else failure_text(error)
            if result is None:
                raise
        # A refused call can also end the episode, because it counts toward `max_calls`.
        if not await self._is_end(caller, episode, call):
            if reason is not None:
                return PlayedCall(result, reason)
            return await self._with_reward(caller, episode, result, ended=False)
        return await self._with_reward(caller, episode, result, ended=True)

    async def _is_end(self, caller: Caller, episode: TaskEpisode, call: str) -> bool:
        """Return whether the call or the answer with this id has ended an episode with `max_calls`.

        The session's records decide this. So if an answer and a last call arrive at the same time, the reward comes
        with exactly one of them, even when the client repeats both.
        """
        if episode.max_calls is None or not (await self.agent_task(caller, episode))["done"]:
            return False
        calls_left, after = episode.max_calls, -1
        call_id = f"{self.label}-{call}"
        while True:
            params = {"session_id": episode.session_id, "path": True, "after": after, "limit": PAGE}
            records = await self.app.invoke(caller, "get_trace", params)
            for record in records:
                if record["kind"] == "call" and record.get("by") == AGENT:
                    calls_left -= 1 + len(record.get("nested", ()))  # calls that are arguments of this call also count
                if record["kind"] == "answer" or calls_left <= 0:
                    # In sessions with participants, an agent's call_id has the agent's name before it.
                    return record.get("call_id") in {call_id, f"{AGENT}/{call_id}"}
            if not records:
                return False
            after += len(records)

    async def _answer(self, caller: Caller, episode: TaskEpisode, arguments: Any, call: str) -> PlayedCall:
        """Submit the answer. The reward comes only with the first answer, even if a second answer is equal."""
        if type(arguments) is not dict:  # a model can write the arguments as a string that contains JSON
            arguments, problem = await self.app.parser.arguments(arguments, caller.owner)
            if problem is not None:
                return PlayedCall(problem, WRONG_INPUT)
        answer = arguments.get("answer", "")
        if not arguments.keys() <= {"answer"} or not isinstance(answer, str):
            return PlayedCall(f"{ANSWER} has one argument: answer, a string.", WRONG_INPUT)
        over, has_limit = PlayedCall(EPISODE_OVER, OVER), episode.max_calls is not None
        if (
            has_limit
            and (await self.agent_task(caller, episode))["done"]
            and not await self._is_end(caller, episode, call)
        ):
            return over
        try:
            await self._as_agent_once(caller, episode.session_id, ANSWER, call, answer=answer)
        except AnsweredError:
            return over
        except (InvalidParamsError, TooLargeError) as error:
            return PlayedCall(sentence(error), WRONG_INPUT)
        # A last call might have ended the episode since the check above.
        if has_limit and not await self._is_end(caller, episode, call):
            return over
        return await self._with_reward(caller, episode, ANSWER_RECEIVED, ended=True)

    async def _with_reward(self, caller: Caller, episode: TaskEpisode, result: Any, *, ended: bool) -> PlayedCall:
        """Return a call's outcome. Add the reward if the call ends the episode, or if a reward comes with each call."""
        if not ended and not episode.rewards_each_call:
            return PlayedCall(result)
        verdict = await self.verdict(caller, episode, record=ended)
        shown = ("task", "version", "passed", "checks", "valid", "failure")
        metadata = {"session_id": episode.session_id, **{name: verdict[name] for name in shown if name in verdict}}
        reward = verdict["reward"] if verdict["valid"] else None
        return PlayedCall(result, ended=ended, reward=reward, metadata=metadata)

    async def verdict(self, caller: Caller, episode: TaskEpisode, *, record: bool) -> dict[str, Any]:
        """Evaluate an episode. With `record`, other requests to the session wait until the verdict is recorded."""
        params = {"session_id": episode.session_id, "record": record, "raise_on_error": False}
        verdict: dict[str, Any] = await self.app.invoke(caller, "evaluate_session", params)
        return verdict

    async def end(self, caller: Caller, episode: TaskEpisode) -> None:
        """Record the verdict on an episode that ends without an answer. Do nothing if the episode is already over."""
        if not (await self.agent_task(caller, episode))["done"]:
            await self.verdict(caller, episode, record=True)

    async def _as_agent(self, caller: Caller, session_id: str, method: str, **params: Any) -> Any:
        """Send a request with the permissions of the session's agent."""
        return await self.app.invoke(Caller(caller.owner, session_id), method, params)

    async def _as_agent_once(self, caller: Caller, session_id: str, method: str, call: str, **params: Any) -> Any:
        """Send a request with a call id: the client's id with the label as prefix."""
        try:
            return await self._as_agent(caller, session_id, method, call_id=f"{self.label}-{call}", **params)
        except CallIdReusedError:
            raise EpisodeCallReusedError(call) from None


def read(kind: type[M], content: Any, what: str = "The body", status: int = 400) -> M:
    """Return a client's JSON as a model. None counts as an empty object.

    Args:
        what: The subject of the error message.
        status: The HTTP status of the refusal.

    Raises:
        HttpRefusedError: The JSON doesn't match the model.
    """
    members = [field.alias or name for name, field in kind.model_fields.items()]
    if isinstance(content, dict) and len(content) > MAX_MEMBERS:
        # A model that forbids other fields creates an error for each of them, which takes time.
        model_members = {name: content[name] for name in members if name in content}
        content = {**model_members, **dict(islice(content.items(), MAX_MEMBERS))}
    try:
        return kind.model_validate({} if content is None else content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, problem["loc"])) or what
        wrong = "Input should be an object" if problem["type"] == "model_type" else problem["msg"]
        raise HttpRefusedError(status, f"{location}: {wrong}. {what} can contain {', '.join(members)}.") from None


def messages_of(agent_task: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the prompt of `get_task` as messages with `role` and `content`."""
    prompt = agent_task["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []


def reason_of(error: Exception) -> str | None:
    """Return why a call was refused, or None if a function ran or if the server refused the request itself."""
    if isinstance(error, CallFailedError):
        return REASONS.get(error.failure.why)
    return WRONG_INPUT if isinstance(error, InvalidParamsError) else None


def failure_text(error: Exception) -> str | None:
    """Return a failed call's error message, as its record contains it, or None if the error isn't for the agent."""
    if isinstance(error, CallFailedError):
        kind, message = error.failure.kind, error.failure.message or error.failure.kind
    elif isinstance(error, CallError | DeadlineError):
        kind, message = type(error).__name__, sentence(error)
        if isinstance(error, DeadlineError):  # the message begins with the toolpack's name
            message = message.partition(": ")[2]
    else:
        return None
    return kind if message == kind else f"{kind}: {message}"
