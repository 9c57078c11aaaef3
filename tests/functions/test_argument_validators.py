"""The server accepts exactly the arguments that the published JSON Schema allows. No float may be NaN or infinite."""

import dataclasses
import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError, create_model
from serving import refused
from typing_extensions import TypedDict

from toolpack_server import TaskEnvironment, Toolpack
from toolpack_server.functions.signatures import parameters_model
from toolpack_server.functions_runtime import FunctionsRuntime
from toolpack_server.packs.catalog import Catalog

NOT_FINITE = ("nan", "NaN", "-nan", "inf", "Infinity", "-Infinity", " inf ", "1e999", "-1e400", math.nan, -math.inf)


class Careless(BaseModel):
    model_config = ConfigDict(allow_inf_nan=True)
    amount: float
    metadata: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0
    parts: "list[Careless]" = []


class WithInit(BaseModel):
    amount: float

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


@dataclasses.dataclass
class Plain:
    amount: float


class Keys(TypedDict):
    amount: float


class Pair(NamedTuple):
    name: str
    amount: float


class Grade(enum.IntEnum):
    ONE = 1


class Level(enum.Enum):
    LOW = "low"
    FULL = 1.0


PLACES = [
    (float, lambda number: number),
    (Annotated[float, Field(gt=0)], lambda number: number),
    (Annotated[float, Field(allow_inf_nan=True)], lambda number: number),
    (float | None, lambda number: number),
    (int | float, lambda number: number),
    (Decimal, lambda number: number),
    (Decimal | bool, lambda number: number),
    (Fraction, lambda number: number),
    (complex, lambda number: number),
    (list[float], lambda number: [number]),
    (dict[str, float], lambda number: {"a": number}),
    (dict[float, int], lambda number: {number: 1}),
    (tuple[int, float], lambda number: [1, number]),
    (set[float], lambda number: [number]),
    (Careless, lambda number: {"amount": number}),
    (Careless, lambda number: {"amount": 1, "metadata": number}),
    (Careless | None, lambda number: {"amount": 1, "parts": [{"amount": number}]}),
    (WithInit, lambda number: {"amount": number}),
    (Plain, lambda number: {"amount": number}),
    (Keys, lambda number: {"amount": number}),
    (Pair, lambda number: ["a", number]),
    (Json[list[float]], lambda number: f'["{number}"]'),
    (Json[Any], lambda number: f"[{number}]" if number != "-nan" else "[NaN]"),
]


def accepts(annotation, value):
    model = parameters_model("f", {"x": (annotation, ...)})
    try:
        model.model_validate({"x": value})
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_no_float_is_nan_or_infinite(place):
    annotation, wrap = PLACES[place]
    assert [number for number in NOT_FINITE if accepts(annotation, wrap(number))] == []


def test_a_text_keeps_the_words_for_nan_and_infinity():
    assert accepts(str, "nan")
    assert accepts(float | str, "inf")


LAX = [
    (dt.date, [20260305, "20260305", 0, 0.0, "0", True, "2026-03-05T00:00:00"], ["2026-03-05"]),
    (dt.datetime, [20260305, "20260305", "1.5", "-7", 1e9, False], ["2026-03-05T10:00", "2026-03-05 10:00:00Z"]),
    (dt.time, [3600, "3600", 1.5, True], ["10:00", "10:00:00Z"]),
    (dt.timedelta, [60, "60", 1.5, "10:00", True], ["PT1M", "P1DT2H"]),
    (bool, [1, 0, 1.0, "yes", "on", "1", "t", "True"], [True, "true", "false"]),
    (int, [True, 1.5, "1_000", " 5", "+5", "05", "1e3", "\u0665"], [5, 5.0, "5", "-5", "5.0"]),
    (float, [True, "1_000", " 5", "+5", ".5", "5.", "\u0665"], [5, 5.5, "5", "-5.5", "5e3"]),
    (Decimal, [True, "1_000", " 5", "1e999999999", "NaN", [0, [5], 0]], [5, 5.5, "5.50", "+5"]),
    (Fraction, [True, "1_000", "1e999999999", "nan"], [5, 0.5, "1/3"]),
    (complex, [1, True, "nan+1j", "infj"], ["1+2j"]),
    (str, [1, 1.5, True, None], ["1"]),
    (Grade, [True, "1"], [1]),
    (Level, [True], ["low", 1.0, 1]),
    (Literal[1, "a"], [True, "1"], [1, "a"]),
    (Literal[True, "a"], [1, 1.0], [True, "a"]),
    (uuid.UUID, ["123e4567e89b42d3a456426614174000", 5], ["123e4567-e89b-42d3-a456-426614174000"]),
    (IPv4Address, [1, True], ["10.0.0.1"]),
    (Pair, [{"name": "a", "amount": 1}], [["a", 1]]),
    (set[int], [{"1": 1}, "12"], [[1, 2]]),
]


@pytest.mark.parametrize(("annotation", "wrong", "right"), LAX)
def test_lax_forms_that_the_schema_lacks_are_refused(annotation, wrong, right):
    assert [value for value in wrong if accepts(annotation, value)] == []
    assert [value for value in wrong if accepts(list[annotation], [value])] == []
    assert [value for value in right if not accepts(annotation, value)] == []


