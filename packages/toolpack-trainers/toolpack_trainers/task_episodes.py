"""Episodes of the tasks, as the protocols of trainers know them; each has its own feature, which only translates.

An episode is a session, and everything that is done with it is a method that its owner or its agent could
call. Nothing is kept here that another worker or a restarted server would miss: the id that a protocol gives
to an episode is a label of the session, and the `call_id` of its creation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

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
MAX_MEMBERS = 100  # of what a client sends that are looked at

HANDED_IN = "The answer was handed in."
OVER_ALREADY = "The episode is over, so no further answer is taken."
ANSWER_ABOUT = "Hand in your answer, which ends the episode. Your work counts when it is handed in."
ANSWER_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}

NO_TOOL, WRONG_INPUT, OVER = "not_found", "input_validation", "episode_finished"
"""Why a call was not made."""

REASONS = {Failure.NOT_FOUND: NO_TOOL, Failure.ARGUMENTS: WRONG_INPUT}
"""The reasons, by what has made the call fail."""


M = TypeVar("M", bound=BaseModel)


class EpisodeCallReusedError(CallIdReusedError):
    """The id of a call was used for another one; clients know it without the label."""

    def __init__(self, call: str) -> None:
        RequestError.__init__(
            self, f"The id {call!r} was used for another call, or with other arguments: make a new one."
        )


class TaskSpec(BaseModel):
    """What a trainer says of an episode."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(description="The task, as toolpack/name.")
    seed: str | None = None
    perturbations: dict[str, JsonValue] | None = None
    rewards: Literal["end", "each"] | None = None


@dataclass(frozen=True, slots=True)
class TaskEpisode:
    """An episode, by its session.

    Attributes:
        task: Its task, as toolpack/name.
        labels: Of the session.
        each: Whether each call gets the reward so far.
        max_calls: After how many calls it ends without an answer, if it does.
    """

    session_id: str
    task: str
    labels: Mapping[str, str]
    each: bool
    max_calls: int | None


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """What a call comes to.

    Attributes:
        result: What the function returned; a text, if it failed.
        reason: Why nothing was called, and `result` is a sentence of it; None if something was.
        ended: Whether the episode ends with this call.
        reward: Its reward; None if this call gets none.
        metadata: The verdict, for the trainer alone, if this call gets one.
    """

    result: Any
    reason: str | None = None
    ended: bool = False
    reward: float | None = None
    metadata: dict[str, Any] | None = None


