"""An environment of two halves that no function uses together, and functions that make the halves share objects."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, PrivateAttr

from server import Depends, TaskEnvironment, Toolpack


class Shelf(BaseModel):
    numbers: list[int] = Field(default_factory=list)
    shelves: list["Shelf"] = Field(default_factory=list)
    _touched: int = PrivateAttr(default=0)


class HalvesEnvironment(TaskEnvironment):
    left: Shelf = Field(default_factory=Shelf)
    right: Shelf = Field(default_factory=Shelf)
    shared_a: list[int] = Field(default_factory=list)
    shared_b: list[int] = Field(default_factory=list)
    unreached: list[str] = Field(default_factory=lambda: ["as it was"])
    _private: list[int] = PrivateAttr(default_factory=lambda: [1])


def make() -> HalvesEnvironment:
    """Build the environment; two of its fields are one object from the start."""
    environment = HalvesEnvironment()
    environment.shared_b = environment.shared_a
    return environment


toolpack = Toolpack("halves", make)

Left = Annotated[Shelf, Depends("left")]
Right = Annotated[Shelf, Depends("right")]


@toolpack.function
def push_left(left: Left, number: int) -> int:
    """Push a number on the left.

    :param number: The number.
    """
    left.numbers.append(number)
    left._touched += 1
    return left._touched


@toolpack.function
def push_right(right: Right, number: int) -> int:
    """Push a number on the right.

    :param number: The number.
    """
    right.numbers.append(number)
    if number > 7:
        raise OverflowError("too much")
    return sum(right.numbers)


@toolpack.function(read_only=True)
def get_left(left: Left) -> Shelf:
    """Get the left half itself."""
    return left


@toolpack.function
def get_right(right: Right) -> Shelf:
    """Get the right half itself."""
    return right


@toolpack.function
def put_right(right: Right, shelf: Shelf) -> int:
    """Put a shelf on the right, unless it is there already.

    :param shelf: The shelf.
    """
    if shelf is right or any(shelf is other for other in right.shelves):
        return 0
    right.shelves.append(shelf)
    return len(right.shelves)


@toolpack.function
def push_on(shelf: Shelf, number: int) -> list[int]:
    """Push a number on the given shelf.

    :param shelf: The shelf.
    :param number: The number.
    """
    shelf.numbers.append(number)
    return shelf.numbers


@toolpack.function
def push_a(shared: Annotated[list[int], Depends("shared_a")], number: int) -> int:
    """Push a number on the shared list, by its first name.

    :param number: The number.
    """
    shared.append(number)
    return len(shared)


@toolpack.function(read_only=True)
def read_b(shared: Annotated[list[int], Depends("shared_b")]) -> list[int]:
    """Read the shared list, by its second name."""
    return shared


@toolpack.function(read_only=True)
def pass_on(value: Any) -> Any:
    """Return the argument.

    :param value: Anything.
    """
    return value
