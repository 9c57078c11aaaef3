"""Checks that a result has the form that its method promises.

A client accepts unknown fields, unknown kinds of records, and unknown strings where the type is a `Literal`, because a
newer server can send these (docs/reference/stability.md). If a field is missing or has another type, the client raises
an error at once. Otherwise the program would get a `KeyError` far away from the cause.
"""

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

Fits = Callable[[Any], bool]


@cache
def fits(kind: Any) -> Fits:
    """Return a function that checks whether a JSON value has the form of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _object(kind)
    if origin is list:
        item = fits(arguments[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin is dict:
        member = fits(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(member, value.values()))
    if origin is Literal:  # any string, because a newer server can send further strings
        return lambda value: isinstance(value, tuple(map(type, arguments)))
    if origin in (Union, UnionType):
        return _any_of([fits(each) for each in arguments])
    if kind is float:
        return lambda value: isinstance(value, int | float)
    if kind in (str, int, bool, dict, NoneType):
        return lambda value: isinstance(value, kind)
    return anything


def anything(_value: Any) -> bool:
    """Return True: any JSON value is valid."""
    return True


def _any_of(kinds: list[Fits]) -> Fits:
    """Return a function that checks whether a JSON value has one of several forms."""
    return lambda value: any(each(value) for each in kinds)


def _object(kind: Any) -> Fits:
    """Return a function that checks whether a JSON value has the form of a `TypedDict`."""
    fields = [(name, fits(each), name in kind.__required_keys__) for name, each in get_type_hints(kind).items()]

    def has_fields(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, is_valid, required in fields:
            if name in value:
                if not is_valid(value[name]):
                    return False
            elif required:
                return False
        return True

    return has_fields
