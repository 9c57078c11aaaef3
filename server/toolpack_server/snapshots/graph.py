"""Traversal of object graphs, which snapshots and comparisons use.

The functions read state where it is stored: in the `__dict__`, in slots and in the content of containers. So no
property or method of an author's class runs.
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
"""Types with a complete `==`, which compares the whole value of two instances of the same type."""

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
"""Types of plain values. For each type, a function returns the value that comparisons use."""

CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__repr__,
    complex: complex.__repr__,
    str: str.__str__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    collections.deque: lambda v: v.maxlen,
    collections.defaultdict: lambda v: v.default_factory,
}
"""Builtin types. For each type, a function returns the content of an instance besides its children, for comparisons.

The functions also apply to instances of subclasses.
"""

BUILTINS = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset, collections.deque)
"""Types whose instances, like those of their subclasses, have other content than attributes."""

MUTABLE = (bytearray, random.Random, itertools.count)
"""The mutable types of `VALUES`."""

MEMBER = "{…}"
"""Path step for a member of a set."""

_FIELDS_SET = "__pydantic_fields_set__"
_OF_MODELS = ("__pydantic_private__", "__pydantic_extra__")
_SHOWN_NAME = 40


class Slot(NamedTuple):
    """A slot that contains a part of an instance's state."""

    name: str  # "" stands for the `__dict__`
    get: Callable[[Any], Any]  # returns the slot's value, or raises AttributeError if the slot is empty
    unpacked: bool  # whether the slot contains a dict with attributes as its items


def children(value: Any) -> Children:
    """Yield the objects that an object refers to directly, each with its path step: `.name`, `[3]` or `['key']`."""
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
    """Yield every object of the graph once, with the first path to the object and the length of this path."""
    seen: dict[int, Any] = {}  # by id; the dict keeps the objects alive, so that no id is reused
    pending = [("", 0, value)]
    while pending:
        path, depth, obj = pending.pop()
        if id(obj) not in seen:
            seen[id(obj)] = obj
            yield path, depth, obj
            pending += reversed([(path + step, depth + 1, child) for step, child in children(obj)])


def holders(value: Any) -> Iterator[Any]:
    """Yield every object of the graph once, except plain values.

    This is faster than `walk`, but the order isn't defined.
    """
    seen: dict[int, Any] = {}  # by id, kept alive for the same reason as in `walk`
    pending = [value]
    while pending:
        obj = pending.pop()
        if type(obj) in ATOMS or id(obj) in seen:
            continue
        seen[id(obj)] = obj
        yield obj
        pending += held_by(obj)


def held_by(value: Any) -> Iterable[Any]:
    """Return the objects that an object refers to directly. This is faster than `children`, but returns no paths."""
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
    """Return whether a value can never change.

    If so, it makes no difference whether several objects share the value.
    """
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(map(is_immutable, value))
    return (kind in VALUES and kind not in MUTABLE) or issubclass(kind, IDENTICAL)


def shown(key: object) -> str:
    """Return a key as short text for a path, without running code of the key's class."""
    if type(key) not in (str, int, bool, float, bytes, type(None)):
        return type(key).__qualname__
    text = repr(key)
    return text if len(text) <= _SHOWN_NAME else f"{text[:_SHOWN_NAME]}…"


@lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[Slot, ...]:
    """Return the slots of a class, in the order that reports list their changes."""
    slots = []
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if name == "__dict__" and isinstance(slot, types.GetSetDescriptorType):
                slots.append(Slot("", slot.__get__, unpacked=True))
            elif isinstance(slot, types.MemberDescriptorType):
                shown_name = "model_fields_set" if name == _FIELDS_SET else name
                slots.append(Slot(shown_name, slot.__get__, unpacked=name in _OF_MODELS))
    # `model_fields_set` comes last: pydantic changes it together with a field, and reports should name the field.
    return tuple(sorted(slots, key=lambda slot: (slot.name != "", slot.name == "model_fields_set")))


def _states(value: Any) -> Iterator[tuple[Slot, Any]]:
    """Yield the non-empty slots of an instance with their values."""
    for slot in slots_of(type(value)):  # type: ignore[arg-type] # a class is hashable
        try:
            yield slot, slot.get(value)
        except AttributeError:
            continue


def _attributes(value: Any) -> Children:
    """Yield the attributes of an instance, each with its path step."""
    for slot, item in _states(value):
        if slot.unpacked and isinstance(item, dict):
            yield from ((f".{name}", item) for name, item in item.items())
        else:
            yield f".{slot.name}", item
