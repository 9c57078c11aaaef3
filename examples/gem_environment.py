"""A task of Toolpack Server as an environment of GEM (https://pypi.org/project/gem-llm).

A trainer creates an environment with `gem.make("toolpack:Task-v0", url=…, task=…)`, or several with `gem.make_vec`.
`python examples/gem_environment.py http://127.0.0.1:8000 bank/save-300` creates two environments. In each of them, the
policy follows the task's solution in one rollout, and does nothing in another.
"""

import json
import sys
from typing import Any

import gem
from gem.wrappers.wrapper_factory import get_wrapper_fns

from toolpack_server import Client
from toolpack_server.environments import TextEnvironment


class ToolpackEnv(gem.Env):
    """An environment with one task. The reward is NaN if the evaluation failed: leave out such samples."""

    def __init__(self, url: str, task: str, seed: int | None = None, **more: Any) -> None:
        """Ignore `seed`, which `make_vec` sets for environments with random data: a task always begins alike."""
        super().__init__()
        self._options = {"url": url, "task": task, **more}
        self._environment = TextEnvironment(**self._options)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed)
        return self._environment.reset(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._environment.step(action)

    def spawn(self, same_state: bool = False, **more: Any) -> "ToolpackEnv":
        spawned = ToolpackEnv(**{**self._options, **more})
        if same_state:
            spawned._environment = self._environment.fork()
        return spawned

    def close(self) -> None:
        self._environment.close()


gem.register("toolpack:Task-v0", ToolpackEnv)


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
    solution, idle = scripted_texts(url, task), ["Done."]
    options = [{"url": url, "task": task, "labels": {"run": "gem"}} for _ in range(2)]
    wrappers = get_wrapper_fns("concat_with_action,episode_tracking")
    env = gem.make_vec(["toolpack:Task-v0"] * 2, vec_kwargs=options, wrappers=wrappers, async_mode=True)
    env.reset()
    for actions in zip(solution + idle, idle + solution, strict=True):
        _, rewards, terminated, truncated, _ = env.step(actions)
        for number in range(2):
            if terminated[number] or truncated[number]:
                print(f"environment {number} reward: {rewards[number]}")
    for each in env.envs:
        each.close()
