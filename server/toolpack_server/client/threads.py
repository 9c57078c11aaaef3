"""Async clients over a synchronous one, which sends their requests in threads.

Code that sends several requests at once is written once, for async clients. `Client` runs it with these.
"""

import asyncio
import inspect
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

from toolpack_server.client.methods import AgentMethods, ClientMethods, Session
from toolpack_server.client.requests import Request
from toolpack_server.client.values import SessionValues, Valuer, finishes_of

T = TypeVar("T")


class _InThreads:
    def __init__(self, client: Any) -> None:
        self.client = client

    async def send(self, request: Request[T]) -> T:
        return await asyncio.to_thread(self.client.send, request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Close nothing: the connections belong to the synchronous client."""


class _Client(_InThreads, ClientMethods):
    def agent(self, session: Session) -> "_Agent":
        return _Agent(self.client.agent(session))


class _Agent(_InThreads, AgentMethods):
    pass


def values_in_threads(
    client: Any, session_id: str, finish: Any, steps: Iterable[int] | None, *, concurrency: int, **options: Any
) -> SessionValues:
    """Return the values of a rollout; see `Client.values`."""

    async def compute() -> SessionValues:
        with ThreadPoolExecutor(concurrency) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            return await valuer.values(session_id, steps)

    finishes = finishes_of(finish).values()
    if any(map(inspect.iscoroutinefunction, finishes)):
        raise TypeError("finish is a coroutine function: use AsyncClient.values, or pass a plain function")
    with suppress(RuntimeError):  # no event loop runs in this thread
        asyncio.get_running_loop()
        raise ValueError("an event loop runs in this thread: use AsyncClient.values")
    in_threads = _Client(client)
    valuer = Valuer(
        in_threads,
        in_threads.agent,
        finish=[_in_thread(each) if callable(each) else each for each in finishes],
        concurrency=concurrency,
        **options,
    )
    return asyncio.run(compute())


def _in_thread(finish: Any) -> Any:
    """Return a coroutine function with the name of a function, which it calls in a thread."""

    async def finish_in_thread(agent: _Agent, fork: Session) -> None:
        await asyncio.to_thread(finish, agent.client, fork)

    finish_in_thread.__name__ = getattr(finish, "__name__", type(finish).__name__)
    return finish_in_thread
