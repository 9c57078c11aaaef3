"""Runners: execute operations that run toolpacks' code, in this process or in another.

A `RunnerOperation` defines the work and the form of its result. A `Runner` executes any operation. If a runner has
processes of its own, it sends the operation to one of them and reads the result.
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
    """Base class of operations that run toolpacks' code; a subclass is a kind of operation.

    An operation of a feature is a dataclass, so that it can be sent to another process. Its fields are JSON values,
    snapshots, `Versions`, and named tuples and dataclasses of these types.

    Attributes:
        shape: The type of the result, which is sent as JSON. None: the result is bytes, and is sent unchanged.
    """

    name: ClassVar[str]
    shape: ClassVar[TypeAdapter[Any] | None] = None
    # True if the operation runs a function called by an agent. The function can leave changes in its process, such as a
    # replaced module. Operations that build, judge or show environments must run in a process without these changes.
    leaves_traces: ClassVar[bool] = False
    who = "A toolpack"  # name of the code that runs, as the subject of error messages

    def run(self, context: ExecutionContext) -> T_co:
        """Execute the operation in this process, on this thread."""
        raise NotImplementedError

    def steps(self, context: ExecutionContext) -> Steps[T_co]:
        """Execute the operation like `run`, but yield coroutines to the caller, which awaits them."""
        return self.run(context)
        yield  # makes this function a generator

    def fits(self, result: Any) -> bool:  # noqa: ARG002 - a subclass uses it
        """Return whether a result of the right type is valid, because it might come from an untrusted process.

        A `ValueError` also means that the result is invalid.
        """
        return True

    def crashed(self, error: CrashedError) -> T_co:
        """Return a result, or raise the error, after the process that executed the operation was killed or exited."""
        raise error


class Runner(Protocol):
    """Executes operations.

    Attributes:
        capacity: Maximum number of functions that run at once in other processes. Functions that are always quick
            aren't counted. None: functions run on threads of this process.
    """

    @property
    def capacity(self) -> int | None: ...

    def run(self, operation: RunnerOperation[T]) -> T:
        """Execute an operation. This method blocks, so call it in a thread.

        Raises:
            OverloadedError: No code of the toolpack has run.
        """

    def steps(self, operation: RunnerOperation[T]) -> Steps[T]:
        """Execute an operation like `run`. If it runs in this process, yield its coroutines to the caller."""

    def end_unused(self) -> None:
        """Stop the processes that were idle for a while, and measure the other processes. Must be fast."""

    def close(self) -> None:
        """Stop all processes of this runner."""


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """Executes operations in this process, on the caller's thread, each in a new `contextvars` context.

    `steps` creates no new context, because all steps of a call run in the context of the call's job.
    """

    context: ExecutionContext
    capacity: None = None

    def run(self, operation: RunnerOperation[T]) -> T:
        return Context().run(operation.run, self.context)

    def steps(self, operation: RunnerOperation[T]) -> Steps[T]:
        return operation.steps(self.context)

    def end_unused(self) -> None:
        pass  # this runner starts no processes

    def close(self) -> None:
        pass
