"""Assignments to a parameter that is a dependency, in a function that may change the environment.

Such an assignment is lost if the value is immutable, so registration fails.
"""

# ruff: noqa: ARG001, C416, F401, F841, PLC0415, PLR1704, PTH123, RUF012, SIM105, T201 - the tests check this code

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
from pydantic import BaseModel, ConfigDict, PositiveInt

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.base.errors import RegistrationError


class Wallet(TaskEnvironment):
    balance: float = 100.0
    anything: Any = None
    items: list[int] = []


Balance = Annotated[float, Depends("balance")]
Items = Annotated[list[int], Depends("items")]


def augmented(balance: Balance):
    """Do it."""
    balance -= 1


def plain(balance: Balance):
    """Do it."""
    if balance:
        balance = balance - 1


def annotated(balance: Balance):
    """Do it."""
    balance: float = 2.0


def loop(balance: Balance, items: Items):
    """Do it."""
    for balance in items:
        print(balance)


def walrus(balance: Balance):
    """Do it."""
    print(balance := 2)


def walrus_in_comprehension(balance: Balance, items: Items):
    """Do it."""
    items.extend([balance := item for item in items])


def managed(balance: Balance):
    """Do it."""
    with open("x") as balance:
        pass


def deleted(balance: Balance):
    """Do it."""
    del balance


def unpacked(balance: Balance):
    """Do it."""
    _, (*balance,) = 1, (2, 3)


def swapped(balance: Balance, items: Items):
    """Do it."""
    balance, items[0] = items[0], balance


def inner(balance: Balance):
    """Do it."""

    def change():
        nonlocal balance
        balance += 1

    change()


def inner_of_inner(balance: Balance):
    """Do it."""

    def outer():
        def change():
            nonlocal balance
            balance += 1

        change()

    outer()


def caught(balance: Balance):
    """Do it."""
    try:
        pass
    except ValueError as balance:
        pass


def matched(balance: Balance, items: Items):
    """Do it."""
    match items:
        case [balance]:
            pass


def imported(balance: Balance):
    """Do it."""
    import math as balance


async def awaited(balance: Balance):
    """Do it."""
    balance += 1


@pytest.mark.parametrize(
    "function",
    [
        *(augmented, plain, annotated, loop, walrus, walrus_in_comprehension, managed, deleted, unpacked, swapped),
        *(inner, inner_of_inner, caught, matched, imported, awaited),
    ],
)
def test_changing_function_cannot_rebind_an_immutable_value(function):
    with pytest.raises(RegistrationError, match=r"line \d+ assigns to `balance`, which changes nothing") as refused:
        Toolpack("wallet", Wallet).function(function)
    line = int(str(refused.value).partition(": line ")[2].split()[0])
    assert "balance" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1]
    Toolpack("wallet", Wallet).function(read_only=True)(function)


def in_place(items: Items, balance: Balance):
    """Do it."""
    items += [1]
    items[0] = int(balance)


def only_declared(balance: Balance):
    """Do it."""
    balance: float


def comprehension(balance: Balance, items: Items):
    """Do it."""
    items[:] = [balance for balance in items]


def own_parameter(balance: Balance, items: Items):
    """Do it."""

    def change(balance):
        balance += 1
        return balance

    items.append(change(balance))


def own_variable(balance: Balance, items: Items):
    """Do it."""

    def change():
        balance = 2

        def change_again():
            nonlocal balance
            balance += 1

        change_again()
        return balance

    items.append(change() + balance)


def of_a_class(balance: Balance, items: Items):
    """Do it."""

    class Kept:
        balance = 1

    items.append(Kept.balance + balance)


def list_anew(items: Items, other: Annotated[list[int], Depends("items")]):
    """Do it."""
    items = [item for item in items if item]
    other.append(len(items))


@pytest.mark.parametrize(
    "function", [in_place, only_declared, comprehension, own_parameter, own_variable, of_a_class, list_anew]
)
def test_assignments_that_rebind_no_dependency_are_allowed(function):
    Toolpack("wallet", Wallet).function(function)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True)
class FrozenData:
    x: int = 1


class Pair(NamedTuple):
    x: int


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "kind",
    [
        *(int, bool, str, bytes, complex, Decimal, dt.date, dt.timedelta, tuple[int, ...], frozenset[str]),
        *(int | None, PositiveInt, Literal["a"], NewType("Cents", int), None, Frozen, FrozenData, Pair, Colour),
    ],
)
def test_immutable_types_are_recognized(kind):
    def change(value: Annotated[kind, Depends("anything")]):
        """Do it."""
        value = None

    with pytest.raises(RegistrationError, match="assigns to `value`"):
        Toolpack("wallet", Wallet).function(change)


@pytest.mark.parametrize("kind", [Any, list[int], dict[str, int], int | list[int], BaseModel, object, set[int]])
def test_mutable_value_may_be_rebound(kind):
    def change(value: Annotated[kind, Depends("anything")]):
        """Do it."""
        value = None

    Toolpack("wallet", Wallet).function(change)


def test_type_comes_from_the_field_if_the_parameter_has_none():
    def change(balance: Annotated[Any, Depends("balance")]):
        """Do it."""
        balance += 1

    with pytest.raises(RegistrationError, match="assigns to `balance`"):
        Toolpack("wallet", Wallet).function(change)
