"""Comparison of two object graphs, which finds the first difference.

`==` can't show whether a copy behaves like its original: models compare without their private attributes, 1 equals
True, NaN equals nothing, and `==` doesn't see that two names share one list. Only what `graph` reads is
compared, and no code of a class runs. An environment may contain millions of objects, so a path is built only for a
difference.
"""

import collections
import datetime as dt
import itertools
from collections.abc import Iterable
from typing import Any

from toolpack_server.snapshots.graph import (
    ATOMS,
    BUILTINS,
    CONTENT,
    IDENTICAL,
    MEMBER,
    MUTABLE,
    VALUES,
    children,
    is_immutable,
    shown,
    slots_of,
)

_SIMPLE = ATOMS | {float, complex}
_STRINGS = frozenset((str,))
_ZONED = frozenset((dt.datetime, dt.time))
_HEAP_TYPE = 1 << 9
_ABSENT = object()
_SHOWN_STEPS = 5
_KEY_DEPTH, _KEY_ITEMS = 3, 20

Difference = tuple[str, str]
"""The path of a difference, and its description."""


def difference(before: object, after: object) -> str | None:
    """Return a description of the first difference between two object graphs, with its path; None if they are equal.

    Types, values, order, private attributes, `model_fields_set` and sharing must agree; sets have no order. Sharing of
    immutable plain values has no effect, so it isn't compared.
    """
    found = first_difference(before, after)
    return f"{found[0] or 'the object itself'}: {found[1]}" if found else None


def first_difference(before: object, after: object) -> Difference | None:
    """Return the path of the first difference ("" for the object itself) and its description; see `difference`."""
    return _Comparison().run(before, after)


class _Opened:
    """Two objects whose children are being compared."""

    __slots__ = ("holder", "number", "only_values", "pairs")

    def __init__(self, holder: Any, pairs: Iterable[tuple[int, tuple[Any, Any]]], *, only_values: bool = False) -> None:
        self.holder = holder
        self.pairs = iter(pairs)  # with their indexes, in the order of `children`
        self.only_values = only_values  # only values of a dict, whose keys are equal
        self.number = 0  # index of the current pair


_Trail = list[tuple[_Opened, int]]
"""The path to two objects: their ancestors, each with the current child."""


class _Comparison:
    """Walks both graphs side by side and remembers which objects correspond."""

    def __init__(self) -> None:
        # The values keep the objects alive, so their ids aren't reused.
        self._after_of: dict[int, Any] = {}
        self._before_of: dict[int, Any] = {}

    def run(self, before: Any, after: Any) -> Difference | None:
        """Return the first difference of two graphs. If they differ, the correspondence of objects is unchanged."""
        known = len(self._after_of)
        sets: list[tuple[_Trail, Any, Any]] = []
        found = self._walk(before, after, sets)
        while sets and found is None:  # sets come last: by then most members are paired
            trail, left, right = sets.pop()
            reason = self._match(set().union(left), set().union(right))
            found = None if reason is None else (_path(trail), reason)
        while found is not None and len(self._after_of) > known:
            self._after_of.popitem()
            self._before_of.popitem()
        return found

    def _walk(self, before: Any, after: Any, sets: list[tuple[_Trail, Any, Any]]) -> Difference | None:
        """Compare everything except members of sets, which are added to `sets`."""
        frames = [_Opened(None, [(0, (before, after))])]
        while frames:
            frame = frames[-1]
            for number, (left, right) in frame.pairs:
                kind = type(left)
                opened: _Opened | str | None
                if kind is not type(right):
                    opened = f"types differ: {kind.__qualname__} became {type(right).__qualname__}"
                elif kind in ATOMS:
                    opened = None if left == right else _values_differ(left, right)
                else:
                    opened = self._open(left, right, kind)
                if opened is None:
                    continue
                frame.number = number
                if isinstance(opened, str):
                    return _path([(frame, frame.number) for frame in frames]), opened
                if isinstance(left, (set, frozenset)):
                    sets.append(([(frame, frame.number) for frame in frames], left, right))
                frames.append(opened)
                break
            else:
                frames.pop()
        return None

    def _open(self, before: Any, after: Any, kind: type) -> _Opened | str | None:
        """Compare two objects of one type without their children.

        Returns:
            The children to compare, or the difference, or None if the objects are equal.
        """
        if kind is float and before == after != 0:  # zeros have signs
            return None
        value_of = VALUES.get(kind)
        if value_of is not None:
            if value_of(before) != value_of(after):
                return _values_differ(before, after)
            if kind not in MUTABLE:
                return _children(before, after, kind) if kind in _ZONED else None
        elif issubclass(kind, IDENTICAL):
            return None if before is after else "it became another object"
        if not (kind in (tuple, frozenset) and not before):  # empty ones are singletons
            paired = self._after_of.get(id(before), _ABSENT)
            if paired is not _ABSENT or id(after) in self._before_of:
                if paired is after:
                    return None
                if not (kind in (tuple, frozenset) and is_immutable(before)):
                    return "it is shared in only one of the two graphs"
            self._after_of[id(before)], self._before_of[id(after)] = after, before
        return _children(before, after, kind)

    def _match(self, before: Any, after: Any) -> str | None:
        """Pair the members of two sets and return the first difference."""
        simple = collections.Counter(_value(member) for member in before if type(member) in _SIMPLE)
        simple.subtract(_value(member) for member in after if type(member) in _SIMPLE)
        if lost := [shown(value) for (_, value), count in simple.items() if count]:
            return f"the set differs in {', '.join(lost[:_SHOWN_STEPS])}"
        free = {id(member): member for member in after if type(member) not in _SIMPLE}
        alone = []
        for member in before:
            if type(member) in _SIMPLE:
                continue
            paired = self._after_of.get(id(member), _ABSENT)
            if paired is _ABSENT:
                alone.append(member)
            elif free.pop(id(paired), _ABSENT) is _ABSENT:
                return f"{shown(member)} is no longer in the set"
        alike: dict[Any, list[Any]] = {}
        for candidate in reversed(free.values()):
            alike.setdefault(_key(candidate, _KEY_DEPTH), []).append(candidate)
        for member in alone:
            candidates = alike.get(_key(member, _KEY_DEPTH), [])
            for index in reversed(range(len(candidates))):
                if self.run(member, candidates[index]) is None:
                    del candidates[index]
                    break
            else:
                return f"{shown(member)} is no longer in the set"
        return None