class TaskEpisodes:
    """Everything that the endpoints of one protocol do with the episodes and tasks of one server.

    Attributes:
        label: The label that has the protocol's id of an episode, and what the ids of its calls begin with.
    """

    label: str

    def __init__(self, app: App) -> None:
        self.app = app
        # None of these can change: a server that is started again with other toolpacks is another process.
        self._environments: list[str] = []
        self._tasks: dict[tuple[str, str], list[str]] = {}
        self._told: dict[str, dict[str, Any]] = {}

    # Tasks

    async def environments(self, caller: Caller) -> list[str]:
        """Get the toolpacks that have tasks."""
        if not self._environments:
            toolpacks = await self.app.invoke(caller, "list_toolpacks", {})
            self._environments = [toolpack["name"] for toolpack in toolpacks if toolpack["tasks"]]
        return self._environments

    async def environment(self, caller: Caller, name: str | None, hint: str = "") -> str:
        """Get the toolpack that a request means: the one it names, the one that it hints at, or the only one.

        Raises:
            HttpRefusedError: There is no such toolpack, or more than one.
        """
        found = await self.environments(caller)
        if name in found:
            return name
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
        page = await self.app.invoke(caller, "list_tasks", {"toolpack": env, "limit": 1})
        return [ALL, *(split for split in page["splits"] if split and split != ALL)]

    async def described_splits(self, caller: Caller, env: str) -> list[dict[str, str]]:
        """Get the splits, each with what the protocols know it as: `train`, `validation` or `test`."""
        names = await self.splits(caller, env)
        return [{"name": name, "type": name if name in {"train", "validation"} else "test"} for name in names]

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
            page = (await self.app.invoke(caller, "list_tasks", params))["tasks"]
            if not page:
                return names
            names += (task["task"] for task in page)
            after = page[-1]["index"]

    async def task(self, caller: Caller, env: str, split: str, index: int) -> dict[str, str]:
        tasks = await self.tasks(caller, env, split)
        if not -len(tasks) <= index < len(tasks):
            raise HttpRefusedError(400, f"Invalid index: the split {split} of {env} has {len(tasks)} tasks.")
        return tasks[index]

    async def functions_of(self, caller: Caller, env: str) -> list[dict[str, Any]]:
        """Get the functions of a toolpack, before there is an episode; one named as the answer's tool isn't offered."""
        listed = (await self.app.invoke(caller, "list_functions", {}))["result"]
        return [each for each in listed if each["toolpack"] == env and each["name"] != ANSWER]

    # Episodes

    async def begin(
        self, caller: Caller, episode_id: str, spec: TaskSpec, labels: Mapping[str, str], *, each: bool, ttl: float
    ) -> tuple[TaskEpisode, dict[str, Any]]:
        """Create the session of an episode, and get its prompt and `max_calls`; the same request again makes no other.

        Args:
            labels: Of the session.
            each: Whether each call gets a reward, if the specification doesn't say.
            ttl: How long it lives after it was last used, in seconds.

        Raises:
            HttpRefusedError: The id was given to another episode.
        """
        each = each if spec.rewards is None else spec.rewards == "each"
        params = {
            "labels": {**labels, **({f"{self.label}-rewards": "each"} if each else {})},
            "call_id": f"{self.label}-{episode_id}",
            "ttl_seconds": ttl,
            **spec.model_dump(exclude={"rewards"}, exclude_none=True),
        }
        try:
            session = await self.app.invoke(caller, "create_session", params)
        except CallIdReusedError:
            raise HttpRefusedError(400, f"The episode {episode_id} exists, with another task or seed.") from None
        return await self._of(caller, session)

    async def newest(self, caller: Caller, sid: str) -> TaskEpisode | None:
        """Find the last episode with an id of the protocol's; a fork of one has its label, and is none."""
        params = {"labels": {self.label: sid}, "limit": PAGE, "order": "-created"}
        for listed in await self.app.invoke(caller, "list_sessions", params):
            if "parent" not in listed:
                session = await self.meant(caller, listed)
                if session is not None and "task" in session:
                    return (await self._of(caller, session))[0]
        return None

    async def meant(self, caller: Caller, session: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002
        """Get the session that one with an id of the protocol's stands for; None if that isn't there any more."""
        return session

    async def _of(self, caller: Caller, session: Mapping[str, Any]) -> tuple[TaskEpisode, dict[str, Any]]:
        session_id, labels, task = session["session_id"], session["labels"], session["task"]
        told = self._told.get(task)
        if told is None:
            told = await self._as_agent(caller, session_id, "get_task")
            if "name" not in told:  # participants are a session's own
                self._told[task] = told = {name: told[name] for name in ("prompt", "max_calls") if name in told}
        each = f"{self.label}-rewards" in labels
        return TaskEpisode(session_id, task, labels, each, told.get("max_calls")), told

    async def told(self, caller: Caller, episode: TaskEpisode) -> dict[str, Any]:
        """Get what the agent is told: `prompt`, `calls`, `max_calls` and `done`."""
        told: dict[str, Any] = await self._as_agent(caller, episode.session_id, "get_task")
        return told

    async def functions(self, caller: Caller, episode: TaskEpisode) -> list[dict[str, Any]]:
        """Get the functions of an episode; one named as the answer's tool isn't offered."""
        listed = (await self._as_agent(caller, episode.session_id, "list_functions"))["result"]
        return [each for each in listed if each["name"] != ANSWER]

    async def call(
        self,
        caller: Caller,
        episode: TaskEpisode,
        tool: str,
        given: Any,
        call: str,
        *,
        seconds: float | None = None,
    ) -> PlayedCall:
        """Call a tool once, whatever is sent again with this id of the call.

        Args:
            given: The arguments, as the model wrote them.
            seconds: A deadline, which can only shorten the function's own.
        """
        if tool == ANSWER:
            return await self._answer(caller, episode, given, call)
        reason = None
        limit = {} if seconds is None else {"timeout_seconds": seconds}
        try:
            envelope = await self._once(
                caller,
                episode.session_id,
                "run_function",
                call,
                function=tool,
                kwargs=given,
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
        if not await self._is_end(caller, episode, call):
            if reason is not None:
                return PlayedCall(result, reason)
            return await self._rewarded(caller, episode, result, ended=False)
        return await self._rewarded(caller, episode, result, ended=True)

    async def _is_end(self, caller: Caller, episode: TaskEpisode, call: str) -> bool:
        """Return whether the call or the answer with this id has ended an episode with `max_calls`.

        The path alone decides, so that of an answer and a last call that come at once one gets the reward, and gets it
        again when it is sent again.
        """
        if episode.max_calls is None or not (await self.told(caller, episode))["done"]:
            return False
        left, after = episode.max_calls, -1
        recorded = f"{self.label}-{call}"
        while True:
            params = {"session_id": episode.session_id, "path": True, "after": after, "limit": PAGE}
            records = await self.app.invoke(caller, "get_trace", params)
            for record in records:
                if record["kind"] == "call" and record.get("by") == AGENT:
                    left -= 1 + len(record.get("nested", ()))
                if record["kind"] == "answer" or left <= 0:
                    return record.get("call_id") in {recorded, f"{AGENT}/{recorded}"}  # beside other participants
            if not records:
                return False
            after += len(records)

    async def _answer(self, caller: Caller, episode: TaskEpisode, given: Any, call: str) -> PlayedCall:
        """Hand in the answer, which gets the reward; another one, or the same with another id, gets none."""
        arguments = given
        if type(given) is not dict:
            arguments, problem = await self.app.parser.arguments(given, caller.owner)
            if problem is not None:
                return PlayedCall(problem, WRONG_INPUT)
        answer = arguments.get("answer", "")
        if not arguments.keys() <= {"answer"} or not isinstance(answer, str):
            return PlayedCall(f"{ANSWER} takes one text, answer.", WRONG_INPUT)
        over, limited = PlayedCall(OVER_ALREADY, OVER), episode.max_calls is not None
        if limited and (await self.told(caller, episode))["done"] and not await self._is_end(caller, episode, call):
            return over
        try:
            await self._once(caller, episode.session_id, ANSWER, call, answer=answer)
        except AnsweredError:
            return over
        except (InvalidParamsError, TooLargeError) as error:
            return PlayedCall(sentence(error), WRONG_INPUT)
        if limited and not await self._is_end(caller, episode, call):
            return over
        return await self._rewarded(caller, episode, HANDED_IN, ended=True)

    async def _rewarded(self, caller: Caller, episode: TaskEpisode, result: Any, *, ended: bool) -> PlayedCall:
        """Get what a call comes to, with the reward if it ends the episode, or if each call gets one."""
        if not ended and not episode.each:
            return PlayedCall(result)
        verdict = await self.verdict(caller, episode, record=ended)
        shown = ("task", "version", "passed", "checks", "valid", "failure")
        metadata = {"session_id": episode.session_id, **{name: verdict[name] for name in shown if name in verdict}}
        reward = verdict["reward"] if verdict["valid"] else None
        return PlayedCall(result, ended=ended, reward=reward, metadata=metadata)

    async def verdict(self, caller: Caller, episode: TaskEpisode, *, record: bool) -> dict[str, Any]:
        """Evaluate an episode; what comes meanwhile waits if the verdict is recorded."""
        params = {"session_id": episode.session_id, "record": record, "raise_on_error": False}
        verdict: dict[str, Any] = await self.app.invoke(caller, "evaluate_session", params)
        return verdict

    async def end(self, caller: Caller, episode: TaskEpisode) -> None:
        """Record the verdict on an episode that ends without an answer."""
        if not (await self.told(caller, episode))["done"]:
            await self.verdict(caller, episode, record=True)

    async def _as_agent(self, caller: Caller, session_id: str, method: str, **params: Any) -> Any:
        return await self.app.invoke(Caller(caller.owner, session_id), method, params)

    async def _once(self, caller: Caller, session_id: str, method: str, call: str, **params: Any) -> Any:
        """Send a request with the id of a call; clients know that without the label."""
        try:
            return await self._as_agent(caller, session_id, method, call_id=f"{self.label}-{call}", **params)
        except CallIdReusedError:
            raise EpisodeCallReusedError(call) from None


def read(kind: type[M], given: Any, what: str = "The body", status: int = 400) -> M:
    """Read what a client has sent.

    Raises:
        HttpRefusedError: It has another shape.
    """
    if isinstance(given, dict) and len(given) > MAX_MEMBERS:
        given = dict(islice(given.items(), MAX_MEMBERS))  # no shape has as many, and each that is wrong takes time
    try:
        return kind.model_validate({} if given is None else given)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"])) or what
        wrong = "Input should be an object" if problem["type"] == "model_type" else problem["msg"]
        raise HttpRefusedError(status, f"{place}: {wrong}. {what} may have {', '.join(kind.model_fields)}.") from None


def messages_of(told: Mapping[str, Any]) -> list[dict[str, str]]:
    """Get the prompt that an agent is told as messages, each with `role` and `content`."""
    prompt = told["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []


def reason_of(error: Exception) -> str | None:
    """Return why nothing was called; None if something was, or the request was refused."""
    if isinstance(error, CallFailedError):
        return REASONS.get(error.failure.why)
    return WRONG_INPUT if isinstance(error, InvalidParamsError) else None


def failure_text(error: Exception) -> str | None:
    """Return the text of a failed call, as its record has it; None if the agent needn't hear of the error."""
    if isinstance(error, CallFailedError):
        kind, message = error.failure.kind, error.failure.message or error.failure.kind
    elif isinstance(error, CallError | DeadlineError):
        kind, message = type(error).__name__, sentence(error)
        if isinstance(error, DeadlineError):  # it names the toolpack first
            message = message.partition(": ")[2]
    else:
        return None
    return kind if message == kind else f"{kind}: {message}"
