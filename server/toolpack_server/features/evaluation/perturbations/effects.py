"""What effects make of a result.

Pure. A result is a JSON value; what comes out is a new one of the same kind, or the same if there was nothing
to change. Chance is drawn for each place in it, by its JSON Pointer. No effect makes more than a result may have: what
can multiply one is counted before it is made.
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
"""Members of MCP's content blocks that say what a block is; no effect on texts changes them."""

MAX_DIGITS = 10  # of a place in a list

_GONE = object()
_END = ""  # among the steps of pointers: one ends here; steps begin with a "/"

Steps = Mapping[str, Any]
"""JSON Pointers by their steps: what follows after each."""


class Chance:
    """A number from 0 up to 1 for each place in a result, which follows from what it is about, as `rules.draw` has it.

    A place costs its own step, however long the pointer is that leads there.
    """

    __slots__ = ("_hash",)

    def __init__(self, so_far: hashlib.blake2b) -> None:
        self._hash = so_far

    @classmethod
    def of(cls, *about: Any) -> Self:
        """Get the chance of a whole result."""
        return cls(hashlib.blake2b(dumps([*about, ""])[:-2], digest_size=8))

    def within(self, step: str) -> "Chance":
        """Get the chance of what is one step further."""
        further = self._hash.copy()
        further.update(dumps(step)[1:-1])
        return Chance(further)

    def number(self, which: bytes = b"") -> float:
        """Draw the number of this place, or another one of its own."""
        drawn = self._hash.copy()
        drawn.update(which + b'"]')
        return int.from_bytes(drawn.digest(), "big") / 2**64


def altered(rule: Rule, result: Any, chance: Chance, max_bytes: int, *, content: bool = False) -> Any:
    """Get what the agent hears instead of a result.

    Args:
        chance: That of the whole result.
        max_bytes: How long a result may be as JSON.
        content: It is a list of MCP's content blocks.

    Raises:
        TooLargeError: It would be much longer than that. What is a little longer is for the caller to find.
    """
    value = rule.value
    fixed = FIXED_IN_CONTENT if content else frozenset()
    match rule.effect:
        case "result":
            return value
        case "replace":
            return _texts(result, _Replacing(value, max_bytes), fixed)
        case "append":
            return _appended(result, value, fixed)
        case "truncate":
            return _truncated(result, value.get("texts"), value.get("items"), fixed)
        case "drop" | "null":
            instead = _GONE if rule.effect == "drop" else None
            if isinstance(value, int | float):
                return _without_some(result, value, chance, instead, fixed)
            return _without(result, frozenset(value), _steps(value), instead, fixed)
        case "corrupt":
            return _corrupted(result, value, chance, fixed)
    return result


def too_large(max_bytes: int) -> TooLargeError:
    """Get the error that the agent hears instead of a result that rules have made too long."""
    return TooLargeError(f"the result has more than the {max_bytes} bytes as JSON that are allowed.")


def _texts(value: Any, change: Callable[[str], str], fixed: frozenset[str]) -> Any:
    """Change each text, in order."""
    if isinstance(value, dict):
        return {name: each if name in fixed else _texts(each, change, fixed) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each, change, fixed) for each in value]
    return change(value) if isinstance(value, str) else value


class _Replacing:
    """Replaces words in texts, which together may grow by so much."""

    def __init__(self, replacements: Mapping[str, str], max_bytes: int) -> None:
        self._replacements = replacements
        self._max_bytes = self._room = max_bytes

    def __call__(self, text: str) -> str:
        for old, new in self._replacements.items():
            if len(new) != len(old):
                self._room -= text.count(old) * (len(new) - len(old))
                if self._room < 0:
                    raise too_large(self._max_bytes)
            text = text.replace(old, new)
        return text


