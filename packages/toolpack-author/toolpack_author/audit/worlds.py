"""How two worlds differ, as JSON.

Pure. What differs in true and false only, such as what has been read, may be a mere mark.
"""

from collections.abc import Container, Sequence
from typing import Any

from toolpack_server.jsonio.equality import equal

EQUAL, MARKS, DIFFERENT = "equal", "marks", "different"
"""How a world differs from the solution's: not at all, in true and false only, or in more."""


def difference(one: Any, other: Any, asked: Container[str] = (), name: str = "") -> str:
    """Say how two worlds differ.

    Args:
        asked: The names of members whose true and false are more than marks.
        name: That of the member which both are.
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
    """Get the names of the members that are true in one of two worlds and false in the other."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {each for key in one.keys() & other.keys() for each in marked(one[key], other[key], key)}
    if isinstance(one, list) and isinstance(other, list):
        return {each for pair in zip(one, other, strict=False) for each in marked(*pair, name)}
    return {name} if isinstance(one, bool) and isinstance(other, bool) and one != other else set()


def at(world: Any, path: Sequence[str]) -> Any:
    """Get what is at a place of a world; None if there is nothing, or it was ignored."""
    for step in path:
        world = world.get(step) if isinstance(world, dict) else None
    return world
