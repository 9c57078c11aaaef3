"""A snapshot restores exactly the object graph that was written, without running any code of its classes."""

import collections
import dataclasses
import enum
import functools
import io
import ipaddress
import itertools
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import types
import uuid
import weakref
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ByteSize, ConfigDict, Field, PrivateAttr, RootModel, SecretBytes, SecretStr
from pydantic_core import MultiHostUrl, TzInfo, Url
from typing_extensions import TypeAliasType, TypedDict

from toolpack_server.base.errors import ClassesChangedError, RegistrationError, SnapshotError, StateDamagedError
from toolpack_server.snapshots.classes import ClassTable, fingerprint
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.snapshots.seal import FORMAT, seal, unseal

T = TypeVar("T")
ran: list[str] = []


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    CRIMSON = "red"  # noqa: PIE796 - an alias

    @classmethod
    def _missing_(cls, _value):
        ran.append("_missing_")
        return cls.RED


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    SHARE = enum.auto()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mood(enum.StrEnum):
    GOOD = "good"


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Owner(BaseModel):
    name: str = "Ann"
    tags: list[str] = Field(default_factory=list)


class Watched(BaseModel):
    """A model that records which of its methods run."""

    model_config = ConfigDict(validate_assignment=True)
    number: int = Field(default_factory=lambda: ran.append("default factory") or 1)
    _secret: list[int] = PrivateAttr(default_factory=lambda: ran.append("private default") or [])

    def __init__(self, **data):
        ran.append("__init__")
        super().__init__(**data)

    def model_post_init(self, _context, /):
        ran.append("model_post_init")

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, value):
        ran.append("validator")
        return value

    @pydantic.model_validator(mode="after")
    def check_all(self):
        ran.append("model validator")
        return self

    def __setattr__(self, name, value):
        ran.append("__setattr__")
        super().__setattr__(name, value)


class Hidden:
    """A class that only the quoted annotation of a private attribute names."""

    def __init__(self, value=0):
        self.value = value


class Account(BaseModel):
    model_config = ConfigDict(extra="allow")
    balance: float = 0.0
    owner: Owner = Field(default_factory=Owner)
    anything: Any = None
    _hidden: "Hidden | None" = None
    _cache: dict[str, int] = PrivateAttr(default_factory=dict)


class Savings(Account):
    rate: Decimal = Decimal("0.01")


class Box(BaseModel, Generic[T]):
    content: T
    _extra: "T | None" = None


class Frozen(BaseModel, frozen=True):
    x: int = 0
    link: Any = None


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Plain:
    a: Any = None
    counted: ClassVar[int] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: Any = None
    b: int = 0


@pydantic.dataclasses.dataclass
class Checked:
    a: int = 0

    def __post_init__(self):
        ran.append("__post_init__")


class Lean:
    """A class with slots. `never` stays empty. One subclass adds a slot, and another subclass has a `__dict__`."""

    __slots__ = ("__private", "left", "never")

    def __init__(self, left=None):
        self.left = left
        self.__private = left


class Leaner(Lean):
    __slots__ = ("right",)


class Loose(Lean):
    pass


class Keyed:
    """A class whose `__hash__` uses its own attribute."""

    def __init__(self, key, link=None):
        self.key, self.link = key, link

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return isinstance(other, Keyed) and self.key == other.key


class Forgiving(Keyed):
    """A class with a hash that is wrong, instead of failing, while attributes are missing."""

    def __hash__(self):
        return hash(getattr(self, "key", "nothing"))


class Lazy(BaseModel):
    base: int = 2

    @functools.cached_property
    def squares(self) -> list[int]:
        return [self.base**2]


class Tags(list[str]):
    pass


class Label(str):  # noqa: SLOT000 - it must have a __dict__
    pass


class Index(dict[str, Any]):
    pass


class Names(set[str]):
    pass


class Amount(int):
    pass


class Node(BaseModel):
    parent: "Node | None" = None
    children: list["Node"] = []
    data: Any = None


Numbers = RootModel[list[int]]
Tree = TypeAliasType("Tree", "dict[str, Tree] | Leaf")


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"


class Cat(BaseModel):
    pet: Literal["cat"] = "cat"


