"""The clients: `Client` and `AsyncClient` for a server, `AgentClient` and `AsyncAgentClient` for an agent's address.

The clients differ only in the address that they post to and in how they wait. `methods.py` declares their methods;
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
DEFAULT_TIMEOUT_SECONDS = 75.0  # a call can wait 30 s for its session, then run for 30 s
DEFAULT_RETRIES = RETRIES

_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 3.0  # shorter than the server's 5 s, so that the server doesn't close it during a send


class _HttpxArguments(TypedDict):
    verify: ssl.SSLContext
    headers: dict[str, str]
    limits: httpx.Limits


@cache
def _tls(*, is_used: bool) -> ssl.SSLContext:
    """Return a TLS context. All clients share it, because reading the certificates takes longer than a hundred calls.

    Args:
        is_used: False for a client of an http:// address, which needs no certificates. The context then trusts no
            server.
    """
    return httpx.create_ssl_context() if is_used else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _httpx_arguments(url: str) -> _HttpxArguments:
    """Return the arguments of the httpx client for this URL."""
    return {
        "verify": _tls(is_used=not url.startswith("http://")),
        # Ask for uncompressed responses, because a few compressed bytes can unpack to gigabytes.
        "headers": {"Content-Type": "application/json", "Accept-Encoding": "identity"},
        "limits": httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS),
    }


def _timeout(seconds: float, request: Request[Any]) -> httpx.Timeout:
    """Return the time limit for a request: `seconds`, plus the time that the request asks the server to wait."""
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
            return _check_url(rpc_url.removesuffix("/rpc") + path)
    raise reply_error(no_json_rpc("The session's agent_path isn't a path: is this a Toolpack Server?")["error"])


def _check_url(url: str) -> str:
    """Return the URL unchanged if it can be a server's.

    The errors don't show the URL, because it might contain an agent's key.

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
    """Raise `ValueError` if a client's time limit or number of retries is invalid."""
    if not (isinstance(timeout_seconds, int | float) and 0 < timeout_seconds <= threading.TIMEOUT_MAX):
        raise ValueError(f"timeout_seconds must be a number of seconds above 0, not {timeout_seconds!r}")
    if not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries must be a whole number, at least 0, not {retries!r}")


def _authorization(token: str | None) -> dict[str, str]:
    """Return the header that carries the token.

    The header is set for each request, not for the httpx client: agents, which send no token, might share that client.

    Raises:
        ValueError: The token contains characters that aren't allowed in tokens. The error doesn't show the token.
    """
    if token and not (isinstance(token, str) and re.fullmatch("[!-~]+", token)):
        raise ValueError("A token consists of visible ASCII characters: remove blanks and line ends.")
    return {"Authorization": f"Bearer {token}"} if token else {}


class _SyncClient:
    """Base of the synchronous clients: sends requests to one URL.

    Args:
        shared: The httpx client and the outage log of another client whose connections this client uses, if any.
    """

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
        self._url = _check_url(url)
        self._headers = _authorization(token)
        self._is_shared = shared is not None
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
            delay = next(attempts)
            while True:
                if delay:
                    time.sleep(delay)
                delay = attempts.send(self._post(request))
        except StopIteration as done:
            result: T = done.value
            return result

    def _post(self, request: Request[Any]) -> HttpAnswer | httpx.HTTPError:
        """Post a request once. Return the response, or the exception if there is no response."""
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
        """Call the functions in `before_close`, the last one first. Close the connections unless they are shared."""
        while self.before_close:
            self.before_close.pop()()
        if not self._is_shared:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _AsyncClient:
    """Base of the asynchronous clients; see `_SyncClient`."""

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
        self._url = _check_url(url)
        self._headers = _authorization(token)
        self._is_shared = shared is not None
        self._connections = shared or (httpx.AsyncClient(**_httpx_arguments(url), transport=transport), Outage())
        self._http, self._outage = self._connections
        self._seconds = timeout_seconds
        self._retries = retries

    async def send(self, request: Request[T]) -> T:
        """Send a request, retry it if needed, and return its result. Raises the errors of `Client.send`."""
        attempts = exchange(request, self._url, self._retries, self._outage)
        try:
            delay = next(attempts)
            while True:
                if delay:
                    await asyncio.sleep(delay)
                delay = attempts.send(await self._post(request))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _post(self, request: Request[Any]) -> HttpAnswer | httpx.HTTPError:
        """Post a request once. Return the response, or the exception if there is no response."""
        timeout = _timeout(self._seconds, request)
        seconds = timeout.read or 0
        arguments: Any = {"content": request.body(), "headers": self._headers, "timeout": timeout}
        try:
            # httpx limits the time of each read but not of the whole response, which can arrive byte by byte.
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
        """Close the connections, unless they belong to another client."""
        if not self._is_shared:
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
        timeout_seconds: Maximum time to wait for one response, in seconds.
        retries: Maximum number of retries of a request. The default, with growing delays, bridges about 30 seconds.
        transport: An httpx transport that sends the requests, for example one with your own certificates.

    Attributes:
        before_close: Functions that `close` or the end of a `with` block calls before it closes the connections, the
            last one first.
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
        """Return a client for a session's agent. It uses this client's connections, and doesn't close them."""
        url = _agent_url(self._url, session)
        return AgentClient(url, timeout_seconds=self._seconds, retries=self._retries, _shared=self._connections)

    def batch(self) -> Batch:
        """Return a batch, which collects requests in a `with` block and sends them together at its end.

        In the block, the batch's methods return replies: `with client.batch() as batch: reply = batch.get_session(id)`.
        After the block, `reply.result()` returns the result. The server handles the requests in order. If a request
        fails, the server continues with the next request.
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

        The steps are the start of the session and each version that a change to the world created. The advantage of a
        call is the value of the step after the call minus the value of the step before it. Each reward is cached in a
        *ledger*: another fork of the session, which stays open. If you call this method again with the same `finish`
        and `labels`, it creates only the missing forks. Don't run two such programs on one session at the same time.

        Args:
            session_id: The rollout's session. It must have a task.
            k: Number of forks of each step. 1 is enough if `finish` and the world are deterministic.
            finish: How to finish a fork: one of the following ways, or a list of them. Default: all ways except a
                function.

                - A function plays the fork to its end. It gets the client of the fork's agent and the fork, and runs
                  in a thread.
                - `solution`: the agent makes the calls of the task's solution that the session's history lacks, and
                  answers.
                - `solution-by-function`: like `solution`, but without the calls that the history has with other
                  arguments.
                - None: the fork ends at once, so the value of the step is its present reward.

                Of several ways, the best one counts, and so does the rollout's own reward. The ways are tried in order
                until one reaches the reward 1. If the task has no solution, only the ways that need no solution are
                tried.
            steps: The versions of the session to fork. Default: 0, and the versions before and after each call in the
                history that changed something.
            labels: Further labels of the forks. The forks always have the labels `values` (the session's id), `step`,
                `member` and `finish` (the function's name).
            progress: Called with the value of each step when the step's forks have ended.
            concurrency: Maximum number of open forks.
            keep: Leave the fork with the highest reward of each step open. Rewards that an earlier run cached without
                `keep` have no open fork.

        Raises:
            ValueError: An argument is wrong, or the session has no task.
            TypeError: `finish` is a coroutine function; only an `AsyncClient` can await it.
            ClientError: The session is closed, or the server doesn't respond.
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
        """See `Client.values`. A function for `finish` must be a coroutine function, or `TypeError` is raised."""
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
