"""Schemas in the format `openai`: they have no keyword that OpenAI's API rejects, and accept the same values."""

import json
from typing import Annotated, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from toolpack_server.packs.openai_schema import openai_schema

REFUSED = {"oneOf", "discriminator", "prefixItems"}


class Card(BaseModel):
    kind: Literal["card"]
    number: int


class Cash(BaseModel):
    kind: Literal["cash"]
    one_of: str = Field("a field that is called so", alias="oneOf")


Payment = Annotated[Card | Cash, Field(discriminator="kind", description="How it is paid.")]


class Order(BaseModel):
    payment: Payment
    at: tuple[int, str]
    second: Payment | None = None


class Tree(BaseModel):
    value: Order
    children: list["Tree"] = []


def keywords(schema):
    if isinstance(schema, list):
        return {keyword for each in schema for keyword in keywords(each)}
    if not isinstance(schema, dict):
        return set()
    keyword = {*schema} - {"properties", "$defs"}
    below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    below += [value for name, value in schema.items() if name not in {"properties", "$defs", "default", "enum"}]
    return keyword | keywords(below)


@pytest.mark.parametrize("model", [Card, Cash, Order])
def test_openai_schema_has_no_references_or_rejected_keywords(model):
    translated = openai_schema(model.model_json_schema())
    jsonschema.Draft202012Validator.check_schema(translated)
    assert not keywords(translated) & {*REFUSED, "$ref", "$defs"}


def test_only_recursive_types_keep_a_reference():
    translated = openai_schema(Tree.model_json_schema())
    assert [*translated["$defs"]] == ["Tree"]
    assert not keywords(translated) & REFUSED
    assert json.dumps(translated).count("$ref") == json.dumps(Tree.model_json_schema()).count('"#/$defs/Tree"')


def test_description_next_to_a_reference_is_kept():
    payment = openai_schema(Order.model_json_schema())["properties"]["payment"]
    assert payment["description"] == "How it is paid."
    assert [each["properties"]["kind"]["const"] for each in payment["anyOf"]] == ["card", "cash"]


def test_references_that_would_grow_exponentially_stay():
    model = Card
    for level in range(40):
        model = create_model(f"Level{level}", left=(model, ...), right=(model, ...))
    translated = openai_schema(model.model_json_schema())
    assert len(json.dumps(translated)) < 50_000
    assert "$ref" in keywords(translated)


@given(st.builds(Order, payment=st.builds(Card) | st.builds(Cash), at=st.tuples(st.integers(), st.text())))
def test_openai_schema_accepts_what_the_original_accepts(order):
    value = order.model_dump(mode="json", by_alias=True)
    jsonschema.validate(value, openai_schema(Order.model_json_schema()))
