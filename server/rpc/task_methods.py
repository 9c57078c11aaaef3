"""The JSON-RPC methods for tasks; see `methods` for the rule.

Evaluators, solutions, rewards and names of tasks are for whoever runs the experiment: an agent's path has none of them.
"""

from typing import Any

from server.rpc.method import Caller, Method, session_of
from server.rpc.task_parameters import (
    AddMessage,
    AgentGetTask,
    AgentSubmitAnswer,
    EvaluateSession,
    GetSolution,
    GetTask,
    ListTasks,
    SubmitAnswer,
)
from server.sessions.tasks import Tasks, Wanted


class TaskMethods:
    """The methods for tasks.

    Args:
        tasks: All that can be done with tasks.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def all(self) -> list[Method]:
        """Get the methods of `/rpc`."""
        return [
            Method("list_tasks", ListTasks, self.list_tasks),
            Method("get_task", GetTask, self.get_task),
            Method("add_message", AddMessage, self.add_message),
            Method("submit_answer", SubmitAnswer, self.submit_answer),
            Method("evaluate_session", EvaluateSession, self.evaluate_session),
            Method("get_solution", GetSolution, self.get_solution),
        ]

    def agents(self) -> list[Method]:
        """Get the methods of an agent's path, where the session is implied."""
        return [
            Method("get_task", AgentGetTask, self.agent_task),
            Method("submit_answer", AgentSubmitAnswer, self.submit_answer),
        ]

    async def list_tasks(self, caller: Caller, params: ListTasks) -> Any:
        """See `ListTasks`."""
        wanted = Wanted(params.toolpack, params.split, params.tags)
        return await self._tasks.list(caller.owner, wanted, params.after, params.limit)

    async def get_task(self, caller: Caller, params: GetTask) -> Any:
        """See `GetTask`."""
        return await self._tasks.describe(caller.owner, params.task)

    async def agent_task(self, caller: Caller, params: AgentGetTask) -> Any:
        """See `AgentGetTask`."""
        return await self._tasks.agent_task(session_of(caller, params), caller.owner)

    async def add_message(self, caller: Caller, params: AddMessage) -> bool:
        """See `AddMessage`."""
        return await self._tasks.add_message(
            params.session_id, caller.owner, params.role, params.content, params.call_id
        )

    async def submit_answer(self, caller: Caller, params: AgentSubmitAnswer) -> bool:
        """See `SubmitAnswer`."""
        return await self._tasks.submit_answer(session_of(caller, params), caller.owner, params.answer)

    async def evaluate_session(self, caller: Caller, params: EvaluateSession) -> Any:
        """See `EvaluateSession`."""
        return await self._tasks.evaluate(params.session_id, caller.owner, params.task, params.version, params.answer)

    async def get_solution(self, caller: Caller, params: GetSolution) -> Any:
        """See `GetSolution`."""
        return await self._tasks.solution(params.session_id, caller.owner)
