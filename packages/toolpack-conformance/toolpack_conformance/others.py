"""Servers of other protocols, as far as the checks need them: ORS, OpenEnv, and MCP as FastMCP serves it.

Each is asked in the words of its own protocol, and only for what a client of it can ask.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from toolpack_conformance.mcp_client import McpClient
from toolpack_conformance.target import TOOLPACK, Call, Failed, Refused, Target, parsed

_PATIENCE = 15.0  # seconds for an answer
_MOST_BYTES = 2**27  # of a message
_TASK = f"{TOOLPACK}/five"  # which each episode plays
_DEEP = "[" * 100_000 + "]" * 100_000
_OVERLOAD = 503


class CallFailed(Exception):  # noqa: N818 - a function has failed, which may be right
    """A call has failed; the text says why."""


class OtherSession(Protocol):
    """A session of a client, in which the functions of the toolpack can be called."""

    def together(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls without waiting for the answers in between; get the results, or a `CallFailed` for each."""

    def reset(self) -> None: ...

    def reward(self, call: Call) -> Any:
        """Make a call, of a function or of `submit_answer`, and get its reward; None if it has none.

        Raises:
            CallFailed: The call has failed.
        """

    def send_deep(self) -> None:
        """Send JSON that is nested a hundred thousand times, whatever is answered."""

    def close(self) -> None: ...


Open = Callable[[], OtherSession]


def run(session: OtherSession, function: str, **kwargs: Any) -> Any:
    """Call a function, which must succeed."""
    (result,) = session.together([(function, kwargs)])
    if isinstance(result, CallFailed):
        raise Failed(f"{function} failed: {str(result)[:200]}")
    return result


def _value(text: str) -> Any:
    """Get the result that is written as a text: as JSON, or as it is if it was one."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class OrsSession:
    """An episode of the Open Reward Standard; one whose function fails has the error as the text of its result."""

    def __init__(self, target: Target) -> None:
        self._target, self._headers = target, dict[str, str]()
        self._headers["X-Session-ID"] = _events(self._done("/create_session", {}))[0][1]
        self._done("/create", {"task_spec": {"task": _TASK}})

    def send(self, path: str, body: Any = None) -> httpx.Response:
        """Send a body, or GET where there is none; no answer may be an error of the server's code."""
        content = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
        verb = "GET" if body is None else "POST"
        response = self._target.post(content, path, headers=self._headers, http_method=verb)
        if response.is_server_error and response.status_code != _OVERLOAD:
            raise Failed(f"{path} answers HTTP {response.status_code}, which its clients don't repeat")
        return response

    def _done(self, path: str, body: Any) -> httpx.Response:
        response = self.send(path, body)
        if response.is_error:
            raise CallFailed(f"HTTP {response.status_code}: {parsed(response)['detail']}")
        return response

    def output(self, call: Call, task_id: str | None = None) -> dict[str, Any]:
        """Make a call; one with a `task_id` that was there is the same call, sent again."""
        again = {} if task_id is None else {"task_id": task_id}
        events = _events(self._done("/call", {"name": call[0], "input": call[1], **again}))
        name, data = events[-1]
        if name != "end":
            raise CallFailed(data)
        answer = json.loads("".join(data for name, data in events if name in {"chunk", "end"}))
        if not answer["ok"]:
            raise CallFailed(answer["error"])
        output: dict[str, Any] = answer["output"]
        return output

    def _result(self, call: Call) -> Any:
        try:
            return _value("".join(block["text"] for block in self.output(call)["blocks"]))
        except CallFailed as failed:
            return failed

    def together(self, calls: Sequence[Call]) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as pool:
            return [*pool.map(self._result, calls)]

    def reset(self) -> None:
        raise NotImplementedError

    def reward(self, call: Call) -> Any:
        return self.output(call)["reward"]

    def send_deep(self) -> None:
        self.send("/call", _DEEP)

    def close(self) -> None:
        with contextlib.suppress(Failed):
            self.send("/delete", {})


def _events(response: httpx.Response) -> list[tuple[str, str]]:
    """Read a stream of events, each with its name and what it says in one line."""
    found = []
    for event in response.text.split("\n\n"):
        fields = dict(line.split(":", 1) for line in event.split("\n") if line.partition(":")[0])
        if fields:
            found.append((fields["event"].strip(), fields["data"].lstrip()))
    if not found:
        raise Failed("a stream has no events")
    return found


