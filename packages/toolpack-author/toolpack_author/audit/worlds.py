"""Comparison of two worlds as JSON.

These functions have no side effects. If worlds differ only in booleans, such as a flag that marks a mail as read, the
difference might be only a side effect. Such a boolean is called a *mark*.
"""

from collections.abc import Container, Sequence
from typing import Any

from toolpack_server.jsonio.equality import equal

EQUAL, MARKS, DIFFERENT = "equal", "marks", "different"
"""Difference between a world and the solution's world: none, only in booleans, or any other."""


def difference(one: Any, other: Any, relevant: Container[str] = (), name: str = "") -> str:
    """Return how two worlds differ: `EQUAL`, `MARKS` or `DIFFERENT`.

    Args:
        relevant: Names of boolean fields that the task is about, so they don't count as marks.
        name: Name of the field that holds the two values.
    """
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        differences = {difference(one[key], other[key], relevant, key) for key in one}
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        differences = {difference(*pair, relevant, name) for pair in zip(one, other, strict=True)}
    elif equal(one, other):
        return EQUAL
    else:
        is_mark = isinstance(one, bool) and isinstance(other, bool) and name not in relevant
        return MARKS if is_mark else DIFFERENT
    return next((each for each in (DIFFERENT, MARKS) if each in differences), EQUAL)


def changed_marks(one: Any, other: Any, name: str = "") -> set[str]:
    """Return the names of the boolean fields that differ between two worlds."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {each for key in one.keys() & other.keys() for each in changed_marks(one[key], other[key], key)}
    if isinstance(one, list) and isinstance(other, list):
        return {each for pair in zip(one, other, strict=False) for each in changed_marks(*pair, name)}
    return {name} if isinstance(one, bool) and isinstance(other, bool) and one != other else set()


def at(world: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of a world, or None if it doesn't exist or is ignored."""
    for step in path:
        world = world.get(step) if isinstance(world, dict) else None
    return world
