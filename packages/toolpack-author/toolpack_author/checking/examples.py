"""Arguments for trial calls, made from a function's JSON Schema.

A value comes from the first of these sources that offers one: the author's examples, the defaults, the environment's
values with the parameter's name, and the simplest value that the schema allows. No value is random, so a repeated check
returns the same findings.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from toolpack_server.functions.signatures import NEEDED
from toolpack_server.snapshots.graph import children, walk

MAX_NESTING = 8
MAX_OBJECTS = 5_000  # max number of an environment's objects that are searched for values

_FORMATS = {
    "date-time": "2026-01-02T12:00:00Z",
    "date": "2026-01-02",
    "time": "12:00:00",
    "duration": "P1D",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "email": "ann@example.com",
    "uri": "https://example.com/",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "regex": "a",
    "json-string": "{}",
}
_CANDIDATES = (
    *("text", "Text", "TEXT", "t", "T", "1", "12", "123", "1234", "12345", "12.50"),
    *("12:00", "2026-01-02", "2026-01-02 12:00"),
    *("ann@example.com", "https://example.com/", "DE02120300000000202051", "+4915112345678", "192.0.2.1", "#ff8800"),
    *("/text", "text.txt", "text-1", "A1", "AB-123", "EUR", "en", "en-GB", "123e4567-e89b-42d3-a456-426614174000"),
)
"""Candidates for strings with a pattern."""
_MISSING = object()


def known_values(environment: Any) -> dict[str, list[Any]]:
    """Return the strings and numbers in an environment, by the name of their attribute or key.

    Keys of a dict are listed under the name of the attribute that holds the dict, and under "".
    """
    values_by_name: dict[str, list[Any]] = {}
    for number, (path, _, holder) in enumerate(walk(environment)):
        if number > MAX_OBJECTS:
            break
        if path.endswith(".model_fields_set"):
            continue
        attribute = path.rpartition(".")[2].partition("[")[0]
        # One string can occur in several objects, such as a key that is also an `id`, so inspect the children of each.
        for step, value in children(holder):
            if type(value) not in (str, int, float):
                continue
            names = [step[1:]] if step.startswith(".") else [attribute]
            if step.startswith("[key "):
                names.append("")
            elif isinstance(holder, dict) and step.startswith("['"):
                names.append(step[2:-2])
            for name in names:
                values_by_name.setdefault(name, []).append(value)
    return values_by_name


def example_arguments(model: type[BaseModel], values_by_name: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield two sets of arguments for a function.

    The first set contains the required arguments, with values from the environment. The second set contains all
    arguments, with made-up values. Skip a set that the model refuses, and the second set if it equals the first.
    """
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    required = schema.get("required", [])
    yielded: list[dict[str, Any]] = []
    for names, values in ((required, values_by_name), (schema.get("properties", {}), {})):
        arguments = {}
        for name in names:
            value = _from_environment(schema["properties"][name], name, values)
            if value is _MISSING:
                value = example(schema["properties"][name], definitions, 0)
            arguments[name] = value
        if arguments not in yielded and _fits(model, arguments):
            yielded.append(arguments)
            yield arguments


def example_options(model: type[BaseModel] | None) -> dict[str, Any]:
    """Return made-up values for options marked with `signatures.NEEDED`, which prepare instances of classes."""
    options: dict[str, Any] = {}
    for name, field in model.model_fields.items() if model else ():
        if NEEDED in field.metadata:
            schema = model.model_json_schema()  # type: ignore[union-attr] # it has fields
            option = {key: value for key, value in schema["properties"][name].items() if key != "default"}
            options[name] = example(option, schema.get("$defs", {}), 0)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = example_options(field.annotation)
            options |= {name: inner} if inner else {}
    return options


def _fits(model: type[BaseModel], arguments: dict[str, Any]) -> bool:
    try:
        model.model_validate(arguments)
    except Exception:  # noqa: BLE001 - an author's validator can raise any exception
        return False
    return True


def _from_environment(schema: Mapping[str, Any], name: str, values_by_name: Mapping[str, list[Any]]) -> Any:
    """Return a value in the environment with the parameter's name and type, or `_MISSING`."""
    if "examples" in schema or "enum" in schema:
        return _MISSING
    kinds = {"string": str, "integer": int, "number": float}
    kind = kinds.get(schema.get("type", ""))
    stem, _, last = name.rpartition("_")  # a `user_id` might be a key of `users`
    for candidate in (name, f"{name}s", f"{stem}s", last, ""):  # "": the keys of all dictionaries
        for value in values_by_name.get(candidate, ()):
            if kind is not None and type(value) is kind:
                return value
    return _MISSING


def example(schema: Any, definitions: Mapping[str, Any], depth: int) -> Any:
    """Return a simple value for a schema. For a complicated schema the value might be invalid."""
    if not isinstance(schema, Mapping) or depth > MAX_NESTING:
        return None
    if "$ref" in schema:
        return example(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth + 1)
    value = _author_value(schema)
    if value is not _MISSING:
        return value
    for name in ("anyOf", "oneOf", "allOf"):
        choices = [choice for choice in schema.get(name, ()) if choice.get("type") != "null"]
        if choices:
            return example(choices[0], definitions, depth + 1)
    match schema.get("type"):
        case "array":
            return _array(schema, definitions, depth)
        case "object":
            return _object(schema, definitions, depth)
        case "integer" | "number" as kind:
            return _number(schema, whole=kind == "integer")
        case kind:
            return {"boolean": True, "null": None}.get(kind or "", _text(schema))


def _author_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that the author's schema names, or `_MISSING`."""
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    return next((schema[name] for name in ("default", "const") if name in schema), _MISSING)


def _text(schema: Mapping[str, Any]) -> str:
    text = _FORMATS.get(schema.get("format", ""), "text")
    if "pattern" in schema:
        text = next((candidate for candidate in _CANDIDATES if _matches(schema["pattern"], candidate)), text)
    text = text.ljust(schema.get("minLength", 0), "x")
    longest = schema.get("maxLength")
    return text if longest is None else text[:longest]


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # not Python's syntax
        return False


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """Return the smallest allowed number, or without a minimum, the number's step (1 unless the schema sets it)."""
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    number: float = step
    if low is not None:
        number = math.ceil(low / step) * step
        if number == schema.get("exclusiveMinimum"):
            number += step
    if high is not None and number >= high:
        number = high if "maximum" in schema else (low + high) / 2 if low is not None else high - step
    return int(number) if whole else number


def _array(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> list[Any]:
    items = [example(item, definitions, depth + 1) for item in schema.get("prefixItems", ())]
    length = max(schema.get("minItems", 0), 1 if depth < 3 and "items" in schema else 0)  # noqa: PLR2004 - deeper: empty
    while len(items) < length:
        items.append(example(schema.get("items", {}), definitions, depth + 1))
    return items


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: example(properties.get(name, {}), definitions, depth + 1) for name in schema.get("required", ())}
