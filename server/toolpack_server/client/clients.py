"""The clients: `Client` and `AsyncClient` for a server, `AgentClient` and `AsyncAgentClient` for an agent's address.

The clients differ only in the address that they post to and in how they wait. `methods.py` has their methods;
`exchange.py` decides when a request is sent again.
"""

import asyncio
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Self, TypedDict, TypeVar

import httpx

from toolpack_server.client.batches import AgentBatch, AsyncAgentBatch, AsyncBatch, Batch
from toolpack_server.client.exchange import (
    RETRIES,
    HttpAnswer,
    Outage,
    ReplyBody,
    exchange,
    no_json_rpc,
    reply_error,
)
from toolpack_server.client.methods import AgentMethods, ClientMethods, Session
from toolpack_server.client.requests import Request
from toolpack_server.client.threads import values_in_threads
from toolpack_server.client.values import BEST, CONCURRENCY, Finish, SessionValues, StepValue, Valuer

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_SECONDS = 75.0  # a call may wait 30 s for its session and run for 30 s
DEFAULT_RETRIES = RETRIES

_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 3.0  # less than the server's 5, which might close the connection just as a request is sent


class _HttpxArguments(TypedDict):
    verify: ssl.SSLContext
    headers: dict[str, str]
    limits: httpx.Limits


@cache
def _tls(*, is_used: bool) -> ssl.SSLContext:
    """Return the TLS context that all clients share. Reading the certificates takes longer than a hundred calls.

    Clients of http:// addresses don't need certificates; their context trusts no server.
    """
    return httpx.create_ssl_context() if is_used else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _httpx_arguments(url: str) -> _HttpxArguments:
    return {
        "verify": _tls(is_used=not url.startswith("http://")),
        # Compressed answers are refused: a few of their bytes can hold gigabytes.
        "headers": {"Content-Type": "application/json", "Accept-Encoding": "identity"},
        "limits": httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS),
    }


def _timeout(seconds: float, request: Request[Any]) -> httpx.Timeout:
    return httpx.Timeout(seconds + request.wait_seconds, connect=min(_CONNECT_SECONDS, seconds))


def _agent_url(rpc_url: str, session: Session) -> str:
    """Return the URL of a session's agent.

    Raises:
        TypeError: `session` isn't a session.
        ReplyError: The session's `agent_path` isn't a path.
    """
    if not isinstance(session, Mapping):
        raise TypeError("agent() takes a session as create_session and get_session return it, not its id")
    path: Any = session.get("agent_path")
    if isinstance(path, str) and path.startswith("/") and path.isascii() and path.isprintable():
        with suppress(ValueError):
            return _checked(rpc_url.removesuffix("/rpc") + path)
    raise reply_error(no_json_rpc("The session's agent_path isn't a path: is this a Toolpack Server?")["error"])


