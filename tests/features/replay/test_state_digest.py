"""State digests: two worlds have the same digest if and only if they have the same content."""

import copy
import random
import uuid
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, Flag, auto
from typing import Annotated, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import BaseModel, PrivateAttr

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpack_server.execution.parts import divide
from toolpack_server.features.replay.world_digest import part_entries, world_digest
from toolpack_server.packs.catalog import Catalog
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.pickling import freeze, thaw


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Right(Flag):
    READ = auto()
    WRITE = auto()


@dataclass
class Point:
    x: Any = 0
    y: Any = 0


class Slotted:
    __slots__ = ("held", "other")

    def __init__(self, held):
        self.held = held


class Name(str):
    __slots__ = ()


class Tags(set):
    pass


class Item(BaseModel):
    name: str = ""
    price: Decimal = Decimal("1.50")
    colour: Colour = Colour.RED
    _seen: Any = PrivateAttr(default=0)


class Shop(TaskEnvironment):
    content: Any = None
    item: Item = Item()
    other: Any = None
    _secret: Any = PrivateAttr(default=None)


CLASSES = ClassTable([Shop], [Point, Slotted, Name, Tags, Right])


def digest(environment, max_bytes=10**7):
    return world_digest([("shop", part_entries(environment, CLASSES, max_bytes))])


def of(content):
    return digest(Shop(content=content))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC) | st.none())
    | st.sampled_from([*Colour, Right.READ, Right.READ | Right.WRITE, Name("name"), uuid.UUID(int=7), ...])
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4), max_leaves=6)
values = st.recursive(
    hashable | st.sets(hashable, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict)
        | st.builds(Point, inner, inner)
        | st.builds(Slotted, inner)
        | st.sets(st.text(max_size=3), max_size=5).map(Tags)
        | st.builds(lambda name: Item(name=name), st.text(max_size=5))
    ),
    max_leaves=12,
)


@given(values)
def test_stored_world_has_the_same_digest(content):
    shop = Shop(content=content)
    shop._secret = content
    restored = thaw(freeze(shop, CLASSES), CLASSES)
    assert digest(restored) == digest(shop)
    assert digest(shop) is not None


@given(values, values)
def test_digests_differ_exactly_if_worlds_do(one, other):
    same = difference(copy.deepcopy(Shop(content=one)), copy.deepcopy(Shop(content=other))) is None
    assert (of(one) == of(other)) is same


@given(st.lists(hashable, max_size=20), st.randoms(use_true_random=False))
def test_order_of_a_set_does_not_matter(members, shuffled):
    first = set(members)
    reordered = list(first)
    shuffled.shuffle(reordered)
    filled = {*range(1000)}  # The table of the set grows, so that the order changes.
    filled -= {*range(1000)}
    filled |= set(reordered)
    assert of(first) == of(filled) != of(members)
    assert of([frozenset(first)]) == of([frozenset(filled)]) != of([first])
    assert of({"a": (first, 1)}) == of({"a": (filled, 1)})


DIFFERENT = [
    *(None, True, 1, 1.0, 0.0, -0.0, float("nan"), "1", b"1", bytearray(b"1"), Decimal(1), Decimal("1.0")),
    *([], (), {}, set(), frozenset(), deque(), deque(maxlen=3), OrderedDict(), defaultdict(int), defaultdict(list)),
    *([1], (1,), {1}, {1: 1}, {"1": 1}, {1: "1"}, [[1]], [1, 1], ["set", ["1"]], {"1"}, [{"1"}], [["1"]]),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, [1, 2], [2, 1], {1, 2}, {(1, 2)}, {(2, 1)}, frozenset({1, 2})),
    *(Colour.RED, Colour.BLUE, "red", Right.READ, Right.WRITE, Right.READ | Right.WRITE, Right(0)),
    *(Point(), Point(1), Point(0, 1), Slotted(0), Slotted(None), Name("a"), "a", Tags(), Tags("a"), {"a"}),
    *(Item(), Item(name=""), Item(name="", colour=Colour.RED), Item(name="é"), Item(name="Ï")),
    *(datetime(2026, 3, 1), datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, fold=1)),  # noqa: DTZ001
    *(random.Random(1), random.Random(2), range(3), range(0, 3, 2), complex(1, 0), 2**70, "\udc80"),
    *(("set", None, []), ("set", []), {"set": None}, {("set",)}),
]


