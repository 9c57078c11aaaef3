"""Tasks of Toolpack Server as a resources server of NeMo Gym 0.4 (https://github.com/NVIDIA-NeMo/Gym).

`python examples/nemo_gym_resources_server.py http://127.0.0.1:8000 bank` sends it what NeMo Gym's simple agent would
send for a policy that does what the solutions say. Without arguments, this is the `app.py` that NeMo Gym starts: `url`
is in its configuration, and each of `rows` is a line of its dataset. With `--variant outage lost` the tasks are tried
with these variants, too.
"""

import sys
from secrets import token_hex
from typing import Any

from fastapi import Request
from fastapi.testclient import TestClient
from nemo_gym import base_resources_server as gym
from nemo_gym.server_utils import ServerClient

from toolpack_server import AsyncAgentClient, AsyncClient, Client


class ToolpackConfig(gym.BaseResourcesServerConfig):
    url: str = "http://127.0.0.1:8000"


class SeedRequest(gym.BaseSeedSessionRequest):
    task: str
    variant: str | None = None


class VerifyResponse(gym.BaseVerifyResponse):
    mask_sample: bool  # the reward says nothing of the policy, so the sample has no part in the loss


class ToolpackServer(gym.SimpleResourcesServer):
    config: ToolpackConfig

    def setup_webserver(self) -> Any:
        app = super().setup_webserver()
        app.post("/{function}")(self.run_function)
        return app

    async def seed_session(self, request: Request, body: SeedRequest) -> gym.BaseSeedSessionResponse:
        async with AsyncClient(self.config.url) as client:
            rules = {"variant": body.variant, "seed": token_hex(4)} if body.variant else None
            session = await client.create_session(task=body.task, perturbations=rules)
            request.session["toolpack"] = session  # in NeMo Gym's signed cookie
        return gym.BaseSeedSessionResponse()

    async def run_function(self, function: str, request: Request, kwargs: dict[str, Any]) -> Any:
        async with AsyncAgentClient(self.config.url + request.session["toolpack"]["agent_path"]) as agent:
            return await agent.run_function(function, kwargs)

    async def verify(self, request: Request, body: gym.BaseVerifyRequest) -> VerifyResponse:
        session_id = request.session["toolpack"]["session_id"]
        last = body.response.model_copy(update={"output": body.response.output[-1:]})
        async with AsyncClient(self.config.url) as client:
            await client.submit_answer(session_id, last.output_text)
            verdict = await client.evaluate_session(session_id, raise_on_error=False)
        return VerifyResponse(**body.model_dump(), reward=verdict["reward"] or 0.0, mask_sample=not verdict["valid"])


def rows(client: Client, toolpack: str, *variants: str) -> Any:
    for task in client.list_tasks(toolpack=toolpack, limit=1000)["tasks"]:
        functions = client.list_functions(client.create_session(task=task["task"])["session_id"], format="openai")
        tools = [{"type": "function", "strict": False, **each["function"]} for each in functions["result"]]
        for variant in [None, *(name for name in variants if name in task["variants"])]:
            params = {"input": task["prompt"], "tools": tools}
            yield {"task": task["task"], "variant": variant, "responses_create_params": params}


def play(app: Any, client: Client, row: dict[str, Any]) -> float:
    agent = TestClient(app)
    agent.post("/seed_session", json=row).raise_for_status()
    solution = client.get_solution(client.create_session(task=row["task"])["session_id"])
    for call in solution["calls"]:
        agent.post(f"/{call['function']}", json=call["kwargs"]).raise_for_status()
    content = [{"type": "output_text", "text": solution["answer"], "annotations": []}]
    output = [{"id": "0", "type": "message", "role": "assistant", "content": content}]
    response = {"id": "0", "object": "response", "created_at": 0, "model": "scripted", "tools": [], "output": output}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto"}
    return agent.post("/verify", json={**row, "response": response}).json()["reward"]


if __name__ == "__main__" and not sys.argv[1:]:
    ToolpackServer.run_webserver()
elif __name__ == "__main__":
    url, *wanted = [argument for argument in sys.argv[1:] if argument != "--variant"]
    config = ToolpackConfig(host="127.0.0.1", port=0, entrypoint="app.py", name="toolpack", url=url)
    app = ToolpackServer(config=config, server_client=ServerClient.model_construct()).setup_webserver()
    with Client(config.url) as client:
        for row in rows(client, *wanted):
            print(row["task"], row["variant"] or "", "reward:", play(app, client, row))