class Dog(BaseModel):
    pet: Literal["dog"] = "dog"


class Options(TypedDict, total=False):
    leaf: Leaf


class World(BaseModel):
    """An environment with annotations of every form, which refer to the classes above."""

    account: Account = Field(default_factory=Account)
    colors: dict[Color, Rights] = {}
    levels: list[Level | Mood | Bits] = []
    box: Box[int] | None = None
    boxes: list[Box[Color]] = []
    whole: Box | None = None
    frozen: Frozen | None = None
    points: tuple[Point, ...] = ()
    plain: Annotated[Plain | None, Field(description="a dataclass")] = None
    slotted: Slotted | None = None
    checked: Checked | None = None
    lazy: Lazy | None = None
    node: Node | None = None
    numbers: Numbers | None = None
    tree: Tree | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="pet")] | None = None
    watched: Watched | None = None
    data: Any = None


STATE_TYPES = (Lean, Leaner, Loose, Keyed, Forgiving, Tags, Label, Index, Names, Amount)
CLASSES = ClassTable([World], STATE_TYPES)


def back(value):
    return thaw(freeze(value, CLASSES), CLASSES)


def restored(value):
    """Write and restore a value, check that nothing differs, and return the copy."""
    copy = back(value)
    assert difference(value, copy) is None
    return copy


def refusal(value):
    with pytest.raises(SnapshotError) as caught:
        freeze(value, CLASSES)
    return str(caught.value)


# All plain types, and all kinds of classes

zones = st.sampled_from(
    [
        None,
        UTC,
        timezone(timedelta(hours=2), "CEST"),
        timezone(timedelta(minutes=-90)),
        TzInfo(3600),
        TzInfo(0),
        zoneinfo.ZoneInfo("Europe/Berlin"),
        zoneinfo.ZoneInfo("UTC"),
    ]
)
floats = st.floats() | st.sampled_from([-0.0, math.nan, math.inf])
texts = st.text(max_size=8)
hashables = st.one_of(
    st.none() | st.booleans() | st.integers() | st.integers(2**70, 2**900) | floats | texts,
    st.binary(max_size=8) | st.complex_numbers(),
    st.datetimes(timezones=zones).map(lambda at: at.replace(fold=1)) | st.datetimes(timezones=zones),
    st.dates() | st.times(timezones=zones) | st.timedeltas() | zones,
    st.decimals().filter(lambda number: not number.is_snan()) | st.fractions() | st.uuids(),
    st.sampled_from([Color.RED, Color.CRIMSON, Rights.READ, Rights.READ | Rights.SHARE, Rights(0), ~Rights.READ]),
    st.sampled_from([Level.HIGH, Mood.GOOD, Bits.ONE | Bits.TWO, Bits(9), ..., NotImplemented, range(3, 9, 2)]),
    st.sampled_from(
        [pathlib.Path("/a/b"), pathlib.PurePosixPath("x"), pathlib.PureWindowsPath("C:/x"), pathlib.Path()]
    ),
    st.ip_addresses() | st.sampled_from(["10.0.0.1/8", "::1/64"]).map(ipaddress.ip_interface),
    st.sampled_from(["10.0.0.0/8", "::/64"]).map(ipaddress.ip_network),
    st.sampled_from([Url("http://b.de/x?y#z"), MultiHostUrl("redis://a:1,b:2/0"), re.compile("a+", re.IGNORECASE)]),
    st.sampled_from([pydantic.HttpUrl("http://x.de"), pydantic.PostgresDsn("postgres://a:b@c/d"), re.compile(b"b")]),
    st.sampled_from([SecretStr("s"), SecretBytes(b"s"), ByteSize(7), ipaddress.ip_address("fe80::1%eth0")]),
    st.builds(Amount, st.integers()) | st.builds(Label, texts),
    st.builds(Frozen, x=st.integers()) | st.builds(Slotted, a=texts, b=st.integers()) | st.builds(Keyed, texts),
)


