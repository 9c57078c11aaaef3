"""What clients of OpenEnv 0.10 send: requests, messages of a WebSocket, and actions.

A shape is that of `openenv.core.env_server`; what it leaves open, such as the parameters of a reset, is said
here. What nobody would look at is refused, so that no parameter is taken and does nothing. Arguments and answers may be
anything, as a model has written them: what is wrong with them is an observation.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, SkipValidation, TypeAdapter

from toolpack_trainers.task_episodes import ALL, TaskSpec, read

MAX_ID = 64
UNPROCESSABLE = 422

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
M = TypeVar("M", bound=BaseModel)


class OpenEnvShape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResetData(OpenEnvShape):
    """What begins an episode: `task`, or `index` with a `split`; without both a task of the split is drawn."""

    seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Seeds chance and time of the episode, and draws a task."
    )
    episode_id: Id | None = Field(None, description="Its id: with the same one an episode is gone on with.")
    task: str | None = Field(None, description="The task, as toolpack/name.")
    split: str = Field(ALL, description="The split of which `index` is, or of which a task is drawn.")
    index: int | None = Field(None, description="Which task of the split.")
    perturbations: dict[str, JsonValue] | None = Field(None, description="As `create_session` has them.")
    rewards: Literal["end", "each"] | None = Field(None, description="When there are rewards.")

    def spec(self, task: str) -> TaskSpec:
        seed = None if self.seed is None else str(self.seed)
        return TaskSpec(task=task, seed=seed, perturbations=self.perturbations, rewards=self.rewards)


class ActionMetadata(BaseModel):
    """What an action may say of itself; more is allowed, and not looked at."""

    call_id: Id | None = Field(None, description="An id that makes the action safe to repeat.")


class OpenEnvAction(OpenEnvShape):
    metadata: ActionMetadata = Field(default_factory=ActionMetadata)


class ListTools(OpenEnvAction):
    """List the tools."""

    type: Literal["list_tools"]


class CallTool(OpenEnvAction):
    """Call a tool."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: SkipValidation[dict[str, Any]] = Field(default_factory=dict)


class AnswerAction(OpenEnvAction):
    """Hand in the answer, which ends the episode."""

    type: Literal["submit_answer"]
    answer: SkipValidation[str] = ""


def _typed(action: Any) -> Any:
    """Get an action with its type: OpenEnv's own class for a call of a tool has one by default."""
    return {"type": "call_tool", **action} if isinstance(action, dict) and "tool_name" in action else action


AnyAction = Annotated[ListTools | CallTool | AnswerAction, Field(discriminator="type"), BeforeValidator(_typed)]


class StepBody(OpenEnvShape):
    """A step over HTTP, of the episode that was reset."""

    action: AnyAction
    episode_id: Id
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    request_id: Id | None = None


class OpenEnvResetMessage(OpenEnvShape):
    type: Literal["reset"]
    data: ResetData = Field(default_factory=ResetData)


class OpenEnvStepMessage(OpenEnvShape):
    type: Literal["step"]
    data: AnyAction


class OpenEnvStateMessage(OpenEnvShape):
    type: Literal["state"]


class OpenEnvCloseMessage(OpenEnvShape):
    type: Literal["close"]


class OpenEnvMcpMessage(OpenEnvShape):
    type: Literal["mcp"]
    data: dict[str, Any]


MESSAGES: dict[str, type[OpenEnvShape]] = {
    "reset": OpenEnvResetMessage,
    "step": OpenEnvStepMessage,
    "state": OpenEnvStateMessage,
    "close": OpenEnvCloseMessage,
    "mcp": OpenEnvMcpMessage,
}


class OpenEnvMcpRequest(OpenEnvShape):
    """A JSON-RPC request of OpenEnv's MCP."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class OpenEnvSessionParams(OpenEnvShape):
    session_id: Id


class OpenEnvCallParams(OpenEnvShape):
    name: str
    arguments: SkipValidation[dict[str, Any]] = Field(default_factory=dict)
    session_id: Id | None = None


class OpenEnvListParams(OpenEnvShape):
    session_id: Id | None = None


class OpenEnvSplitBody(OpenEnvShape):
    split: str = ALL


class OpenEnvTaskBody(OpenEnvSplitBody):
    index: int


class OpenEnvRangeBody(OpenEnvSplitBody):
    start: int | None = None
    stop: int | None = None


def read_message(kind: type[M], given: Any, what: str) -> M:
    """Read what a client has sent; raises as `read`, with the status that OpenEnv has for it."""
    return read(kind, given, what, UNPROCESSABLE)


# By this title clients such as verifiers know that there are tools, ask for them, and tell their model.
ACTION_SCHEMA: dict[str, Any] = {"title": "Action", **TypeAdapter(AnyAction).json_schema()}

RESET_OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "ResetObservation",
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "What the agent is asked to do."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "The same, as messages."},
        "metadata": {"type": "object", "description": "Empty: it stands beside the observation, for the trainer."},
    },
}

OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "object"}, "description": "The tools, when they were asked for."},
        "tool_name": {"type": "string", "description": "The tool that was called."},
        "result": {"description": "What the tool has returned; a text, if it failed."},
        "error": {"type": ["object", "null"], "description": "Why nothing was called: error_type and message."},
        "metadata": {"type": "object", "description": "Empty: it stands beside the observation, for the trainer."},
    },
}

STATE_SCHEMA: dict[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "description": "How many calls the agent has made."},
        "done": {"type": "boolean"},
        "reward": {"type": ["number", "null"], "description": "Of an episode that is done."},
        "task": {"type": ["string", "null"]},
        "session_id": {"type": ["string", "null"]},
    },
}
