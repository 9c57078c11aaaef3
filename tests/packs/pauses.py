"""Async functions that wait, and some that do what a function on a shared loop shouldn't."""

import asyncio
import contextvars
import decimal
import threading
import time
from typing import Annotated, Any

from server import Depends, TaskEnvironment, Toolpack


class Pauses(TaskEnvironment):
    """What the functions have done."""

    done: list[str] = []


toolpack = Toolpack("pauses", Pauses)
Done = Annotated[list[str], Depends("done")]
gates: dict[str, threading.Event] = {}
seen: list[Any] = []
mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="")


async def opened(gate: str) -> None:
    while not gates[gate].is_set():  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(0.002)


@toolpack.function
async def wait(done: Done, gate: str) -> list[str]:
    """Wait for a gate.

    :param gate: The gate.
    """
    done.append("before")
    await opened(gate)
    done.append("after")
    return done


@toolpack.function
async def pause() -> str:
    """Wait for a moment."""
    await asyncio.sleep(0.001)
    return "here"


@toolpack.function(timeout_seconds=0.3)
async def hang(done: Done, how: str, gate: str) -> list[str]:
    """Pass the deadline.

    :param how: How.
    :param gate: What ends it.
    """
    done.append(how)

    async def swallow() -> None:
        while not gates[gate].is_set():
            try:
                await opened(gate)
            except asyncio.CancelledError:
                seen.append("swallowed")

    async def swallow_later() -> None:
        await swallow()
        seen.append("leave ended")
        done.append("late")

    task = asyncio.create_task(swallow_later()) if how == "leave" else None
    await asyncio.sleep(0.001)
    if task is not None:  # it is cancelled when this returns, and doesn't end
        return done
    try:
        while how == "block":
            time.sleep(0.01)  # noqa: ASYNC251
            if gates[gate].is_set():
                break
        while how == "compute":
            pass
        if how == "swallow":
            await swallow()
        await opened(gate)
    finally:
        seen.append(f"{how} ended")
        done.append("late")
    return done


@toolpack.function
async def leave(done: Done) -> list[str]:
    """Leave a task, a timer and a callback behind."""
    done.append("returned")
    loop = asyncio.get_running_loop()

    async def go_on() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            done.append("cancelled")

    seen.append(asyncio.create_task(go_on()))
    loop.call_later(0.001, done.append, "timer")
    loop.call_soon(done.append, "soon")
    await asyncio.sleep(0)
    return done


@toolpack.function
async def look(value: str) -> list[str]:
    """Look at what a call could see of others.

    :param value: What to leave for them.
    """
    await asyncio.sleep(0.001)
    found = [mine.get(), str(decimal.getcontext().prec), str(len(asyncio.all_tasks()))]
    mine.set(value)
    decimal.getcontext().prec = 7
    return found


@toolpack.function
async def touch_loop(method: str) -> str:
    """Call a method of the event loop.

    :param method: The method.
    """
    await asyncio.sleep(0.001)
    loop: Any = asyncio.get_running_loop()
    given = [] if method in ("stop", "close") or method.startswith("shutdown") else [None]
    result = getattr(loop, method)(*given)
    return str(await result if asyncio.iscoroutine(result) else result)


@toolpack.function
async def hand_over(done: Done) -> list[str]:
    """Let a thread do it."""
    await asyncio.sleep(0.001)
    await asyncio.to_thread(done.append, "in a thread")
    return done


@toolpack.function
async def fail(how: str) -> str:
    """Raise an exception after a wait.

    :param how: Which one.
    """
    await asyncio.sleep(0.001)
    raise _ERRORS[how]


_ERRORS = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt("no"),
    "GeneratorExit": GeneratorExit("no"),
    "CancelledError": asyncio.CancelledError("no"),
    "StopAsyncIteration": StopAsyncIteration("no"),
    "ExceptionGroup": ExceptionGroup("some", [ValueError("no")]),
    "ValueError": ValueError("no"),
}


@toolpack.function
async def echo(value: Any) -> Any:
    """Give a value back after a moment.

    :param value: The value.
    """
    await asyncio.sleep(0.001)
    return value


@toolpack.function
def note(done: Done, value: Any) -> list[str]:
    """Note a value.

    :param value: The value.
    """
    done.append(str(value))
    return done


@toolpack.function
async def spin() -> str:
    """Leave a callback behind that schedules itself again and again."""
    loop, called = asyncio.get_running_loop(), []
    seen.append(called)

    def again() -> None:
        called.append(None)
        loop.call_soon(again)

    again()
    await asyncio.sleep(0.002)
    return "here"
