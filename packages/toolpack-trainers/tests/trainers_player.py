"""A program that plays episodes with unmodified clients of trainers. It runs in a Python that has these clients.

The program reads a JSON line {url, token, episodes: [{env, task, calls, answer, pause}]}, and prints the rewards of
each episode on a line. An episode with `pause` prints `amid` before its middle call, and continues after the program
reads a line.

The argument selects the client. Without an argument, it is the SDK of the Open Reward Standard. `trl` is TRL's class,
`openenv` is OpenEnv's generic client, and `openenv-mcp` is OpenEnv's client of tools. `openenv-harness` is OpenEnv's
adapter for trainers such as TRL, and `verifiers` is the taskset of verifiers. The last two clients print only the last
reward, or the sum of the rewards.
"""

import asyncio
import json
import sys
import time
import uuid
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from tempfile import TemporaryDirectory
from threading import Thread

RETRY_SECONDS = 120.0  # the longest outage of a server


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

    yield from _play_on_websockets(GenericEnvClient, dict, url, token, episodes)


def play_with_openenv_mcp(url, token, episodes):
    from openenv.core.env_server.mcp_types import CallToolAction  # noqa: PLC0415
    from openenv.core.mcp_client import MCPToolClient  # noqa: PLC0415

    yield from _play_on_websockets(MCPToolClient, CallToolAction, url, token, episodes)


def _play_on_websockets(kind, action_of, url, token, episodes):
    headers = {"Authorization": f"Bearer {token}"} if token else None
    for episode in episodes:
        begin = {"task": episode["task"], "episode_id": uuid.uuid4().hex}
        with ExitStack() as opened:
            client = kind(base_url=f"{url}/openenv/{episode['env']}", headers=headers).sync()
            env = _insist(lambda client=client, opened=opened: opened.enter_context(client))
            observation = _insist(lambda env=env, begin=begin: env.reset(**begin)).observation
            assert observation["prompt"] if isinstance(observation, dict) else observation.prompt
            offered = None if isinstance(observation, dict) else {tool.name for tool in env.list_tools()}
            results = []
            for number, (name, given) in enumerate(
                [*episode["calls"], ("submit_answer", {"answer": episode["answer"]})]
            ):
                pause_before(number, episode)
                assert offered is None or name in offered
                action = {"type": "call_tool", "tool_name": name, "arguments": given}
                results.append(_step(env, begin, action_of(**action, metadata={"call_id": str(number)})))
                if results[-1].done:
                    break
            assert results[-1].done
            state = _step(env, begin, None)
            if isinstance(state, dict):  # The client of tools drops the reward.
                assert state["reward"] == results[-1].reward, (state, results[-1])
        yield [result.reward for result in results]


def _step(env, begin, action):
    """Run a step and return its result. Without an action, return the state.

    On a new WebSocket, resume the episode first.
    """
    while True:
        try:
            result = _insist(lambda: env.state() if action is None else env.step(action))
        except RuntimeError as error:
            if "There is no episode on this WebSocket" not in str(error):
                raise
        else:
            # On a new WebSocket the state is empty.
            if action is not None:
                return result
            if (result["episode_id"] if isinstance(result, dict) else result.episode_id) is not None:
                return result
        _insist(lambda: env.reset(**begin))