def _checked(url: str) -> str:
    """Return the URL unchanged if it can be a server's. It may contain an agent's key, so errors don't show it.

    Raises:
        ValueError: The URL is incomplete, or has a query or a fragment.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"The server's URL can't be read: {str(error).removesuffix('.')}.") from None
    if parsed.query or parsed.fragment:
        raise ValueError("A server's URL has no query and no fragment: remove the part from ? or # on.")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(
            "A server's URL begins with http:// or https:// and a host, such as http://127.0.0.1:8000. For an agent, "
            "append the session's agent_path."
        )
    return url


def _check_limits(timeout_seconds: float, retries: int) -> None:
    if not (isinstance(timeout_seconds, int | float) and 0 < timeout_seconds <= threading.TIMEOUT_MAX):
        raise ValueError(f"timeout_seconds must be a number of seconds above 0, not {timeout_seconds!r}")
    if not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries must be a whole number, at least 0, not {retries!r}")


def _authorization(token: str | None) -> dict[str, str]:
    """Return the header with a token. It is set per request, because agents may share the httpx client.

    Raises:
        ValueError: The token has characters that no token has. The error doesn't show it.
    """
    if token and not (isinstance(token, str) and re.fullmatch("[!-~]+", token)):
        raise ValueError("A token consists of visible ASCII characters: remove blanks and line ends.")
    return {"Authorization": f"Bearer {token}"} if token else {}


class _SyncClient:
    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_seconds: float,
        retries: int,
        transport: httpx.BaseTransport | None,
        shared: tuple[httpx.Client, Outage] | None = None,
    ) -> None:
        _check_limits(timeout_seconds, retries)
        self._url = _checked(url)
        self._headers = _authorization(token)
        self._shares = shared is not None
        self._connections = shared or (httpx.Client(**_httpx_arguments(url), transport=transport), Outage())
        self._http, self._outage = self._connections
        self._seconds = timeout_seconds
        self._retries = retries
        self.before_close: list[Callable[[], object]] = []

    def send(self, request: Request[T]) -> T:
        """Send a request, retry it if needed, and return its result.

        Raises:
            ReplyError: The server answered with an error.
            NoReplyError: The server didn't answer.
        """
        attempts = exchange(request, self._url, self._retries, self._outage)
        try:
            pause = next(attempts)
            while True:
                if pause:
                    time.sleep(pause)
                pause = attempts.send(self._post(request))
        except StopIteration as done:
            result: T = done.value
            return result

    def _post(self, request: Request[Any]) -> HttpAnswer | httpx.HTTPError:
        timeout = _timeout(self._seconds, request)
        seconds = timeout.read or 0
        arguments: Any = {"content": request.body(), "headers": self._headers, "timeout": timeout}
        try:
            with self._http.stream("POST", self._url, **arguments) as response:
                body = ReplyBody(response, seconds)
                for chunk in response.iter_bytes():
                    body.add(chunk)
                return body.answer()
        except httpx.HTTPError as error:
            return error

    def close(self) -> None:
        while self.before_close:
            self.before_close.pop()()
        if not self._shares:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _AsyncClient:
    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_seconds: float,
        retries: int,
        transport: httpx.AsyncBaseTransport | None,
        shared: tuple[httpx.AsyncClient, Outage] | None = None,
    ) -> None:
        _check_limits(timeout_seconds, retries)
        self._url = _checked(url)
        self._headers = _authorization(token)
        self._shares = shared is not None
        self._connections = shared or (httpx.AsyncClient(**_httpx_arguments(url), transport=transport), Outage())
        self._http, self._outage = self._connections
        self._seconds = timeout_seconds
        self._retries = retries

    async def send(self, request: Request[T]) -> T:
        attempts = exchange(request, self._url, self._retries, self._outage)
        try:
            pause = next(attempts)
            while True:
                if pause:
                    await asyncio.sleep(pause)
                pause = attempts.send(await self._post(request))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _post(self, request: Request[Any]) -> HttpAnswer | httpx.HTTPError:
        timeout = _timeout(self._seconds, request)
        seconds = timeout.read or 0
        arguments: Any = {"content": request.body(), "headers": self._headers, "timeout": timeout}
        try:
            # httpx limits each read, not the whole; a server may send the headers byte by byte.
            async with asyncio.timeout(seconds), self._http.stream("POST", self._url, **arguments) as response:
                body = ReplyBody(response, seconds)
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
                return body.answer()
        except TimeoutError:
            return httpx.ReadTimeout("the answer didn't end in time")
        except httpx.HTTPError as error:
            return error

    async def aclose(self) -> None:
        if not self._shares:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()


class Client(_SyncClient, ClientMethods):
    """A client of a server; thread-safe.

    Args:
        url: The server's base URL, without `/rpc`.
        token: A bearer token, if the server requires one.
        timeout_seconds: Maximum time to wait for one answer, in seconds.
        retries: Maximum number of retries of a request. The default, with growing delays, covers about 30 seconds.
        transport: An httpx transport that sends the requests, for example one with your own certificates.

    Attributes:
        before_close: Functions to call before the connections are closed, by `close` or at the end of a `with` block.
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
        super().__init__(f"{url.rstrip('/')}/rpc", token, timeout_seconds, retries, transport)

    def agent(self, session: Session) -> "AgentClient":
        """Return the client of a session's agent. It uses this client's connections and doesn't close them."""
        url = _agent_url(self._url, session)
        return AgentClient(url, timeout_seconds=self._seconds, retries=self._retries, _shared=self._connections)

    def batch(self) -> Batch:
        """Return a batch, which collects requests in a `with` block and sends them together at its end.

        In the block, the batch's methods return replies: `with client.batch() as batch: reply = batch.get_session(id)`.
        After it, `reply.result()` returns the result. The server handles the requests in order. If one fails, it still
        handles the others.
        """
        return Batch(self.send)

    def values(
        self,
        session_id: str,
        *,
        k: int = 1,
        finish: Finish | Sequence[Finish] = BEST,
        steps: Iterable[int] | None = None,
        labels: Mapping[str, str] | None = None,
        progress: Callable[[StepValue], object] | None = None,
        concurrency: int = CONCURRENCY,
        keep: bool = False,
    ) -> SessionValues:
        """Estimate the value of each step of a rollout: create k forks at the step, finish, evaluate and close them.

        The start is a step, and so is each change of the world. The difference of two steps is the value of the call
        between them. Each reward is cached in the *ledger*, one more fork of the session that stays open. If you call
        this again with the same `finish` and `labels`, only missing forks are created. Run one such program at a time.

        Args:
            session_id: The rollout's session. It must have a task.
            k: Number of forks of each step. One is enough if `finish` and the world are deterministic.
            finish: A function that plays a fork to its end; it gets the client of the fork's agent and the fork, and
                runs in threads. Or `solution`: the agent makes the calls of the task's solution that aren't in the
                session's history yet, and answers. Or `solution-by-function`: the same without calls that the history
                has with other arguments. None: the forks end at once, so the value of a step is its reward. Of several
                ways the best counts, in this order until one has the reward 1; then a value is never below the
                rollout's own reward, and without a solution the task's other ways count. Default: all but a function.
            steps: Versions of the session. Default: 0, and the versions before and after each call in the history
                that changed something.
            labels: Further labels of the forks. They always have `values` (the session's id), `step`, `member` and
                `finish` (the function's name).
            progress: Called with the value of each step when its forks have ended.
            concurrency: Maximum number of open forks.
            keep: Whether the fork with the highest reward of each step stays open. Rewards that were cached without it
                have no fork.

        Raises:
            ValueError: An argument is wrong, or the session has no task.
            TypeError: `finish` is a coroutine function; only an `AsyncClient` can await it.
            ClientError: The session is closed, or the server doesn't answer.
        """
        options: dict[str, Any] = {"k": k, "labels": labels, "progress": progress, "keep": keep}
        return values_in_threads(self, session_id, finish, steps, concurrency=concurrency, **options)