def test_errors_in_a_union_keep_their_locations():
    model = parameters_model("f", {"x": (Annotated[int, Field(gt=0)] | dt.date | list[float], ...)})
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"x": "much"})
    locations = [problem["loc"] for problem in caught.value.errors()]
    assert locations == [("x", "constrained-int"), ("x", "date"), ("x", "list[float]")]


DATES = {
    "date": {"2026-03-05"},
    "date-time": {"2026-03-05T10:00:00Z", "2026-03-05"},
    "time": {"10:00:00", "10:00:00Z"},
    "duration": {"P1D", "PT5M"},
    "uuid": {"123e4567-e89b-42d3-a456-426614174000"},
}
CHECKER = jsonschema.FormatChecker(formats=())
for name, right in DATES.items():
    CHECKER.checks(name)(lambda text, right=right: not isinstance(text, str) or text in right)
SPELLED = {
    "integer": r"^-?(0|[1-9][0-9]*)(\.0+)?$",
    "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$",
    "boolean": "^(true|false)$",
}

texts = st.sampled_from(
    [*"015", "5.0", "-1", "1.5", "1e3", "nan", "yes", "true", "20260305", "", "a", " 1", "1_0", "low"]
)
texts |= st.sampled_from(sorted(set.union(*DATES.values())))
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5, -2.0]) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=6,
)
plain = st.sampled_from(
    [
        *(int, float, bool, str, dt.date, dt.datetime, dt.time, dt.timedelta, uuid.UUID, Grade, Level, type(None)),
        *(Literal["a", 1], Literal[True], Literal["5"]),
    ]
)


def model_of(inner):
    config = ConfigDict(extra="forbid", allow_inf_nan=True)
    return create_model("Inner", __config__=config, a=(inner, ...), b=(inner | None, None))


types = st.recursive(
    plain,
    lambda inner: (
        inner.map(lambda item: list[item])
        | inner.map(lambda item: dict[str, item])
        | inner.map(lambda item: item | None)
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
        | st.tuples(inner, inner).map(lambda pair: tuple[pair])
        | inner.map(model_of)
    ),
    max_leaves=4,
)


def with_spelled(schema):
    """Allow texts that spell a number or a boolean wherever the schema requires one, without naming the text."""
    if isinstance(schema, list):
        return [with_spelled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: part if name == "default" else with_spelled(part) for name, part in schema.items()}
    if changed.get("type") in SPELLED and not {"enum", "const"} & changed.keys():
        return {"anyOf": [changed, {"type": "string", "pattern": SPELLED[changed["type"]]}]}
    return changed


@settings(max_examples=150, deadline=None)
@given(types, st.data())
def test_exactly_what_the_published_schema_allows_is_accepted(annotation, data):
    schema = with_spelled(parameters_model("f", {"x": (annotation, ...)}).model_json_schema())
    oracle = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)
    value = data.draw(values)
    assert accepts(annotation, value) == oracle.is_valid({"x": value}), schema


class Purse(TaskEnvironment):
    balance: float = 10.0


def open_purse(balance: float = 10) -> Purse:
    """Open it.

    Args:
        balance: In euros.
    """
    return Purse(balance=balance)


class Account:
    """An account."""

    def __init__(self, balance: float = 10):
        """Open it.

        Args:
            balance: In euros.
        """
        self.balance = balance

    def pay(self, amount: float):
        """Pay.

        Args:
            amount: In euros.
        """
        self.balance -= amount


def pay(amount: Annotated[float, Field(gt=0)]):
    """Pay.

    Args:
        amount: In euros.
    """
    return amount


@pytest.mark.parametrize("text", ["nan", "-Infinity", "inf", "1e999"])
def test_no_protocol_lets_nan_into_a_float(make_bench, text):
    purse, account = Toolpack("purse", open_purse, [pay]), Toolpack.from_class("account", Account)
    combined = Toolpack.from_classes("both", {"first": Account})
    bench = make_bench(Catalog({pack.name: pack for pack in (purse, account, combined)}))
    for toolpack, options in (
        ("purse", {"balance": text}),
        ("account", {"balance": text}),
        ("both", {"first": {"balance": text}}),
    ):
        session_id = bench.create(toolpack)
        reply = bench.rpc("run_function", session_id=session_id, function="pay", kwargs={"amount": text})
        assert reply["error"].startswith("ValidationError: ")
        refused(-32602, bench.create, toolpack, options={toolpack: options})
    refused(-32602, bench.create, "purse", environment={"purse": {"balance": text}})


def test_agentdojos_functions_refuse_nan_too():
    ready = SimpleNamespace(
        name="pay",
        description="Pay.",
        parameters=create_model("pay", amount=(float, ...)),
        dependencies={},
        run=lambda amount: amount,
        full_docstring="Pay.",
        return_type=float,
    )
    runtime = FunctionsRuntime([ready])
    assert runtime.run_function(None, "pay", {"amount": "5"}) == (5.0, None)
    assert runtime.run_function(None, "pay", {"amount": "nan"})[1].startswith("ValidationError: ")
