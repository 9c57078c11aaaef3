"""Messages of OpenEnv 0.10 clients: HTTP requests, WebSocket messages, and actions.

The classes follow `openenv.core.env_server`, and also define details that it leaves open, such as the parameters of a
reset. Unknown parameters are rejected, not ignored. A language model's arguments and answers aren't validated here.
Instead, an error in them becomes an observation, so that the language model can react to it.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, TypeAdapter

from toolpack_trainers.task_episodes import ALL, TaskSpec, read

MAX_ID = 64
UNPROCESSABLE = 422

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
M = TypeVar("M", bound=BaseModel)


class OpenEnvShape(BaseModel):
    """Base class of the messages and their parts."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResetData(OpenEnvShape):
    """Parameters of a reset: `task`, or `index` with `split`. Without both, a task of the split is drawn."""

    seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Seed of the episode's random numbers and clock, and of the choice of a task."
    )
    episode_id: Id | None = Field(None, description="Id of the episode. An existing id continues that episode.")
    task: str | None = Field(None, description="The task, as toolpack/name.")
    split: str = Field(ALL, description="The split that `index` refers to, or from which a task is drawn.")
    index: int | None = Field(None, description="Index of the task in the split.")
    perturbations: dict[str, Any] | None = Field(None, description="Rules, as for `create_session`.")
    rewards: Literal["end", "each"] | None = Field(None, description="Rewards at the end, or with each call.")

    def spec(self, task: str) -> TaskSpec:
        seed = None if self.seed is None else str(self.seed)
        return TaskSpec(task=task, seed=seed, perturbations=self.perturbations, rewards=self.rewards)


class ActionMetadata(BaseModel):
    """Metadata of an action. Other fields are ignored."""

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


def _add_type(action: Any) -> Any:
    """Return an action with its type.

    A tool call can omit the type, because OpenEnv's own class has a default type.
    """
    return {"type": "call_tool", **action} if isinstance(action, dict) and "tool_name" in action else action


AnyAction = Annotated[ListTools | CallTool | AnswerAction, Field(discriminator="type"), BeforeValidator(_add_type)]


class StepBody(OpenEnvShape):
    """A step over HTTP, in an episode begun by a reset."""

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


def read_message(kind: type[M], content: Any, what: str) -> M:
    """Return a client's JSON as a message.

    Raises:
        HttpRefusedError: The JSON is invalid. The status is OpenEnv's for invalid messages.
    """
    return read(kind, content, what, UNPROCESSABLE)


# From this title, clients such as verifiers conclude that the environment has tools, and list them.
ACTION_SCHEMA: dict[str, Any] = {"title": "Action", **TypeAdapter(AnyAction).json_schema()}

RESET_OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "ResetObservation",
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "The agent's prompt."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "The prompt as messages."},
        "metadata": {"type": "object", "description": "Empty. The trainer's metadata is beside the observation."},
    },
}

OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "object"}, "description": "The tools, after list_tools."},
        "tool_name": {"type": "string", "description": "The tool that was called."},
        "result": {"description": "The tool's result, or the error text if it failed."},
        "error": {"type": ["object", "null"], "description": "Why the call was refused: error_type and message."},
        "metadata": {"type": "object", "description": "Empty. The trainer's metadata is beside the observation."},
    },
}

STATE_SCHEMA: dict[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "description": "Number of the agent's calls."},
        "done": {"type": "boolean"},
        "reward": {"type": ["number", "null"], "description": "The reward, if the episode is done."},
        "task": {"type": ["string", "null"]},
        "session_id": {"type": ["string", "null"]},
    },
}
