"""JSON view of results and environments: pydantic's JSON, but strict and deterministic.

JSON is only a view; snapshots are exact. The view uses aliases, includes the fields of subclasses, sorts sets by their
JSON text, and writes null for NaN and infinities. A value without a JSON form raises `ResultError`. A dictionary with
two keys that have the same JSON text, such as 7 and "7", also raises it.

A *plain object*, an instance of a class that isn't a pydantic model, is shown as its public attributes. Plain objects
can refer to each other, so each object is shown once, and each further occurrence is `{"$ref": "<JSON Pointer to the
first>"}`. A value inside a plain object that can be stored but has no JSON form is shown as `{"$type": "<its class>"}`.
"""

import dataclasses
import itertools
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from datetime import UTC, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache
from operator import is_not
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaSerializer, core_schema
from typing_extensions import override

from toolpack_server.base.errors import PlainObjectError, ResultError, shown
from toolpack_server.jsonio.strict import MAX_DIGITS, check_integers
from toolpack_server.volumes.volume import Volume

_SCALARS = (str, int, float, bool, type(None))
_TEXTS = frozenset({str})
_PLAIN = frozenset(_SCALARS)  # exact types of items that need no copy
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, BaseModel)
_MAX_DEPTH = 200
_WHOLE_DIGITS = 40  # a decimal with more digits before the point is written with an exponent
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_ANYTHING = SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "null"})


class _RepeatedKeyError(ValueError):
    """Two keys of a value have the same JSON text, so one would hide the other."""

    def __init__(self, key: str) -> None:
        super().__init__(f"two of its keys are {shown(json.dumps(key))} in JSON")


KEY = " (key)"
"""Suffix of a JSON Pointer that refers to the key of a dictionary's item, not to the item."""

Copy = Callable[[Any, Any], Any]
"""Copies an item of a value. The second argument is the item's key in the JSON; None if the JSON has no key for it."""


def to_json(
    value: Any,
    plain: Container[type] = (),
    explain: Callable[[str], str] = str,
    *,
    comparable: bool = False,
    is_part: bool = False,
) -> bytes:
    """Return the JSON text of a value.

    Args:
        value: The value.
        plain: Classes whose instances are shown as their public attributes.
        explain: Function that extends the message about a value without a JSON form.
        comparable: Write equal decimals, and equal times with a zone, in the same way.
        is_part: The value is a selection of a larger value.

    Raises:
        ResultError: A value has no JSON form, or a volume can't be shown. PlainObjectError: The selection contains
        plain objects or can't be shown, so the caller must show the larger value.
    """
    try:
        if comparable:
            ordered = _Comparable(plain).copy(value, None)
        else:
            ordered = value if isinstance(value, _SCALARS) else _ordered(value, plain, is_part=is_part)
    except (ResultError, PlainObjectError):
        raise
    except _AmbiguousError as error:
        raise ResultError(explain(str(error))) from None
    except Exception as error:
        raise ResultError(explain(f"{_describe(value, [])} has no JSON form: {_reason(error)}")) from error
    try:
        # Without `warnings=False`, pydantic would warn that a field for a set has a list, its sorted items.
        text = _ANYTHING.to_json(ordered, by_alias=True, serialize_as_any=True, warnings=False)
        if len(text) > MAX_DIGITS:
            check_integers(text)
    except Exception as error:
        raise ResultError(explain(f"{_culprit(ordered)} has no JSON form: {_reason(error)}")) from error
    # A model's own configuration can allow NaN and infinities, which aren't JSON.
    if b"NaN" in text or b"Infinity" in text:
        strict = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(strict, ensure_ascii=False, separators=(",", ":")).encode()
    return text