def _insist(do):
    """Call `do` again until a server answers."""
    from httpx import HTTPStatusError, TransportError  # noqa: PLC0415 - the client of tools gets its session over HTTP
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return do()
        except (ConnectionError, ConnectionClosed, TransportError, HTTPStatusError) as error:
            starts = not isinstance(error, HTTPStatusError) or error.response.status_code == 503
            if not starts or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def play_with_openenv_harness(url, token, episodes):
    """Play as TRL does: TRL's worker lets an OpenEnv adapter run a session, and uses the reward of `verify`."""
    from openenv.core.env_server.mcp_types import Tool  # noqa: PLC0415
    from openenv.core.generic_client import GenericEnvClient  # noqa: PLC0415
    from openenv.core.harness import (  # noqa: PLC0415
        HarnessRunLimits,
        MCPHarnessAdapter,
        ModelStepResult,
        StepEnvSessionAdapter,
    )
    from openenv.core.llm_client import LLMResponse, ToolCall  # noqa: PLC0415

    headers = {"Authorization": f"Bearer {token}"} if token else None
    for episode in episodes:
        turns = iter([*episode["calls"], ("submit_answer", {"answer": episode["answer"]})])

        def say(_messages, tools, _sampling, turns=turns):
            name, given = next(turns)
            assert name in {tool.name for tool in tools}
            return ModelStepResult(LLMResponse(content="", tool_calls=[ToolCall(id="0", name=name, args=given)]))

        with GenericEnvClient(base_url=f"{url}/openenv/{episode['env']}", headers=headers).sync() as client:
            offered = client.step({"type": "list_tools"}).observation["tools"]
            session = StepEnvSessionAdapter(
                client,
                tool_specs=[Tool(**tool) for tool in offered],
                action_builder=lambda name, given: {"type": "call_tool", "tool_name": name, "arguments": given},
                initial_messages_builder=lambda result, _task: result.observation["messages"],
                episode_id=uuid.uuid4().hex,
                reset_kwargs={"task": episode["task"]},
            )
            assert session.initial_messages()[0]["content"]
            played = MCPHarnessAdapter().run_white_box(say, session, HarnessRunLimits(max_turns=100))
            assert played.done
            yield [session.verify(played.messages).env_reward]


class _Model(BaseHTTPRequestHandler):
    """A model server that returns the scripted messages in order."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"role": "assistant", "content": next(self.server.says)}
        about = {"id": "0", "created": 0, "model": "scripted"}
        self.send_response_only(200)
        if request.get("stream"):
            choice = {"index": 0, "delta": said, "finish_reason": "stop"}
            chunk = {**about, "object": "chat.completion.chunk", "choices": [choice]}
            kind, body = "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        else:
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            kind, body = "application/json", json.dumps({**about, "object": "chat.completion", "choices": [choice]})
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def scripted(calls):
    """Serve a model that makes these calls in order. Yield the port."""
    with HTTPServer(("127.0.0.1", 0), _Model) as model:
        model.says = (json.dumps({"tool_name": name, "arguments": given}) for name, given in calls)
        Thread(target=model.serve_forever, daemon=True).start()
        try:
            yield model.server_port
        finally:
            model.shutdown()


def play_with_verifiers(url, token, episodes):
    assert token is None  # This client can't send a token.
    from verifiers.v1.cli.eval.runner import run_eval  # noqa: PLC0415
    from verifiers.v1.configs.cli.eval import EvalConfig  # noqa: PLC0415

    for env in dict.fromkeys(episode["env"] for episode in episodes):
        own = [episode for episode in episodes if episode["env"] == env]
        calls = [[*each["calls"], ("submit_answer", {"answer": each["answer"]})] for each in own]
        with scripted(call for each in calls for call in each) as model, TemporaryDirectory() as folder:
            resets = [{"task": episode["task"]} for episode in own]
            taskset = {"id": "openenv", "base_url": f"{url}/openenv/{env}", "resets": resets}
            settings = {"model": "scripted", "client": {"base_url": f"http://127.0.0.1:{model}"}}
            player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
            settings |= {
                "env": {"taskset": taskset, "player": player},
                "max_concurrent": 1,
                "rich": None,
                "output_dir": folder,
            }
            played = asyncio.run(run_eval(EvalConfig.model_validate({**settings, "push": False})))
            for episode in sorted(played, key=lambda each: each.traces[0].task.data.idx):
                yield [episode.traces[0].reward]


PLAYERS = {
    "trl": play_with_trl,
    "openenv": play_with_openenv,
    "openenv-mcp": play_with_openenv_mcp,
    "openenv-harness": play_with_openenv_harness,
    "verifiers": play_with_verifiers,
}

if __name__ == "__main__":
    request = json.loads(sys.stdin.readline())
    player = PLAYERS[sys.argv[1]] if sys.argv[1:] else play_with_sdk
    for rewards in player(**request):
        print(json.dumps(rewards), flush=True)  # noqa: T201
