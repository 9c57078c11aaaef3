"""Selection of the items that a view or a comparison needs from a value, so that its other items needn't be read.

A selection is a copy of a value without some items of its dicts, lists and models. The remaining items have the same
JSON, at the same location, as in the whole value. This wouldn't hold if an author's code computed a container's JSON
from several items. So items are selected only in plain dicts, plain lists, and models whose schema has no serializer on
the path to the items. All other containers are copied whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel

MAX_DEPTH = 100
"""Maximum depth of a selection. Deeper items are kept as they are."""

_TEXTS = frozenset({str})
# Keys of a core schema whose values aren't schemas. Some of these values can be any object.
_NO_SCHEMAS = frozenset({"cls", "config", "default", "expected", "function", "metadata", "serialization"})


def select(value: Any, steps: Sequence[str]) -> Any:
    """Return a copy of a value with only the items on the path of a JSON Pointer, as far as they can be selected.

    Args:
        steps: The unescaped steps of the pointer. If the pointer leads nowhere in the value's JSON, it also leads
        nowhere
            in the result's JSON.
    """
    return _select(value, steps[:MAX_DEPTH])


def _select(value: Any, steps: Sequence[str]) -> Any:
    """Do the work of `select`; it calls itself for the inner steps."""
    if not steps:
        return value
    items = _Selectable.of(value)
    if items is None:
        return _select_index(value, steps) if type(value) is list else value
    if items.is_root_model:
        return items.copy(value, {name: _select(item, steps) for name, item in items.values.items()})
    name = items.names.get(steps[0], steps[0])
    if name not in items.values:
        return items.copy(value, {})
    item = items.values[name]
    return items.copy(value, {name: item if name in items.closed else _select(item, steps[1:])})


def _select_index(value: list[Any], steps: Sequence[str]) -> list[Any]:
    """Return a list with one item of a list. The other items become None, so that the item keeps its index."""
    selected: list[Any] = [None] * len(value)
    try:
        index = int(steps[0])
    except ValueError:
        return selected
    if 0 <= index < len(value):
        selected[index] = _select(value[index], steps[1:])
    return selected


def select_changes(left: Any, right: Any, is_same: Callable[[Any, Any], bool]) -> tuple[Any, Any]:
    """Return two values without items that have the same JSON in both.

    Args:
        is_same: Returns True if two objects are known to have the same JSON at the same location.
    """
    return _select_changes(left, right, is_same, 0)


def _select_changes(left: Any, right: Any, is_same: Callable[[Any, Any], bool], depth: int) -> tuple[Any, Any]:
    """Do the work of `select_changes`; it calls itself for the inner values. `depth` is the number of calls."""
    left_items, right_items = _Selectable.of(left), _Selectable.of(right)
    if left_items is None or right_items is None or left_items.kind is not right_items.kind or depth > MAX_DEPTH:
        return left, right
    if left_items.is_root_model:
        left_root, right_root = (items.values["root"] for items in (left_items, right_items))
        left_root, right_root = _select_changes(left_root, right_root, is_same, depth)
        return left_items.copy(left, {"root": left_root}), right_items.copy(right, {"root": right_root})
    common = [name for name in left_items.values if name in right_items.values]
    if common != [name for name in right_items.values if name in left_items.values]:
        return left, right  # a different order can change references to plain objects, so keep all items
    dropped = {name for name in common if is_same(left_items.values[name], right_items.values[name])}
    lefts, rights = (
        {name: item for name, item in items.values.items() if name not in dropped}
        for items in (left_items, right_items)
    )
    for name in common:
        if name in lefts and name not in left_items.closed:
            lefts[name], rights[name] = _select_changes(lefts[name], rights[name], is_same, depth + 1)
    return left_items.copy(left, lefts), right_items.copy(right, rights)


class _Fields(NamedTuple):
    """Fields of a class of models whose JSON consists of the JSON of each field.

    Attributes:
        names: The names of the fields by their names in JSON.
        closed: The fields with a serializer. It sees the field's whole value, so no items of the value are omitted.
        is_root_model: The class's JSON is the JSON of its only field.
    """

    names: Mapping[str, str]
    closed: frozenset[str]
    is_root_model: bool


_OF_DICTS = _Fields({}, frozenset(), is_root_model=False)


class _Selectable(NamedTuple):
    """Items of a dict or model that can be selected. The other attributes are those of `_Fields`."""

    kind: type
    values: Mapping[str, Any]
    names: Mapping[str, str]
    closed: frozenset[str]
    is_root_model: bool

    @classmethod
    def of(cls, value: Any) -> "_Selectable | None":
        """Return the items of a value, or None if they can't be selected one by one."""
        kind = value.__class__  # unlike `type(value)`, this loads a lazy instance
        if type(value) is not kind:
            return None
        if kind is dict:
            return cls(kind, value, *_OF_DICTS) if _TEXTS.issuperset(map(type, value)) else None
        if not isinstance(value, BaseModel):
            return None
        fields = _fields_of(kind)  # type: ignore[arg-type] # a class is hashable
        return None if fields is None else cls(kind, value.__dict__, *fields)

    def copy(self, value: Any, values: dict[str, Any]) -> Any:
        """Return a copy of a value with other items. A model keeps its data that isn't in fields."""
        if self.kind is dict:
            return values
        # Copy without pydantic, so that no validator or hook of the model runs.
        copy: Any = object.__new__(self.kind)
        object.__setattr__(copy, "__dict__", values)
        for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
            object.__setattr__(copy, name, getattr(value, name))
        return copy