def _reason(error: Exception) -> str:
    """Return the reason in an exception, in one line."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0]


def _culprit(value: Any) -> str:
    """Describe the innermost item without a JSON form, and its location. The value must not refer to itself."""
    path: list[Any] = []
    item: tuple[Any, Any] | None = (None, value)
    while item is not None:
        step, value = item
        path.append(step)
        try:
            item = next((each for each in _items(value) if not _has_json_form(each[1])), None)
        except Exception:  # noqa: BLE001 - a class can override how its items are read
            break
    return _describe(value, path)


def _describe(value: Any, path: list[Any]) -> str:
    """Describe a value by its type and location, for a message."""
    where = shown(_pointer(path)).encode(errors="replace").decode()
    return f"a value of type {type(value).__name__}{f' at {where}' if where else ''}"


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container, each with its key in the JSON."""
    if isinstance(value, dict):
        return [(key, item) for key, item in value.items() if isinstance(key, str | int)]
    if isinstance(value, list | tuple | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        names = _shown_names(type(value))
        fields = [(names.get(name, name), item) for name, item in value.__dict__.items()]
        return [*fields, *(value.__pydantic_extra__ or {}).items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return ()


def _has_json_form(value: Any) -> bool:
    """Return whether pydantic can write a value as JSON."""
    try:
        check_integers(_ANYTHING.to_json(value, by_alias=True, serialize_as_any=True, warnings=False))
    except Exception:  # noqa: BLE001 - any exception means that the value has no JSON form
        return False
    return True


def without_json(value: Any) -> dict[str, str]:
    """Return the placeholder for a value that has no JSON form."""
    kind = type(value)
    return {"$type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")}


def _ordered(value: Any, plain: Container[type], *, is_part: bool) -> Any:
    """Return a copy of a value, with sets as sorted lists, and plain objects in their JSON form.

    Without sets and plain objects, return the value itself.
    """
    try:
        return _with_sorted_sets(value, {}, 0, plain)
    # Copy again in a slower way, which knows the location of each value.
    except (PlainObjectError, RecursionError, _RepeatedKeyError):
        if is_part:
            raise PlainObjectError from None
        return _Objects(plain).copy(value, None)


def _with_sorted_sets(value: Any, inside: dict[int, Any], depth: int, plain: Container[type]) -> Any:
    """Return a copy of a value with sets as sorted lists.

    Args:
        inside: The values that contain this value, by `id`.
        depth: The number of values that contain this value.

    Raises:
        PlainObjectError: The value contains a plain object, refers to itself, or is nested too deeply.
    """
    if isinstance(value, _SCALARS):
        return value
    if type(value) in plain or depth > _MAX_DEPTH or id(value) in inside:
        raise PlainObjectError
    inside[id(value)] = value
    try:
        return _copy(value, lambda item, _step: _with_sorted_sets(item, inside, depth + 1, plain))
    finally:
        del inside[id(value)]


class _AmbiguousError(Exception):
    """A value has two keys with the same JSON text. The message contains the value's location."""


class _Objects:
    """Copies values that contain plain objects, and records the location of each object."""

    def __init__(self, plain: Container[type]) -> None:
        self._plain = plain
        self._inside: dict[int, int] = {}  # length of the path of each value that is being copied, by `id`
        self._path: list[Any] = []
        self._shown: dict[int, list[Any]] = {}  # path of the first occurrence of each plain object, by `id`
        self._plain_depth = 0  # number of plain objects that contain the current value

    def copy(self, value: Any, step: Any) -> Any:
        """Return a copy of a value that is one step below the current location."""
        if isinstance(value, _SCALARS):
            return value
        if id(value) in self._shown:
            return {"$ref": _pointer(self._shown[id(value)])}
        if len(self._path) > _MAX_DEPTH or id(value) in self._inside:
            return self._refer(value, step)
        self._path.append(step)
        self._inside[id(value)] = len(self._path)
        try:
            return self._copy(value)
        finally:
            del self._inside[id(value)]
            self._path.pop()

    def _copy(self, value: Any) -> Any:
        """Return a copy of the value at the current location."""
        if type(value) in self._plain:
            self._shown[id(value)] = self._path.copy()
            self._plain_depth += 1
            try:
                return {name: self.copy(item, name) for name, item in _public_attributes(value).items()}
            finally:
                self._plain_depth -= 1
        if self._plain_depth and not isinstance(value, Volume):
            if isinstance(value, dict):
                self._check_keys(value)
            elif not (isinstance(value, _CONTAINERS) or dataclasses.is_dataclass(value) or _has_json(value)):
                return without_json(value)
        try:
            return _copy(value, self.copy)
        except _RepeatedKeyError as error:
            raise _AmbiguousError(f"{_describe(value, self._path)} has no JSON form: {error}") from None

    def _refer(self, value: Any, step: Any) -> Any:
        """Return a reference to a value that contains itself, if it is inside of a plain object.

        Raises:
            RecursionError: The value is nested too deeply.
            ResultError: The value contains itself, but isn't inside of a plain object.
        """
        if id(value) not in self._inside:
            raise RecursionError
        if self._plain_depth:
            return {"$ref": _pointer(self._path[: self._inside[id(value)]])}
        raise ResultError(f"{_describe(value, [*self._path, step])} has no JSON form: it refers to itself")

    def _check_keys(self, value: dict[Any, Any]) -> None:
        """Raise `ResultError` if a key of a dictionary has no JSON form."""
        for key in value:
            if not isinstance(key, _SCALARS) and not _has_json({key: None}):
                where = _pointer(self._path) or "/"
                raise ResultError(f"{where} has a key of type {type(key).__qualname__}, which has no JSON form")


class _Comparable(_Objects):
    """Copies values so that equal decimals, and equal times with a zone, are written in the same way."""

    @override
    def copy(self, value: Any, step: Any) -> Any:
        if isinstance(value, Decimal):
            return _shortest(value)
        return _in_utc(value) if isinstance(value, datetime) else super().copy(value, step)

    @override
    def _copy(self, value: Any) -> Any:
        if isinstance(value, dict) and any(isinstance(key, Decimal | datetime) for key in value):
            value = {
                (self.copy(key, None) if isinstance(key, Decimal | datetime) else key): value[key] for key in value
            }
        return super()._copy(value)


def _shortest(number: Decimal) -> Decimal:
    """Return a decimal without trailing zeros: 955 for 955.00."""
    if not number.is_finite():
        return number
    short = _EXACT.normalize(number) if number else Decimal(0)  # without the sign of -0
    exponent = short.as_tuple().exponent
    if isinstance(exponent, int) and exponent > 0 and short.adjusted() < _WHOLE_DIGITS:
        return short.quantize(Decimal(1), context=Context(prec=_WHOLE_DIGITS))
    return short


def _in_utc(time: datetime) -> datetime:
    """Return a time with a zone in UTC. Return a time without a zone unchanged."""
    try:
        return time if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:  # the year in UTC would be below 1 or above 9999
        return time


def _pointer(path: list[Any]) -> str:
    """Return the JSON Pointer (RFC 6901) of a path."""
    steps = [_key(step) for step in path if step is not None]
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps)


