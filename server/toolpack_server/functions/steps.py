"""Calls as generators, so that the coroutine of an async function can be awaited on another thread's event loop.

The generator runs a call's code on a thread, and yields each coroutine to its caller. The caller awaits the coroutine
and passes the result or the exception back with `send`; the innermost generator then raises the exception. The caller
doesn't use `throw`, because throwing a `GeneratorExit` raised by a function would close all outer generators.
"""

from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from toolpack_server.functions.coroutines import run_coroutine

T = TypeVar("T")


class Awaiting(NamedTuple):
    """A coroutine to await, and the name of the function that created it, as `toolpack.function`."""

    function: str
    coroutine: Coroutine[Any, Any, Any]


class CoroutineResult(NamedTuple):
    """The result of a coroutine, or its exception. `raised` is None if the coroutine returned."""

    returned: Any
    raised: BaseException | None


Steps = Generator[Awaiting, CoroutineResult, T]
"""A call as a generator. Its return value is the call's result."""


class WrappedStopIteration(BaseException):
    """Carries a function's `StopIteration` out of a generator; Python would replace the error with a `RuntimeError`."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


def awaited(function: str, coroutine: Coroutine[Any, Any, Any]) -> Steps[Any]:
    """Yield a coroutine to the code that drives this generator, which awaits it and sends back a `CoroutineResult`.

    Return the coroutine's result, or raise its exception. Use it with `yield from`.
    """
    result = yield Awaiting(function, coroutine)
    if result.raised is not None:
        raise result.raised
    return result.returned


def await_here(awaiting: Awaiting, around: AbstractContextManager[object]) -> CoroutineResult:
    """Await a coroutine that a call has yielded, on this thread, inside the context manager `around`.

    An exception is returned as part of the `CoroutineResult`, and never raised.
    """
    try:
        with around:
            return CoroutineResult(run_coroutine(awaiting.coroutine), None)
    except BaseException as error:  # noqa: BLE001 - the generator that receives the result raises it
        return CoroutineResult(None, error)


def run_steps(steps: Steps[T], around: AbstractContextManager[object] | None = None) -> T:
    """Drive the generator of a call to its end on this thread, awaiting each coroutine here, and return its result.

    Args:
        around: The context manager inside which each coroutine runs.
    """
    around = around or nullcontext()
    try:
        awaiting = next(steps)
        while True:
            awaiting = steps.send(await_here(awaiting, around))
    except StopIteration as end:
        result: T = end.value
        return result
