"""A counter, the smallest environment that a call can change. Options add bytes that calls store, or don't use."""

import time
from typing import Annotated

from pydantic import BaseModel, Field

from toolpack_server import Depends, TaskEnvironment, Toolpack

LINE = 1024


class Counter(BaseModel):
    value: int = 0
    padding: str = ""


class CounterEnvironment(TaskEnvironment):
    counter: Counter = Field(default_factory=Counter)
    untouched: list[str] = Field(default_factory=list)


def build(padding: int = 0, untouched: int = 0) -> CounterEnvironment:
    """Build a counter.

    Args:
        padding: Bytes in the field that calls change.
        untouched: Bytes in the field that no call uses.
    """
    lines = [f"{number:0{LINE}d}" for number in range(untouched // LINE)]
    return CounterEnvironment(counter=Counter(padding="." * padding), untouched=lines)


toolpack = Toolpack("counter", build)

TheCounter = Annotated[Counter, Depends("counter")]


@toolpack.function
def add(counter: TheCounter, amount: int) -> int:
    """Add to the counter and return the sum.

    :param amount: The amount to add.
    """
    counter.value += amount
    return counter.value


@toolpack.function(read_only=True)
def get(counter: TheCounter) -> int:
    """Return the sum."""
    return counter.value


@toolpack.function
def wait(counter: TheCounter, seconds: float) -> int:
    """Wait, and add 1.

    :param seconds: The duration.
    """
    time.sleep(seconds)
    counter.value += 1
    return counter.value


@toolpack.function(timeout_seconds=3)
def hold(counter: TheCounter, seconds: float) -> int:
    """Compute in C code that doesn't release the GIL. The process may be killed at the function's deadline.

    :param seconds: Approximate duration.
    """
    counter.value += sum(range(int(seconds * 10**8)))
    return counter.value


@toolpack.function
def compute(counter: TheCounter, seconds: float) -> int:
    """Compute in Python, and add 1.

    :param seconds: The duration.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        counter.value += 1
    return counter.value
