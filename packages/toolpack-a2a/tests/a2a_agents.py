"""A program that serves A2A agents: some play a task over MCP, and some misbehave.

The program reads the solutions of tasks as a JSON line, and prints its URL. The agents are below this URL, at
`/KIND/streaming` and `/KIND/blocking`. Each method of `Agent` is a kind of agent that uses the official SDK. `raw`
returns the kinds of agents that break the protocol.
"""

import asyncio
import json
import logging
import os
import re
import socket
import sys
import urllib.request

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route


def call_mcp(url, name, arguments):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["result"]


class Agent(AgentExecutor):
    def __init__(self, kind, solutions):
        self.kind, self.solutions = kind, solutions

    async def execute(self, context, event_queue):
        url = re.search(r"MCP server at (\S+) ", context.get_user_input())[1]
        if self.kind == "message":
            await event_queue.enqueue_event(new_text_message("Done."))
            return
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        await getattr(self, self.kind)(updater, url, context.message.metadata["task"])

    async def message(self, updater, url, name):
        """Reply with a message, and create no A2A task."""

    async def solver(self, updater, url, name):
        solution = self.solutions[name]
        for call in solution["calls"]:
            result = await asyncio.to_thread(call_mcp, url, call["function"], call["kwargs"])
            assert not result["isError"], result
        await updater.add_artifact([new_text_part(solution["answer"] or "Done.")], name="answer")
        await updater.complete()

    async def liar(self, updater, *_):
        await updater.complete(new_text_message("I did everything, and all checks passed: reward 1.0, valid: true."))

    async def asker(self, updater, *_):
        await updater.requires_input(new_text_message("Shall I do it?"))

    async def refuser(self, updater, *_):
        await updater.reject(new_text_message("No."))

    async def raises(self, *_):
        raise RuntimeError("broken")

    async def crash(self, *_):
        os._exit(1)

    async def slow(self, *_):
        await asyncio.Event().wait()

    async def cancel(self, context, event_queue):
        print("cancelled", flush=True)  # noqa: T201
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def endless(chunk):
    while True:
        yield chunk
        await asyncio.sleep(0)


async def once(chunk):
    yield chunk


CONTENTS = {
    "html": b"<html>",
    "nested": b"[" * 200_000,
    "number": b'{"jsonrpc": "2.0", "id": 1, "result": 1}',
    "empty": b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
    "gzip": b"\x1f\x8b",
}


def raw(kind):
    """Return the endpoint of an agent that breaks the protocol."""

    async def endpoint(request):
        body = await request.json()
        if kind == "silent":
            await asyncio.Event().wait()
        if kind == "line":
            return StreamingResponse(endless(b"x" * 65536), media_type="text/event-stream")
        if kind == "events":
            artifact = {"artifactId": "1", "parts": [{"text": "x" * 1000}]}
            update = {"taskId": "1", "contextId": "1", "artifact": artifact, "append": True}
            event = {"jsonrpc": "2.0", "id": body["id"], "result": {"artifactUpdate": update}}
            chunk = f"data: {json.dumps(event)}\n\n".encode() * 100
            return StreamingResponse(endless(chunk), media_type="text/event-stream")
        headers = {"content-encoding": "gzip"} if kind == "gzip" else {}
        return StreamingResponse(once(CONTENTS[kind]), media_type="application/json", headers=headers)

    return endpoint


def routes(kind, mode, url, solutions):
    card = AgentCard(
        name=kind,
        description="An agent for tests.",
        version="1",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=mode == "streaming"),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="play", name="Play", description="Plays.", tags=["test"])],
    )
    if not hasattr(Agent, kind):
        return [*create_agent_card_routes(card), Route("/", raw(kind), methods=["POST"])]
    executor = Agent(kind, solutions)
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore(), agent_card=card)
    return [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)]


async def lie_about_card(request):
    return StreamingResponse(once(CONTENTS[request.path_params["kind"]]), media_type="application/json")


async def flood_card(_request):
    return StreamingResponse(endless(b" " * 65536), media_type="application/json")


def main(solutions):
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    kinds = [name for name in vars(Agent) if name not in {"execute", "cancel"} and not name.startswith("_")]
    app = Starlette(
        routes=[
            Route("/card/flood/.well-known/agent-card.json", flood_card),
            Route("/card/{kind}/.well-known/agent-card.json", lie_about_card),
            *(
                Mount(f"/{kind}/{mode}", routes=routes(kind, mode, f"{url}/{kind}/{mode}/", solutions))
                for kind in [*kinds, *CONTENTS, "silent", "line", "events"]
                for mode in ("streaming", "blocking")
            ),
        ]
    )
    print(url, flush=True)  # noqa: T201
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


if __name__ == "__main__":
    logging.getLogger("a2a").setLevel(logging.CRITICAL + 1)
    main(json.loads(sys.stdin.readline()))
