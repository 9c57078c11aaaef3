"""A task of Toolpack Server as an environment of SkyRL-gym (https://pypi.org/project/skyrl-gym).

A trainer registers `ToolpackEnv` as this file does, and names the task in each row of its data: `extras={"task": …}`.
`python examples/skyrl_environment.py http://127.0.0.1:8000 bank/save-300` plays two rollouts. In the first the policy
follows the task's solution, and in the second it does nothing.
"""

import json
import sys
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from toolpack_server import Client
from toolpack_server.environments import TextEnvironment


class ToolpackEnv(BaseTextEnv):
    """An environment with one task. The reward is NaN if the evaluation failed: leave out such samples."""

    def __init__(self, env_config: dict[str, Any], extras: dict[str, Any]) -> None:
        super().__init__()
        self.max_turns = extras.get("max_turns", 20)
        more = {"max_turns": self.max_turns, "labels": env_config.get("labels")}
        self.environment = TextEnvironment(env_config["url"], extras["task"], **more)

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [*prompt, {"role": "user", "content": self.environment.reset()}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        text, reward, terminated, truncated, info = self.environment.step(action)
        done = terminated or truncated
        observations = [] if done else [{"role": "user", "content": text}]
        return BaseTextEnvStepOutput(observations=observations, reward=reward, done=done, metadata=info)

    def close(self) -> None:
        self.environment.close()


skyrl_gym.register(id="toolpack", entry_point=ToolpackEnv)


def scripted_texts(url: str, task: str) -> list[str]:
    """Return the texts of a policy that follows the task's solution: its calls, then the answer."""
    with Client(url) as client:
        session = client.create_session(task=task)
        solution = client.get_solution(session["session_id"])
        client.close_session(session["session_id"])
    calls = [json.dumps({"name": call["function"], "arguments": call["kwargs"]}) for call in solution["calls"]]
    return [*(f"<tool_call>{call}</tool_call>" for call in calls), solution["answer"] or "Done."]


if __name__ == "__main__":
    url, task = sys.argv[1:]
    for texts in (scripted_texts(url, task), ["Done."]):
        env = skyrl_gym.make("toolpack", env_config={"url": url, "labels": {"run": "skyrl"}}, extras={"task": task})
        env.init([])
        for text in texts:
            step = env.step(text)
        env.close()
        print(task, "reward:", step["reward"], "valid:", step["metadata"]["valid"])