def containers(inner):
    lists = st.lists(inner, max_size=4)
    by_key = st.dictionaries(hashables, inner, max_size=4)
    by_name = st.dictionaries(texts, inner, max_size=4)
    return st.one_of(
        lists | by_key | lists.map(tuple),
        st.sets(hashables, max_size=4) | st.frozensets(hashables, max_size=4),
        lists.map(collections.deque) | lists.map(lambda items: collections.deque(items, maxlen=9)),
        by_key.map(collections.OrderedDict) | by_name.map(lambda items: collections.defaultdict(list, items)),
        st.lists(texts, max_size=4).map(collections.Counter) | st.binary(max_size=9).map(bytearray),
        st.integers().map(random.Random) | st.builds(itertools.count, st.integers(), st.integers()),
        st.builds(Account, balance=floats, anything=inner, surplus=inner) | st.builds(Savings, anything=inner),
        st.builds(Plain, inner) | st.builds(Lean, inner) | st.builds(Loose, inner) | st.builds(Leaner, inner),
        st.builds(Point, inner, inner) | st.builds(Frozen, link=inner) | st.builds(Slotted, inner),
        st.builds(lambda n: Box[int](content=n), st.integers()) | st.builds(lambda v: Box(content=v), inner),
        st.builds(Tags, st.lists(texts)) | st.builds(Index, by_name) | st.builds(Names, st.sets(texts)),
        st.builds(Node, data=inner) | st.builds(World, data=inner) | st.builds(Checked, st.integers()),
        lists.map(lambda items: [items, items, (items, items)]),
    )


graphs = st.recursive(hashables, containers, max_leaves=12)


@given(graphs)
@settings(suppress_health_check=list(HealthCheck))
def test_any_graph_is_restored_exactly(value):
    restored(value)


@given(st.lists(graphs, min_size=1, max_size=4), st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_aliases_and_cycles_are_restored(values, data):
    holders = [Node(data=value) for value in values] + [Plain(value) for value in values]
    for holder in holders:
        other = data.draw(st.sampled_from([*holders, *values]))
        setattr(holder, data.draw(st.sampled_from(["data", "a"])) if isinstance(holder, Plain) else "data", other)
    restored(holders)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_any_web_of_references_is_kept_or_refused(links):
    """Some graphs have a cycle of objects that hash by value. If such a graph is accepted, its copy must be exact."""
    parts = [Keyed(1), Keyed(2), Forgiving(3), Plain({}), Plain(set()), Node(data=[]), Frozen(link=[]), Point([], {})]
    for start, end in links:
        source, target = parts[start], parts[end]
        try:
            hash(target)
        except TypeError:
            target = Keyed(start, target)
        match source:
            case Keyed():
                source.link = target
            case Plain(dict() as mapping):
                mapping[target] = target
            case Plain(set() as members):
                members.add(target)
            case Node():
                source.data.append(target)
            case Frozen():
                source.link.append(target)
            case Point():
                source.x.append(target)
                source.y[target] = 1
    try:
        copy = back(parts)
    except SnapshotError:
        return
    assert difference(parts, copy) is None
    assert all(member in copy[4].a for member in copy[4].a)
    assert all(key in copy[3].a for key in copy[3].a)


# Code that must not run, and values that must survive


def test_no_code_of_the_classes_runs():
    world = World(watched=Watched(number=5), checked=Checked(1), colors={Color("unknown"): Rights.READ})
    world.watched._secret.append(3)
    ran.clear()
    copy = back(world)
    assert ran == []
    assert difference(world, copy) is None
    assert copy.watched._secret == [3]


def test_fields_set_private_attributes_and_extras_survive():
    account = Account(balance=1, surplus={"a": 1})
    account._hidden = Hidden(3)
    account._cache["x"] = 1
    copy = restored(account)
    assert copy.model_fields_set == {"balance", "surplus"}
    assert copy.model_extra == {"surplus": {"a": 1}}
    assert (copy._hidden.value, copy._cache) == (3, {"x": 1})
    assert restored(World.model_construct(data=1)).model_fields_set == {"data"}


def test_types_of_objects_are_restored():
    copy = restored(World(account=Savings(rate=Decimal("0.10")), box=Box[int](content=1), points=(Point(1),)))
    assert type(copy.account) is Savings
    assert str(copy.account.rate) == "0.10"
    assert type(copy.box) is Box[int]
    assert type(copy.points[0]) is Point


def test_enum_members_stay_themselves():
    assert restored([Color.RED])[0] is Color.RED
    assert restored([Rights.READ | Rights.WRITE])[0] is Rights.READ | Rights.WRITE
    assert restored([Level.HIGH, Mood.GOOD]) == [Level.HIGH, Mood.GOOD]


def test_a_cached_property_is_not_computed_again():
    lazy = Lazy()
    lazy.squares.append(7)
    assert restored(World(lazy=lazy)).lazy.squares == [4, 7]


def test_times_keep_zone_and_fold():
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    at = datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=1)
    copy = restored([at, datetime(2024, 1, 1, tzinfo=UTC), time(2, 30, fold=1), date.max, datetime(1, 1, 1)])  # noqa: DTZ001 - without zone
    assert copy[0].utcoffset() == timedelta(hours=1)
    assert copy[0].tzinfo is berlin
    assert copy[1].tzinfo is UTC
    parsed = pydantic.TypeAdapter(datetime).validate_python("2024-01-01T00:00:00+05:30")
    assert type(restored([parsed])[0].tzinfo) is TzInfo