def _children(before: Any, after: Any, kind: type) -> _Opened | str | None:
    """Return the same as `_Comparison._open`, for the children only. Common kinds take a fast path."""
    frame = None
    if kind is list or kind is tuple:
        if len(before) == len(after):
            frame = _Opened(before, enumerate(zip(before, after, strict=True)))
    elif kind is dict:
        if _are_strings(before) and _are_strings(after) and [*before] == [*after]:
            frame = _Opened(before, enumerate(zip(before.values(), after.values(), strict=True)), only_values=True)
    elif kind is set or kind is frozenset:
        if _are_strings(before) and _are_strings(after) and before == after:
            return None
    elif kind not in VALUES and not issubclass(kind, BUILTINS):
        frame = _attributes(before, after, kind)
    return frame or _any_children(before, after, kind)


def _any_children(before: Any, after: Any, kind: type) -> _Opened | str:
    value_of = VALUES.get(kind) or next((CONTENT[base] for base in kind.__mro__ if base in CONTENT), None)
    if kind not in VALUES and value_of and value_of(before) != value_of(after):
        return _values_differ(before, after)
    lefts, rights = [*children(before)], [*children(after)]
    steps, others = [step for step, _ in lefts], [step for step, _ in rights]
    if steps != others:
        changes = [_named(steps, others, "gone"), _named(others, steps, "new")]
        count = f"it has {len(others)} members instead of {len(steps)}" if len(others) != len(steps) else ""
        return ", ".join(filter(None, changes)) or count or "the order of what it holds differs"
    if not (value_of or steps or kind.__flags__ & _HEAP_TYPE or hasattr(kind, "__len__") or before is after):
        return f"{kind.__qualname__} can't be compared"
    pairs = enumerate((left, right) for (_, left), (_, right) in zip(lefts, rights, strict=True))
    return _Opened(before, itertools.islice(pairs, steps.count(MEMBER), None))  # members are paired later


def _attributes(before: Any, after: Any, kind: type) -> _Opened | None:
    """Return the attributes of two instances in pairs; None if the instances have different attributes."""
    held: list[Any] = []
    other: list[Any] = []
    for slot in slots_of(kind):
        try:
            left = slot.get(before)
        except AttributeError:
            left = _ABSENT
        try:
            right = slot.get(after)
        except AttributeError:
            right = _ABSENT
        if slot.unpacked and isinstance(left, dict):
            if not isinstance(right, dict) or [*left] != [*right]:
                return None
            held += left.values()
            other += right.values()
        elif (left is _ABSENT) != (right is _ABSENT) or (slot.unpacked and isinstance(right, dict)):
            return None
        elif left is not _ABSENT:
            held.append(left)
            other.append(right)
    return _Opened(before, enumerate(zip(held, other, strict=True))) if held else None


def _path(trail: _Trail) -> str:
    steps = []
    for frame, number in trail[1:]:
        if frame.only_values:
            steps.append(f"[{shown(next(itertools.islice(frame.holder, number, None)))}]")
        else:
            steps.append(next(itertools.islice(children(frame.holder), number, None))[0])
    return "".join(steps).removeprefix(".")


def _values_differ(before: Any, after: Any) -> str:
    old, new = shown(before), shown(after)
    return f"values differ: {old} became {new}" if old != new else f"values differ: {old} became another {new}"


def _named(steps: list[str], others: list[str], what: str) -> str:
    """Return a phrase that lists missing steps. A dict's key and its value count once."""
    known = {*others}
    missing = [step for step in steps if step not in known and not step.startswith("[key ")]
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN_STEPS} more" if len(missing) > _SHOWN_STEPS else ""
    return f"{', '.join(missing[:_SHOWN_STEPS])}{more} {'is' if len(missing) == 1 else 'are'} {what}"


def _are_strings(values: Any) -> bool:
    return _STRINGS.issuperset(map(type, values))


def _value(member: Any) -> tuple[type, Any]:
    return type(member), VALUES[type(member)](member)


def _key(value: Any, depth: int) -> Any:
    """Return a key that is equal for equal members of sets, so that few members must be compared."""
    kind = type(value)
    if kind in VALUES:
        return kind, VALUES[kind](value)
    if issubclass(kind, IDENTICAL):
        return kind, id(value)
    if depth == 0 or issubclass(kind, (set, frozenset)):
        return kind
    return kind, *(_key(child, depth - 1) for _, child in itertools.islice(children(value), _KEY_ITEMS))
