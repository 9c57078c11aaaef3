"""Toolpack for `toolpack-server conform`, with the smallest functions that can reveal a broken guarantee.

docs/internals/conform_toolpack.md lists the names, parameters and results, so that a server in any language can offer
the same functions.
"""

import asyncio
import time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr

from toolpack_server import Depends, Rollout, Task, TaskEnvironment, Toolpack


class Color(Enum):
    RED = "red"


class Named(BaseModel):
    name: Annotated[str, AfterValidator(lambda name: f"{name}!")]


class Colored(Named):
    color: Color


class Conformance(TaskEnvironment):
    total: int = 0
    first: list[int] = Field(default_factory=list)
    second: list[int] = Field(default_factory=list)
    kept: tuple[Any, ...] = ()
    thing: Named | None = None
    _note: str = PrivateAttr("")


def build() -> Conformance:
    """Create the environment, in which two fields refer to the same list."""
    environment = Conformance()
    environment.second = environment.first
    return environment


toolpack = Toolpack("conform", build)

Environment = Annotated[Conformance, Depends(lambda environment: environment)]


def change_everything(environment: Conformance, amount: int) -> None:
    """Change the total, the list and the private note, so that a probe can detect a partial undo."""
    environment.total += amount
    environment.first.append(amount)
    environment._note = f"note of {amount}"  # noqa: SLF001 - tests private state


@toolpack.function
def add(environment: Environment, amount: int) -> int:
    """Add an amount to the total, and get the new total.

    :param amount: Amount to add.
    """
    environment.total += amount
    return environment.total


@toolpack.function(read_only=True)
def total(environment: Environment) -> int:
    """Get the total."""
    return environment.total


@toolpack.function
def add_and_fail(environment: Environment, amount: int) -> int:
    """Add an amount to the total, the list and the note, then fail with a ValueError.

    :param amount: Amount to add.
    """
    change_everything(environment, amount)
    raise ValueError(f"failed after adding {amount}")


@toolpack.function
def add_and_wait(environment: Environment, amount: int, seconds: float) -> int:
    """Add an amount to the total, the list and the note, wait, and get the new total.

    :param amount: Amount to add.
    :param seconds: Seconds to wait.
    """
    change_everything(environment, amount)
    time.sleep(seconds)
    return environment.total


@toolpack.function
async def add_and_await(environment: Environment, amount: int, seconds: float) -> int:
    """Do what `add_and_wait` does, as an async function.

    :param amount: Amount to add.
    :param seconds: Seconds to wait.
    """
    change_everything(environment, amount)
    await asyncio.sleep(seconds)
    return environment.total


@toolpack.function
def append(environment: Environment, number: int) -> None:
    """Append a number to the list `first`.

    :param number: Number to append.
    """
    environment.first.append(number)


@toolpack.function(read_only=True)
def second(environment: Environment) -> list[int]:
    """Get the list `second`, which is the same object as `first`."""
    return environment.second


@toolpack.function
def write_note(environment: Environment, text: str) -> None:
    """Store a string in a private attribute.

    :param text: String to store.
    """
    environment._note = text  # noqa: SLF001 - tests private state


@toolpack.function(read_only=True)
def read_note(environment: Environment) -> str:
    """Get the string in the private attribute."""
    return environment._note  # noqa: SLF001 - tests private state


@toolpack.function
def keep_types(environment: Environment) -> None:
    """Store a tuple, a set, a decimal, bytes, and an instance of a subclass with an enum field."""
    environment.kept = ((1, 2), {3}, Decimal("1.10"), b"four")
    environment.thing = Colored(name="five", color=Color.RED)


@toolpack.function(read_only=True)
def kept_types(environment: Environment) -> list[str]:
    """Get Python's `repr` of each stored value."""
    return [repr(value) for value in (*environment.kept, environment.thing)]


@toolpack.function
def keep_unstorable(environment: Environment) -> None:
    """Store a function, which no server can store exactly."""
    environment.kept = (lambda: 0,)


@toolpack.function(read_only=True)
def repeat(text: str, times: int) -> str:
    """Get a string that repeats a text.

    :param text: Text to repeat.
    :param times: Number of repetitions.
    """
    return text * times


def three(rollout: Rollout[Conformance]) -> None:
    rollout.check("the total is 3", rollout.environment.total == 3)  # noqa: PLR2004 - as in the prompt
    rollout.environment.total += 100  # the evaluator modifies its own copy, so clients must not see this change


def five(rollout: Rollout[Conformance]) -> None:
    if rollout.environment.total == 4:  # noqa: PLR2004 - a total that the prompt doesn't request
        raise RuntimeError("this evaluator fails where the total is 4")
    rollout.check("the total is 5", rollout.environment.total == 5)  # noqa: PLR2004 - as the prompt says


toolpack.add_task(
    Task("three", "Make the total 3.", three, solution=[("write_note", {"text": "solved"}), ("add", {"amount": 3})])
)
toolpack.add_task(Task("five", "Make the total 5.", five, solution=[("add", {"amount": 5})]))
