"""Execution of coroutines from synchronous code, on an event loop that each thread keeps.

The next coroutine on the loop might belong to another session, so a coroutine must leave nothing behind:

- When a coroutine finishes, all tasks that it started but didn't await are cancelled.
- Work that a coroutine left in the loop's thread pool can't be cancelled. So the next coroutine gets a new pool.
- A coroutine can't stop or reconfigure the loop.
"""

import asyncio
import concurrent.futures
import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, cast

from toolpack_server.functions.leftovers import LoopExecutor, own_thread

RESOLVERS = 16  # threads for host name lookups, shared by all loops

_resolvers = concurrent.futures.ThreadPoolExecutor(RESOLVERS, "resolvers", own_thread)

REFUSED = "The event loop is shared with other sessions: a function can't stop or reconfigure it."

current_call: ContextVar[Any] = ContextVar("current_call", default=None)
"""The call that is running: a `SharedCall` on a shared loop, or the coroutine on a thread's own loop. None: no call."""


def _refused(method: Callable[..., Any]) -> Any:
    """Wrap a method of the event loop, so that it raises a `RuntimeError` if a toolpack's function calls it.

    The server's own code can still call it, because `current_call` isn't set there.
    """

    def guarded(*args: Any, **named: Any) -> Any:
        if current_call.get() is not None:
            raise RuntimeError(REFUSED)
        return method(*args, **named)

    return guarded


class TurnSelector(selectors.DefaultSelector):
    """The selector of an event loop, with a counter of the loop's iterations.

    Attributes:
        turn: Number of the current iteration.
        waits: True while the loop waits for events, False while it runs callbacks.
    """

    turn = 0
    waits = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events. The event loop calls this once per iteration, so its end begins the next iteration."""
        self.waits = True
        try:
            return super().select(timeout)
        finally:
            self.turn += 1
            self.waits = False


class CallLoop(asyncio.SelectorEventLoop):
    """Event loop for the coroutines of calls.

    All loops look up host names on shared threads, so that a slow lookup isn't counted as work left behind by a call.
    """

    def __init__(self) -> None:
        self.turns = TurnSelector()
        super().__init__(self.turns)

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio calls this parameter `type`
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        look_up = socket.getaddrinfo
        return await self.run_in_executor(_resolvers, look_up, host, port, family, type, proto, flags)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> Any:
        return await self.run_in_executor(_resolvers, socket.getnameinfo, sockaddr, flags)

    stop = _refused(asyncio.SelectorEventLoop.stop)
    close = _refused(asyncio.SelectorEventLoop.close)
    set_task_factory = _refused(asyncio.SelectorEventLoop.set_task_factory)
    set_exception_handler = _refused(asyncio.SelectorEventLoop.set_exception_handler)
    set_default_executor = _refused(asyncio.SelectorEventLoop.set_default_executor)
    shutdown_asyncgens = _refused(asyncio.SelectorEventLoop.shutdown_asyncgens)
    shutdown_default_executor = _refused(asyncio.SelectorEventLoop.shutdown_default_executor)


class _OwnLoop:
    """The event loop that a thread keeps, because creating a loop takes longer than running most functions."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner(loop_factory=CallLoop)
        self.loop = cast("CallLoop", self.runner.get_loop())
        self.executor: LoopExecutor | None = None


_own_loops: dict[int, _OwnLoop] = {}  # by thread ident
_main_keeps_loop = False


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to completion from synchronous code, and return its result.

    If an event loop is running on this thread already, run the coroutine on another thread, and block until it is done,
    because a thread can't run two event loops at once.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_on_own_loop(coroutine)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def keep_main_loop() -> None:
    """Make the main thread also keep its event loop. An executor calls this, because it runs functions there."""
    global _main_keeps_loop  # noqa: PLW0603 - set once, before any function runs
    _main_keeps_loop = True


def wake_loop(thread: int) -> None:
    """Wake another thread's event loop, if any, to interrupt a call there whose coroutine waits.

    Python raises an exception in another thread only when that thread runs Python code, and a waiting loop runs none.
    """
    own = _own_loops.get(thread)
    if own is not None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            own.loop.call_soon_threadsafe(lambda: None)


def close_loop() -> None:
    """Close the event loop that this thread keeps, if it has one. A thread calls this before it exits."""
    own = _own_loops.pop(threading.get_ident(), None)
    if own is not None:
        own.runner.close()


def _run_on_own_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the event loop that this thread keeps, and cancel the tasks that it leaves on the loop.

    If it leaves work in the loop's thread pool, mark the call (`abandon`), and drop the pool. The main thread keeps a
    loop only after `keep_main_loop`; otherwise it uses a new loop for each coroutine.
    """
    if not _main_keeps_loop and threading.current_thread() is threading.main_thread():
        return asyncio.run(coroutine)
    own = _own_loops.get(threading.get_ident())
    if own is None:
        own = _own_loops[threading.get_ident()] = _OwnLoop()
    runner, executor = own.runner, own.executor
    if executor is None:
        executor = own.executor = LoopExecutor()
        own.loop.set_default_executor(executor)
    context = copy_context()
    context.run(current_call.set, coroutine)
    try:
        return runner.run(coroutine, context=context)
    finally:
        for variable, value in context.items():  # as after an `await`, the caller sees the variables that were set
            if variable is not current_call:
                variable.set(value)
        # Tasks that the function left running would otherwise continue during another call.
        leftovers = asyncio.all_tasks(own.loop)
        for task in leftovers:  # cancel all tasks before the event loop runs again, so that no task runs another step
            task.cancel()
        if leftovers:
            runner.run(_wait_for(leftovers))
        if executor.unfinished:
            own.executor = None
            executor.abandon()


async def _wait_for(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
