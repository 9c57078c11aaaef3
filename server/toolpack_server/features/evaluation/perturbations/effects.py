"""Effects of perturbation rules on the result of a call, a JSON value.

All functions here are pure: an effect returns a new value. Each location in the result has its own random number,
derived from its JSON Pointer, so a change at one location doesn't affect other locations. An effect that can multiply
the size of a result checks the size before it builds the new value.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import jsonpointer

from toolpack_server.base.errors import TooLargeError
from toolpack_server.features.evaluation.rules import Rule
from toolpack_server.jsonio.strict import dumps

FIXED_IN_CONTENT = frozenset({"type", "data", "blob", "mimeType", "uri"})
"""Fields that define the type and data of MCP's content blocks. Effects never change these fields."""

MAX_DIGITS = 10  # a step of a JSON Pointer with this many digits or more can't be a list index

_REMOVED = object()
_END = ""  # key of a `PointerTree` that marks the end of a pointer; all other keys begin with "/"

PointerTree = Mapping[str, Any]
"""JSON Pointers as nested dicts. A key is a step of a pointer, such as `/items`; its value contains the next steps."""


class KeyedRandom:
    """Deterministic random numbers in [0, 1) for the locations in a result.

    A location's number equals `rules.draw(*key, pointer)`. The hash of a location extends the hash of its parent
    location, so the cost of a number doesn't grow with the pointer's length.
    """

    __slots__ = ("_hash",)

    def __init__(self, prefix: hashlib.blake2b) -> None:
        self._hash = prefix

    @classmethod
    def of(cls, *key: Any) -> Self:
        """Return the random source for the root of a result."""
        # The JSON `[…, ""]` without its end `"]`: `within` appends the pointer to the string, `number` adds the end.
        return cls(hashlib.blake2b(dumps([*key, ""])[:-2], digest_size=8))

    def within(self, step: str) -> "KeyedRandom":
        """Return the random source for a child of this location.

        Args:
            step: The last step of the child's JSON Pointer, such as `/items`.
        """
        child = self._hash.copy()
        child.update(dumps(step)[1:-1])  # without the quotes
        return KeyedRandom(child)

    def number(self, suffix: bytes = b"") -> float:
        """Return the random number of this location. Calls with different suffixes return independent numbers."""
        digest = self._hash.copy()
        digest.update(suffix + b'"]')
        return int.from_bytes(digest.digest(), "big") / 2**64


def apply_effect(rule: Rule, result: Any, random: KeyedRandom, max_bytes: int, *, content: bool = False) -> Any:
    """Return the result that the agent gets instead of the real result.

    Args:
        random: The random source for the root of the result.
        max_bytes: Maximum size of a result as JSON.
        content: Whether the result is a list of MCP's content blocks.

    Raises:
        TooLargeError: The new result would be much larger than `max_bytes`. This check is an estimate, so the caller
            must also check the exact size.
    """
    value = rule.value
    fixed = FIXED_IN_CONTENT if content else frozenset()
    match rule.effect:
        case "result":
            return value
        case "replace":
            return _map_texts(result, _Replacer(value, max_bytes), fixed)
        case "append":
            return _append(result, value, fixed)
        case "truncate":
            return _truncate(result, value.get("texts"), value.get("items"), fixed)
        case "drop" | "null":
            replacement = _REMOVED if rule.effect == "drop" else None
            if isinstance(value, int | float):
                return _remove_share(result, value, random, replacement, fixed)
            return _remove(result, frozenset(value), _pointer_tree(value), replacement, fixed)
        case "corrupt":
            return _corrupt(result, value, random, fixed)
    return result


def too_large_error(max_bytes: int) -> TooLargeError:
    """Return the error that the agent gets instead of a result that rules made too large."""
    return TooLargeError(f"the result is too large: its JSON has more than {max_bytes} bytes.")


def _map_texts(value: Any, change: Callable[[str], str], fixed: frozenset[str]) -> Any:
    """Apply a function to each string in a JSON value, in order. Return the new value.

    Fields named in `fixed` stay unchanged.
    """
    if isinstance(value, dict):
        return {name: member if name in fixed else _map_texts(member, change, fixed) for name, member in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change, fixed) for item in value]
    return change(value) if isinstance(value, str) else value


class _Replacer:
    """Replaces substrings in the strings of one result, which can grow by at most `max_bytes` characters together."""

    def __init__(self, replacements: Mapping[str, str], max_bytes: int) -> None:
        self._replacements = replacements
        self._max_bytes = self._room = max_bytes

    def __call__(self, text: str) -> str:
        """Return a string with the replacements made.

        Raises:
            TooLargeError: The strings of the result have grown by more than `max_bytes` characters together.
        """
        for old, new in self._replacements.items():
            if len(new) != len(old):
                self._room -= text.count(old) * (len(new) - len(old))
                if self._room < 0:
                    raise too_large_error(self._max_bytes)
            text = text.replace(old, new)
        return text


