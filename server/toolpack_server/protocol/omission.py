"""Omission of fields without a value: a result omits an unset optional field, so that the field is never null.

The result types declare which fields are optional (`NotRequired`), and only this module omits them. Inside the server a
result has all fields, and unset fields are None.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

T = TypeVar("T")

Omit = Callable[[Any], Any]
"""Returns a result without its unset fields. Other values, such as JSON text, are returned unchanged."""


def if_set(value: T | None) -> T:
    """Return a field's value unchanged, typed as never None, because None means that the field is omitted."""
    return value  # type: ignore[return-value]


def omission(kind: Any) -> Omit | None:
    """Return a function that omits the unset fields of a type, or None if all its fields are required."""
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
    """Return the omission for a union: the first object type whose required fields are all present applies."""

    def omit(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        matching = next((within for required, within in objects if required <= value.keys()), None)
        return matching(value) if matching else value

    return omit


@cache  # cached, because a server needs each type twice: for clients and for agents
def _of_object(kind: Any) -> Omit | None:
    """Return the omission for a `TypedDict`, or None if neither it nor a type inside it has an optional field."""
    optional = kind.__optional_keys__
    inner = {name: within for name, each in get_type_hints(kind).items() if (within := omission(each))}
    if not optional and not inner:
        return None

    def omit(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        members = {name: each for name, each in value.items() if each is not None or name not in optional}
        nested = {name: within(members[name]) for name, within in inner.items() if members.get(name) is not None}
        return members | nested

    return omit