def test_numbers_without_a_hash_are_restored():
    assert restored([Decimal("sNaN12")])[0].is_snan()


def test_random_generators_continue_where_they_were():
    generator, count = random.Random(3), itertools.count(5, 2)
    generator.gauss(0, 1)
    next(count)
    copies = back([generator, count])
    assert [copies[0].gauss(0, 1), copies[0].random()] == [generator.gauss(0, 1), generator.random()]
    assert next(copies[1]) == next(count) == 7


def test_default_factories_stay():
    owners = collections.defaultdict(Owner)
    copy = restored([collections.defaultdict(list), collections.defaultdict(None), owners])
    assert copy[0]["new"] == []
    assert copy[2]["new"] == Owner()


def test_shared_objects_and_cycles_are_restored():
    shared = [1]
    node = Node(data=shared)
    node.children.append(Node(parent=node, data=shared))
    node.children[0].parent = node
    copy = restored(node)
    assert copy.children[0].parent is copy
    assert copy.data is copy.children[0].data
    loop = [1]
    loop.append(Point(loop))
    assert restored(loop)[1].x[1] is not None


def test_set_members_that_hash_by_value_are_restored():
    key = Keyed("k", link=[])
    key.link.append(key)
    assert restored({Frozen(x=1), Slotted(2), Keyed("z")}) == {Frozen(x=1), Slotted(2), Keyed("z")}
    assert Keyed("k") in restored({key: 1, "again": key}) or Keyed("k") in restored([key, {key: 1}])[1]


@pytest.mark.parametrize("kind", [Keyed, Forgiving])
def test_a_set_that_would_lose_its_member_is_refused(kind):
    member = kind("k")
    member.link = {member}
    assert refusal(World(data=member)).startswith("`data.link` can't be stored, its type is `set`: a member's hash")


def test_a_hash_that_needs_unrestored_attributes_is_refused():
    class Borrowed(Keyed):
        def __hash__(self):
            return hash(getattr(self.link, "base", None))

    owner = Lazy()
    classes = ClassTable([World], [Borrowed])
    owner.__dict__["members"] = {Borrowed("b", owner)}
    with pytest.raises(SnapshotError, match="hash depends on a cycle"):
        freeze(owner, classes)


# Refused values


def refused_values():
    yield "ModelMetaclass", Owner
    yield "function", len
    yield "function", lambda: None
    yield "method", Owner().model_dump
    yield "generator", (n for n in ())
    yield "list_iterator", iter([1])
    yield "zip", zip(strict=True)
    yield "ReferenceType", weakref.ref(Owner())
    yield "lock", threading.Lock()
    yield "RLock", threading.RLock()
    yield "BytesIO", io.BytesIO()
    yield "module", math
    yield "partial", functools.partial(len)
    yield "mappingproxy", types.MappingProxyType({})
    yield "memoryview", memoryview(b"")
    yield "object", object()
    yield "PickleBuffer", __import__("pickle").PickleBuffer(b"x")
    yield "GenericAlias", list[int]
    yield "Exception", Exception("x")
    yield "Unknown", Unknown()
    for base in (int, float, str, bytes, list, dict, set, frozenset, tuple, complex, bytearray):
        yield f"Odd_{base.__name__}", type(f"Odd_{base.__name__}", (base,), {})()
    for base in (datetime, date):
        yield "Odd", type("Odd", (base,), {})(2024, 1, 1)
    yield "Odd", type("Odd", (collections.OrderedDict,), {})()
    yield "Box[str]", Box[str](content="")
    yield "defaultdict", collections.defaultdict(lambda: 1)
    yield "Random", random.SystemRandom()
    yield "count", itertools.count(Decimal(1))


