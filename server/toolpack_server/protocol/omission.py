"""Leaving out what isn't set: a member that its type doesn't require is never null, but isn't there.

The types of results say what may be missing, and this is the one place that leaves it out. So whoever makes a
result gives all members, and whoever reads one in this process finds them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

T = TypeVar("T")

Omit = Callable[[Any], Any]
"""Gets a result without the members that aren't set; other values, such as JSON text, as they are."""


def if_set(value: T | None) -> T:
    """Let a member be None in this process, which is left out of the result."""
    return value  # type: ignore[return-value]


def omission(kind: Any) -> Omit | None:
    """Get what leaves out the members of a type that aren't set; None if it has no such members."""
    origin, within = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _of_object(kind)
    if origin is list:
        item = omission(within[0])
        return item and (lambda value: [*map(item, value)] if isinstance(value, list) else value)
    if origin is dict:
        member = omission(within[1])
        return member and (lambda value: {name: member(each) for name, each in value.items()})
    objects = [(each.__required_keys__, omission(each)) for each in within if is_typeddict(each)]
    return _of_any(objects) if any(omit for _, omit in objects) else None


def _of_any(objects: Sequence[tuple[frozenset[str], Omit | None]]) -> Omit:
    """Get what leaves out the members of the first of these objects whose required ones are all there."""

    def omit(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = next((within for required, within in objects if required <= value.keys()), None)
        return found(value) if found else value

    return omit


@cache  # whoever makes a server asks for all results, twice: for owners and for agents
def _of_object(kind: Any) -> Omit | None:
    optional = kind.__optional_keys__
    inner = {name: found for name, each in get_type_hints(kind).items() if (found := omission(each))}
    if not optional and not inner:
        return None

    def omit(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        there = {name: each for name, each in value.items() if each is not None or name not in optional}
        return there | {name: within(there[name]) for name, within in inner.items() if there.get(name) is not None}

    return omit
