"""The clients: send requests, and retry them if that is safe.

The rule: when to retry is decided once, in `_exchange`, which does no I/O. The two clients differ only in how they post
and how they wait; their methods are in `methods.py`.

A request is retried if the server certainly didn't handle it (it couldn't be reached, or answered 503 or -32006). If no
answer came, only idempotent requests are: reads, and `run_function`, which always has a `call_id`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Generator
from typing import Any, Self, TypedDict, TypeVar

import httpx

from server.client.methods import ClientMethods, Request
from server.errors import NoReplyError, ReplyError

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_SECONDS = 75.0  # a call may wait 30 s for its session and run for 30 s
DEFAULT_RETRIES = 4

_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 3.0  # less than the server's 5, which might close the connection just as a request is sent
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0

_OVERLOADED = -32006
_UNAVAILABLE = 503
_GATEWAY_STATUS = (502, 504)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class _HttpxArguments(TypedDict):
    """Arguments that both of httpx's clients get."""

    base_url: str
    headers: dict[str, str]
    timeout: httpx.Timeout
    limits: httpx.Limits


def _httpx_arguments(url: str, token: str | None, timeout_seconds: float) -> _HttpxArguments:
    return {
        "base_url": url,
        "headers": {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {}),
        "timeout": httpx.Timeout(timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds)),
        "limits": httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS),
    }


class Client(ClientMethods):
    """A client of a server; thread-safe.

    Args:
        url: The server's base URL, without `/rpc`.
        token: A bearer token, if the server requires one.
        timeout_seconds: The time to wait for one answer, in seconds.
        retries: The maximum number of retries of a request.
        transport: An httpx transport to use instead of the network, in tests.

    Attributes:
        before_close: Functions called before the connections are closed, by `close` or at the end of a `with` block.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**_httpx_arguments(url, token, timeout_seconds), transport=transport)
        self._retries = retries
        self.before_close: list[Callable[[], object]] = []

    def send(self, request: Request[T]) -> T:
        """Send a request, with retries, and get its result.

        Raises:
            ReplyError: The server answered with an error.
            NoReplyError: It didn't answer.
        """
        attempts = _exchange(request, self._retries)
        try:
            pause = next(attempts)
            while True:
                if pause:
                    time.sleep(pause)
                pause = attempts.send(self._post(request.body()))
        except StopIteration as done:
            result: T = done.value
            return result

    def _post(self, body: bytes) -> httpx.Response | httpx.TransportError:
        try:
            return self._http.post("/rpc", content=body)
        except httpx.TransportError as error:
            return error

    def close(self) -> None:
        """Close all connections."""
        while self.before_close:
            self.before_close.pop()()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class AsyncClient(ClientMethods):
    """A client of a server for async code; see `Client` for the arguments."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**_httpx_arguments(url, token, timeout_seconds), transport=transport)
        self._retries = retries

    async def send(self, request: Request[T]) -> T:
        """See `Client.send`."""
        attempts = _exchange(request, self._retries)
        try:
            pause = next(attempts)
            while True:
                if pause:
                    await asyncio.sleep(pause)
                pause = attempts.send(await self._post(request.body()))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _post(self, body: bytes) -> httpx.Response | httpx.TransportError:
        try:
            return await self._http.post("/rpc", content=body)
        except httpx.TransportError as error:
            return error

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()


def _exchange(request: Request[T], retries: int) -> Generator[float, httpx.Response | httpx.TransportError, T]:
    """Yield the pause in seconds before each attempt, receive its response or exception, and return the result.

    Raises:
        ReplyError: The server answered with an error, and no retry is left or useful.
        NoReplyError: It didn't answer, and no retry is left or safe.
    """
    pause = 0.0
    for attempt in range(retries + 1):
        answer = yield pause
        if isinstance(answer, httpx.TransportError):
            error: ReplyError | NoReplyError = NoReplyError(
                f"{request.method} got no answer ({type(answer).__name__}: {answer}): is the server running?"
            )
            retry = isinstance(answer, _NEVER_SENT) or request.repeatable
        else:
            reply = _read(answer)
            if "error" not in reply:
                result: T = reply["result"]
                return result
            error = ReplyError(reply["error"]["code"], reply["error"]["message"], reply["error"].get("data") or {})
            not_handled = answer.status_code == _UNAVAILABLE or error.code == _OVERLOADED
            retry = not_handled or (request.repeatable and answer.status_code in _GATEWAY_STATUS)
        if not retry or attempt == retries:
            raise error from (answer if isinstance(answer, Exception) else None)
        pause = _pause(attempt, error)
    raise AssertionError("the last attempt returns or raises")


def _read(answer: httpx.Response) -> dict[str, Any]:
    """Get the JSON-RPC response; a proxy between client and server may have answered with something else."""
    try:
        reply = answer.json()
    except ValueError:
        reply = None
    if isinstance(reply, dict) and ("result" in reply or "error" in reply):
        return reply
    message = f"HTTP {answer.status_code} with a body that isn't JSON-RPC: is this a Toolpack Server?"
    return {"error": {"code": -32000, "message": message, "data": {"status": answer.status_code}}}


def _pause(attempt: int, error: ReplyError | NoReplyError) -> float:
    """Get the seconds before the next attempt: exponential backoff with jitter, after `retry_after_seconds`."""
    longest = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
    retry_after = error.data.get("retry_after_seconds") if isinstance(error, ReplyError) else None
    server_pause = retry_after if isinstance(retry_after, int | float) else 0.0
    return server_pause + random.uniform(longest / 2, longest)  # noqa: S311 - no secret
