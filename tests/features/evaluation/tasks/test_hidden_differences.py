"""Worlds that differ, but have the same JSON: an evaluation finds the difference, or rejects the world."""

import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from serving import refused

from toolpack_server import Depends, TaskEnvironment, Toolpack, reached_solution
from toolpack_server.base.errors import ResultError
from toolpack_server.jsonio.view import to_json
from toolpack_server.packs.catalog import Catalog


class Colour(enum.Enum):
    RED = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    total: int = Field(1, serialization_alias="sum")


class SameAlias(BaseModel):
    one: int = Field(1, alias="both")
    other: int = Field(2, alias="both")


AMBIGUOUS = [
    {7: "seven", "7": "SEVEN"},
    {True: 1, "true": 2},
    {None: 1, "None": 2},
    {1.5: 1, "1.5": 2},
    {Decimal("1.5"): 1, "1.5": 2},
    {dt.date(2026, 1, 1): 1, "2026-01-01": 2},
    {Colour.RED: 1, 1: 2},
    {(1, 2): 1, "1,2": 2},
    {b"a": [1], "a": [2]},
    Open(sum=3),
    SameAlias(),
]


@pytest.mark.parametrize("value", AMBIGUOUS)
@pytest.mark.parametrize("comparable", [False, True])
def test_keys_with_the_same_json_text_are_rejected(value, comparable):
    with pytest.raises(ResultError, match=r"at /orders/0 has no JSON form: two of its keys are \"\S+\" in JSON"):
        to_json({"orders": [value], "others": {"x"}}, comparable=comparable)


@pytest.mark.parametrize("value", [{7: 1, "8": 2}, {1: 1, 2: 2}, {None: 1, "null": 2}, Open(other=1), {}])
def test_keys_with_different_json_texts_are_shown(value):
    assert to_json([value])


class Shop(TaskEnvironment):
    orders: dict[Any, Any] = {7: "seven"}  # noqa: RUF012
    weight: Any = None
    items: list[Any] = [1.0]  # noqa: RUF012


Whole = Annotated[Shop, Depends(lambda shop: shop)]
toolpack = Toolpack("shop", Shop)


@toolpack.function
def rename(shop: Whole, text: bool) -> str:
    """Rename the order.

    :param text: Its key becomes a text.
    """
    shop.orders["7" if text else 7] = shop.orders.pop(7).upper()
    return "done"


@toolpack.function
def double(shop: Whole) -> dict[Any, Any]:
    """Add it again."""
    shop.orders["7"] = "SEVEN"
    return {"kept": 1}


@toolpack.function
def orders(shop: Whole) -> Any:
    """Get the orders."""
    return shop.orders


@toolpack.function
def weigh(shop: Whole, weight: str, place: str = "weight") -> str:
    """Set a weight.

    :param weight: A number.
    :param place: The field to set, `weight` or `items`.
    """
    value = None if weight == "none" else float(weight)
    if place == "weight":
        shop.weight = value
    else:
        shop.items.append(value)
    return "done"


toolpack.task("text", "", solution=[("rename", {"text": False})])(reached_solution())
toolpack.task("ignored", "", solution=[("rename", {"text": False})])(reached_solution("/shop/orders"))
toolpack.task("weight", "", solution=[("weigh", {"weight": "nan"})])(reached_solution())
toolpack.task("items", "", solution=[("weigh", {"weight": "inf", "place": "items"})])(reached_solution())


@pytest.fixture
def bench(make_bench):
    return make_bench(Catalog({"shop": toolpack}))


def reward(bench, task, *calls):
    session = bench.create("shop")
    for function, arguments in calls:
        bench.result(session, function, **arguments)
    verdict = bench.rpc("evaluate_session", session_id=session, task=f"shop/{task}")
    return verdict["reward"], verdict["checks"][0]["detail"]


def test_key_of_another_type_makes_worlds_differ(bench):
    assert reward(bench, "text", ("rename", {"text": False})) == (1.0, "")
    assert reward(bench, "text", ("rename", {"text": True})) == (
        0.0,
        "/shop/orders/7 (key) is what JSON shows, not int",
    )
    assert reward(bench, "ignored", ("rename", {"text": True})) == (1.0, "")


def test_world_with_ambiguous_keys_passes_nothing(bench):
    session = bench.create("shop")
    bench.result(session, "double")
    error = refused(-32002, bench.rpc, "get_environment", session_id=session)
    assert "at /orders has no JSON form: two of its keys are" in str(error)
    assert "ResultError: a value of type dict has no JSON form" in bench.call(session, "orders")["error"]
    assert reward(bench, "text", ("double", {}))[0] == 0.0


@pytest.mark.parametrize(("task", "location", "right"), [("weight", "weight", "nan"), ("items", "items", "inf")])
def test_non_finite_number_differs_from_null(bench, task, location, right):
    for weight in ("nan", "inf", "-inf", "none"):
        assert reward(bench, task, ("weigh", {"weight": weight, "place": location}))[0] == float(weight == right)
