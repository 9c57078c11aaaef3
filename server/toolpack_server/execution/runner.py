"""Where toolpacks' code runs after its import: in this process, or in one of its own.

Whatever runs it is a `RunnerOperation`, which says what it does and what comes of it. A `Runner` does any,
wherever; one with processes of its own also knows how each kind travels there and back.
"""

from contextvars import Context
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from toolpack_server.base.errors import CrashedError
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.functions.steps import Steps

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RunnerOperation(Generic[T_co]):
    """One thing to be done by toolpacks' code; the class is what kind of thing.

    A feature's is a dataclass: its fields are JSON, snapshots, `Versions`, and named tuples and dataclasses of these.

    Attributes:
        shape: What its result looks like as JSON; None if it is bytes.
    """

    name: ClassVar[str]
    shape: ClassVar[TypeAdapter[Any] | None] = None
    # It runs a function as an agent wants it, which may leave anything in its process. What builds, judges and shows
    # environments gets a process in which no such operation has run.
    leaves_traces: ClassVar[bool] = False
    who = "A toolpack"  # whose code it runs, at the beginning of an error's text

    def run(self, context: ExecutionContext) -> T_co:
        """Do it in this process, on the thread that asks."""
        raise NotImplementedError

    def steps(self, context: ExecutionContext) -> Steps[T_co]:
        """Do what `run` does, but let somebody else await the coroutines."""
        return self.run(context)
        yield  # which makes it a generator

    def fits(self, result: Any) -> bool:  # noqa: ARG002 - a subclass uses it
        """Whether a result of the right shape can be its own; a process that isn't trusted may have made it.

        A `ValueError` says that it can't, too.
        """
        return True

    def crashed(self, error: CrashedError) -> T_co:
        """Get the result when the process that did it has ended meanwhile."""
        raise error


class Runner(Protocol):
    """Runs operations.

    Attributes:
        places: How many functions it runs at once in other processes, besides those that are always quick; None if they
            run on the threads of this one.
    """

    @property
    def places(self) -> int | None: ...

    def run(self, operation: RunnerOperation[T]) -> T:
        """Do an operation, in a thread: this blocks. An `OverloadedError` says that nothing has run."""

    def steps(self, operation: RunnerOperation[T]) -> Steps[T]:
        """Do what `run` does, but let somebody else await the coroutines, if they run in this process."""

    def end_unused(self) -> None:
        """End what it has started and nobody has needed for a while, and measure the rest. Brief."""

    def close(self) -> None:
        """End all that it has started."""


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """Runs operations in this process, on the thread that asks, each in context variables of its own.

    `steps` is for calls: their job has a context, in which all of their steps run.
    """

    context: ExecutionContext
    places: None = None

    def run(self, operation: RunnerOperation[T]) -> T:
        return Context().run(operation.run, self.context)

    def steps(self, operation: RunnerOperation[T]) -> Steps[T]:
        return operation.steps(self.context)

    def end_unused(self) -> None:
        pass  # it starts nothing

    def close(self) -> None:
        pass
