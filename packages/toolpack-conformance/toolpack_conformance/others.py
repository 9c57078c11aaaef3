"""Servers of other protocols, as far as the checks need them: OpenEnv, and MCP as FastMCP serves it.

The rule: each is asked in the words of its own protocol, and only for what a client of it can ask.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from toolpack_conformance.mcp_client import McpClient
from toolpack_conformance.target import Call, Failed, Refused, Target

_PATIENCE = 15.0  # seconds for an answer
_MOST_BYTES = 2**27  # of a message


class CallFailed(Exception):  # noqa: N818 - a function has failed, which may be right
    """A call has failed; the text says why."""


class OtherSession(Protocol):
    """A session of a client, in which the functions of the toolpack can be called."""

    def together(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls without waiting for the answers in between; get the results, or a `CallFailed` for each."""

    def reset(self) -> None: ...

    def judge(self, task: str) -> Any:
        """Get the reward for a task.

        Raises:
            CallFailed: There is none.
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


class OpenEnvSession:
    """A WebSocket at `/ws`, to which OpenEnv gives an environment of its own."""

    def __init__(self, url: str) -> None:
        from websockets.exceptions import ConnectionClosed, WebSocketException  # noqa: PLC0415 - only OpenEnv needs it
        from websockets.sync.client import connect  # noqa: PLC0415 - likewise

        self._closed = ConnectionClosed
        address = f"ws{url.removeprefix('http').rstrip('/')}/ws"
        try:  # large enough for what a server should refuse; without compression, which would take longer than all else
            self._socket = connect(address, max_size=_MOST_BYTES, compression=None, ping_interval=None)
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
            raise CallFailed(message["data"]["message"])
        data: dict[str, Any] = message["data"]
        return data

    def _answer(self) -> Any:
        try:
            return self._received()["observation"]["result"]
        except CallFailed as failed:
            return failed

    def together(self, calls: Sequence[Call]) -> list[Any]:
        for function, kwargs in calls:
            self._send({"type": "step", "data": {"function": function, "kwargs": kwargs}})
        return [self._answer() for _ in calls]

    def reset(self) -> None:
        self._send({"type": "reset", "data": {}})
        self._received()

    def judge(self, task: str) -> Any:
        self._send({"type": "step", "data": {"function": "judge", "kwargs": {"task": task}}})
        return self._received()["reward"]

    def send_deep(self) -> None:
        with contextlib.suppress(CallFailed, Failed):
            self._send("[" * 100_000 + "]" * 100_000)
            self._received()

    def close(self) -> None:
        self._socket.close()


class McpSession:
    """A session of MCP: what a server keeps for a client from `initialize` on."""

    def __init__(self, target: Target, path: str) -> None:
        self.mcp = McpClient(target, path)

    def _call(self, call: Call) -> Any:
        answer = self.mcp.call(*call)
        text = "".join(block.get("text", "") for block in answer["content"])
        if answer.get("isError"):
            return CallFailed(text)
        structured = answer.get("structuredContent")
        if isinstance(structured, dict) and "result" in structured:
            return structured["result"]
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text

    def together(self, calls: Sequence[Call]) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as pool:
            return [*pool.map(self._call, calls)]

    def reset(self) -> None:
        raise NotImplementedError

    def judge(self, task: str) -> Any:
        raise NotImplementedError

    def send_deep(self) -> None:
        with contextlib.suppress(Failed):
            self.mcp.post(b"[" * 100_000 + b"]" * 100_000)

    def close(self) -> None:
        with contextlib.suppress(Failed):
            self.mcp.end()