class OpenEnvSession:
    """A WebSocket at `/ws`, to which OpenEnv gives an environment of its own."""

    def __init__(self, target: Target, url: str) -> None:
        from websockets.exceptions import ConnectionClosed, WebSocketException  # noqa: PLC0415 - only OpenEnv needs it
        from websockets.sync.client import connect  # noqa: PLC0415 - likewise

        self._open = contextlib.ExitStack()
        self._closed, self._target, self._path = ConnectionClosed, target, urlsplit(url).path.rstrip("/")
        address = f"ws{url.removeprefix('http').rstrip('/')}/ws"
        try:  # large enough for what a server should refuse; without compression, which would take longer than all else
            connecting = connect(
                address,
                max_size=_MOST_BYTES,
                compression=None,
                ping_interval=None,
                additional_headers=target.token_headers,
            )
            self._socket = self._open.enter_context(connecting)
        except (WebSocketException, OSError) as error:
            raise Failed(f"no WebSocket at /ws: {error}") from None
        self.reset()

    def _send(self, message: Any) -> None:
        try:
            self._socket.send(message if isinstance(message, str) else json.dumps(message))
        except self._closed as error:
            raise Refused(f"a message can't be sent: {error}") from None

    def _received(self) -> dict[str, Any]:
        try:
            message: dict[str, Any] = json.loads(self._socket.recv(_PATIENCE))
        except TimeoutError:
            raise Failed(f"no answer in {_PATIENCE:g} s") from None
        except self._closed as error:
            raise Refused(f"the connection was closed: {error}") from None
        if message["type"] == "error":
            raise CallFailed(f"{message['data']['code']}: {message['data']['message']}")
        data: dict[str, Any] = message["data"]
        return data

    def _observed(self) -> dict[str, Any]:
        data = self._received()
        if data["observation"].get("error"):
            raise CallFailed(data["observation"]["error"]["message"])
        return data

    def _result(self) -> Any:
        try:
            return self._observed()["observation"]["result"]
        except CallFailed as failed:
            return failed

    def together(self, calls: Sequence[Call]) -> list[Any]:
        for call in calls:
            self._step(call)
        return [self._result() for _ in calls]

    def _step(self, call: Call) -> None:
        self._send({"type": "step", "data": {"type": "call_tool", "tool_name": call[0], "arguments": call[1]}})

    def reset(self) -> None:
        self._send({"type": "reset", "data": {"task": _TASK}})
        self._received()

    def reward(self, call: Call) -> Any:
        self._step(call)
        return self._observed()["reward"]

    def get(self, path: str) -> Any:
        return parsed(self._target.post(b"", self._path + path, http_method="GET"))

    def refusal(self, message: Any) -> str:
        """Send a message that must be refused, and get the error, which begins with its code."""
        self._send(message)
        try:
            raise Failed(f"a message must be refused, but is answered: {str(self._received())[:200]}")
        except CallFailed as failed:
            return str(failed)

    def send_deep(self) -> None:
        with contextlib.suppress(CallFailed, Failed):
            self._send(_DEEP)
            self._received()

    def close(self) -> None:
        with contextlib.suppress(Failed):
            self._send({"type": "close"})
        self._open.close()


class McpSession:
    """A session of MCP: what a server keeps for a client from `initialize` on."""

    def __init__(self, target: Target, path: str) -> None:
        self.mcp = McpClient(target, path)

    def _call(self, call: Call) -> Any:
        name, arguments = call
        reply = self.mcp.reply("tools/call", {"name": name, "arguments": arguments})
        if "error" in reply:  # so MCP has a call of an unknown function answered
            return CallFailed(str(reply["error"]["message"]))
        answer = reply["result"]
        text = "".join(block.get("text", "") for block in answer["content"])
        if answer.get("isError"):
            return CallFailed(text)
        structured = answer.get("structuredContent")
        if isinstance(structured, dict) and "result" in structured:
            return structured["result"]
        return _value(text) if answer["content"] else None

    def together(self, calls: Sequence[Call]) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as pool:
            return [*pool.map(self._call, calls)]

    def reset(self) -> None:
        raise NotImplementedError

    def reward(self, call: Call) -> Any:
        raise NotImplementedError

    def send_deep(self) -> None:
        with contextlib.suppress(Failed):
            self.mcp.post(_DEEP.encode())

    def close(self) -> None:
        with contextlib.suppress(Failed):
            self.mcp.end()
