"""Plays episodes with the unmodified SDK of the Open Reward Standard, in whichever Python has it.

It reads a JSON line {url, token, episodes: [{env, task, calls, answer, pause}]}, and prints a line for each episode:
its rewards. Where an episode is to `pause` it prints `amid` before the call in its middle, and goes on after a line.
With `trl` in place of the SDK, TRL's class plays the episodes.
"""

import json
import sys


def pause_before(number, episode):
    if episode.get("pause") and number == len(episode["calls"]) // 2:
        print("amid", flush=True)  # noqa: T201
        sys.stdin.readline()


def play_with_sdk(url, token, episodes):
    from openreward.api.environments.client import EnvironmentsAPI, Task  # noqa: PLC0415

    with EnvironmentsAPI(base_url=url, api_key=token) as api:
        for episode in episodes:
            task = Task(episode["env"], episode["env"], {"task": episode["task"]}, None)
            with api.get(episode["env"]).session(task=task) as session:
                assert session.get_prompt()[0].text
                outputs = []
                for number, (name, given) in enumerate(episode["calls"]):
                    pause_before(number, episode)
                    outputs.append(session.call_tool(name, given))
                if not (outputs and outputs[-1].finished):
                    outputs.append(session.call_terminal_tool(episode["answer"]))
            yield [output.reward for output in outputs]


def play_with_trl(url, token, episodes):
    from trl.experimental.openreward import OpenRewardSpec  # noqa: PLC0415

    for episode in episodes:
        spec = OpenRewardSpec(url, env_name=episode["env"], split="all", api_key=token)
        tasks = spec.train_dataset["task"]
        environment = spec.environment_factory()
        assert environment.reset(task_index=tasks.index(episode["task"]))
        for number, (name, given) in enumerate(episode["calls"]):
            pause_before(number, episode)
            getattr(environment, name)(**given)
        if not environment.finished:
            environment.submit_answer(episode["answer"])
        environment._close()
        assert spec.reward_funcs([environment]) == [environment.reward]
        yield environment.rewards


if __name__ == "__main__":
    wanted = json.loads(sys.stdin.readline())
    player = play_with_trl if sys.argv[1:] == ["trl"] else play_with_sdk
    for rewards in player(**wanted):
        print(json.dumps(rewards), flush=True)  # noqa: T201
