"""Rollouts by A2A agents. In each rollout, an agent plays a task in its own session over MCP, and gets a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolpack_a2a.agent import A2AAgent, AgentError
from toolpack_server import ReplyError
from toolpack_server.client import AsyncClient

LABEL = "judge"
PAGE = 1000


class JudgeError(Exception):
    """The judge can't send a task. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class JudgedRollout:
    """A rollout and its verdict.

    Attributes:
        ended: The state of the agent's A2A task, such as `completed`, or how the agent failed, such as `timeout`.
        problem: How the agent failed, in a sentence. None if it didn't fail.
        verdict: The result of `evaluate_session`. None if the agent never received the task.
    """

    task: str
    session_id: str
    ended: str
    problem: str | None
    verdict: Mapping[str, Any] | None

    @property
    def is_valid(self) -> bool:
        """Whether the rollout has a valid verdict."""
        return self.verdict is not None and bool(self.verdict["valid"])

    @property
    def passed(self) -> bool:
        """Whether the rollout has a valid verdict, and passed."""
        return self.verdict is not None and self.is_valid and bool(self.verdict["passed"])

    def line(self) -> str:
        """Return the rollout in one line."""
        if self.verdict is None:
            outcome = "not judged"
        elif not self.is_valid:
            outcome = f"no valid verdict: {(self.verdict.get('failure') or {}).get('message', 'unknown')}"
        else:
            outcome = f"{'passed' if self.passed else 'not passed'}, reward {self.verdict['reward']}"
        how = self.ended if self.problem is None else f"{self.ended}: {self.problem}"
        return f"{self.task}: {outcome} (session {self.session_id}, {how})"

    def as_json(self) -> dict[str, Any]:
        """Return the rollout for the results of an assessment."""
        shown: dict[str, Any] = {"task": self.task, "session_id": self.session_id, "ended": self.ended}
        shown |= {"passed": self.passed, "valid": self.is_valid}
        if self.problem is not None:
            shown["problem"] = self.problem
        if self.verdict is not None:
            shown |= {"reward": self.verdict["reward"] if self.is_valid else None, "checks": self.verdict.get("checks")}
        return shown


class Judge:
    """Sends a server's tasks to agents, and evaluates the rollouts.

    Args:
        client: Client of the server.
        public_url: URL of the server for agents.
        run: Value of the label `judge`, which marks all sessions of a run.
    """

    def __init__(self, client: AsyncClient, public_url: str, run: str) -> None:
        self._client = client
        self._public_url = public_url.rstrip("/")
        self._run = run

    async def tasks(self, names: Sequence[str], toolpack: str | None = None, split: str | None = None) -> list[str]:
        """Return the tasks to play: the named tasks, and the tasks of a toolpack or of its split.

        Raises:
            JudgeError: There is no task to play, or a task needs participants.
        """
        try:
            tasks = [await self._client.get_task(name) for name in names]
            after = -1
            while toolpack is not None:
                page = await self._client.list_tasks(toolpack=toolpack, split=split, after=after, limit=PAGE)
                if not page["tasks"]:
                    break
                tasks += [task for task in page["tasks"] if not task["participants"]]
                after = page["tasks"][-1]["index"]
        except ReplyError as error:
            raise JudgeError(str(error)) from None
        for task in tasks:
            if task["participants"]:
                raise JudgeError(
                    f"The task {task['task']} needs participants, and an A2A agent plays alone: leave it out."
                )
        if not tasks:
            raise JudgeError("There is no task to play: name one.")
        return [task["task"] for task in tasks]

    async def play(self, agent: A2AAgent, task: str, seconds: float) -> JudgedRollout:
        """Have an agent play a task, evaluate the session, and record the verdict.

        If the agent fails, it is judged by the calls that it made before. After the evaluation, its calls are refused.
        """
        session = await self._client.create_session(task=task, labels={LABEL: self._run})
        session_id = session["session_id"]
        agent_client = self._client.agent(session)
        prompt = (await agent_client.get_task())["prompt"]
        mcp_url = self._public_url + session["mcp_path"]
        ended, problem, answer = "", None, None
        try:
            reply = await agent.ask(_message(prompt, mcp_url), {"task": task, "mcp_url": mcp_url}, seconds)
        except AgentError as error:
            ended, problem = error.failure, str(error)
            if error.failure == "unreachable":  # nothing to judge, so the session must not count in the run
                await self._client.close_session(session_id)
                return JudgedRollout(task, session_id, ended, problem, None)
        else:
            ended, answer = reply.state, reply.text
        if answer is not None:
            try:
                await agent_client.submit_answer(answer)
            except ReplyError as error:  # the agent has already submitted an answer itself, or this answer is too long
                if not (await agent_client.get_task())["done"]:
                    problem = f"Its answer was not accepted: {error}"
        verdict = await self._client.evaluate_session(session_id, record=True, ends=True, raise_on_error=False)
        return JudgedRollout(task, session_id, ended, problem, verdict)


def _message(prompt: Any, mcp_url: str) -> str:
    """Return the message to an agent: the task's prompt, and the address of the tools."""
    if not isinstance(prompt, str):
        prompt = "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt or [])
    return (
        f"{prompt}\n\nUse the tools of the MCP server at {mcp_url} (streamable HTTP). When you are done, reply with "
        "your final answer."
    )
