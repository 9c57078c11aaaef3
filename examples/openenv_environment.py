"""A task of Toolpack Server as an environment of OpenEnv (https://github.com/meta-pytorch/OpenEnv).

`python examples/openenv_environment.py http://127.0.0.1:8000 bank/save-300` plays the task's own solution, and with
`--variant lost` this variant of the task. To serve the environment to trainers, pass `environment` to OpenEnv's
`create_fastapi_app`.
"""

import sys
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State

from toolpack_server import AgentClient, Client


class Move(Action):
    """A call of a function, or with `answer` the end of the episode."""

    function: str = ""
    kwargs: dict[str, Any] = {}
    answer: str | None = None


class Told(Observation):
    """The prompt and the functions at the beginning, then the result or the error of each call."""

    content: Any = None
    error: str | None = None
    functions: list[dict[str, Any]] = []


class ToolpackEnvironment(Environment):
    """One session for each episode; the reward comes with the last step."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, url: str, task: str, variant: str | None = None) -> None:
        super().__init__()
        self._variant = variant
        self.client, self._url, self._task = Client(url), url, task

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_more: Any) -> Told:
        rules = {"variant": self._variant, "seed": str(seed or "")} if self._variant else None
        labels = {"episode": episode_id or ""}
        self.session = self.client.create_session(task=self._task, perturbations=rules, labels=labels)
        self.agent = AgentClient(self._url + self.session["agent_path"])
        functions = self.agent.list_functions(format="openai")["result"]
        return Told(content=self.agent.get_task()["prompt"], functions=functions)

    def step(self, action: Move, timeout_s: float | None = None, **_more: Any) -> Told:
        told: Any = {"result": None, "error": None}
        if action.answer is None:
            told = self.agent.run_function(action.function, action.kwargs)
        else:
            self.agent.submit_answer(action.answer)
        ended = Told(content=told["result"], error=told["error"], done=self.agent.get_task()["done"])
        if ended.done:
            verdict = self.client.evaluate_session(self.session["session_id"], raise_on_error=False)
            ended.reward = verdict["reward"] if verdict["valid"] else None  # no reward is none of 0
            ended.metadata = {"valid": verdict["valid"], "failure": verdict["failure"]}
        return ended

    @property
    def state(self) -> State:
        return State(episode_id=self.session["session_id"])


if __name__ == "__main__":
    environment = ToolpackEnvironment(*(argument for argument in sys.argv[1:] if argument != "--variant"))
    print(environment.reset().content)
    solution = environment.client.get_solution(environment.session["session_id"])
    for call in solution["calls"]:
        print(environment.step(Move(function=call["function"], kwargs=call["kwargs"])).content)
    print("reward:", environment.step(Move(answer=solution["answer"])).reward)