class Unknown:
    pass


@pytest.mark.parametrize(("kind", "value"), list(refused_values()))
def test_refusal_names_the_path_and_the_type(kind, value):
    world = World(data={"x": [0, Account(anything=(1, value))]})
    text = refusal(world)
    assert text.startswith("`data['x'][1].anything[1]` can't be stored")
    assert kind in text.partition(": ")[0]


def test_attributes_that_would_be_lost_are_refused():
    for value in (collections.OrderedDict(), collections.Counter(), random.Random(1)):
        value.remark = 1
        assert "attributes were set on it" in refusal(value)


def test_refusals_name_attributes_keys_and_environment():
    account = Account()
    account._cache["lock"] = threading.Lock()
    assert refusal(World(account=account)).startswith("`account._cache['lock']` can't be stored")
    assert refusal({Unknown: 1}).startswith("`[key type]` can't be stored")
    assert refusal(Unknown()).startswith("The environment itself can't be stored")


def nested(depth):
    value = None
    for level in range(depth // 4):
        value = Node(data=[(value,)]) if level % 2 else {"x": {"y": [Plain(value)]}}
    return value


@pytest.mark.parametrize(
    "around", [Point, Plain, Slotted, lambda v: Box(content=v), lambda v: Frozen(link=v), lambda v: Tags([v])]
)
def test_200_levels_of_anything_are_kept(around):
    value = None
    for _ in range(200):
        value = around(value)
    restored(value)


def test_deeper_nesting_than_200_levels_is_refused():
    restored(nested(200))
    deep = []
    for _ in range(100_000):
        deep = [deep]
    text = refusal(World(data=deep))
    assert "nested deeper than 200 levels" in text
    assert len(text) < 500
    while deep:  # Take the list apart level by level, because freeing it at once would recurse too deep.
        deep = deep.pop()


def test_a_refusal_near_the_stack_limit_is_a_refusal():
    def descend(levels):
        try:
            return descend(levels + 1)
        except RecursionError:
            return refusal_or_bytes()

    def refusal_or_bytes():
        try:
            return freeze(nested(200), CLASSES)
        except SnapshotError as error:
            return str(error)

    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(descend(0)))
    thread.start()
    thread.join()
    assert outcomes


# The table and the fingerprint


def test_the_table_has_the_classes_that_annotations_reach():
    names = {name.partition(":")[2] for name in CLASSES.names}
    assert {"World", "Account", "Savings", "Hidden", "Color", "Point", "Leaf", "Cat", "Dog", "Keyed"} <= names
    assert "Unknown" not in names
    assert any(name.startswith("Box[") for name in names)
    assert CLASSES.names[f"{__name__}:Owner"] is Owner
    assert Unknown not in CLASSES.names.values()
    assert len(CLASSES) == len(CLASSES.names)
    typed = ClassTable([Options])
    assert Leaf in typed.names.values()


@pytest.mark.parametrize("root", [Any, object, BaseModel, enum.Enum, list[Any], collections.abc.Sequence, dict])
def test_types_without_classes_add_no_class_to_the_table(root):
    assert len(ClassTable([root])) == len(ClassTable([]))


@pytest.mark.skipif(sys.version_info < (3, 14), reason="an unknown name is an error where it is written")
def test_names_that_are_never_defined_admit_nothing():
    class Odd(BaseModel):
        _private: Nowhere = PrivateAttr(None)  # noqa: F821 - on purpose

        @functools.cached_property
        def cached(self) -> Nowhere: ...  # noqa: F821 - on purpose

    assert len(ClassTable([Odd])) == len(ClassTable([])) + 1


