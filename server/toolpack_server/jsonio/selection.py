"""Selection of the items of a value that a view or a comparison needs, so that its other items needn't be read.

A selection is a copy of a value that lacks some items of its dicts, lists and models. Its other items have the same
JSON, at the same location, as in the whole value. That holds as long as no code of an author computes the JSON of a
container from several of its items, so the selection doesn't go into such containers. It only goes into plain dicts,
plain lists and models whose schema has no serializer for the way down. It doesn't go into objects of other classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel

MAX_DEPTH = 100
"""Maximum depth of a selection. Deeper items are kept as they are."""

_TEXTS = frozenset({str})
# Members of a core schema that aren't schemas. Some of them may be any value.
_NO_SCHEMAS = frozenset({"cls", "config", "default", "expected", "function", "metadata", "serialization"})


def select(value: Any, steps: Sequence[str]) -> Any:
    """Return a value with only the items on the way of a JSON Pointer, as far as it can be followed.

    Args:
        steps: The steps of the pointer, unescaped. Steps that lead nowhere lead nowhere in the result's JSON, too.
    """
    return _select(value, steps[:MAX_DEPTH])


def _select(value: Any, steps: Sequence[str]) -> Any:
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
    """Keep one item of a list. The others become None, so that its index stays the same."""
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
    ours, theirs = _Selectable.of(left), _Selectable.of(right)
    if ours is None or theirs is None or ours.kind is not theirs.kind or depth > MAX_DEPTH:
        return left, right
    if ours.is_root_model:
        root, other = _select_changes(ours.values["root"], theirs.values["root"], is_same, depth)
        return ours.copy(left, {"root": root}), theirs.copy(right, {"root": other})
    common = [name for name in ours.values if name in theirs.values]
    if common != [name for name in theirs.values if name in ours.values]:
        return left, right  # an order may show in references to plain objects
    dropped = {name for name in common if is_same(ours.values[name], theirs.values[name])}
    lefts, rights = ({k: v for k, v in items.values.items() if k not in dropped} for items in (ours, theirs))
    for name in common:
        if name in lefts and name not in ours.closed:
            lefts[name], rights[name] = _select_changes(lefts[name], rights[name], is_same, depth + 1)
    return ours.copy(left, lefts), theirs.copy(right, rights)


class _Fields(NamedTuple):
    """Fields of a class of models whose JSON consists of the JSON of each field.

    Attributes:
        names: The fields by their names in JSON, if these differ.
        closed: The fields whose value is seen by a serializer.
        is_root_model: The JSON is that of the only field.
    """

    names: Mapping[str, str]
    closed: frozenset[str]
    is_root_model: bool


_OF_DICTS = _Fields({}, frozenset(), is_root_model=False)


class _Selectable(NamedTuple):
    """Items of a dict or model that can be selected."""

    kind: type
    values: Mapping[str, Any]
    names: Mapping[str, str]
    closed: frozenset[str]
    is_root_model: bool

    @classmethod
    def of(cls, value: Any) -> "_Selectable | None":
        """Return the items of a value, or None if they can't be selected one by one."""
        kind = value.__class__  # unlike `type`, this loads a lazy instance
        if type(value) is not kind:
            return None
        if kind is dict:
            return cls(kind, value, *_OF_DICTS) if _TEXTS.issuperset(map(type, value)) else None
        if not isinstance(value, BaseModel):
            return None
        fields = _fields_of(kind)  # type: ignore[arg-type] # a class is hashable
        return None if fields is None else cls(kind, value.__dict__, *fields)

    def copy(self, value: Any, values: dict[str, Any]) -> Any:
        """Return a copy with other items. A model keeps the items that aren't fields."""
        if self.kind is dict:
            return values
        # Copied without pydantic, so that no validator or hook of the model runs.
        copy: Any = object.__new__(self.kind)
        object.__setattr__(copy, "__dict__", values)
        for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
            object.__setattr__(copy, name, getattr(value, name))
        return copy


@lru_cache(maxsize=1024)
def _fields_of(kind: type[BaseModel]) -> _Fields | None:
    """Return the fields of a class, or None if its JSON isn't that of its fields, each on its own."""
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
            return None  # it may see the other fields
        if serializers:
            closed.add(name)
        names[field.get("serialization_alias", name)] = name
    return _Fields(names, frozenset(closed), is_root_model=False) if len(names) == len(inner["fields"]) else None


def _unwrap(schema: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """Return the schema inside of validators and definitions, and collect the definitions."""
    while isinstance(schema, Mapping) and "serialization" not in schema:
        kind = schema.get("type", "")
        if kind == "definitions":
            definitions |= {found["ref"]: found for found in schema["definitions"]}
        elif kind == "definition-ref":
            schema = definitions.get(schema["schema_ref"], {})
            continue
        elif kind not in ("function-before", "function-after", "function-wrap"):
            break
        schema = schema["schema"]
    return schema if isinstance(schema, Mapping) else {}


def _serializers(schema: Any, definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the serializers in a schema, but none inside of a class: it sees only an instance of the class."""
    seen: set[str] = set()
    pending = [schema]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            if "serialization" in found:
                yield found["serialization"]
            kind = found.get("type")
            if kind == "definition-ref":
                if found["schema_ref"] not in seen:
                    seen.add(found["schema_ref"])
                    pending.append(definitions.get(found["schema_ref"], {}))
            elif kind not in ("model", "dataclass"):
                pending += [item for name, item in found.items() if name not in _NO_SCHEMAS]
        elif isinstance(found, Iterable) and not isinstance(found, str | bytes):
            pending += found
