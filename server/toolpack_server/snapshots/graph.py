"""Traversal of object graphs.

State is read where it is stored (`__dict__`, slots, a container's content), never through properties or
methods of a class that isn't a builtin.
"""

import collections
import datetime as dt
import decimal
import enum
import ipaddress
import itertools
import pathlib
import random
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import pydantic_core

Children = Iterator[tuple[str, Any]]

IDENTICAL = (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
"""Types whose instances are compared by identity."""

ATOMS: frozenset[type] = frozenset((bool, int, str, bytes, type(None), type(...), type(NotImplemented)))
"""Types with a complete comparison: `==` of two instances of the same type compares everything."""

VALUES: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(ATOMS, lambda v: v),
    **dict.fromkeys((float, complex, decimal.Decimal, dt.timedelta, dt.timezone), repr),
    **dict.fromkeys((dt.datetime, dt.date, dt.time), lambda v: v.__reduce_ex__(4)[1][0]),
    **dict.fromkeys((range, pydantic_core.TzInfo, itertools.count), repr),
    **dict.fromkeys((pydantic_core.Url, pydantic_core.MultiHostUrl), str),
    **dict.fromkeys((pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())), str),
    **dict.fromkeys((ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network), str),
    **dict.fromkeys((ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network), str),
    zoneinfo.ZoneInfo: lambda v: v.__reduce__()[1],
    uuid.UUID: lambda v: (v.int, v.is_safe),
    re.Pattern: lambda v: (v.pattern, v.flags),
    bytearray: bytes,
    random.Random: random.Random.getstate,
}
"""Types whose instances hold only a value, each with a function that returns a comparable value."""

CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__repr__,
    complex: complex.__repr__,
    str: str.__str__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    collections.deque: lambda v: v.maxlen,
    collections.defaultdict: lambda v: v.default_factory,
}
"""For types and their subclasses: a function that returns what instances hold besides their children."""

BUILTINS = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset, collections.deque)
"""Types whose instances hold more than attributes; this includes subclasses."""

MUTABLE = (bytearray, random.Random, itertools.count)
"""The mutable types of `VALUES`."""

MEMBER = "{…}"
"""Path step for a member of a set."""

_FIELDS_SET = "__pydantic_fields_set__"
_OF_MODELS = ("__pydantic_private__", "__pydantic_extra__")
_SHOWN_NAME = 40


class Slot(NamedTuple):
    """A slot with a part of an instance's state."""

    name: str  # "" for the `__dict__`
    get: Callable[[Any], Any]
    unpacked: bool  # the items of a dict in this slot are attributes


def children(value: Any) -> Children:
    """Yield the objects that this one holds directly, each with its step of a path: `.name`, `[3]`, `['key']`."""
    if isinstance(value, dict):
        for key, item in dict.items(value):
            yield f"[key {shown(key)}]", key
            yield f"[{shown(key)}]", item
    elif isinstance(value, (list, tuple, collections.deque)):
        kind: Any = next(kind for kind in (list, tuple, collections.deque) if isinstance(value, kind))
        yield from ((f"[{index}]", item) for index, item in enumerate(kind.__iter__(value)))
    elif isinstance(value, (set, frozenset)):
        yield from ((MEMBER, item) for item in set().union(value))
    elif isinstance(value, (dt.datetime, dt.time)):
        yield ".tzinfo", value.tzinfo
    if type(value) not in VALUES and not isinstance(value, IDENTICAL):
        yield from _attributes(value)


def walk(value: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield every object of the graph once, with the first path to it and that path's length."""
    seen: dict[int, Any] = {}  # the value keeps its id from being reused
    pending = [("", 0, value)]
    while pending:
        path, depth, found = pending.pop()
        if id(found) not in seen:
            seen[id(found)] = found
            yield path, depth, found
            pending += reversed([(path + step, depth + 1, child) for step, child in children(found)])


def holders(value: Any) -> Iterator[Any]:
    """Yield every object of the graph once that isn't a plain value; faster than `walk`, in no particular order."""
    seen: dict[int, Any] = {}  # as above
    pending = [value]
    while pending:
        found = pending.pop()
        if type(found) in ATOMS or id(found) in seen:
            continue
        seen[id(found)] = found
        yield found
        pending += held_by(found)


def held_by(value: Any) -> Iterable[Any]:
    """Return the objects that this one holds directly; faster than `children`."""
    kind = type(value)
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return [*value, *value.values()]
    if kind in VALUES or issubclass(kind, BUILTINS + IDENTICAL):
        return [child for _, child in children(value)]
    held: list[Any] = []
    for slot, state in _states(value):
        held += state.values() if slot.unpacked and isinstance(state, dict) else (state,)
    return held


def is_immutable(value: Any) -> bool:
    """Return whether nothing can change a value, so that it makes no difference how many references lead to it."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(map(is_immutable, value))
    return (kind in VALUES and kind not in MUTABLE) or issubclass(kind, IDENTICAL)


def shown(key: object) -> str:
    """Format a key for a path: shortened, and without running code of its class."""
    if type(key) not in (str, int, bool, float, bytes, type(None)):
        return type(key).__qualname__
    text = repr(key)
    return text if len(text) <= _SHOWN_NAME else f"{text[:_SHOWN_NAME]}…"


@lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[Slot, ...]:
    """Return the slots of a class, those whose changes are most informative first."""
    found = []
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if name == "__dict__" and isinstance(slot, types.GetSetDescriptorType):
                found.append(Slot("", slot.__get__, unpacked=True))
            elif isinstance(slot, types.MemberDescriptorType):
                shown_name = "model_fields_set" if name == _FIELDS_SET else name
                found.append(Slot(shown_name, slot.__get__, unpacked=name in _OF_MODELS))
    # `model_fields_set` comes last, because pydantic changes it along with a field.
    return tuple(sorted(found, key=lambda slot: (slot.name != "", slot.name == "model_fields_set")))


def _states(value: Any) -> Iterator[tuple[Slot, Any]]:
    """Yield the non-empty slots of an instance with their values."""
    for slot in slots_of(type(value)):  # type: ignore[arg-type] # a class is hashable
        try:
            yield slot, slot.get(value)
        except AttributeError:
            continue


def _attributes(value: Any) -> Children:
    for slot, held in _states(value):
        if slot.unpacked and isinstance(held, dict):
            yield from ((f".{name}", item) for name, item in held.items())
        else:
            yield f".{slot.name}", held
