"""A task of Toolpack Server as an environment of SkyRL-gym (https://pypi.org/project/skyrl-gym).

`python examples/skyrl_environment.py http://127.0.0.1:8000 bank/save-300` plays the task's own solution. A trainer
registers `ToolpackEnv` in the same way, and names the task in each row of its data: `extras={"task": …}`.
"""

import json
import math
import sys
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from server.client import Client
from server.client.environments import Environment
from server.errors import RemoteFunctionError

BEGIN, END = "<tool_call>", "</tool_call>"


class ToolpackEnv(BaseTextEnv):
    """Text in, text out: what stands between `<tool_call>` and `</tool_call>` is called, all else is the answer."""

    def __init__(self, env_config: dict[str, Any], extras: dict[str, Any]) -> None:
        super().__init__()
        self.max_turns = extras.get("max_turns", 20)
        self.environment = Environment(env_config["url"], task=extras["task"], labels=env_config.get("labels"))

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [*prompt, {"role": "user", "content": self.environment.reset()}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        told, done = "", True
        if BEGIN in action:
            done = self.turns >= self.max_turns
            try:
                wanted = json.loads(action.partition(BEGIN)[2].partition(END)[0])
                told = json.dumps(self.environment.call(wanted["name"], **wanted["arguments"]))
            except (ValueError, KeyError, TypeError, RemoteFunctionError) as error:
                told = str(error)
            except RuntimeError:  # the server is lost
                done = True
        else:
            self.environment.submit_answer(action)
        reward = self.environment.get_reward() if done else 0.0
        valid = reward is not None
        return BaseTextEnvStepOutput(
            observations=[] if done else [{"role": "user", "content": told}],
            reward=reward if valid else math.nan,  # a sample to leave out: neither good nor bad
            done=done,
            metadata={"valid": valid, "failure": self.environment.problem},
        )

    def close(self) -> None:
        self.environment.close()


skyrl_gym.register(id="toolpack", entry_point=ToolpackEnv)


if __name__ == "__main__":
    url, task = sys.argv[1:]
    with Client(url) as client:
        session = client.create_session(task=task)
        solution = client.get_solution(session["session_id"])
        client.close_session(session["session_id"])
    env = skyrl_gym.make("toolpack", env_config={"url": url}, extras={"task": task})
    conversation, _ = env.init([])
    calls = [{"name": call["function"], "arguments": call["kwargs"]} for call in solution["calls"]]
    for text in [*(f"{BEGIN}{json.dumps(call)}{END}" for call in calls), solution["answer"] or "Done."]:
        step = env.step(text)
    env.close()
    print(task, "reward:", step["reward"], "valid:", step["metadata"]["valid"])
