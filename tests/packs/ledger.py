"""A ledger with functions that succeed or fail in every possible way, for the tests of sessions."""

import asyncio
import sys
import time
from typing import Annotated, Any

from pydantic import BaseModel, Field
from toolpacks._across import Gates, Lines

from server import Depends, TaskEnvironment, Toolpack

# For the tests: the functions that ran, and gates that block functions until a test opens them.
runs = Lines("runs")
gates = Gates()
late = Lines("late")


class Ledger(BaseModel):
    entries: list[int] = Field(default_factory=list)
    anything: Any = None


class LedgerEnvironment(TaskEnvironment):
    ledger: Ledger = Field(default_factory=Ledger)
    copy_of_ledger: Ledger | None = None


toolpack = Toolpack("ledger", LedgerEnvironment)

TheLedger = Annotated[Ledger, Depends("ledger")]


@toolpack.function
def add(ledger: TheLedger, amount: int) -> int:
    """Add an entry and get the sum.

    :param amount: What to add.
    """
    runs.append("add")
    ledger.entries.append(amount)
    return sum(ledger.entries)


@toolpack.function(read_only=True)
def total(ledger: TheLedger) -> int:
    """Get the sum of all entries."""
    runs.append("total")
    return sum(ledger.entries)


@toolpack.function(read_only=True)
def get_ledger(ledger: TheLedger) -> Ledger:
    """Get the ledger itself."""
    return ledger


@toolpack.function
def append_to(target: Ledger, amount: int) -> int:
    """Add an entry to the given ledger.

    :param target: The ledger.
    :param amount: What to add.
    """
    target.entries.append(amount)
    return len(target.entries)


@toolpack.function
def add_then(ledger: TheLedger, how: str) -> None:
    """Add an entry, then fail in a way that must undo it.

    :param how: Which way.
    """
    ledger.entries.append(1_000_000)
    if how == "raise":
        raise LookupError("half of it is done")
    if how == "exit":
        sys.exit("out")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "generator":
        raise GeneratorExit
    if how == "recurse":
        add_then(ledger, how)
    if how == "surrogate":
        raise ValueError("\ud800")
    if how == "lambda":
        ledger.anything = lambda: None
    if how == "grow":
        ledger.anything = "x" * 3_000_000


@toolpack.function
def add_and_return(ledger: TheLedger, what: str) -> Any:
    """Add an entry and return something without a JSON form.

    :param what: What.
    """
    ledger.entries.append(1_000_000)
    if what == "object":
        return object()
    if what == "much":
        return "x" * 3_000_000
    if what == "cycle":
        cycle: list[Any] = []
        cycle.append(cycle)
        return cycle
    return None


@toolpack.function
def echo(value: Any) -> Any:
    """Return the argument.

    :param value: Anything.
    """
    return value


@toolpack.function(timeout_seconds=0.3)
def add_and_spin(ledger: TheLedger, name: str) -> None:
    """Add an entry, then loop until a gate opens, and write once more.

    :param name: The gate.
    """
    ledger.entries.append(1)
    while not gates[name].is_set():
        pass
    ledger.entries.append(2)
    late.append(name)


@toolpack.function(timeout_seconds=0.3)
def add_and_swallow(ledger: TheLedger, name: str) -> None:
    """Add an entry, then loop until a gate opens, whatever is raised, and write once more.

    :param name: The gate.
    """
    ledger.entries.append(1)
    while not gates[name].is_set():
        try:
            time.sleep(0.001)
        except BaseException:  # noqa: BLE001 - to swallow the interruption
            late.append("swallowed")
    ledger.entries.append(2)
    late.append(name)


@toolpack.function
def add_and_hold(ledger: TheLedger, name: str) -> int:
    """Add an entry, then wait for a gate.

    :param name: The gate.
    """
    runs.append("add_and_hold")
    ledger.entries.append(1)
    gates[name].wait()
    late.append(name)
    ledger.entries.append(2)
    return sum(ledger.entries)


@toolpack.function(timeout_seconds=0.3)
async def add_and_await(ledger: TheLedger) -> None:
    """Add an entry, then sleep much too long, without blocking."""
    ledger.entries.append(1)
    await asyncio.sleep(3600)


@toolpack.function
async def add_later(ledger: TheLedger, amount: int) -> int:
    """Add an entry after a moment.

    :param amount: What to add.
    """
    await asyncio.sleep(0.001)
    ledger.entries.append(amount)
    return sum(ledger.entries)


@toolpack.function
async def leave_task_behind(ledger: TheLedger) -> None:
    """Add an entry, and leave a task behind that would add more."""
    ledger.entries.append(1)

    async def straggle() -> None:
        await asyncio.sleep(0)
        ledger.entries.append(1_000)

    ledger.anything = None
    background.append(asyncio.ensure_future(straggle()))


background: list[Any] = []


@toolpack.function
def change_argument(value: Any, how: str) -> None:
    """Change the argument itself.

    :param value: A list.
    :param how: How it is changed.
    """
    if how == "append":
        value.append(2)
    if how == "set":
        value.append({1, 2})
    if how == "clear":
        value.clear()


@toolpack.function
def fail(text: str) -> None:
    """Fail.

    :param text: What the exception says.
    """
    raise LookupError(text)


@toolpack.function
def repeat(text: str, times: int) -> str:
    """Repeat a text.

    :param text: The text.
    :param times: How often.
    """
    return text * times
