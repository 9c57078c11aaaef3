"""A client for async code whose requests another one sends, in threads.

What sends several requests at once is written once, for async code, and `Client` does it with this.
"""

import asyncio
import inspect
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

from toolpack_server.client.methods import AgentMethods, ClientMethods, Session
from toolpack_server.client.requests import Request
from toolpack_server.client.values import SessionValues, Valuer

T = TypeVar("T")


class _InThreads:
    def __init__(self, client: Any) -> None:
        self.client = client

    async def send(self, request: Request[T]) -> T:
        return await asyncio.to_thread(self.client.send, request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Close nothing: the connections are the client's."""


class _Client(_InThreads, ClientMethods):
    def agent(self, session: Session) -> "_Agent":
        return _Agent(self.client.agent(session))


class _Agent(_InThreads, AgentMethods):
    pass


def values_in_threads(
    client: Any, session_id: str, finish: Any, steps: Iterable[int] | None, *, concurrency: int, **asked: Any
) -> SessionValues:
    """Do what `Client.values` says."""

    async def played(agent: _Agent, fork: Session) -> None:
        await asyncio.to_thread(finish, agent.client, fork)

    async def found() -> SessionValues:
        with ThreadPoolExecutor(concurrency) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            return await valuer.values(session_id, steps)

    if inspect.iscoroutinefunction(finish):
        raise TypeError("finish is a coroutine function: await `values` of an AsyncClient, or give a plain function")
    with suppress(RuntimeError):  # no event loop runs in this thread
        asyncio.get_running_loop()
        raise ValueError("an event loop runs in this thread: await `values` of an AsyncClient")
    waiting = _Client(client)
    if callable(finish):
        played.__name__ = getattr(finish, "__name__", type(finish).__name__)
    valuer = Valuer(
        waiting, waiting.agent, finish=played if callable(finish) else finish, concurrency=concurrency, **asked
    )
    return asyncio.run(found())
