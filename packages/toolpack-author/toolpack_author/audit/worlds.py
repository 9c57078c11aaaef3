"""Comparison of two worlds as JSON.

These functions have no side effects. A difference in booleans only, such as "read" flags, may be a mere mark.
"""

from collections.abc import Container, Sequence
from typing import Any

from toolpack_server.jsonio.equality import equal

EQUAL, MARKS, DIFFERENT = "equal", "marks", "different"
"""Difference of a world to the solution's: none, only in booleans, or another one."""


def difference(one: Any, other: Any, asked: Container[str] = (), name: str = "") -> str:
    """Return how two worlds differ: `EQUAL`, `MARKS` or `DIFFERENT`.

    Args:
        asked: Names of boolean members that aren't mere marks.
        name: Name of the member that holds both values.
    """
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        found = {difference(one[key], other[key], asked, key) for key in one}
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = {difference(*pair, asked, name) for pair in zip(one, other, strict=True)}
    elif equal(one, other):
        return EQUAL
    else:
        is_mark = isinstance(one, bool) and isinstance(other, bool) and name not in asked
        return MARKS if is_mark else DIFFERENT
    return next((each for each in (DIFFERENT, MARKS) if each in found), EQUAL)


def marked(one: Any, other: Any, name: str = "") -> set[str]:
    """Return the names of the members that are true in one world and false in the other."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {each for key in one.keys() & other.keys() for each in marked(one[key], other[key], key)}
    if isinstance(one, list) and isinstance(other, list):
        return {each for pair in zip(one, other, strict=False) for each in marked(*pair, name)}
    return {name} if isinstance(one, bool) and isinstance(other, bool) and one != other else set()


def at(world: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of a world; None if it doesn't exist or is ignored."""
    for step in path:
        world = world.get(step) if isinstance(world, dict) else None
    return world
