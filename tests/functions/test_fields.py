"""Parameters with pydantic's `Field`: defaults and descriptions have the same meaning as in a pydantic model."""

import dataclasses
import math
from typing import Annotated

import pytest
from pydantic import BaseModel, Field
from serving import refused
from typing_extensions import Doc

from toolpack_server import TaskEnvironment, Toolpack
from toolpack_server.base.errors import RegistrationError
from toolpack_server.functions_runtime import FunctionsRuntime, make_function
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.formats import parameters_schema


def schema_of(function):
    return Toolpack("t", functions=[function]).functions[function.__name__].function.parameters.model_json_schema()


def forecast(place: str = Field(default="Oslo", description="Where."), days: int = Field(ge=1, description="Days.")):
    """Forecast the weather."""
    return place, days


def documented(place: str = Field(default="Oslo", max_length=5), days: int = Field(ge=1, description="Days.")):
    """Forecast the weather.

    Args:
        place: Where.
    """
    return place, days


@pytest.mark.parametrize("function", [forecast, documented])
def test_a_field_as_default_is_read_as_in_a_model(function):
    schema = schema_of(function)
    assert schema["properties"]["place"]["default"] == "Oslo"
    assert schema["properties"]["place"]["description"] == "Where."
    assert schema["properties"]["days"]["minimum"] == 1
    assert schema["properties"]["days"]["description"] == "Days."
    assert schema["required"] == ["days"]
    runtime = FunctionsRuntime()
    runtime.register_function(function)
    assert runtime.run_function(None, function.__name__, {"days": 2}) == (("Oslo", 2), None)
    assert "days" in runtime.run_function(None, function.__name__, {"days": 0})[1]
    assert "days" in runtime.run_function(None, function.__name__, {})[1]


def test_descriptions_may_stand_in_annotations():
    def find(
        text: Annotated[str, Field(description="What.")],
        limit: Annotated[int, Doc("How many.")] = 3,
        hidden: Annotated[int, Field(ge=1)] = 4,
    ):
        """Find."""
        return text, limit, hidden

    properties = schema_of(find)["properties"]
    assert {name: each["description"] for name, each in properties.items()} == {"text": "What.", "limit": "How many."}


def test_a_hidden_parameter_gets_the_default_of_its_field():
    def find(text: str, tags: list = Field(default_factory=list), limit: int = Field(default=3)):  # noqa: B008
        """Find.

        Args:
            text: What.
        """
        tags.append(text)
        return tags, limit

    runtime = FunctionsRuntime([make_function(find)])
    assert [runtime.run_function(None, "find", {"text": "a"}) for _ in range(2)] == [((["a"], 3), None)] * 2


def test_a_field_without_default_and_description_is_refused():
    def find(text: str = Field(min_length=1)):
        """Find."""

    with pytest.raises(RegistrationError, match="`text` has no default and no description"):
        make_function(find)


def test_a_field_of_dataclasses_as_default_is_refused():
    def find(text: list = dataclasses.field(default_factory=list)):  # noqa: B008
        """Find.

        Args:
            text: What.
        """

    with pytest.raises(RegistrationError, match=r"the default of parameter `text` is a dataclasses\.field"):
        make_function(find)


class Shelf:
    """A shelf."""

    def __init__(self, size: int = Field(default=4, ge=1, description="How many books.")):
        self.size = size

    def look(self, place: int = Field(default=1, ge=1, description="Where.")) -> list:
        """Look."""
        return [self.size, place]


def make_shelf(size: int = Field(default=5, ge=1)) -> Shelf:
    return Shelf(size=size)


class Book(BaseModel):
    pages: int = Field(default=7, ge=1, description="How many.")

    def read(self) -> int:
        """Read."""
        return self.pages


class Reading(TaskEnvironment):
    pages: int


def open_book(pages: int = Field(default=6, ge=1, description="How many.")) -> Reading:
    """Open it."""
    return Reading(pages=pages)


def test_methods_and_options_read_fields_too(make_bench):
    packs = [
        Toolpack.from_class("shelf", Shelf),
        Toolpack.from_class("made", Shelf, options=make_shelf),
        Toolpack.from_class("book", Book),
        Toolpack("reading", open_book),
    ]
    bench = make_bench(Catalog({pack.name: pack for pack in packs}))
    for toolpack, function, option, values in (
        ("shelf", "look", "size", [[4, 1], [2, 1]]),
        ("made", "look", "size", [[5, 1], [2, 1]]),
        ("book", "read", "pages", [7, 2]),
        ("reading", None, "pages", [{"pages": 6}, {"pages": 2}]),
    ):
        refused(-32602, bench.create, toolpack, options={toolpack: {option: 0}})
        for options, value in zip(({}, {toolpack: {option: 2}}), values, strict=True):
            session_id = bench.create(toolpack, options=options)
            if function is None:
                assert bench.rpc("get_environment", session_id=session_id) == {toolpack: value}
            else:
                assert bench.call(session_id, function)["result"] == value
    session_id = bench.create("shelf")
    assert bench.call(session_id, "look", place=3)["result"] == [4, 3]


def test_none_as_default_is_accepted_as_argument():
    def find(limit: int = None, after: Annotated[int, Field(gt=0)] = None, tag: str = Field(None, description="Tag.")):  # noqa: RUF013
        """Find.

        Args:
            limit: How many.
            after: After which.
        """
        return [limit, after, tag]

    properties = schema_of(find)["properties"]
    assert [each["anyOf"][1] for each in properties.values()] == [{"type": "null"}] * 3
    runtime = FunctionsRuntime([make_function(find)])
    nothing = dict.fromkeys(properties)
    assert runtime.run_function(None, "find", nothing) == ([None] * 3, None)


class Limits(BaseModel):
    most: float = math.inf


def test_a_default_that_json_lacks_is_not_shown_as_null():
    def find(limit: float = math.inf, limits: Limits = Limits(), ratios: list[float] = [math.nan]):  # noqa: ARG001, B006, B008
        """Find.

        Args:
            limit: How many.
            limits: Of what.
            ratios: Of what.
        """
        return limit

    function = Toolpack("t", functions=[find]).functions["find"]
    schema = parameters_schema(function)
    assert [name for name, each in schema["properties"].items() if "default" in each] == []
    assert "default" not in schema["$defs"]["Limits"]["properties"]["most"]
    assert "required" not in schema
    assert FunctionsRuntime([function.function]).run_function(None, "find", {}) == (math.inf, None)


def test_a_line_with_a_leading_colon_is_description():
    def find(text: str, limit: int):
        """Find what matters.

        :func:`look` does less.

        :param text: What.
        :note: only words
        :param limit: How many.
        :returns: Nothing.
        """

    function = make_function(find)
    assert function.description == "Find what matters.\n:func:`look` does less."
    fields = function.parameters.model_fields
    assert [field.description for field in fields.values()] == ["What.\n:note: only words", "How many."]


def test_only_the_value_none_is_called_null():
    def find():
        """Nonetheless find one, or None, as NoneType. None of them is lost."""

    expected = "Nonetheless find one, or null, as NoneType. None of them is lost."
    assert make_function(find).description == expected


class Loose(BaseModel, extra="allow"):
    name: str


def test_a_model_with_extra_keys_is_found_under_any_name():
    class Outer(BaseModel):
        metadata: Loose

    def find(default: Outer):
        """Find.

        :param default: Where.
        """
        return default.metadata.model_extra

    arguments = {"default": {"metadata": {"name": "a", "more": 1}}}
    assert FunctionsRuntime([make_function(find)]).run_function(None, "find", arguments) == ({"more": 1}, None)
