"""Conversion of a result's JSON back to the object that the function returned, by its return annotation.

This reverses `jsonio.view`: the object's JSON is exactly the given JSON. On the server, assignments and appends don't
run a class's validators, so an object there can contain values that its validators would refuse or change. Such an
object is also created without validators here.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.jsonio.view import to_json


def revive(value: Any, annotation: Any) -> Any:
    """Return the JSON value as an object of the annotated type, or unchanged if no object has exactly this JSON."""
    for candidate in _candidates(value, annotation):
        if _is_exact(candidate, value):
            return candidate
    return value


def _candidates(value: Any, annotation: Any) -> Iterator[Any]:
    """Yield the value as the annotation's validators convert it, then as it is converted without validators.

    In the second form, each part of the value is revived by itself. Of a union, each type is tried. `revive` takes the
    first exact candidate, so this generator computes a candidate only if the earlier candidates aren't exact.
    """
    with contextlib.suppress(Exception):  # validators and odd annotations can raise any exception
        yield TypeAdapter(annotation).validate_json(dumps(value))
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield revive(value, args[0])
    elif origin in (Union, types.UnionType):
        yield from (revive(value, member) for member in args)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        yield _construct(annotation, value)
    elif origin is dict and isinstance(value, dict):
        yield {revive(key, args[0]): revive(item, args[1]) for key, item in value.items()}
    elif origin is not None and isinstance(value, list):
        # `tuple[int, str]` has a type for each item. `list[int]` and `tuple[int, ...]` have one type for all items.
        item_types = args if origin is tuple and args[-1] is not ... else args[:1] * len(value)
        items = [revive(item, item_type) for item, item_type in zip(value, item_types, strict=False)]
        yield origin(items) if origin in (tuple, set, frozenset) else items


def _construct(model: type[BaseModel], value: dict[str, Any]) -> BaseModel:
    """Create a model from JSON without its validators. Its fields are revived by their annotations."""
    fields = {}
    for name, field in model.model_fields.items():
        key = field.serialization_alias or field.alias or name
        if key in value:
            fields[name] = revive(value[key], field.annotation)
    return model.model_construct(**fields)


def _is_exact(candidate: Any, value: Any) -> bool:
    """Return whether the JSON form of an object is exactly this value."""
    try:
        return dumps(loads(to_json(candidate)), sort_keys=True) == dumps(value, sort_keys=True)
    except Exception:  # noqa: BLE001 - the candidate might have no JSON form
        return False
