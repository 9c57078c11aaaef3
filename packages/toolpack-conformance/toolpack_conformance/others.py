"""Sessions on servers of other protocols: ORS, OpenEnv, and MCP as FastMCP serves it.

The probes of other protocols use these sessions. They send only requests that a client of the protocol can send.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from toolpack_conformance.mcp_client import McpClient
from toolpack_conformance.target import TOOLPACK, Call, Failed, Refused, Target, parse_json

_TIMEOUT_SECONDS = 15.0  # time limit for a response
_MAX_BYTES = 2**27  # max size of a message
_TASK = f"{TOOLPACK}/five"  # the task of each episode
_DEEP = "[" * 100_000 + "]" * 100_000
_OVERLOAD = 503


class CallFailed(Exception):  # noqa: N818 - a check might expect the failure
    """A call failed. The message says why."""


class OtherSession(Protocol):
    """A client's session, in which the client can call the toolpack's functions."""

    def together(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls without waiting for responses in between. Return a result or a `CallFailed` for each call."""

    def reset(self) -> None:
        """Restore the initial environment. Only OpenEnv has this request."""

    def reward(self, call: Call) -> Any:
        """Call a function or `submit_answer`, and return the reward, or None if no reward comes with the call.

        Raises:
            CallFailed: The call failed.
        """

    def send_deep(self) -> None:
        """Send JSON that is nested 100,000 levels deep, and ignore the response."""

    def close(self) -> None: ...


Open = Callable[[], OtherSession]
"""Opens a new session."""


def run(session: OtherSession, function: str, **kwargs: Any) -> Any:
    """Call a function that must succeed, and return its result."""
    (result,) = session.together([(function, kwargs)])
    if isinstance(result, CallFailed):
        raise Failed(f"{function} failed: {str(result)[:200]}")
    return result


def _value(text: str) -> Any:
    """Return a result that the server sent as a string. Parse it if it is JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class OrsSession:
    """An episode of the Open Reward Standard."""

    def __init__(self, target: Target) -> None:
        self._target, self._headers = target, dict[str, str]()
        self._headers["X-Session-ID"] = _events(self._post("/create_session", {}))[0][1]
        self._post("/create", {"task_spec": {"task": _TASK}})

    def send(self, path: str, body: Any = None) -> httpx.Response:
        """Send POST with a body, or GET without a body.

        Raises:
            Failed: The server responded with a server error other than 503.
        """
        content = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
        verb = "GET" if body is None else "POST"
        response = self._target.post(content, path, headers=self._headers, http_method=verb)
        if response.is_server_error and response.status_code != _OVERLOAD:
            raise Failed(f"{path} responds with HTTP {response.status_code}, which its clients don't retry")
        return response

    def _post(self, path: str, body: Any) -> httpx.Response:
        """Send a request that must succeed, or raise `CallFailed`."""
        response = self.send(path, body)
        if response.is_error:
            raise CallFailed(f"HTTP {response.status_code}: {parse_json(response)['detail']}")
        return response

    def output(self, call: Call, task_id: str | None = None) -> dict[str, Any]:
        """Call a function and return its output. A `task_id` that was used before repeats the earlier call."""
        optional = {} if task_id is None else {"task_id": task_id}
        events = _events(self._post("/call", {"name": call[0], "input": call[1], **optional}))
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
    """Return the names and data of a stream's events. Each event contains one line of data."""
    events = []
    for event in response.text.split("\n\n"):
        fields = dict(line.split(":", 1) for line in event.split("\n") if line.partition(":")[0])
        if fields:
            events.append((fields["event"].strip(), fields["data"].lstrip()))
    if not events:
        raise Failed("a stream has no events")
    return events


class OpenEnvSession:
    """A WebSocket at `/ws`. In OpenEnv, each WebSocket has its own environment."""

    def __init__(self, target: Target, url: str) -> None:
        from websockets.exceptions import ConnectionClosed, WebSocketException  # noqa: PLC0415 - only OpenEnv needs it
        from websockets.sync.client import connect  # noqa: PLC0415 - likewise

        self._open = contextlib.ExitStack()
        self._closed, self._target, self._path = ConnectionClosed, target, urlsplit(url).path.rstrip("/")
        address = f"ws{url.removeprefix('http').rstrip('/')}/ws"
        try:  # large enough for messages that a server should refuse; compression would take too long
            connecting = connect(
                address,
                max_size=_MAX_BYTES,
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

    def _receive(self) -> dict[str, Any]:
        """Return the data of the next message. Raise `CallFailed` if the message is an error."""
        try:
            message: dict[str, Any] = json.loads(self._socket.recv(_TIMEOUT_SECONDS))
        except TimeoutError:
            raise Failed(f"no response in {_TIMEOUT_SECONDS:g} s") from None
        except self._closed as error:
            raise Refused(f"the connection was closed: {error}") from None
        if message["type"] == "error":
            raise CallFailed(f"{message['data']['code']}: {message['data']['message']}")
        data: dict[str, Any] = message["data"]
        return data

    def _receive_observation(self) -> dict[str, Any]:
        """Return the data of the next observation. Raise `CallFailed` if the call failed."""
        data = self._receive()
        if data["observation"].get("error"):
            raise CallFailed(data["observation"]["error"]["message"])
        return data

    def _result(self) -> Any:
        try:
            return self._receive_observation()["observation"]["result"]
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
        self._receive()

    def reward(self, call: Call) -> Any:
        self._step(call)
        return self._receive_observation()["reward"]

    def get(self, path: str) -> Any:
        return parse_json(self._target.post(b"", self._path + path, http_method="GET"))

    def refusal(self, message: Any) -> str:
        """Send a message that must be refused, and return the error, which begins with its code."""
        self._send(message)
        try:
            raise Failed(f"a message must be refused, but the response is {str(self._receive())[:200]}")
        except CallFailed as failed:
            return str(failed)

    def send_deep(self) -> None:
        with contextlib.suppress(CallFailed, Failed):
            self._send(_DEEP)
            self._receive()

    def close(self) -> None:
        with contextlib.suppress(Failed):
            self._send({"type": "close"})
        self._open.close()


class McpSession:
    """An MCP session, which begins with `initialize`."""

    def __init__(self, target: Target, path: str) -> None:
        self.mcp = McpClient(target, path)

    def _call(self, call: Call) -> Any:
        """Call a tool. Return its result, or a `CallFailed`. A result without content is None."""
        name, arguments = call
        reply = self.mcp.reply("tools/call", {"name": name, "arguments": arguments})
        if "error" in reply:  # MCP's response to a call of an unknown function
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
