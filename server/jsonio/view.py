"""JSON of results and environments, as agents and experimenters see it: pydantic's, made strict and repeatable.

The rule: JSON out is a view. It goes by alias, with the fields of subclasses, sets sorted by their JSON text, NaN and
infinities as null; only snapshots are exact. What has no JSON form is a `ResultError`, never a broken reply.
"""

import dataclasses
import json
from collections import deque
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaSerializer, core_schema

from server.errors import ResultError

_SCALARS = (str, int, float, bool, type(None))
_MAX_DEPTH = 200
_ANYTHING = SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "null"})


def to_json(value: Any) -> bytes:
    """Get the JSON text of a value.

    Raises:
        ResultError: It has no JSON form.
    """
    try:
        ordered = value if isinstance(value, _SCALARS) else _with_sorted_sets(value, {}, 0)
        # No warnings: a sorted list where the class says set is the point.
        text = _ANYTHING.to_json(ordered, by_alias=True, serialize_as_any=True, warnings=False)
    except ResultError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ResultError(f"a value of type {type(value).__name__} has no JSON form: {reason}") from error
    # A model's own configuration may still let these through; they are no JSON.
    if b"NaN" in text or b"Infinity" in text:
        strict = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(strict, ensure_ascii=False, separators=(",", ":")).encode()
    return text


def _with_sorted_sets(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """Get `value` itself where it holds no set, else a copy whose sets are sorted lists."""
    if isinstance(value, _SCALARS):
        return value
    if depth > _MAX_DEPTH or id(value) in seen:
        raise ResultError("what refers to itself, or is nested too deeply, has no JSON form")
    seen[id(value)] = value
    try:
        return _copied(value, lambda part: _with_sorted_sets(part, seen, depth + 1))
    finally:
        del seen[id(value)]


def _copied(value: Any, copied: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted((copied(part) for part in value), key=to_json)
    if isinstance(value, BaseModel):
        return _copied_model(value, copied)
    if isinstance(value, dict):
        new = {key: copied(part) for key, part in value.items()}
        return new if any(part is not old for part, old in zip(new.values(), value.values(), strict=True)) else value
    if isinstance(value, list | tuple | deque):
        parts = [copied(part) for part in value]
        return parts if any(part is not old for part, old in zip(parts, value, strict=True)) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        new = {name: copied(part) for name, part in fields.items()}
        if all(new[name] is fields[name] for name in new):
            return value
        twin = object.__new__(type(value))
        for name, part in new.items():
            object.__setattr__(twin, name, part)
        return twin
    return value


def _copied_model(value: BaseModel, copied: Any) -> BaseModel:
    fields, extra = value.__dict__, value.__pydantic_extra__
    new = {name: copied(part) for name, part in fields.items()}
    new_extra = {name: copied(part) for name, part in extra.items()} if extra else extra
    if all(new[name] is part for name, part in fields.items()) and (
        not extra or all(new_extra[name] is part for name, part in extra.items())  # type: ignore[index]
    ):
        return value
    # Made by hand, so that no validator runs and nothing that the model's own hooks do is done twice.
    twin = object.__new__(type(value))
    object.__setattr__(twin, "__dict__", new)
    object.__setattr__(twin, "__pydantic_extra__", new_extra)
    object.__setattr__(twin, "__pydantic_fields_set__", value.__pydantic_fields_set__)
    object.__setattr__(twin, "__pydantic_private__", value.__pydantic_private__)
    return twin
