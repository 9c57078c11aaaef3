"""A call in steps: parts that run on a thread, and between them coroutines, which may be awaited elsewhere.

A generator yields each coroutine and is *sent* what came of it, also an exception, which the innermost one
raises. Nothing is thrown into it: that would close the generators around a function that raises `GeneratorExit`.
"""

from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from toolpack_server.functions.coroutines import run_coroutine

T = TypeVar("T")


class Awaiting(NamedTuple):
    """A coroutine to be awaited, and the function that has made it: `toolpack.function`."""

    function: str
    coroutine: Coroutine[Any, Any, Any]


class CoroutineResult(NamedTuple):
    """What came of a coroutine."""

    returned: Any
    raised: BaseException | None


Steps = Generator[Awaiting, CoroutineResult, T]


class WrappedStopIteration(BaseException):
    """Carries a `StopIteration` out of a generator, which would replace it."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


def awaited(function: str, coroutine: Coroutine[Any, Any, Any]) -> Steps[Any]:
    """Let somebody await a coroutine; return or raise what comes of it."""
    settled = yield Awaiting(function, coroutine)
    if settled.raised is not None:
        raise settled.raised
    return settled.returned


def settle(awaiting: Awaiting, around: AbstractContextManager[object]) -> CoroutineResult:
    """Await a coroutine on this thread."""
    try:
        with around:
            return CoroutineResult(run_coroutine(awaiting.coroutine), None)
    except BaseException as error:  # noqa: BLE001 - whoever made the coroutine raises it
        return CoroutineResult(None, error)


def run_steps(steps: Steps[T], around: AbstractContextManager[object] | None = None) -> T:
    """Run all steps on this thread; `around` surrounds each coroutine."""
    around = around or nullcontext()
    try:
        awaiting = next(steps)
        while True:
            awaiting = steps.send(settle(awaiting, around))
    except StopIteration as end:
        result: T = end.value
        return result
