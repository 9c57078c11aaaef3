"""Comparison of two object graphs that finds the first difference between them.

`==` can't show whether a copy behaves like its original. Models compare without their private attributes, 1 equals
True, NaN equals nothing, and `==` doesn't see that two names share one list. So this module compares the stored state
that the module `graph` reads. It runs no code of an author's class. An environment can contain millions of objects, so
the path of an object is built only when a difference was found there.
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
    """Return a text with the path and description of the first difference, or None if the graphs are equal.

    Types, values, order, private attributes and `model_fields_set` must be equal, except that sets have no order. If
    two references lead to one object in one graph, they must do so in the other graph. Immutable plain values are the
    exception.
    """
    first = first_difference(before, after)
    return f"{first[0] or 'the object itself'}: {first[1]}" if first else None


def first_difference(before: object, after: object) -> Difference | None:
    """Return the path of the first difference and its description. The path "" stands for the object itself."""
    return _Comparison().run(before, after)


class _ChildPairs:
    """Pairs of children of two objects that are being compared."""

    __slots__ = ("holder", "number", "only_values", "pairs")

    def __init__(self, holder: Any, pairs: Iterable[tuple[int, tuple[Any, Any]]], *, only_values: bool = False) -> None:
        self.holder = holder  # the first of the two objects, whose children these are
        self.pairs = iter(pairs)  # each pair with its index, in the order of `children`
        self.only_values = only_values  # whether the pairs contain only the values of two dicts, which have equal keys
        self.number = 0  # index of the current pair


_Trail = list[tuple[_ChildPairs, int]]
"""The path to two objects: the pairs of their ancestors, each positioned at the current child."""


class _Comparison:
    """Side-by-side walk through two graphs that remembers which objects correspond to each other."""

    def __init__(self) -> None:
        # Corresponding objects by id. The values keep the objects alive, so that no id is reused.
        self._after_of: dict[int, Any] = {}
        self._before_of: dict[int, Any] = {}

    def run(self, before: Any, after: Any) -> Difference | None:
        """Return the first difference between two graphs. If they differ, forget which of their objects correspond."""
        paired_count = len(self._after_of)
        sets: list[tuple[_Trail, Any, Any]] = []
        difference = self._walk(before, after, sets)
        # Sets come last, because by then it is known for most of their members which objects correspond.
        while sets and difference is None:
            trail, left, right = sets.pop()
            reason = self._match(set().union(left), set().union(right))
            difference = None if reason is None else (_path(trail), reason)
        while difference is not None and len(self._after_of) > paired_count:
            self._after_of.popitem()
            self._before_of.popitem()
        return difference

    def _walk(self, before: Any, after: Any, sets: list[tuple[_Trail, Any, Any]]) -> Difference | None:
        """Compare two graphs except for the members of sets, and return the first difference.

        Args:
            before: The first object of one graph.
            after: The first object of the other graph.
            sets: A list to which this method adds the pairs of sets, with their paths.
        """
        frames = [_ChildPairs(None, [(0, (before, after))])]
        while frames:
            frame = frames[-1]
            for number, (left, right) in frame.pairs:
                kind = type(left)
                opened: _ChildPairs | str | None
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

    def _open(self, before: Any, after: Any, kind: type) -> _ChildPairs | str | None:
        """Compare two objects of one type without their children.

        Returns:
            The children that must still be compared, or the difference, or None if the objects are equal.
        """
        if kind is float and before == after != 0:  # 0.0 and -0.0 differ
            return None
        value_function = VALUES.get(kind)
        if value_function is not None:
            if value_function(before) != value_function(after):
                return _values_differ(before, after)
            if kind not in MUTABLE:
                return _children(before, after, kind) if kind in _ZONED else None
        elif issubclass(kind, IDENTICAL):
            return None if before is after else "it became another object"
        # Python has only one empty tuple, so sharing it says nothing.
        if not (kind in (tuple, frozenset) and not before):
            paired = self._after_of.get(id(before), _ABSENT)
            if paired is not _ABSENT or id(after) in self._before_of:
                if paired is after:
                    return None
                if not (kind in (tuple, frozenset) and is_immutable(before)):
                    return "it is shared in only one of the two graphs"
            self._after_of[id(before)], self._before_of[id(after)] = after, before
        return _children(before, after, kind)

    def _match(self, before: Any, after: Any) -> str | None:
        """Pair the members of two sets, and return the first difference.

        Plain values are compared directly. An object might already correspond to a member of the other set. Each
        remaining object is compared with all members that have an equal `_key`.
        """
        simple = collections.Counter(_value(member) for member in before if type(member) in _SIMPLE)
        simple.subtract(_value(member) for member in after if type(member) in _SIMPLE)
        if lost := [shown(value) for (_, value), count in simple.items() if count]:
            return f"the set differs in {', '.join(lost[:_SHOWN_STEPS])}"
        free = {id(member): member for member in after if type(member) not in _SIMPLE}
        unpaired = []
        for member in before:
            if type(member) in _SIMPLE:
                continue
            paired = self._after_of.get(id(member), _ABSENT)
            if paired is _ABSENT:
                unpaired.append(member)
            elif free.pop(id(paired), _ABSENT) is _ABSENT:
                return f"{shown(member)} is no longer in the set"
        candidates_by_key: dict[Any, list[Any]] = {}
        for candidate in reversed(free.values()):
            candidates_by_key.setdefault(_key(candidate, _KEY_DEPTH), []).append(candidate)
        for member in unpaired:
            candidates = candidates_by_key.get(_key(member, _KEY_DEPTH), [])
            for index in reversed(range(len(candidates))):
                if self.run(member, candidates[index]) is None:
                    del candidates[index]
                    break
            else:
                return f"{shown(member)} is no longer in the set"
        return None


def _children(before: Any, after: Any, kind: type) -> _ChildPairs | str | None:
    """Return the children of two objects in pairs, a difference, or None if no children remain.

    Common types take a fast path.
    """
    frame = None
    if kind is list or kind is tuple:
        if len(before) == len(after):
            frame = _ChildPairs(before, enumerate(zip(before, after, strict=True)))
    elif kind is dict:
        if _are_strings(before) and _are_strings(after) and [*before] == [*after]:
            frame = _ChildPairs(before, enumerate(zip(before.values(), after.values(), strict=True)), only_values=True)
    elif kind is set or kind is frozenset:
        if _are_strings(before) and _are_strings(after) and before == after:
            return None
    elif kind not in VALUES and not issubclass(kind, BUILTINS):
        frame = _attributes(before, after, kind)
    return frame or _any_children(before, after, kind)


def _any_children(before: Any, after: Any, kind: type) -> _ChildPairs | str:
    """Return the children of two objects of any type in pairs, or a difference."""
    value_function = VALUES.get(kind) or next((CONTENT[base] for base in kind.__mro__ if base in CONTENT), None)
    if kind not in VALUES and value_function and value_function(before) != value_function(after):
        return _values_differ(before, after)
    lefts, rights = [*children(before)], [*children(after)]
    steps, others = [step for step, _ in lefts], [step for step, _ in rights]
    if steps != others:
        changes = [_named(steps, others, "gone"), _named(others, steps, "new")]
        count = f"it has {len(others)} members instead of {len(steps)}" if len(others) != len(steps) else ""
        return ", ".join(filter(None, changes)) or count or "the order of what it holds differs"
    if not (value_function or steps or kind.__flags__ & _HEAP_TYPE or hasattr(kind, "__len__") or before is after):
        return f"{kind.__qualname__} can't be compared"
    pairs = enumerate((left, right) for (_, left), (_, right) in zip(lefts, rights, strict=True))
    return _ChildPairs(before, itertools.islice(pairs, steps.count(MEMBER), None))  # `_match` pairs the members of sets


def _attributes(before: Any, after: Any, kind: type) -> _ChildPairs | None:
    """Return the attributes of two instances in pairs.

    Return None if the instances have different attributes, which `_any_children` then names, or no attributes.
    """
    lefts: list[Any] = []
    rights: list[Any] = []
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
            lefts += left.values()
            rights += right.values()
        elif (left is _ABSENT) != (right is _ABSENT) or (slot.unpacked and isinstance(right, dict)):
            return None
        elif left is not _ABSENT:
            lefts.append(left)
            rights.append(right)
    return _ChildPairs(before, enumerate(zip(lefts, rights, strict=True))) if lefts else None


def _path(trail: _Trail) -> str:
    """Return a trail as text, such as `.accounts['a'].balance`."""
    steps = []
    for frame, number in trail[1:]:
        if frame.only_values:
            steps.append(f"[{shown(next(itertools.islice(frame.holder, number, None)))}]")
        else:
            steps.append(next(itertools.islice(children(frame.holder), number, None))[0])
    return "".join(steps).removeprefix(".")


def _values_differ(before: Any, after: Any) -> str:
    """Describe the difference between two plain values."""
    old, new = shown(before), shown(after)
    return f"values differ: {old} became {new}" if old != new else f"values differ: {old} became another {new}"


def _named(steps: list[str], others: list[str], what: str) -> str:
    """Return a phrase that lists the steps that `others` lacks. A dict's key and its value count as one."""
    other_steps = {*others}
    missing = [step for step in steps if step not in other_steps and not step.startswith("[key ")]
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN_STEPS} more" if len(missing) > _SHOWN_STEPS else ""
    return f"{', '.join(missing[:_SHOWN_STEPS])}{more} {'is' if len(missing) == 1 else 'are'} {what}"


def _are_strings(values: Any) -> bool:
    return _STRINGS.issuperset(map(type, values))


def _value(member: Any) -> tuple[type, Any]:
    """Return a plain value with its type, because 1 equals True."""
    return type(member), VALUES[type(member)](member)


def _key(value: Any, depth: int) -> Any:
    """Return a key that is equal for equal members of sets, so that only members with equal keys must be compared."""
    kind = type(value)
    if kind in VALUES:
        return kind, VALUES[kind](value)
    if issubclass(kind, IDENTICAL):
        return kind, id(value)
    if depth == 0 or issubclass(kind, (set, frozenset)):
        return kind
    return kind, *(_key(child, depth - 1) for _, child in itertools.islice(children(value), _KEY_ITEMS))