def _appended(result: Any, value: Any, fixed: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return _appended_at(result, value["at"].split("/")[1:], value["text"], fixed)
    lengths: list[int] = []
    _texts(result, lambda text: lengths.append(len(text)) or text, fixed)  # type: ignore[func-returns-value]
    if not lengths:
        return result
    longest, places = lengths.index(max(lengths)), itertools.count()
    return _texts(result, lambda text: text + value if next(places) == longest else text, fixed)


def _appended_at(value: Any, pointer: Sequence[str], text: str, fixed: frozenset[str]) -> Any:
    if not pointer:
        return value + text if isinstance(value, str) else value
    step, further = pointer[0], pointer[1:]
    if isinstance(value, dict):
        name = jsonpointer.unescape(step)
        if name in value and name not in fixed:
            return {**value, name: _appended_at(value[name], further, text, fixed)}
    if isinstance(value, list) and len(step) < MAX_DIGITS and step.isdecimal() and str(int(step)) == step:
        place = int(step)
        if place >= len(value):
            return value
        return [*value[:place], _appended_at(value[place], further, text, fixed), *value[place + 1 :]]
    return value


def _truncated(value: Any, texts: int | None, items: int | None, fixed: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: each if name in fixed else _truncated(each, texts, items, fixed) for name, each in value.items()}
    if isinstance(value, list):
        return [_truncated(each, texts, items, fixed) for each in value[:items]]
    return value[:texts] if isinstance(value, str) else value


def _steps(names: Sequence[str]) -> Steps:
    """Take the JSON Pointers among names apart."""
    steps: dict[str, Any] = {}
    for pointer in names:
        if pointer.startswith("/"):
            place = steps
            for step in pointer.split("/")[1:]:
                place = place.setdefault("/" + step, {})
            place[_END] = {}
    return steps


def _without(value: Any, names: frozenset[str], steps: Steps, instead: Any, fixed: frozenset[str]) -> Any:
    """Take members of objects away that have these names or are where these steps end, or put something else there."""
    if isinstance(value, list):
        return [
            _without(each, names, steps.get(f"/{place}", {}) if steps else steps, instead, fixed)
            for place, each in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, each in value.items():
        further: Steps = steps.get("/" + jsonpointer.escape(name), {}) if steps else steps
        chosen = name not in fixed and (name in names or _END in further)
        new = instead if chosen else _without(each, names, further, instead, fixed)
        if new is not _GONE:
            kept[name] = new
    return kept


def _without_some(value: Any, share: float, chance: Chance, instead: Any, fixed: frozenset[str]) -> Any:
    """Take a share of the members of objects away, or put something else in their place."""
    if isinstance(value, list):
        return [
            _without_some(each, share, chance.within(f"/{place}"), instead, fixed) if _holds(each) else each
            for place, each in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, each in value.items():
        here = chance.within("/" + jsonpointer.escape(name))
        chosen = name not in fixed and here.number() < share
        new = instead if chosen else _without_some(each, share, here, instead, fixed)
        if new is not _GONE:
            kept[name] = new
    return kept


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list)


def _corrupted(value: Any, share: float, chance: Chance, fixed: frozenset[str]) -> Any:
    """Make a share of the values wrong that are neither an object nor a list."""
    if isinstance(value, dict):
        return {
            name: each
            if name in fixed
            else _corrupted(each, share, chance.within("/" + jsonpointer.escape(name)), fixed)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_corrupted(each, share, chance.within(f"/{place}"), fixed) for place, each in enumerate(value)]
    return _wrong(value, chance.number(b"#")) if chance.number() < share else value


def _wrong(leaf: Any, drawn: float) -> Any:
    """Get a wrong value of the same type."""
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int):
        return leaf + 1 + int(drawn * 999)
    if isinstance(leaf, float):
        return leaf + 1.5 + round(drawn * 999)
    if isinstance(leaf, str) and leaf:
        return "".join(_shifted(leaf, 1 + int(drawn * 8)))
    return leaf


def _shifted(text: str, by: int) -> Iterator[str]:
    """Get other letters and digits for those of a text, of which one is there at least."""
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
