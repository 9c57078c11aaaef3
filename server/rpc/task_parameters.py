"""The parameters of the JSON-RPC methods for tasks; see `parameters` for the rule."""

from typing import Annotated, Literal

from pydantic import Field

from server.rpc.parameters import MAX_COUNT, CallId, Limit, Params, SessionId, Version

TaskName = Annotated[str, Field(description="The task, as toolpack/name.")]


class ListTasks(Params):
    """List tasks, in a fixed order."""

    toolpack: str | None = Field(None, description="Only those of this toolpack.")
    split: str | None = Field(None, description="Only those of this split.")
    tags: list[str] = Field(default_factory=list, description="Only those that have all these tags.")
    after: int = Field(-1, ge=-1, le=MAX_COUNT, description="List the tasks after this index; default: from the first.")
    limit: Limit


class GetTask(Params):
    """Describe a task."""

    task: TaskName


class AgentGetTask(Params):
    """Get what the agent is asked to do, and how many calls it has used; without a task the prompt is null."""


class AddMessage(Params):
    """Record a message of the conversation, for evaluators and trajectories."""

    session_id: SessionId
    role: Literal["system", "user", "assistant"] = Field(description="Who says it.")
    content: str = Field(description="What is said.")
    call_id: CallId


class AgentSubmitAnswer(Params):
    """Submit the agent's answer, which ends its part: it can make no more calls."""

    answer: str = Field("", description="The answer, for the evaluator.")


class SubmitAnswer(AgentSubmitAnswer):
    """Submit the agent's answer in a session with a task; this ends the agent's part."""

    session_id: SessionId
    answer: str = Field("", description="The answer, for the evaluator.")


class EvaluateSession(Params):
    """Evaluate a session: the reward of its path, and whether its task counts as done."""

    session_id: SessionId
    task: str | None = Field(None, description="A task of one of its toolpacks; default: the session's own.")
    version: Version | None = Field(None, description="The version to evaluate; default: the current one.")
    answer: str | None = Field(None, description="The answer to evaluate; default: the recorded one.")


class GetSolution(Params):
    """Get one way to do the session's task, as calls that run_function takes."""

    session_id: SessionId
