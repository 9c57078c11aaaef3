"""Plays episodes with the unmodified clients of trainers, in whichever Python has them.

It reads a JSON line {url, token, episodes: [{env, task, calls, answer, pause}]}, and prints a line for each episode:
its rewards. Where an episode is to `pause` it prints `amid` before the call in its middle, and goes on after a line.
The SDK of the Open Reward Standard plays them; with `trl` TRL's class does, with `openenv` the generic client of
OpenEnv, and with `openenv-mcp` its client of tools.
"""

import json
import sys
import time
import uuid
from contextlib import ExitStack

RETRY_SECONDS = 120.0  # for which a server may be away


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


def play_with_openenv(url, token, episodes):
    from openenv.core.generic_client import GenericEnvClient  # noqa: PLC0415

    headers = {"Authorization": f"Bearer {token}"} if token else None
    for episode in episodes:
        begin = {"task": episode["task"], "episode_id": uuid.uuid4().hex}
        with ExitStack() as opened:
            client = GenericEnvClient(base_url=f"{url}/openenv/{episode['env']}", headers=headers).sync()
            env = _insisted(lambda client=client, opened=opened: opened.enter_context(client))
            assert _insisted(lambda env=env, begin=begin: env.reset(**begin)).observation["prompt"]
            results = []
            for number, (name, given) in enumerate(episode["calls"]):
                pause_before(number, episode)
                action = {"type": "call_tool", "tool_name": name, "arguments": given}
                results.append(_stepped(env, begin, {**action, "metadata": {"call_id": str(number)}}))
            if not (results and results[-1].done):
                answer = {"type": "submit_answer", "answer": episode["answer"], "metadata": {"call_id": "answer"}}
                results.append(_stepped(env, begin, answer))
            assert results[-1].done
            state = _stepped(env, begin, None)
            assert state["reward"] == results[-1].reward, (state, results[-1])
        yield [result.reward for result in results]


def _stepped(env, begin, action):
    """Step, or get the state if there is no action; on a new WebSocket the episode goes on."""
    while True:
        try:
            found = _insisted(lambda: env.state() if action is None else env.step(action))
        except RuntimeError as error:
            if "There is no episode on this WebSocket" not in str(error):
                raise
        else:
            if action is not None or found["episode_id"] is not None:  # the state on a new WebSocket is that of none
                return found
        _insisted(lambda: env.reset(**begin))


def _insisted(do):
    """Do it again and again while there is no server."""
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return do()
        except (ConnectionError, ConnectionClosed):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def play_with_openenv_mcp(url, token, episodes):
    from openenv.core.env_server.mcp_types import CallToolAction  # noqa: PLC0415
    from openenv.core.mcp_client import MCPToolClient  # noqa: PLC0415

    headers = {"Authorization": f"Bearer {token}"} if token else None
    for episode in episodes:
        with MCPToolClient(base_url=f"{url}/openenv/{episode['env']}", headers=headers).sync() as env:
            assert env.reset(task=episode["task"]).observation.prompt
            offered = {tool.name for tool in env.list_tools()}
            rewards = []
            for name, given in [*episode["calls"], ("submit_answer", {"answer": episode["answer"]})]:
                assert name in offered
                result = env.step(CallToolAction(tool_name=name, arguments=given))
                rewards.append(result.reward)
                if result.done:
                    break
        yield rewards


PLAYERS = {"trl": play_with_trl, "openenv": play_with_openenv, "openenv-mcp": play_with_openenv_mcp}

if __name__ == "__main__":
    wanted = json.loads(sys.stdin.readline())
    player = PLAYERS[sys.argv[1]] if sys.argv[1:] else play_with_sdk
    for rewards in player(**wanted):
        print(json.dumps(rewards), flush=True)  # noqa: T201