def test_two_classes_of_one_name_are_refused():
    def define():
        class Twin(BaseModel):
            pass

        return Twin

    with pytest.raises(RegistrationError, match="Two different classes are called"):
        ClassTable([define(), define()])


def test_state_types_that_cannot_be_kept_are_refused():
    with pytest.raises(RegistrationError, match="can't be stored in a snapshot"):
        ClassTable([], [type(threading.Lock())])
    ClassTable([], [Decimal, datetime, Color, dict])


def fields(**annotations):
    return pydantic.create_model("Model", __module__=__name__, **annotations)


def test_the_fingerprint_follows_the_shape():
    one = fingerprint([fields(a=(int, 1))])
    assert re.fullmatch("[0-9a-f]{32}", one)
    assert one == fingerprint([fields(a=(int, 2))]), "defaults don't count"
    different = [fields(b=(int, 1)), fields(a=(str, "")), fields(a=(int, 1), b=(int, 1)), fields(a=(int | None, 1))]
    prints = {one, *(fingerprint([model]) for model in different), fingerprint([fields(a=(int, 1))], [Plain])}
    assert len(prints) == 6
    assert fingerprint([World], STATE_TYPES) == fingerprint([World], reversed(STATE_TYPES))


def test_the_fingerprint_of_a_path_is_the_same_on_every_python():
    # Python 3.13 defines these classes in a module within pathlib.
    print_of_paths = fingerprint([fields(a=(pathlib.Path, ...), b=(pathlib.PurePosixPath, ...))])
    assert print_of_paths == "3885c8fecdb3451586e2389ed1b60a51"


def test_a_fingerprint_ignores_subclasses_of_other_modules(monkeypatch):
    module = types.ModuleType("first_to_name_it")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("import pydantic\nBase = pydantic.RootModel[frozenset[bytes]]", vars(module))
    before = fingerprint([fields(a=(RootModel[frozenset[bytes]], ...))])
    exec("class Labels(Base): pass", vars(module))
    assert before == fingerprint([fields(a=(RootModel[frozenset[bytes]], ...))])


def test_the_fingerprint_covers_private_attributes_and_slots():
    def define(body):
        return type("Changing", body[0], {"__module__": __name__, "__qualname__": "Changing", **body[1]})

    def private(annotation):
        return define(((BaseModel,), {"__annotations__": {"_p": annotation}, "_p": PrivateAttr(None)}))

    assert fingerprint([private(int)]) != fingerprint([private(str)])
    assert fingerprint([private(int)]) == fingerprint([private(int)])
    slots = [fingerprint([], [define(((), {"__slots__": slots}))]) for slots in (("a",), ("a", "b"))]
    assert slots[0] != slots[1]
    members = [fingerprint([enum.Enum("Choice", names, module=__name__)]) for names in (["A"], ["A", "B"])]
    assert members[0] != members[1]
    method = define(((BaseModel,), {"act": lambda _self: 1}))
    assert fingerprint([method]) == fingerprint(
        [define(((BaseModel,), {"act": lambda _self: 2, "other": lambda _self: 3}))]
    )


def test_fingerprint_and_names_are_the_same_in_every_process():
    code = (
        "import test_exactness as t; from toolpack_server.snapshots.classes import fingerprint as f;"
        "print(f([t.World], t.STATE_TYPES), t.freeze(t.Account(), t.CLASSES).hex())"
    )
    folder = pathlib.Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder.parents[1]}"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert outputs[0][0] == outputs[1][0]
    account = thaw(bytes.fromhex(outputs[0][1]), CLASSES)
    assert difference(account, Account()) is None
    assert outputs[0][0] == fingerprint([World], STATE_TYPES)


# The comparison finds differences


