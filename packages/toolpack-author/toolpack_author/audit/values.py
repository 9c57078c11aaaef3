"""Values for attempts, taken from a world and from solutions, and grouped by the name of their field or argument.

These functions have no side effects, and choose values in a fixed order, so equal seeds lead to equal values. All
values are JSON. Values in the task's own solution are never chosen, because an attempt with them might solve the task.
"""

import calendar
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any

from toolpack_author.checking.examples import example
from toolpack_server.jsonio.strict import dumps

Path = tuple[str | int, ...]
"""Path of a value within a JSON value."""

MAX_NESTING = 6
MAX_CACHED_TEXTS = 10_000
OPTIONAL = 0.3  # probability that an optional argument is passed
STEM = 5  # number of letters of a word that are compared

_SHAPES = (
    ("number", r"-?\d+(\.\d+)?"),
    ("time", r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d:\d\d(:\d\d)?"),
    ("email", r"[^@\s]+@[^@\s]+"),
    ("path", r"\S*/\S*"),
    ("code", r"(?=\S*\d)(?=\S*[A-Za-z#_-])\S+"),
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def leaves(value: Any, name: str = "", path: Path = ()) -> Iterator[tuple[str, Path, Any]]:
    """Yield the scalar values in a JSON value, each with the nearest name above it and its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, key, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, name, (*path, index))
    else:
        yield name, path, value


def shape(value: Any) -> str:
    """Return the shape of a value. Values of the same shape can replace each other."""
    if not isinstance(value, str):
        return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    return _shape_of_text(value)


@lru_cache(maxsize=MAX_CACHED_TEXTS)  # the tasks of a toolpack share a world
def _shape_of_text(text: str) -> str:
    return next((name for name, pattern in _SHAPES if re.fullmatch(pattern, text)), "text")


def replace_at(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of a JSON value with another value at a path."""
    if not path:
        return new
    step, *rest = path
    copy: Any = {**value} if isinstance(value, Mapping) else [*value]
    copy[step] = replace_at(value[step], tuple(rest), new)
    return copy


class KnownValues:
    """Values in worlds and arguments, by the name of their field or argument.

    Args:
        sources: Worlds and arguments as JSON. If a key's value is an object or a list, the key itself is also listed as
            a value, under the name of the object that contains the key.
        own: The values in the solution, which are excluded.
    """

    def __init__(self, sources: Sequence[Any], own: Any) -> None:
        used = {_text(value) for _, _, value in leaves(own)}
        named: dict[str, dict[bytes, Any]] = {}
        for source in sources:
            for name, value in [(name, value) for name, _, value in leaves(source)] + [*_keys(source, "")]:
                if value is not None and value != "" and not isinstance(value, bool) and _text(value) not in used:
                    named.setdefault(name, {})[dumps(value)] = value
        self._named = {name: [values[text] for text in sorted(values)] for name, values in named.items()}
        every = {dumps(value): value for values in self._named.values() for value in values}
        self._every = [every[text] for text in sorted(every)]
        self._shaped: dict[str, list[Any]] = {}
        for value in self._every:
            self._shaped.setdefault(shape(value), []).append(value)

    def named(self, name: str) -> Sequence[Any]:
        """Return the values of a name, or else of a similar name, because a `user_id` might be a key of `users`."""
        stem, _, last = name.rpartition("_")
        return next((self._named[each] for each in (name, f"{name}s", f"{stem}s", last) if each in self._named), ())

    def of_shape(self, shape_name: str) -> Sequence[Any]:
        """Return the values of a shape."""
        return self._shaped.get(shape_name, ())

    def texts(self) -> Sequence[str]:
        """Return all values as strings."""
        return [str(value) for value in self._every]


def _keys(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of objects that look like ids, each with the name above it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Mapping | list):
                yield name, key
            yield from _keys(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item, name)


def _text(value: Any) -> str:
    """Return a value as a string that is equal for equal values, such as 1 and "1.0"."""
    if shape(value) == "number":
        return str(Decimal(str(value)).normalize())
    return str(value).casefold()


def other_values(
    value: Any, name: str, pool: KnownValues, choices: Sequence[Any], rng: Random, max_values: int
) -> list[Any]:
    """Return other values to try instead of a value. Values of the same name come first."""
    kind = shape(value)
    values: list[Any] = []
    if isinstance(value, bool):
        values = [not value]
    elif choices:
        values = [choice for choice in choices if choice != value]
        rng.shuffle(values)
    elif kind == "number":
        values = _other_numbers(value)
        named_values = [each for each in pool.named(name) if type(each) is type(value) and shape(each) == kind]
        # The second value, because few values are tried: a related number, then one that occurs in the world.
        values[1:1] = rng.sample(named_values, min(1, len(named_values)))
    elif kind == "time":
        values = [later for days in (1, 30) if (later := _later(value, days)) is not None]
        values += _drawn(pool.of_shape(kind), value, rng, 1)
    elif value is not None:
        named_values = [each for each in pool.named(name) if shape(each) == kind]
        values = _drawn(named_values, value, rng, max_values)
        values += [each for each in _drawn(pool.of_shape(kind), value, rng, max_values) if each not in values]
    return values[:max_values]


def _drawn(values: Sequence[Any], value: Any, rng: Random, max_values: int) -> list[Any]:
    """Return random values of the type of `value`.

    Skip a value if its string contains that of `value` or is contained in it, because both might mean the same.
    """
    fitting = [each for each in values if type(each) is type(value) and not _contain(str(each), str(value))]
    return rng.sample(fitting, min(max_values, len(fitting)))


def _contain(one: str, other: str) -> bool:
    one, other = one.casefold(), other.casefold()
    return one in other or other in one


def _other_numbers(value: Any) -> list[Any]:
    if isinstance(value, str):
        places = len(value.partition(".")[2])
        return [f"{Decimal(value) + more:.{places}f}" for more in (1, 7)] + [f"{Decimal(value) * 2 + 3:.{places}f}"]
    return [value + 1, value * 2 + 3, value - 1]


def _later(value: str, days: int) -> str | None:
    """Return a date or time that is later by some days, in the same form, or None if the value isn't a date or time."""
    try:
        if len(value) == len("2026-01-02"):
            return (date.fromisoformat(value) + timedelta(days=days)).isoformat()
        moved = datetime.fromisoformat(value) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return moved.isoformat(value[10:11] or "T")[: len(value)]  # with the same separator and precision


def is_named_in(prompt: str, value: Any) -> bool:
    """Return whether a prompt contains a value: a number, a string, or a date in digits or as in "May 3rd"."""
    if isinstance(value, bool) or value is None:
        return False
    kind = shape(value)
    if kind == "number":
        mentioned = {
            Decimal(each.replace(",", "")).normalize() for each in _NUMBER.findall(prompt) if each.count(".") <= 1
        }
        return Decimal(str(value)).normalize() in mentioned
    text = str(value)
    if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", prompt, re.IGNORECASE):
        return True
    if kind != "time" or len(text) < len("2026-01-02"):
        return False
    day = _later(text[:10], 0)
    if day is None:
        return False
    number, month = int(day[8:]), calendar.month_name[int(day[5:7])]
    months = f"(?:{month}|{month[:3]})"
    spoken = rf"\b(?:{number}(?:st|nd|rd|th)?\.?(?: of)? {months}|{months} {number})\b"
    return len(text) == len(day) and re.search(spoken, prompt, re.IGNORECASE) is not None


def is_spoken_in(prompt: str, name: str) -> bool:
    """Return whether a prompt contains the words of a name, except is, has and was. For `is_paid`, the word is "paid".

    Words with the same first letters count as equal, such as "complete" and "completed".
    """
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    mentioned = [word.casefold() for word in re.findall(r"[^\W\d_]+", prompt)]

    def is_mentioned(word: str) -> bool:
        return any(
            each == word or (min(len(each), len(word)) >= STEM and each[:STEM] == word[:STEM]) for each in mentioned
        )

    informative = [word for word in words if word not in {"is", "has", "was"}]
    return bool(informative) and all(map(is_mentioned, informative))


def choices_at(schema: Mapping[str, Any], path: Path) -> Sequence[Any]:
    """Return the values of an enum at a path of a schema. If there is none, return an empty list."""
    definitions = schema.get("$defs", {})
    at: Any = schema
    for step in path:
        at = _plain(at, definitions)
        at = at.get("items") if isinstance(step, int) else at.get("properties", {}).get(step)
        if not isinstance(at, Mapping):
            return ()
    at = _plain(at, definitions)
    return [each for each in at.get("enum", ()) if each is not None]


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with references and choices resolved.

    If there are several choices, use the first one that isn't null.
    """
    for _ in range(MAX_NESTING):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" in schema:
            schema = definitions.get(schema["$ref"].rpartition("/")[2], {})
            continue
        options = [
            each for name in ("anyOf", "oneOf", "allOf") for each in schema.get(name, ()) if each.get("type") != "null"
        ]
        if not options:
            return schema
        schema = options[0]
    return {}


def respell(value: Any, schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return an equal value in another spelling that the schema allows, such as 955 for "955.00".

    Return the value itself if it has no other spelling.
    """
    choices = [*_choices(schema, definitions)]
    if isinstance(value, Mapping):
        fields: Mapping[str, Any] = next((each["properties"] for each in choices if each.get("properties")), {})
        return {key: respell(item, fields.get(key), definitions) for key, item in value.items()}
    if isinstance(value, list):
        items = next((each["items"] for each in choices if "items" in each), None)
        return [respell(item, items, definitions) for item in value]
    number = _number(value)
    if number is not None and any(each.get("type") == "number" for each in choices):
        if isinstance(value, str):
            return int(number) if number == int(number) else float(number)
        return int(value) if isinstance(value, float) and value == int(value) else float(value)
    for each in choices if isinstance(value, str) else ():
        if number is not None and each.get("type") == "string" and "pattern" in each and "enum" not in each:
            spellings = [f"{number.normalize():f}", f"{value}0" if "." in value else f"{value}.0"]
            return next((text for text in spellings if text != value and _fits(text, each)), value)
        if each.get("format") == "date-time" and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d", value):
            return f"{value}:00"
    return value


def _number(value: Any) -> Decimal | None:
    if isinstance(value, str):
        return Decimal(value) if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", value, re.ASCII) else None
    return Decimal(str(value)) if shape(value) == "number" else None


def _choices(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the alternative schemas for a value."""
    if not isinstance(schema, Mapping) or depth > MAX_NESTING:
        return
    yield schema
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _choices(each, definitions, depth + 1)
    if "$ref" in schema:
        yield from _choices(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth + 1)


def arguments(schema: Mapping[str, Any], pools: Sequence[KnownValues], rng: Random) -> dict[str, Any]:
    """Return random arguments for a function.

    Each value comes from the first pool that has a fitting value with the argument's name. If no pool has one, it is a
    value of the same shape in the last pool, or else the simplest valid value.
    """
    required = schema.get("required", ())
    drawn = {}
    for name, property_ in schema.get("properties", {}).items():
        is_passed = name in required or rng.random() < OPTIONAL
        if is_passed:
            drawn[name] = _draw(property_, name, schema.get("$defs", {}), pools, rng, 0)
    return drawn


def _draw(
    schema: Any, name: str, definitions: Mapping[str, Any], pools: Sequence[KnownValues], rng: Random, depth: int
) -> Any:
    """Return a random value for a schema. The name is that of the argument or of the nearest field."""
    plain = _plain(schema, definitions)
    if plain.get("enum"):
        return rng.choice(plain["enum"])
    if depth < MAX_NESTING:
        if plain.get("type") == "array" and "items" in plain:
            many = rng.randint(max(1, plain.get("minItems", 0)), max(2, plain.get("minItems", 0)))
            return [_draw(plain["items"], name, definitions, pools, rng, depth + 1) for _ in range(many)]
        if plain.get("type") == "object" and plain.get("properties"):
            return {
                key: _draw(value, key, definitions, pools, rng, depth + 1)
                for key, value in plain["properties"].items()
                if key in plain.get("required", ())
            }
    simple_value = example(schema, definitions, 0)
    if isinstance(simple_value, bool) or simple_value is None:
        return simple_value if simple_value is None else rng.random() < 0.5  # noqa: PLR2004 - a coin
    named_values = [*(pool.named(name) for pool in pools), *(pool.of_shape(shape(simple_value)) for pool in pools[-1:])]
    fitting = next(filter(None, ([each for each in values if _fits(each, plain)] for values in named_values)), None)
    return rng.choice(fitting) if fitting else simple_value


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a scalar value matches a schema's type, pattern and range."""
    kinds: Mapping[str, Any] = {"string": str, "integer": int, "number": (int, float)}
    if not isinstance(value, kinds.get(schema.get("type", ""), (str, int, float))):
        return False
    if isinstance(value, str):
        try:
            return "pattern" not in schema or re.search(schema["pattern"], value) is not None
        except re.error:  # not Python's syntax
            return False
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    return bool(low <= value <= high)