@lru_cache(maxsize=1024)
def _fields_of(kind: type[BaseModel]) -> _Fields | None:
    """Return the fields of a class, or None if its JSON doesn't consist of the JSON of each field."""
    definitions: dict[str, Any] = {}
    model = _unwrap(kind.__pydantic_core_schema__, definitions)
    if model.get("type") != "model" or model.get("cls") is not kind or "serialization" in model:
        return None
    inner = _unwrap(model["schema"], definitions)
    if model.get("root_model"):
        is_closed = any(_serializers(inner, definitions))
        return _Fields({}, frozenset({"root"} if is_closed else ()), is_root_model=True)
    if inner.get("type") != "model-fields" or inner.get("computed_fields") or "serialization" in inner:
        return None
    names, closed = {}, set()
    for name, field in inner["fields"].items():
        serializers = [*_serializers(field, definitions)]
        if "serialization_exclude_if" in field or any(each.get("is_field_serializer") for each in serializers):
            return None  # the serializer or the condition can read the other fields
        if serializers:
            closed.add(name)
        names[field.get("serialization_alias", name)] = name
    return _Fields(names, frozenset(closed), is_root_model=False) if len(names) == len(inner["fields"]) else None


def _unwrap(schema: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """Return the schema inside of validators and definitions, and collect the definitions."""
    while isinstance(schema, Mapping) and "serialization" not in schema:
        kind = schema.get("type", "")
        if kind == "definitions":
            definitions |= {definition["ref"]: definition for definition in schema["definitions"]}
        elif kind == "definition-ref":
            schema = definitions.get(schema["schema_ref"], {})
            continue
        elif kind not in ("function-before", "function-after", "function-wrap"):
            break
        schema = schema["schema"]
    return schema if isinstance(schema, Mapping) else {}


def _serializers(schema: Any, definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the serializers in a schema. Skip those inside of a class, because they see only instances of the class."""
    seen: set[str] = set()
    pending = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            if "serialization" in item:
                yield item["serialization"]
            kind = item.get("type")
            if kind == "definition-ref":
                if item["schema_ref"] not in seen:
                    seen.add(item["schema_ref"])
                    pending.append(definitions.get(item["schema_ref"], {}))
            elif kind not in ("model", "dataclass"):
                pending += [inner for name, inner in item.items() if name not in _NO_SCHEMAS]
        elif isinstance(item, Iterable) and not isinstance(item, str | bytes):
            pending += item
