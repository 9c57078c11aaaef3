"""A local endpoint of chat completions that takes its answers and failures from a function of the test."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from http_server import Listening
from patience import PATIENCE
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from toolpack_server.processes.listen import listen

KEY = "sk-nobody-may-see-this"


def text_message(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool_call_message(name: str, arguments: Any = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}


def completion(message: dict[str, Any], **choice: Any) -> Response:
    usage = {"prompt_tokens": 70, "completion_tokens": 7, "total_tokens": 77}
    choices = [{"index": 0, "finish_reason": "stop", "message": message} | choice]
    # JSON in ASCII can represent a lone surrogate.
    return Response(json.dumps({"choices": choices, "usage": usage}), media_type="application/json")


def error_response(status: int, **headers: str) -> JSONResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"error": {"message": f"no, {KEY}"}}, status, named)


def cut_off() -> StreamingResponse:
    async def half() -> Any:
        yield b'{"choices": [{"message": {"content": "Hel'
        raise ConnectionAbortedError

    return StreamingResponse(half(), headers={"Content-Length": "1000", "Content-Type": "application/json"})


def trickling_response() -> StreamingResponse:
    async def drops() -> Any:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    return StreamingResponse(drops(), media_type="application/json")


class ChatEndpoint:
    """The application behind the endpoint.

    Attributes:
        url: The base URL of the endpoint.
        answers: A function that returns the message for a conversation, or a whole response.
        asked: The conversations that clients have sent so far.
    """

    def __init__(self, answers: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def __call__(self, request: Request) -> Response:
        body = json.loads(await request.body())
        assert request.headers["authorization"] == f"Bearer {KEY}"
        self.asked.append(body)
        answer = self.answers(body["messages"])
        if asyncio.iscoroutine(answer):
            answer = await answer
        return completion(answer) if isinstance(answer, dict) else answer


@contextlib.contextmanager
def endpoint(answers: Callable[[list[dict[str, Any]]], Any]) -> Iterator[ChatEndpoint]:
    endpoint = ChatEndpoint(answers)
    app = Starlette(routes=[Route("/v1/chat/completions", endpoint.__call__, methods=["POST"])])
    config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none")
    server, listener = Listening(config), listen("127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert server.listens.wait(PATIENCE), "the endpoint did not start"
        yield endpoint
    finally:
        server.force_exit = server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
