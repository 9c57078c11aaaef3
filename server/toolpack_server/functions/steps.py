"""Calls as generators: code that runs on a thread, and coroutines between, which may be awaited elsewhere.

The generator yields each coroutine and receives its result, or its exception, with `send`. The innermost generator
raises the exception. `throw` isn't used, because a function's `GeneratorExit` would close the generators around it.
"""

from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from toolpack_server.functions.coroutines import run_coroutine

T = TypeVar("T")


class Awaiting(NamedTuple):
    """A coroutine to await, and the function that created it, as `toolpack.function`."""

    function: str
    coroutine: Coroutine[Any, Any, Any]


class CoroutineResult(NamedTuple):
    """The result of a coroutine, or its exception."""

    returned: Any
    raised: BaseException | None


Steps = Generator[Awaiting, CoroutineResult, T]


class WrappedStopIteration(BaseException):
    """Carries a function's `StopIteration` out of a generator. Python would replace it by a `RuntimeError`."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


def awaited(function: str, coroutine: Coroutine[Any, Any, Any]) -> Steps[Any]:
    """Yield a coroutine to the caller, which awaits it. Return its result or raise its exception."""
    result = yield Awaiting(function, coroutine)
    if result.raised is not None:
        raise result.raised
    return result.returned


def await_here(awaiting: Awaiting, around: AbstractContextManager[object]) -> CoroutineResult:
    """Await a coroutine on this thread, inside the context manager `around`."""
    try:
        with around:
            return CoroutineResult(run_coroutine(awaiting.coroutine), None)
    except BaseException as error:  # noqa: BLE001 - `awaited` raises it
        return CoroutineResult(None, error)


def run_steps(steps: Steps[T], around: AbstractContextManager[object] | None = None) -> T:
    """Run all steps on this thread and return the result. Each coroutine runs inside the context manager `around`."""
    around = around or nullcontext()
    try:
        awaiting = next(steps)
        while True:
            awaiting = steps.send(await_here(awaiting, around))
    except StopIteration as end:
        result: T = end.value
        return result
