"""The methods of the clients for tasks; see `methods` for the rule."""

from collections.abc import Sequence
from typing import Literal

from server.client.requests import Request, call_id_or_new, method
from server.results import AgentTask, Solution, TaskDescription, TaskPage, Verdict


class ClientTaskMethods:
    """The JSON-RPC methods for tasks, with their parameters and results."""

    @method
    def list_tasks(
        self,
        *,
        toolpack: str | None = None,
        split: str | None = None,
        tags: Sequence[str] | None = None,
        after: int = -1,
        limit: int = 100,
    ) -> Request[TaskPage]:
        """List tasks, in a fixed order."""
        params = {"toolpack": toolpack, "split": split, "tags": tags, "after": after, "limit": limit}
        return Request("list_tasks", params)

    @method
    def get_task(self, task: str) -> Request[TaskDescription]:
        """Describe a task."""
        return Request("get_task", {"task": task})

    @method
    def add_message(
        self,
        session_id: str,
        role: Literal["system", "user", "assistant"],
        content: str,
        *,
        call_id: str | None = None,
    ) -> Request[bool]:
        """Record a message of the conversation, for evaluators and trajectories."""
        params = {"session_id": session_id, "role": role, "content": content, "call_id": call_id_or_new(call_id)}
        return Request("add_message", params)

    @method
    def submit_answer(self, session_id: str, answer: str = "") -> Request[bool]:
        """Submit the agent's answer in a session with a task; this ends the agent's part."""
        return Request("submit_answer", {"session_id": session_id, "answer": answer})

    @method
    def evaluate_session(
        self, session_id: str, *, task: str | None = None, version: int | None = None, answer: str | None = None
    ) -> Request[Verdict]:
        """Evaluate a session: the reward of its path, and whether its task counts as done."""
        params = {"session_id": session_id, "task": task, "version": version, "answer": answer}
        return Request("evaluate_session", params)

    @method
    def get_solution(self, session_id: str) -> Request[Solution]:
        """Get one way to do the session's task, as calls that `run_function` takes."""
        return Request("get_solution", {"session_id": session_id})


class AgentTaskMethods:
    """The methods of a session's agent for its task."""

    @method
    def get_task(self) -> Request[AgentTask]:
        """Get what the agent is asked to do, and how many calls it has used; without a task the prompt is None."""
        return Request("get_task", {})

    @method
    def submit_answer(self, answer: str = "") -> Request[bool]:
        """Submit the answer, which ends the agent's part: it can make no more calls."""
        return Request("submit_answer", {"answer": answer})