class AsyncClient(_AsyncClient, ClientMethods):
    """A `Client` for async code."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(f"{url.rstrip('/')}/rpc", token, timeout_seconds, retries, transport)

    def agent(self, session: Session) -> "AsyncAgentClient":
        """See `Client.agent`."""
        url = _agent_url(self._url, session)
        return AsyncAgentClient(url, timeout_seconds=self._seconds, retries=self._retries, _shared=self._connections)

    def batch(self) -> AsyncBatch:
        """See `Client.batch`; the block begins with `async with`."""
        return AsyncBatch(self.send)

    async def values(
        self,
        session_id: str,
        *,
        k: int = 1,
        finish: Finish | Sequence[Finish] = BEST,
        steps: Iterable[int] | None = None,
        labels: Mapping[str, str] | None = None,
        progress: Callable[[StepValue], object] | None = None,
        concurrency: int = CONCURRENCY,
        keep: bool = False,
    ) -> SessionValues:
        """See `Client.values`. `finish` must be a coroutine function; any other raises `TypeError`."""
        options: dict[str, Any] = {"k": k, "labels": labels, "progress": progress, "keep": keep}
        return await Valuer(self, self.agent, finish=finish, concurrency=concurrency, **options).values(
            session_id, steps
        )


class AgentClient(_SyncClient, AgentMethods):
    """A client of one session, for its agent; thread-safe. See `Client` for the other arguments.

    Args:
        agent_url: The server's base URL followed by the session's `agent_path`.
    """

    def __init__(
        self,
        agent_url: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
        _shared: tuple[httpx.Client, Outage] | None = None,
    ) -> None:
        super().__init__(agent_url, None, timeout_seconds, retries, transport, _shared)

    def batch(self) -> AgentBatch:
        """See `Client.batch`."""
        return AgentBatch(self.send)


class AsyncAgentClient(_AsyncClient, AgentMethods):
    """An `AgentClient` for async code."""

    def __init__(
        self,
        agent_url: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
        _shared: tuple[httpx.AsyncClient, Outage] | None = None,
    ) -> None:
        super().__init__(agent_url, None, timeout_seconds, retries, transport, _shared)

    def batch(self) -> AsyncAgentBatch:
        """See `Client.batch`; the block begins with `async with`."""
        return AsyncAgentBatch(self.send)
