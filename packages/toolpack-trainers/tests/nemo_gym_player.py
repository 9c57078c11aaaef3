"""A program that plays episodes with the unmodified agent of NeMo Gym. It runs in a Python that has NeMo Gym.

The program reads a JSON line {url, by, episodes: [{row, calls, answer, pause}]}, and prints the result of each episode
on a line. An episode with `pause` prints `amid` before its middle call, and continues after the program reads a line.
The model is scripted: it makes the calls of the episode, then gives the answer. With `by` "agent" the episodes have no
names. With "environment" NeMo Gym's environment server names the episodes and runs the agent. With "gymnasium" the
Gymnasium agent plays by `/reset` and `/step`. With "contract" the program plays no episode, but runs NeMo Gym's own
checks of `/seed_session` and `/close_session` with the row of each episode.
"""

import asyncio
import json
import os
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

import httpx
import uvicorn
from environment_servers.single_agent_turn.app import SingleAgentTurnEnvironmentServer
from fastapi import FastAPI, Request, Response
from nemo_gym import BaseServerConfig, ServerClient
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict
from nemo_gym.testing.session_conformance import check_resources_session_contract
from omegaconf import OmegaConf
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent
from responses_api_agents.simple_agent.app import SimpleAgent

episode = {}
model = FastAPI()


@model.post("/v1/responses")
@model.post("/ng-rollout/{rollout}/v1/responses")
async def respond(request: Request):
    said = (await request.json())["input"]
    number = sum(1 for each in said if each.get("type") == "function_call_output")
    calls = episode["calls"]
    if number < len(calls):
        if episode["pause"] and number == len(calls) // 2:
            print("amid", flush=True)  # noqa: T201
            await asyncio.to_thread(sys.stdin.readline)
        name, given = calls[number]
        call = {"name": name, "arguments": json.dumps(given), "call_id": f"call-{number}"}
        output = {"type": "function_call", **call}
    else:
        content = [{"type": "output_text", "text": episode["answer"], "annotations": []}]
        output = {"id": "0", "type": "message", "role": "assistant", "status": "completed", "content": content}
    response = {"id": "0", "object": "response", "created_at": 0, "model": "scripted", "tools": [], "output": [output]}
    return response | {"parallel_tool_calls": True, "tool_choice": "auto"}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def serve(apps):
    """Serve applications by port. All run in one event loop, because the HTTP client of NeMo Gym requires it."""
    made = [uvicorn.Server(uvicorn.Config(app, port=port, log_level="error")) for port, app in apps.items()]

    async def run():
        await asyncio.gather(*(each.serve() for each in made))

    threading.Thread(target=asyncio.run, args=(run(),), daemon=True).start()
    while not all(each.started for each in made):
        time.sleep(0.01)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def check_contract(url, number, row):
    """Run NeMo Gym's checks of a resources server. They expect an app, so an app forwards their requests to `url`."""

    async def forward(scope, receive, send):
        request = Request(scope, receive)
        async with httpx.AsyncClient() as client:
            body = await request.body()
            headers = {"Content-Type": "application/json"}
            reply = await client.request(request.method, url + request.url.path, content=body, headers=headers)
        await Response(reply.content, reply.status_code, media_type="application/json")(scope, receive, send)

    task_id = {"taskset": "toolpack", "task_id": row["task"]}
    name = f"contract-{number}"
    episode = {"resources_session_id": name, "episode_id": {"rollout_id": name}, "task_id": task_id, "task_data": row}
    check_resources_session_contract(forward, ResourcesSeedSessionRequest(**episode), keeps_state=True)
    return {"reward": None}


def run(by, ports, number, row):
    if by in {"agent", "gymnasium"}:
        played = post(f"http://127.0.0.1:{ports[by]}/run", row)
        return {**played.get("info", {}), **{name: value for name, value in played.items() if value is not None}}
    task = {"task_id": {"taskset": "toolpack", "task_id": row["task"]}, "task_input": row}
    body = {"episode_id": {"rollout_id": f"rollout.{number}"}, "task": task}
    ended = post(f"http://127.0.0.1:{ports['environment']}/run", body)
    return ended["result"] or ended


def main(url, by, episodes):
    if by == "contract":
        for number, each in enumerate(episodes):
            print(json.dumps(check_contract(url, number, each["row"])), flush=True)  # noqa: T201
        return
    target = urllib.parse.urlsplit(url)
    ports = {name: free_port() for name in ("agent", "gymnasium", "model", "environment")}
    here = {name: {"host": "127.0.0.1", "port": port} for name, port in ports.items()}
    agent = {
        **here["agent"],
        "entrypoint": "app.py",
        "name": "agent",
        "resources_server": {"type": "resources_servers", "name": "toolpack"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    gymnasium = {**agent, **here["gymnasium"], "name": "gymnasium", "max_steps": 100}
    toolpack = {"host": target.hostname, "port": target.port, "entrypoint": "app.py", "domain": "agent"}
    environment = {
        **here["environment"],
        "entrypoint": "app.py",
        "name": "environment",
        "resources_server": {"type": "resources_servers", "name": "toolpack"},
        "agent_server": {"type": "responses_api_agents", "name": "agent"},
        "resources_tool_transports": ["direct_http"],
        "cleanup_timeout_seconds": 30,
    }
    settings = OmegaConf.create(
        {
            "toolpack": {"resources_servers": {"toolpack": toolpack}},
            "agent": {"responses_api_agents": {"agent": agent}},
            "gymnasium": {"responses_api_agents": {"gymnasium": gymnasium}},
            "model": {"responses_api_models": {"model": {**here["model"], "entrypoint": "app.py"}}},
            "environment": {"environment_servers": {"environment": environment}},
        }
    )
    get_global_config_dict(GlobalConfigDictParserConfig(initial_global_config_dict=settings))
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=settings)
    apps = {ports["model"]: model}
    kinds = ((SimpleAgent, agent), (GymnasiumAgent, gymnasium), (SingleAgentTurnEnvironmentServer, environment))
    for kind, config in kinds:
        played = kind(config=kind.model_fields["config"].annotation(**config), server_client=client)
        apps[config["port"]] = played.setup_webserver()
    serve(apps)
    for number, each in enumerate(episodes):
        episode.clear()
        episode.update(each)
        ended = run(by, ports, number, each["row"])
        shown = {name: ended.get(name) for name in ("reward", "mask_sample", "session_id")}
        print(json.dumps(shown), flush=True)  # noqa: T201
    os._exit(0)  # skips the exit handlers of NeMo Gym's HTTP client


if __name__ == "__main__":
    main(**json.loads(sys.stdin.readline()))
