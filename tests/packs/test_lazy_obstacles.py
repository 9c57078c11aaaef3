"""Obstacles to lazy loading: code that could distinguish a lazy instance from a real one.

An environment with such code is loaded as a whole, and `check` names the code.
"""

import sys

import pytest

from toolpack_server.features.authoring.checking.warnings import notes_on
from toolpack_server.packs.lazy_obstacles import lazy_obstacle
from toolpack_server.packs.loading import load_catalog

PACK = '''
"""A pack."""
from typing import Any, Union

from pydantic import BaseModel

from toolpack_server import TaskEnvironment, Toolpack


class Base(BaseModel):
    name: str = ""


class Item(Base):
    number: int = 0


class Items(TaskEnvironment):
    items: list[Item] = [Item() for _ in range(2000)]


toolpack = Toolpack("items", Items)


@toolpack.function
def use() -> None:
    """Use it."""


def other(x: Any) -> Any:
    LINE
'''


def load_module(tmp_path, line):
    # Modules of the same name would be cached.
    (tmp_path / f"items_{len(sys.modules)}.py").write_text(PACK.replace("LINE", line))
    return load_catalog([tmp_path], ["items"]).toolpacks["items"]


@pytest.mark.parametrize(
    ("line", "obstacle"),
    [
        ("return type(x) is Item", "compares `type(…)`"),
        ("return Item is not type(x)", "compares `type(…)`"),
        ("return Union[Base, Item]", "union with `Base`"),
        ("return Item | Base", "union with `Base`"),
    ],
)
def test_obstacle_is_found_and_noted(tmp_path, line, obstacle):
    pack = load_module(tmp_path, line)
    assert obstacle in lazy_obstacle(pack)
    assert any(obstacle in note and ".py:31: " in note for note in notes_on([pack]))


@pytest.mark.parametrize(
    "line", ["return type(x) is int", "return type(x) is type(None)", "return type(x) == Item", "return Item | None"]
)
def test_harmless_code_is_no_obstacle(tmp_path, line):
    assert lazy_obstacle(load_module(tmp_path, line)) is None
