"""A function's result is restored from its JSON: as models, unchanged by their validators."""

import datetime as dt
from enum import Enum
from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, Field, model_validator

from toolpack_server.jsonio.strict import loads
from toolpack_server.jsonio.view import to_json
from toolpack_server.revive import revive


class Colour(Enum):
    RED = "red"


Lower = Annotated[str, AfterValidator(str.lower)]


class File(BaseModel):
    name: Lower
    size: int = 0
    at: dt.date = dt.date(2024, 5, 1)

    @model_validator(mode="after")
    def _measure(self):
        self.size = len(self.name)
        return self


class Folder(BaseModel):
    files: list[File | str] = []
    by_name: dict[Lower, File] = {}
    colour: Colour = Colour.RED
    path: str = Field("", alias="Path")


SPOILED = File.model_construct(name="LOUD", size=99, at=dt.date(2024, 5, 2))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (File(name="a"), File),
        (SPOILED, File),
        ([SPOILED, File(name="b")], list[File]),
        (Folder(files=["x"], Path="p"), Folder),
        (Folder.model_construct(files=[SPOILED, "X"], by_name={"LOUD": SPOILED}, path="Q"), Folder),
        ({"A": SPOILED}, dict[Lower, File]),
        ((SPOILED, 1), tuple[File, int]),
        ((SPOILED, SPOILED), tuple[File, ...]),
        (SPOILED, File | None),
        (None, File | None),
        (dt.datetime(2024, 5, 1, tzinfo=dt.UTC), dt.datetime),
        ({1, 2}, set[int]),
        (Colour.RED, Colour),
        ("LOUD", Lower),
    ],
)
def test_a_value_is_restored(value, annotation):
    revived = revive(loads(to_json(value)), annotation)
    assert revived == value
    assert type(revived) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (5, float),
        ({"a": 1}, str),
        ([1, "x"], list[int]),
        (None, float),
        (1, "an annotation that can't be read"),
    ],
)
def test_json_that_does_not_match_its_annotation_stays_unchanged(value, annotation):
    revived = revive(value, annotation)
    assert revived == value
    assert type(revived) is type(value)
