"""Async clients that send their requests through a synchronous client, in threads.

The estimator of values sends several requests at once, so it is written for async clients. `Client.values` runs it with
the clients of this module.
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
    """Async client that sends each request through a synchronous client, in a thread."""

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
    """Return the values of a rollout; see `Client.values`.

    Raises:
        TypeError: `finish` is a coroutine function.
        ValueError: An event loop runs in this thread, or an argument is wrong.
    """

    async def compute() -> SessionValues:
        # `asyncio.to_thread` uses this pool. Each open fork needs a thread, because its function blocks.
        with ThreadPoolExecutor(concurrency) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            return await valuer.values(session_id, steps)

    finishes = finishes_of(finish).values()
    if any(map(inspect.iscoroutinefunction, finishes)):
        raise TypeError("finish is a coroutine function: use AsyncClient.values, or pass a plain function")
    with suppress(RuntimeError):  # raised by `get_running_loop` if no event loop runs in this thread
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
    """Return a coroutine function that calls `finish` in a thread. It keeps the name, which is a label of forks."""

    async def finish_in_thread(agent: _Agent, fork: Session) -> None:
        await asyncio.to_thread(finish, agent.client, fork)

    finish_in_thread.__name__ = getattr(finish, "__name__", type(finish).__name__)
    return finish_in_thread
