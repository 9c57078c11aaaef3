"""A task of Toolpack Server as an environment of GEM (https://pypi.org/project/gem-llm).

`python examples/gem_environment.py http://127.0.0.1:8000 bank/save-300` plays the task's own solution. A trainer makes
it with `gem.make("toolpack:Task-v0", url=…, task=…)`, or many with `gem.make_vec`.
"""

import json
import math
import sys
from typing import Any

import gem
from gem.core import Env

from server.client import Client
from server.client.environments import Environment
from server.errors import RemoteFunctionError

BEGIN, END = "<tool_call>", "</tool_call>"


class ToolpackEnv(Env):
    """Text in, text out: what stands between `<tool_call>` and `</tool_call>` is called, all else is the answer."""

    def __init__(self, url: str, task: str, max_turns: int = 20, **create: Any) -> None:
        super().__init__()
        self._given = {"url": url, "task": task, "max_turns": max_turns, **create}
        self._max_turns, self._turns = max_turns, 0
        self.environment = Environment(url, task=task, **create)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed)
        self._turns = 0
        return self.environment.reset(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        told, ended, cut = "", False, self._turns >= self._max_turns
        if BEGIN in action:
            try:
                wanted = json.loads(action.partition(BEGIN)[2].partition(END)[0])
                told = json.dumps(self.environment.call(wanted["name"], **wanted["arguments"]))
            except (ValueError, KeyError, TypeError, RemoteFunctionError) as error:
                told = str(error)
            except RuntimeError:  # the server is lost
                cut = True
        else:
            self.environment.submit_answer(action)
            ended = True
        reward = self.environment.get_reward() if ended or cut else 0.0
        valid = reward is not None
        # NaN marks a sample to leave out: it is neither good nor bad.
        info = {"valid": valid, "failure": self.environment.problem}
        return told, reward if valid else math.nan, ended, cut and not ended, info

    def spawn(self, same_state: bool = False, **more: Any) -> "ToolpackEnv":
        if same_state:
            raise NotImplementedError("use Environment.group: it forks a session")
        return ToolpackEnv(**{**self._given, **more})

    def close(self) -> None:
        self.environment.close()


gem.register("toolpack:Task-v0", ToolpackEnv)


if __name__ == "__main__":
    url, task = sys.argv[1:]
    with Client(url) as client:
        session = client.create_session(task=task)
        solution = client.get_solution(session["session_id"])
        client.close_session(session["session_id"])
    env = gem.make("toolpack:Task-v0", url=url, task=task)
    env.reset()
    calls = [{"name": call["function"], "arguments": call["kwargs"]} for call in solution["calls"]]
    for text in [*(f"{BEGIN}{json.dumps(call)}{END}" for call in calls), solution["answer"] or "Done."]:
        _, reward, _, _, info = env.step(text)
    env.close()
    print(task, "reward:", reward, "valid:", info["valid"])