def _key(step: Any) -> str:
    """Return the JSON text of a dictionary's key or of an index."""
    if type(step) is int:
        return str(step)
    return step if isinstance(step, str) else next(iter(json.loads(_ANYTHING.to_json({step: None}))))


def _has_json(value: Any) -> bool:
    """Return whether a value has a JSON form. Iterators have none, because pydantic would consume them."""
    return not isinstance(value, Iterator) and _has_json_form(value)


def _public_attributes(value: Any) -> dict[str, Any]:
    """Return the public attributes that an object stores, in slots or in `__dict__`. No property runs."""
    slots: dict[str, Any] = {}
    for name, get in _public_slots(type(value)):  # type: ignore[arg-type] # a class is hashable
        try:
            slots[name] = get(value)
        except AttributeError:  # the slot is empty
            continue
    return slots | {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}


@lru_cache(maxsize=1024)
def _public_slots(kind: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the names of a class's public slots (`__slots__`), each with the function that reads the slot."""
    return [
        (name, slot.__get__)
        for base in reversed(kind.__mro__)
        for name, slot in vars(base).items()
        if type(slot).__name__ == "member_descriptor" and not name.startswith("_")
    ]


def _copy(value: Any, copy_item: Copy) -> Any:
    """Return a copy of a value with the copies of its items. Return the value itself if no item changes."""
    if type(value) in (dict, list):  # the most frequent types first
        return _copy_items(value, copy_item)
    if isinstance(value, Volume):
        return value.view()
    if isinstance(value, set | frozenset):
        return sorted((copy_item(item, None) for item in value), key=_sort_key)
    if isinstance(value, BaseModel):
        return _copy_model(value, copy_item)
    if isinstance(value, dict | list | tuple | deque):
        return _copy_items(value, copy_item)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _copy_data(value, copy_item)
    if isinstance(value, itertools.count):
        raise ResultError("an endless iterator has no JSON form")
    return value


def _sort_key(item: Any) -> bytes:
    """Return the sort key of a set's item: its JSON text."""
    try:
        return to_json(item)
    except ResultError:  # the conversion of the whole set will fail later, with the location in its message
        return b""


def _copy_items(value: Any, copy_item: Copy) -> Any:
    """Copy a dictionary or a sequence as `_copy` does. Items of plain types aren't copied, which saves time."""
    if isinstance(value, dict):
        if not _TEXTS.issuperset(map(type, value)):
            _check_keys(value)
        if _PLAIN.issuperset(map(type, value.values())):
            return value
        new = {key: item if type(item) in _PLAIN else copy_item(item, key) for key, item in value.items()}
        return new if any(map(is_not, new.values(), value.values())) else value
    if _PLAIN.issuperset(map(type, value)):
        return value
    items = [item if type(item) in _PLAIN else copy_item(item, index) for index, item in enumerate(value)]
    return items if any(map(is_not, items, value)) else value


def _check_keys(value: dict[Any, Any]) -> None:
    """Raise `_RepeatedKeyError` if two keys of a dictionary have the same JSON text."""
    if {int}.issuperset(map(type, value)):
        return
    texts = set()
    for key in value:
        try:
            text = _key(key)
        except Exception:  # noqa: BLE001, S112 - the key has no JSON form; pydantic's error explains it
            continue
        if text in texts:
            raise _RepeatedKeyError(text)
        texts.add(text)


def _copy_data(value: Any, copy_item: Copy) -> Any:
    """Copy an instance of a dataclass as `_copy` does. No code of the class runs."""
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    new = {name: copy_item(item, name) for name, item in fields.items()}
    if all(new[name] is fields[name] for name in new):
        return value
    copy = object.__new__(type(value))
    for name, item in new.items():
        object.__setattr__(copy, name, item)
    return copy


def _copy_model(value: BaseModel, copy_item: Copy) -> BaseModel:
    """Copy a model as `_copy` does. Raise `_RepeatedKeyError` if an extra field has the name of another field."""
    kind = type(value)
    fields, extra = value.__dict__, value.__pydantic_extra__
    shown = _shown_names(kind)
    if extra and (repeated := {shown.get(name, name) for name in fields} & extra.keys()):
        raise _RepeatedKeyError(str(min(map(str, repeated))))
    if not extra and _PLAIN.issuperset(map(type, fields.values())):
        return value
    is_root = getattr(kind, "__pydantic_root_model__", False)
    new = {
        name: item if type(item) in _PLAIN else copy_item(item, shown.get(name, name)) for name, item in fields.items()
    }
    new_extra = {name: copy_item(item, name) for name, item in extra.items()} if extra else extra
    if not any(map(is_not, new.values(), fields.values())) and (
        not extra or all(new_extra[name] is item for name, item in extra.items())  # type: ignore[index]
    ):
        return value
    # Copy without pydantic, so that no validator or hook of the model runs.
    copy = object.__new__(kind)
    object.__setattr__(copy, "__dict__", new)
    object.__setattr__(copy, "__pydantic_fields_set__", value.__pydantic_fields_set__)
    if not is_root:
        object.__setattr__(copy, "__pydantic_extra__", new_extra)
        object.__setattr__(copy, "__pydantic_private__", value.__pydantic_private__)
    return copy


@lru_cache(maxsize=1024)
def _shown_names(kind: type[BaseModel]) -> dict[str, str | None]:
    """Return the names in JSON of the fields that have an alias, by field.

    Raises:
        _RepeatedKeyError: Two fields have the same name in JSON.
    """
    if getattr(kind, "__pydantic_root_model__", False):
        return {"root": None}
    aliases = {name: field.serialization_alias or field.alias for name, field in kind.model_fields.items()}
    repeated = [name for name, count in Counter(alias or name for name, alias in aliases.items()).items() if count > 1]
    if repeated:
        raise _RepeatedKeyError(repeated[0])
    return {name: alias for name, alias in aliases.items() if alias}


def hidden_by_json(value: Any, plain: Container[type]) -> dict[str, str]:
    """Return the information that the JSON of a value lacks, by JSON Pointer: types of keys, NaN and infinities."""
    hidden: dict[str, str] = {}
    pending: list[tuple[list[Any], Any]] = [([], value)]
    seen: dict[int, Any] = {}
    while pending:
        path, value = pending.pop()
        if isinstance(value, float):
            if not math.isfinite(value):
                hidden[_pointer(path)] = str(float(value))
            continue
        if isinstance(value, _SCALARS) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, set | frozenset):
            texts = sorted(str(item) for item in value if isinstance(item, float) and not math.isfinite(item))
            if texts:
                hidden[_pointer(path)] = ", ".join(texts)
        elif type(value) in plain:
            pending += [([*path, name], item) for name, item in _public_attributes(value).items()]
        elif isinstance(value, dict):
            for key, item in value.items():
                step = _key(_Comparable(plain).copy(key, None) if isinstance(key, Decimal | datetime) else key)
                if not isinstance(key, str):
                    hidden[_pointer([*path, step]) + KEY] = type(key).__name__
                pending.append(([*path, step], item))
        else:
            pending += [([*path, step], item) for step, item in _items(value)]
    return hidden
