"""The JSON of results and environments that agents and experimenters see: pydantic's, but strict and deterministic.

The rule: JSON is a view; only snapshots are exact. It uses aliases, includes the fields of subclasses, sorts sets by
their JSON text, and has null for NaN and infinities. A value without a JSON form is a `ResultError`, never a broken
reply.
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
        # No warnings: sets have become sorted lists on purpose.
        text = _ANYTHING.to_json(ordered, by_alias=True, serialize_as_any=True, warnings=False)
    except ResultError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ResultError(f"a value of type {type(value).__name__} has no JSON form: {reason}") from error
    # A model's own configuration may still allow these, which aren't JSON.
    if b"NaN" in text or b"Infinity" in text:
        strict = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(strict, ensure_ascii=False, separators=(",", ":")).encode()
    return text


def _with_sorted_sets(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """Get `value` itself if it holds no set, else a copy whose sets are sorted lists."""
    if isinstance(value, _SCALARS):
        return value
    if depth > _MAX_DEPTH or id(value) in seen:
        raise ResultError("a value that refers to itself or is nested too deeply has no JSON form")
    seen[id(value)] = value
    try:
        return _copy(value, lambda item: _with_sorted_sets(item, seen, depth + 1))
    finally:
        del seen[id(value)]


def _copy(value: Any, copy_item: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted((copy_item(item) for item in value), key=to_json)
    if isinstance(value, BaseModel):
        return _copy_model(value, copy_item)
    if isinstance(value, dict):
        new = {key: copy_item(item) for key, item in value.items()}
        return new if any(item is not old for item, old in zip(new.values(), value.values(), strict=True)) else value
    if isinstance(value, list | tuple | deque):
        items = [copy_item(item) for item in value]
        return items if any(item is not old for item, old in zip(items, value, strict=True)) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        new = {name: copy_item(item) for name, item in fields.items()}
        if all(new[name] is fields[name] for name in new):
            return value
        copy = object.__new__(type(value))
        for name, item in new.items():
            object.__setattr__(copy, name, item)
        return copy
    return value


def _copy_model(value: BaseModel, copy_item: Any) -> BaseModel:
    fields, extra = value.__dict__, value.__pydantic_extra__
    new = {name: copy_item(item) for name, item in fields.items()}
    new_extra = {name: copy_item(item) for name, item in extra.items()} if extra else extra
    if all(new[name] is item for name, item in fields.items()) and (
        not extra or all(new_extra[name] is item for name, item in extra.items())  # type: ignore[index]
    ):
        return value
    # Copied by hand, so that none of the model's validators and hooks runs.
    copy = object.__new__(type(value))
    object.__setattr__(copy, "__dict__", new)
    object.__setattr__(copy, "__pydantic_extra__", new_extra)
    object.__setattr__(copy, "__pydantic_fields_set__", value.__pydantic_fields_set__)
    object.__setattr__(copy, "__pydantic_private__", value.__pydantic_private__)
    return copy
