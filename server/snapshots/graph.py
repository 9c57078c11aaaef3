"""Walk object graphs, and find where two of them differ.

`==` can't show whether a copy behaves like its original: models compare without their private attributes, 1 equals
True, NaN equals nothing, and `==` doesn't see that two names share one list. The rule: state is read where it is stored
(`__dict__`, slots, a container's content), never through properties or methods of a class that isn't a builtin.
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
from collections.abc import Callable, Iterator
from typing import Any

import pydantic_core

Children = Iterator[tuple[str, Any]]

_IDENTICAL = (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
"""Types whose instances are compared by identity."""

_VALUES: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((bool, int, str, bytes, type(None), type(...), type(NotImplemented)), lambda v: v),
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
"""Types whose instances hold only a value, each with a function that makes the value comparable."""

_CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__repr__,
    complex: complex.__repr__,
    str: str.__str__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    collections.deque: lambda v: v.maxlen,
    collections.defaultdict: lambda v: v.default_factory,
}
"""What instances of these types and of their subclasses hold besides their children."""

_MUTABLE = (bytearray, random.Random, itertools.count)
_SHOWN_NAME = 40
_SHOWN_STEPS = 5


def difference(before: object, after: object) -> str | None:
    """Describe the first difference between two object graphs, with its path; None if there is none.

    Types, values, order, private attributes, `model_fields_set` and sharing must agree; sets have no order. Sharing of
    immutable plain values has no effect, so it isn't compared.
    """
    found = first_difference(before, after)
    return f"{found[0] or 'the object itself'}: {found[1]}" if found else None


def first_difference(before: object, after: object) -> tuple[str, str] | None:
    """Get the path of the first difference, "" for the object itself, and what differs there; see `difference`."""
    return _Comparison().run("", before, after)


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
        yield from (("{…}", item) for item in set().union(value))
    elif isinstance(value, (dt.datetime, dt.time)):
        yield ".tzinfo", value.tzinfo
    if type(value) not in _VALUES and not isinstance(value, _IDENTICAL):
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


def shown(key: object) -> str:
    """Format a key for a path: shortened, and without running code of its class."""
    if type(key) not in (str, int, bool, float, bytes, type(None)):
        return type(key).__qualname__
    text = repr(key)
    return text if len(text) <= _SHOWN_NAME else f"{text[:_SHOWN_NAME]}…"


def _attributes(value: Any) -> Children:
    later: list[tuple[str, Any]] = []  # after the attributes that are in a `__dict__`, which tell more of a change
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            is_dict = name == "__dict__" and isinstance(slot, types.GetSetDescriptorType)
            if not is_dict and not isinstance(slot, types.MemberDescriptorType):
                continue
            try:
                held = slot.__get__(value)
            except AttributeError:  # an empty slot
                continue
            if is_dict:
                yield from ((f".{name}", item) for name, item in held.items())
            elif name in ("__pydantic_private__", "__pydantic_extra__") and isinstance(held, dict):
                later += [(f".{name}", item) for name, item in held.items()]
            elif name == "__pydantic_fields_set__":
                later.append((".model_fields_set", held))
            else:
                later.append((f".{name}", held))
    # Last what pydantic sets along with a field.
    yield from sorted(later, key=lambda child: child[0] == ".model_fields_set")


class _Comparison:
    """Walks both graphs side by side and remembers which objects correspond."""

    def __init__(self) -> None:
        self.after_of: dict[int, Any] = {}
        self.before_of: dict[int, Any] = {}
        self.keep: list[Any] = []  # keeps objects alive, so that their ids aren't reused

    def run(self, path: str, before: Any, after: Any) -> tuple[str, str] | None:
        pending = [(path, before, after)]
        sets: list[tuple[str, Any, Any]] = []
        while pending or sets:
            if not pending:  # sets come last: by then most members have been paired
                path, before, after = sets.pop()
                if (reason := self._match(before, after)) is not None:
                    return path.removeprefix("."), reason
                continue
            path, before, after = pending.pop()
            reason, descend = self._compare(before, after)
            if reason:
                return path.removeprefix("."), reason
            if not descend:
                continue
            pairs = list(zip(children(before), children(after), strict=False))
            if isinstance(before, (set, frozenset)):
                sets.append((path, set().union(before), set().union(after)))
                pairs = pairs[len(before) :]  # attributes of a subclass
            # Reversed, so that the first difference is the one reported.
            pending += [(path + step, left, right) for (step, left), (_, right) in reversed(pairs)]
        return None

    def _compare(self, before: Any, after: Any) -> tuple[str | None, bool]:
        """Compare two objects without their children; return also whether to compare the children."""
        kind = type(before)
        if kind is not type(after):
            return f"types differ: {kind.__qualname__} became {type(after).__qualname__}", False
        if isinstance(before, _IDENTICAL):
            return (None if before is after else "it became another object"), False
        plain = kind in _VALUES and kind not in _MUTABLE
        if not plain and not (kind in (tuple, frozenset) and len(before) == 0):  # those are singletons
            known = id(before) in self.after_of, id(after) in self.before_of
            if any(known):
                same = all(known) and self.after_of[id(before)] is after
                return (None if same else "it is shared in only one of the two graphs"), False
            self.after_of[id(before)], self.before_of[id(after)] = after, before
            self.keep += (before, after)
        return self._compare_values(before, after), True

    @staticmethod
    def _compare_values(before: Any, after: Any) -> str | None:
        kind = type(before)
        value_of = _VALUES.get(kind) or next((_CONTENT[base] for base in kind.__mro__ if base in _CONTENT), None)
        if value_of and value_of(before) != value_of(after):
            return f"values differ: {shown(before)} became {shown(after)}"
        steps, others = ([step for step, _ in children(value)] for value in (before, after))
        if steps != others:
            changes = [_named(steps, others, "gone"), _named(others, steps, "new")]
            count = f"it has {len(others)} members instead of {len(steps)}" if len(others) != len(steps) else ""
            return ", ".join(filter(None, changes)) or count or "the order of what it holds differs"
        opaque = not value_of and not steps and not kind.__flags__ & 1 << 9 and not hasattr(kind, "__len__")
        return f"{kind.__qualname__} can't be compared" if opaque and before is not after else None

    def _match(self, before: Any, after: Any) -> str | None:
        """Pair the members of two sets, and say what differs."""
        simple = collections.Counter(
            (type(member), _VALUES[type(member)](member)) for member in before if _simple(member)
        )
        simple.subtract((type(member), _VALUES[type(member)](member)) for member in after if _simple(member))
        if lost := [shown(value) for (_, value), count in simple.items() if count]:
            return f"the set differs in {', '.join(lost[:5])}"
        free = [member for member in after if not _simple(member)]
        for member in before:
            if _simple(member):
                continue
            for index, candidate in enumerate(free):
                trial = _Comparison()
                trial.after_of, trial.before_of = self.after_of.copy(), self.before_of.copy()
                if trial.run("", member, candidate) is None:
                    self.after_of, self.before_of = trial.after_of, trial.before_of
                    self.keep += trial.keep
                    del free[index]
                    break
            else:
                return f"{shown(member)} is no longer in the set"
        return None


def _named(steps: list[str], others: list[str], what: str) -> str:
    """Name the steps that are missing among others; a dict's key and its value count once."""
    missing = [step for step in steps if step not in others and not step.startswith("[key ")]
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN_STEPS} more" if len(missing) > _SHOWN_STEPS else ""
    return f"{', '.join(missing[:_SHOWN_STEPS])}{more} {'is' if len(missing) == 1 else 'are'} {what}"


def _simple(member: object) -> bool:
    """Return whether a member can be compared by its type and value alone."""
    return type(member) in (bool, int, float, complex, str, bytes, type(None))
