"""A market with tasks, for measuring the speed of audits. Its world is 10 KB of JSON."""

from typing import Annotated

from pydantic import BaseModel, Field

from toolpack_server import Depends, Rollout, TaskEnvironment, Toolpack

STALLS, TASKS = 105, 20


class Stall(BaseModel):
    owner: str
    goods: str
    price: int
    open: bool = True
    notes: list[str] = Field(default_factory=list)


class Order(BaseModel):
    stall: str
    buyer: str
    amount: int


class Bazaar(TaskEnvironment):
    stalls: dict[str, Stall]
    orders: list[Order] = Field(default_factory=list)


def build() -> Bazaar:
    """Open the bazaar."""
    return Bazaar(
        stalls={
            f"S-{number:03}": Stall(
                owner=f"Owner {number}", goods=f"goods of kind {number % 17}", price=number * 7 % 90 + 1, notes=["new"]
            )
            for number in range(STALLS)
        }
    )


toolpack = Toolpack("bazaar", build)
Whole = Annotated[Bazaar, Depends(lambda bazaar: bazaar)]


@toolpack.function(read_only=True)
def find_stall(bazaar: Whole, owner: str) -> str:
    """Return the stall of an owner.

    :param owner: The owner's name.
    """
    return next(name for name, stall in bazaar.stalls.items() if stall.owner == owner)


@toolpack.function
def order(bazaar: Whole, stall: str, buyer: str, amount: int) -> Order:
    """Order goods.

    :param stall: The stall.
    :param buyer: The buyer.
    :param amount: The number of pieces.
    """
    if stall not in bazaar.stalls or amount < 1:
        raise ValueError("there is no such stall, or the amount is below 1")
    bazaar.orders.append(Order(stall=stall, buyer=buyer, amount=amount))
    return bazaar.orders[-1]


@toolpack.function
def set_price(bazaar: Whole, stall: str, price: int) -> None:
    """Set a price.

    :param stall: The stall.
    :param price: The new price.
    """
    bazaar.stalls[stall].price = price


@toolpack.function
def close_stall(bazaar: Whole, stall: str) -> None:
    """Close a stall.

    :param stall: The stall.
    """
    bazaar.stalls[stall].open = False


@toolpack.function
def add_note(bazaar: Whole, stall: str, note: str) -> None:
    """Add a note to a stall.

    :param stall: The stall.
    :param note: The text.
    """
    bazaar.stalls[stall].notes.append(note)


def _add_task(number: int) -> None:
    stall, buyer = f"S-{number:03}", f"Buyer {number}"

    @toolpack.task(
        f"market-day-{number}",
        f"Order 3 pieces of what Owner {number} sells for {buyer}, set the price there to 95, add the note 'sold' and "
        f"close stall S-{number + 30:03}. Answer with the name of the stall.",
        solution=[
            ("find_stall", {"owner": f"Owner {number}"}),
            ("order", {"stall": stall, "buyer": buyer, "amount": 3}),
            ("set_price", {"stall": stall, "price": 95}),
            ("add_note", {"stall": stall, "note": "sold"}),
            ("close_stall", {"stall": f"S-{number + 30:03}"}),
        ],
        answer=stall,
    )
    def done(rollout: Rollout[Bazaar]) -> None:
        expected = rollout.initial
        expected.orders = [Order(stall=stall, buyer=buyer, amount=3)]
        expected.stalls[stall].price = 95
        expected.stalls[stall].notes.append("sold")
        expected.stalls[f"S-{number + 30:03}"].open = False
        rollout.check("the bazaar is as it should be", rollout.environment == expected)
        rollout.check("the answer names the stall", rollout.answer == stall)


for _number in range(TASKS):
    _add_task(_number)
