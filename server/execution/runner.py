"""Where toolpacks' code runs after its import: in this process, or in one of its own.

The rule: whatever runs it is a `RunnerOperation`, which says all there is to say of itself: how it runs, and how its
request and its answer travel to and from another process. A `Runner` knows none of them by name.

In another process an operation goes this way:

    worker:    write  →                       supply  →            read
    executor:           serving: the request,  ask ("need"), …, the answer
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from server.base.errors import CrashedError
from server.execution.codec import Codec
from server.execution.world import Means, Snapshot
from server.functions.steps import Steps
from server.volumes.volume import is_piece

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Frame(NamedTuple):
    """What travels between a worker and an executor in one piece: a JSON object, and bytes that belong to it."""

    head: Mapping[str, Any]
    pieces: list[bytes]


Ask = Callable[[Any], Frame]
"""Gets from the worker what an operation needs and its request doesn't contain."""


class RunnerOperation(Generic[T_co]):
    """One thing to be done by toolpacks' code; the class is what kind of thing."""

    name: ClassVar[str]
    # It runs a function as an agent wants it, which may leave anything in its process. What builds, judges and shows
    # environments gets a process in which no such operation has run.
    leaves_traces: ClassVar[bool] = False
    who = "A toolpack"  # whose code it runs, at the beginning of an error's text

    def run(self, means: Means) -> T_co:
        """Do it in this process, on the thread that asks."""
        raise NotImplementedError

    def steps(self, means: Means) -> Steps[T_co]:
        """Do what `run` does, but let somebody else await the coroutines."""
        return self.run(means)
        yield  # which makes it a generator

    def preferred(self) -> int | None:
        """Get the number of the executor that does it fastest; None for any. Called once, before it is written."""
        return None

    def write(self, codec: Codec, process: int) -> Frame:
        """Write the request, with snapshots opened by the codec, as an executor gets no key.

        If the executor ends before it has read that, another request is written.
        """
        raise NotImplementedError

    def supply(self, need: Any, codec: Codec) -> Frame:  # noqa: ARG002 - an operation that needs nothing ignores both
        """Get what an executor needs besides the request; a `ValueError` if it must not have that."""
        raise ValueError(f"an executor needs {need!r}, which isn't its own")

    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        """Whether an answer may have pieces of these sizes; others aren't even received."""
        raise NotImplementedError

    def read(self, answer: Frame, means: Means, process: int) -> T_co:
        """Check and read the answer, with the codec that seals.

        Whoever has written it may be an attacker: nothing of it is used before it has proved to have the right form and
        size.

        Raises:
            ValueError: It has another form; or `AttributeError`, `IndexError`, `KeyError`, `TypeError`.
        """
        raise NotImplementedError

    def crashed(self, error: CrashedError) -> T_co:
        """Get the result when the executor has ended meanwhile."""
        raise error

    @classmethod
    def serving(cls, means: Means, ask: Ask) -> Callable[[Frame], Frame]:
        """Get the function that turns requests into answers, in an executor. Called once per executor."""
        raise NotImplementedError


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
    """Runs operations in this process, on the thread that asks."""

    means: Means
    places: None = None

    def run(self, operation: RunnerOperation[T]) -> T:
        return operation.run(self.means)

    def steps(self, operation: RunnerOperation[T]) -> Steps[T]:
        return operation.steps(self.means)

    def end_unused(self) -> None:
        pass  # it starts nothing

    def close(self) -> None:
        pass


def check_answer(holds: object) -> None:
    """Raise `ValueError` unless something holds that an executor's answer must fulfil."""
    if not holds:
        raise ValueError("the answer of an executor doesn't fit the request")


def opened(codec: Codec, snapshot: Snapshot, part: str) -> bytes:
    """Get the bytes of a part as an executor reads them."""
    return codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])


def known_parts(snapshot: Snapshot, parts: Iterable[str]) -> dict[str, str]:
    """Get the blob ids by which an executor knows a volume again; those of other parts it needn't know."""
    return {part: snapshot.parts[part] if is_piece(part) else "" for part in parts}


class AskedParts(dict[str, bytes]):
    """The bytes of parts, in an executor; those that aren't here are asked for."""

    def __init__(self, ask: Ask, given: Mapping[str, bytes]) -> None:
        super().__init__(given)
        self._ask = ask

    def __missing__(self, part: str) -> bytes:
        (found,) = self._ask(part).pieces
        if not is_piece(part):
            self[part] = found
        return found