def _append(result: Any, value: Any, fixed: frozenset[str]) -> Any:
    """Append a text at a JSON Pointer, or by default to the longest string of the result."""
    if isinstance(value, dict):
        return _append_at(result, value["at"].split("/")[1:], value["text"], fixed)
    lengths: list[int] = []
    # The same traversal runs twice: it collects the lengths of all strings, then it changes the longest string.
    _map_texts(result, lambda text: lengths.append(len(text)) or text, fixed)  # type: ignore[func-returns-value]
    if not lengths:
        return result
    longest, numbers = lengths.index(max(lengths)), itertools.count()
    return _map_texts(result, lambda text: text + value if next(numbers) == longest else text, fixed)


def _append_at(value: Any, pointer: Sequence[str], text: str, fixed: frozenset[str]) -> Any:
    """Append a text to the string at a pointer. If the pointer leads to no string, change nothing."""
    if not pointer:
        return value + text if isinstance(value, str) else value
    step, rest = pointer[0], pointer[1:]
    if isinstance(value, dict):
        name = jsonpointer.unescape(step)
        if name in value and name not in fixed:
            return {**value, name: _append_at(value[name], rest, text, fixed)}
    if isinstance(value, list) and len(step) < MAX_DIGITS and step.isdecimal() and str(int(step)) == step:
        index = int(step)
        if index >= len(value):
            return value
        return [*value[:index], _append_at(value[index], rest, text, fixed), *value[index + 1 :]]
    return value


def _truncate(value: Any, texts: int | None, items: int | None, fixed: frozenset[str]) -> Any:
    """Cut each string to `texts` characters and each list to `items` items. None: no limit."""
    if isinstance(value, dict):
        return {
            name: member if name in fixed else _truncate(member, texts, items, fixed) for name, member in value.items()
        }
    if isinstance(value, list):
        return [_truncate(item, texts, items, fixed) for item in value[:items]]
    return value[:texts] if isinstance(value, str) else value


def _pointer_tree(names: Sequence[str]) -> PointerTree:
    """Return a tree of the JSON Pointers among `names`. Names without a leading slash are ignored."""
    tree: dict[str, Any] = {}
    for pointer in names:
        if pointer.startswith("/"):
            node = tree
            for step in pointer.split("/")[1:]:
                node = node.setdefault("/" + step, {})
            node[_END] = {}
    return tree


def _remove(value: Any, names: frozenset[str], tree: PointerTree, replacement: Any, fixed: frozenset[str]) -> Any:
    """Remove or replace each field that has one of the names, or that a pointer in the tree leads to."""
    if isinstance(value, list):
        return [
            _remove(item, names, tree.get(f"/{index}", {}) if tree else tree, replacement, fixed)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    members = {}
    for name, member in value.items():
        subtree: PointerTree = tree.get("/" + jsonpointer.escape(name), {}) if tree else tree
        chosen = name not in fixed and (name in names or _END in subtree)
        new = replacement if chosen else _remove(member, names, subtree, replacement, fixed)
        if new is not _REMOVED:
            members[name] = new
    return members


def _remove_share(value: Any, share: float, random: KeyedRandom, replacement: Any, fixed: frozenset[str]) -> Any:
    """Remove or replace a random share of the fields of objects."""
    if isinstance(value, list):
        return [
            _remove_share(item, share, random.within(f"/{index}"), replacement, fixed) if _is_container(item) else item
            for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    members = {}
    for name, member in value.items():
        child = random.within("/" + jsonpointer.escape(name))
        chosen = name not in fixed and child.number() < share
        new = replacement if chosen else _remove_share(member, share, child, replacement, fixed)
        if new is not _REMOVED:
            members[name] = new
    return members


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _corrupt(value: Any, share: float, random: KeyedRandom, fixed: frozenset[str]) -> Any:
    """Return a copy of a JSON value in which a random share of strings, numbers and booleans is wrong.

    Args:
        share: The share of wrong values, from 0 to 1.
        random: The random source for the location of the value.
        fixed: The names of fields that never change.
    """
    if isinstance(value, dict):
        return {
            name: member
            if name in fixed
            else _corrupt(member, share, random.within("/" + jsonpointer.escape(name)), fixed)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [_corrupt(item, share, random.within(f"/{index}"), fixed) for index, item in enumerate(value)]
    return _wrong_value(value, random.number(b"#")) if random.number() < share else value


def _wrong_value(leaf: Any, number: float) -> Any:
    """Return a wrong value of the same type, chosen by a number in [0, 1). Null and "" stay unchanged."""
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int):
        return leaf + 1 + int(number * 999)
    if isinstance(leaf, float):
        return leaf + 1.5 + round(number * 999)
    if isinstance(leaf, str) and leaf:
        return "".join(_shift_letters(leaf, 1 + int(number * 8)))
    return leaf


def _shift_letters(text: str, by: int) -> Iterator[str]:
    """Yield the characters of a text, with its ASCII letters and digits shifted. Without any, append "?"."""
    changed = False
    for letter in text:
        for first, count in (("0", 10), ("a", 26), ("A", 26)):
            if ord(first) <= ord(letter) < ord(first) + count:
                yield chr((ord(letter) - ord(first) + by) % count + ord(first))
                changed = True
                break
        else:
            yield letter
    if not changed:
        yield "?"