def changed(change):
    world = World(account=Account(anything={"a": [1, 2.0], "b": {1, 2}}), data=[Plain([1]), Point(1), Lean(1)])
    world.data.append(world.data[0])
    copy = back(world)
    change(copy)
    return difference(world, copy)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda w: w.account.__dict__.update(balance=0), "account.balance"),
        (lambda w: w.account.anything["a"].append(3), "account.anything['a']"),
        (lambda w: w.account.anything["b"].add(3), "account.anything['b']"),
        (lambda w: w.account.anything["b"].__ixor__({2, True, 5}), "account.anything['b']"),
        (
            lambda w: w.account.anything.update(b=w.account.anything.pop("b"), a=w.account.anything.pop("a")),
            "account.any",
        ),
        (lambda w: w.account._cache.update(x=1), "account"),
        (lambda w: w.model_fields_set.discard("data"), ".model_fields_set"),
        (lambda w: w.data.__setitem__(3, Plain([1])), "data[3]"),
        (lambda w: w.data.__setitem__(1, (1, 0)), "data[1]"),
        (lambda w: setattr(w.data[2], "left", True), "data[2].left"),
        (lambda w: setattr(w, "account", Savings()), "account"),
    ],
)
def test_the_comparison_sees_every_change(change, path):
    assert path.lstrip(".") in changed(change)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1}, {True}),
        ({1, Rights.READ}, {1, Rights.WRITE}),
        (dict.fromkeys("ab"), dict.fromkeys("ba")),
        (1, True),
        (0.0, -0.0),
        (math.nan, 1.0),
        ([], ()),
        (Color.RED, Color.GREEN),
        (Decimal("1.0"), Decimal("1.00")),
        ({1: 2, 3: 4}, {3: 4, 1: 2}),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, fold=1)),  # noqa: DTZ001 - without zone
        ({Frozen(x=1)}, {Frozen(x=2)}),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=TzInfo(0))),
        (Owner(), Owner(name="Ann")),
        (collections.deque(maxlen=1), collections.deque(maxlen=2)),
        (Label("a"), Label("b")),
        (uuid.UUID(int=1), uuid.UUID(int=2)),
        (Fraction(1, 2), Fraction(1, 3)),
        (random.Random(1), random.Random(2)),
        (bytearray(b"a"), bytearray(b"b")),
    ],
)
def test_the_comparison_distinguishes_values_that_are_equal(one, other):
    assert difference(one, other)
    assert difference(one, one) is None


class Named:
    """A class hashed by identity."""

    def __init__(self, name, links=()):
        self.name, self.links = name, links


def test_set_members_pair_by_content_and_by_references():
    def world(name, *, shared):
        members = [Named(name), Named("b"), Named("b")]
        return [{(1, "a"), (1, "b"), 2.0, *members}, members[1] if shared else Named("b")]

    assert difference(world("a", shared=True), world("a", shared=True)) is None
    assert difference(world("a", shared=False), world("a", shared=False)) is None
    assert difference(world("a", shared=True), world("c", shared=True)) == "[0]: Named is no longer in the set"
    for one, other in ((True, False), (False, True)):
        assert difference(world("a", shared=one), world("a", shared=other)) == "[0]: Named is no longer in the set"


def test_a_pair_of_members_that_does_not_fit_leaves_no_trace():
    def world(number):
        deep = [[[[[number]]]]]  # the members differ too deep inside to be distinguished before they are compared
        return [{Named("a", [[[[[1]]]]]), Named("a", deep)}, deep]

    assert difference(world(2), world(2)) is None
    assert difference(world(2), world(3))


# Sealing


def test_a_sealed_blob_opens_only_with_its_key_classes_and_label():
    key, mark, label = b"k" * 32, fingerprint([World]), "blob part"
    blob = seal(b"payload", mark, key, label)
    assert unseal(blob, mark, key, label) == b"payload"
    assert blob.startswith(FORMAT.encode())
    with pytest.raises(ClassesChangedError):
        unseal(blob, "0" * 32, key, label)
    with pytest.raises(StateDamagedError):
        unseal(blob, mark, b"other", label)
    with pytest.raises(StateDamagedError):
        unseal(blob, mark, key, "another part")
    assert unseal(seal(b"x", mark, key * 9, label), mark, key * 9, label) == b"x"
    with pytest.raises(StateDamagedError):
        unseal(seal(b"x", mark, key * 9, label), mark, key * 10, label)
    with pytest.raises(ValueError, match="secret key"):
        seal(b"", mark, b"", label)
