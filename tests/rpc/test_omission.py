"""Members without a value are omitted: a result's member is null only where null is a value."""

from typing import NotRequired

import pytest
from serving import AGENTS_METHODS, CLIENTS_METHODS
from typing_extensions import TypedDict

from toolpack_server.protocol.omission import omission

VALUES = {"result", "error", "reward"}  # members that may have the value null


class Inner(TypedDict):
    one: NotRequired[int]


class Outer(TypedDict):
    needed: int | None
    inner: NotRequired[Inner]
    listed: NotRequired[list[Inner]]
    named: NotRequired[dict[str, Inner]]


class Other(TypedDict):
    other: str
    two: NotRequired[int]


@pytest.mark.parametrize(
    ("kind", "result", "expected"),
    [
        (Outer, {"needed": None, "inner": None, "listed": None}, {"needed": None}),
        (Outer, {"needed": 1, "inner": {"one": None}}, {"needed": 1, "inner": {}}),
        (Outer, {"needed": 1, "listed": [{"one": None}, {"one": 0}]}, {"needed": 1, "listed": [{}, {"one": 0}]}),
        (Outer, {"needed": 1, "named": {"a": {"one": None}}}, {"needed": 1, "named": {"a": {}}}),
        (list[Inner], [{"one": None}, {"one": 2}], [{}, {"one": 2}]),
        (Outer | Other, {"other": "x", "two": None}, {"other": "x"}),
        (Inner | None, None, None),
        (Inner, b"JSON text", b"JSON text"),
    ],
)
def test_optional_members_that_are_none_are_omitted(kind, result, expected):
    assert omission(kind)(result) == expected


def test_a_type_without_optional_members_costs_nothing():
    assert [omission(kind) for kind in (bool, str, list[int], dict[str, object], TypedDict("T", {"a": int}))] == [
        None
    ] * 5


def test_no_result_uses_null_for_unset():
    from pydantic import TypeAdapter  # noqa: PLC0415

    null_members = set()

    def look(schema, name=""):
        if isinstance(schema, dict):
            if {"type": "null"} in schema.get("anyOf", ()):
                null_members.add(name)
            for each, value in schema.get("properties", {}).items():
                look(value, each)
            for each in ("$defs", "items", "anyOf", "additionalProperties"):
                look(schema.get(each), name)
                if each == "$defs":
                    for value in schema.get(each, {}).values():
                        look(value)
        if isinstance(schema, list):
            for each in schema:
                look(each, name)

    for method in [*CLIENTS_METHODS, *AGENTS_METHODS]:
        look(TypeAdapter(method.declared.result).json_schema(mode="serialization"))
    assert null_members - {"variant"} <= VALUES  # members of perturbations, which clients may send as null, too