def test_different_values_have_different_digests():
    digests = [of(value) for value in DIFFERENT]
    assert None not in digests
    assert len({*digests}) == len(DIFFERENT)
    assert digests == [of(copy.deepcopy(value)) for value in DIFFERENT]


def test_private_and_explicitly_set_values_matter():
    plain, explicit, private = Shop(), Shop(other=None), Shop()
    private._secret = "told"
    shop_with_set_field = Shop()
    shop_with_set_field.item = Item()
    shop_with_set_field.item._seen = 1
    assert len({digest(shop) for shop in (plain, explicit, private, shop_with_set_field)}) == 4
    assert digest(Shop()) == digest(plain)


def test_equal_objects_may_be_shared_or_separate():
    shared = [1, {"a": {2}}]
    assert of([shared, shared]) == of([shared, copy.deepcopy(shared)])
    text = "text that isn't interned"
    assert of([text, text]) == of([text, text.encode().decode()])


def test_division_into_parts_does_not_matter():
    class Divided(TaskEnvironment):
        content: Any = None
        item: Item = Item()
        other: Any = None
        _secret: Any = PrivateAttr(default=None)

    toolpack = Toolpack("shop", Divided)

    @toolpack.function
    def change(content: Annotated[Any, Depends("content")]) -> None:
        """Change it."""

    @toolpack.function
    def sell(item: Annotated[Any, Depends("item")]) -> None:
        """Sell it."""

    classes = Catalog({"shop": toolpack}).classes
    undivided = Divided(content={"a", "b"}, item=Item(name="pen"), other=[1])
    undivided._secret = {"x": 1}
    parts = divide(toolpack, undivided)
    assert len(parts) >= 3
    entries = [("shop", part_entries(part, classes)) for part in parts.values()]
    assert world_digest(entries) == world_digest([("shop", part_entries(undivided, classes))])
    assert world_digest(entries) == world_digest(reversed(entries))
    assert world_digest(entries) != world_digest([("other", entries_of_part) for _, entries_of_part in entries])


def test_world_that_contains_itself_has_no_digest():
    ring: list[Any] = []
    ring.append(ring)
    looped: dict[str, Any] = {}
    looped["a"] = [looped]
    point = Point()
    point.x = point
    slotted = Slotted(None)
    slotted.held = (slotted,)
    item = Item()
    item._seen = {"me": item}
    for content in (ring, looped, point, slotted, item, {(1, 2): ring}, [{"a"}, ring]):
        assert of(content) is None
    shop = Shop()
    shop.content = shop
    assert digest(shop) is None


def test_world_with_too_many_paths_has_no_digest():
    entangled: Any = "x"
    for _ in range(60):
        entangled = [entangled, entangled]
    assert digest(Shop(content=entangled), 10**6) is None
    frozen: Any = frozenset({1})
    for n in range(60):
        frozen = frozenset({(frozen, n), (frozen, -n - 1)})
    assert digest(Shop(content=frozen), 10**6) is None
    assert digest(Shop(content=["x" * 100] * 20_000), 10**6) is None
    assert digest(Shop(content=["x" * 100] * 20_000)) is not None


def test_digest_runs_no_code_of_the_classes(monkeypatch):
    shop = Shop(content=[Item(name="pen"), Point(1, 2)])
    expected = digest(shop)

    def fail(*_args):
        pytest.fail("it ran")

    for kind in (Item, Point, Shop):
        for name in ("__eq__", "__reduce_ex__", "__getstate__", "__repr__", "__getattr__"):
            monkeypatch.setattr(kind, name, fail, raising=False)
    assert digest(shop) == expected
