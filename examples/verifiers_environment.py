"""Tasks of Toolpack Server as an environment of verifiers 0.4 (https://github.com/PrimeIntellect-ai/verifiers).

`PYTHONPATH=examples vf-eval verifiers_environment --env.taskset.toolpack bank --no-push --model MODEL` lets a model of
Prime Inference play the tasks of `bank`. `python examples/verifiers_environment.py http://127.0.0.1:8000 bank` plays
them with a script that follows the solutions. The program `uv` must be on the PATH. With
`--env.taskset.variants '["lost"]'`, or `--variant lost`, each task is also played with these variants if it has them.
"""

import asyncio
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Thread

import verifiers.v1 as vf
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.mcp import SharedToolServer

from toolpack_server import AsyncClient, Client

__all__ = ["ToolpackEnv", "ToolpackTasks"]


class ToolpackConfig(vf.TasksetConfig):
    url: str = "http://127.0.0.1:8000"
    toolpack: str | None = None
    variants: list[str] = []


class ToolpackTasks(vf.Taskset[vf.Task, ToolpackConfig]):
    def load(self):
        with Client(self.config.url) as client:
            for each in client.list_tasks(toolpack=self.config.toolpack, limit=1000)["tasks"]:
                for variant in ["", *(f"#{name}" for name in self.config.variants if name in each["variants"])]:
                    yield vf.Task(vf.TaskData(name=each["task"] + variant, prompt=each["prompt"]), self.config.task)


class ToolpackEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})


class ToolpackEnv(vf.Env[ToolpackEnvConfig]):
    async def run(self, task, agents):
        async with AsyncClient(self.taskset.config.url) as client:
            name, _, variant = task.data.name.partition("#")
            rules = {"variant": variant, "seed": token_hex(4)} if variant else None
            session = await client.create_session(task=name, perturbations=rules)
            url = self.taskset.config.url + session["mcp_path"]
            trace = await agents.agent.run(task, tools={"": SharedToolServer(url, local=False, external=True)})
            await client.add_message(session["session_id"], "assistant", trace.last_reply)
            if trace.ok:  # a rollout in which the model failed gets no reward, instead of reward 0
                verdict = await client.evaluate_session(session["session_id"], raise_on_error=False)
                if verdict["valid"]:
                    trace.record_reward("reward", verdict["reward"])
                else:  # a trace with an error isn't used for training
                    trace.record_error(RuntimeError(verdict["failure"]["message"]))


class ScriptedModel(BaseHTTPRequestHandler):
    """An endpoint for chat completions that sends the next step of a script."""

    def do_POST(self):
        choice = {"index": 0, "delta": next(self.server.steps), "finish_reason": "stop"}
        chunk = {"id": "0", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}
        self.send_response_only(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())


def scripted_deltas(client, toolpack, variants):
    """Yield the model's messages for all tasks and variants: the calls of each task's solution, then the answer."""
    for each in client.list_tasks(toolpack=toolpack, limit=1000)["tasks"]:
        solution = client.get_solution(client.create_session(task=each["task"])["session_id"])
        for _ in [None, *(name for name in variants if name in each["variants"])]:
            for number, call in enumerate(solution["calls"]):
                function = {"name": call["function"], "arguments": json.dumps(call["kwargs"])}
                yield {"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]}
            yield {"content": solution["answer"] or "Done."}


if __name__ == "__main__":
    url, toolpack, *variants = [argument for argument in sys.argv[1:] if argument != "--variant"]
    with HTTPServer(("127.0.0.1", 0), ScriptedModel) as model, Client(url) as client, TemporaryDirectory() as folder:
        model.steps = scripted_deltas(client, toolpack, variants)
        Thread(target=model.serve_forever, daemon=True).start()
        taskset = {"id": "verifiers_environment", "url": url, "toolpack": toolpack, "variants": variants}
        settings = {"model": "scripted", "client": {"base_url": f"http://127.0.0.1:{model.server_port}"}, "push": False}
        settings |= {"env": {"taskset": taskset}, "max_concurrent": 1, "rich": None, "output_dir": folder}
        for episode in asyncio.run(run_eval(EvalConfig.model_validate(settings))):
            print(episode.traces[0].task.data.name, "reward:", episode.traces[0].reward)
