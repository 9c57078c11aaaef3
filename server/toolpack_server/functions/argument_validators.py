"""Validators of the values that agents and clients send, built from pydantic's core schemas of models.

Pydantic's own validators accept values that the JSON Schema shown to agents forbids, for example 1 for a boolean. The
validators in this module accept only values that match the JSON Schema. One exception: they convert a string that
spells a JSON number or boolean. Dates and times must be ISO 8601 strings. NaN and infinity are refused, even if a
nested model allows them.
"""

import cmath
import enum
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache, partial
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticKnownError, SchemaValidator, core_schema

MAX_DIGITS = sys.float_info.max_10_exp  # maximum number of digits of an integer in JSON


_VALUES = {
    "default",
    "expected",
    "metadata",
    "members",
    "config",
    "serialization",
}  # keys of a core schema whose values aren't schemas

_INTEGER = re.compile(rf"-?(0|[1-9]\d{{0,{MAX_DIGITS - 1}}})(\.0+)?", re.ASCII)
_NUMBER = re.compile(rf"-?(0|[1-9]\d{{0,{MAX_DIGITS - 1}}})(\.\d+)?([eE][+-]?\d{{1,3}})?", re.ASCII)
# Exponents are limited to the range of a float. Otherwise a few characters could create a number with a million digits.
_DECIMAL = re.compile(rf"[+-]?(\d{{1,{MAX_DIGITS}}}(\.\d*)?|\.\d+)([eE][+-]?0*(\d{{1,2}}|[12]\d\d|30[0-8]))?", re.ASCII)
_FRACTION = re.compile(rf"{_DECIMAL.pattern}|[+-]?\d{{1,{MAX_DIGITS}}}/\d{{1,{MAX_DIGITS}}}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DATETIME = re.compile(r"\d{4}-\d{2}-\d{2}([Tt _].*)?", re.ASCII)
_TIME = re.compile(r"\d{2}:\d{2}.*", re.ASCII)
_DURATION = re.compile(r"[+-]?P.*", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def argument_validator(model: type[BaseModel]) -> SchemaValidator:
    """Return a validator that accepts only values allowed by a model's JSON Schema, at any depth."""
    return _validator(model, _Transform(guarded=True))


@cache
def finite_validator(model: type[BaseModel]) -> SchemaValidator:
    """Return a validator like the model's own, except that it refuses NaN and infinity at any depth."""
    return _validator(model, _Transform(guarded=False))


def _validator(model: type[BaseModel], transform: "_Transform") -> SchemaValidator:
    """Return the validator for a model's core schema after a transformation."""
    model.model_rebuild()  # only has an effect if a name in a type hint was undefined when the class was created
    # Without `_use_prebuilt=False`, pydantic would use the unchanged validators of nested classes.
    return SchemaValidator(transform(model.__pydantic_core_schema__), _use_prebuilt=False)


class _Transform:
    """Copies a core schema, and changes the copy so that numbers must be finite.

    Args:
        guarded: Also insert a check before each pydantic conversion that accepts more values than the JSON Schema.
    """

    def __init__(self, *, guarded: bool) -> None:
        self._guarded = guarded
        self._definitions: list[Any] = []

    def __call__(self, schema: Any, *, iso_durations: bool = True) -> Any:
        """Return the changed copy of a core schema, or of a part of one.

        Args:
            iso_durations: The JSON Schema describes durations as ISO 8601 strings, and not as numbers of seconds.
        """
        again = partial(self, iso_durations=iso_durations)
        if isinstance(schema, list | tuple):
            return type(schema)(map(again, schema))
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if not isinstance(kind, str):  # this dictionary isn't a schema, but maps names to fields or choices
            return {name: again(part) for name, part in schema.items()}
        if "config" in schema:
            how = schema["config"].get("ser_json_timedelta", "iso8601")
            again = partial(self, iso_durations=how == "iso8601")
        if kind == "definitions":
            self._definitions = schema["definitions"]
        copy = {name: part if name in _VALUES else again(part) for name, part in schema.items()}
        if kind in {"float", "decimal"}:
            copy["allow_inf_nan"] = False
        if kind == "union":
            copy["choices"] = [self._labelled(*pair) for pair in zip(schema["choices"], copy["choices"], strict=True)]
        check = _check_of(schema, iso_durations=iso_durations) if self._guarded else _FINITE.get(kind)
        if copy.get("custom_init"):  # see `_check_fields`
            fields = self._whole(copy | {"custom_init": False})
            check = partial(_check_fields, SchemaValidator(fields, _use_prebuilt=False))
        return copy if check is None else _checked(check, copy)

    def _labelled(self, choice: Any, copy: Any) -> Any:
        """Return a union's changed choice with its original title, because errors contain this title as a location."""
        if isinstance(copy, tuple):  # the union itself has labelled this choice
            return copy
        try:
            return copy, SchemaValidator(self._whole(choice)).title
        except Exception:  # noqa: BLE001 - no validator can be built from this choice alone, so keep its new title
            return copy

    def _whole(self, schema: Any) -> Any:
        """Return a part of a core schema, together with the definitions that it refers to."""
        return core_schema.definitions_schema(schema, self._definitions) if self._definitions else schema


def _checked(check: Callable[[Any], Any], schema: dict[str, Any]) -> Any:
    """Return a schema that runs a check before the given schema.

    The new schema takes over the given schema's `ref`, so that references to the given schema include the check.
    """
    ref = schema.pop("ref", None)
    return core_schema.no_info_before_validator_function(check, schema, ref=ref)


def _check_of(schema: Mapping[str, Any], *, iso_durations: bool) -> Callable[[Any], Any] | None:
    """Return the check that runs before pydantic converts a value of this schema.

    The check refuses values that pydantic would convert although the JSON Schema doesn't allow them. Return None if
    pydantic converts only values that the JSON Schema allows.
    """
    kind = schema["type"]
    if kind == "timedelta" and not iso_durations:
        return partial(_check_number, "time_delta")
    if kind in {"enum", "literal"}:
        values = [member.value for member in schema["members"]] if kind == "enum" else schema["expected"]
        return partial(_check_choice, values) if any(isinstance(value, int | float) for value in values) else None
    if kind == "lax-or-strict":  # for example IP addresses
        return _check_text if _is_text(schema) else None
    return _CHECKS.get(kind)


def _is_text(schema: Any) -> bool:
    """Return whether the JSON Schema of a core schema describes a string."""
    try:
        return GenerateJsonSchema().generate(schema).get("type") == "string"
    except Exception:  # noqa: BLE001 - pydantic can't create a JSON Schema for it
        return False


def _check_integer(value: Any) -> Any:
    """Refuse a boolean, and a string that doesn't spell a JSON integer.

    Like all checks except `_check_complex`, return the value unchanged.
    """
    if type(value) is str:
        if not _INTEGER.fullmatch(value):
            raise PydanticKnownError("int_parsing")
    elif type(value) is bool:
        raise PydanticKnownError("int_type")
    return value


def _check_float(value: Any) -> Any:
    """Refuse a boolean, and a string that doesn't spell a JSON number."""
    if type(value) is str:
        if not _NUMBER.fullmatch(value):
            raise PydanticKnownError("float_parsing")
    elif type(value) is bool:
        raise PydanticKnownError("float_type")
    return value


def _check_boolean(value: Any) -> Any:
    """Refuse all values except a boolean, "true" and "false". Pydantic alone would also convert, for example, "yes"."""
    if type(value) is bool:
        return value
    if type(value) is not str:
        raise PydanticKnownError("bool_type")
    if value not in {"true", "false"}:
        raise PydanticKnownError("bool_parsing")
    return value


def _check_decimal(value: Any) -> Any:
    """Refuse values other than numbers and strings that spell a decimal number of limited size."""
    if isinstance(value, str):
        if not _DECIMAL.fullmatch(value):
            raise PydanticKnownError("decimal_parsing")
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise PydanticKnownError("decimal_type")
    return value


def _check_fraction(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and not _FRACTION.fullmatch(value)):
        raise PydanticKnownError("fraction_parsing")
    return value


def _check_complex(value: Any) -> Any:
    """Refuse a number, because the JSON Schema describes a string, and refuse NaN and infinity.

    A string is returned as a complex number, because its value must be checked anyway.
    """
    if isinstance(value, str):
        try:
            value = complex(value)
        except ValueError:
            raise PydanticKnownError("complex_str_parsing") from None
    elif isinstance(value, int | float):
        raise PydanticKnownError("complex_type")
    if isinstance(value, complex) and not cmath.isfinite(value):
        raise PydanticKnownError("finite_number")
    return value


def _check_finite(value: Any) -> Any:
    """Refuse NaN and infinity. Leave values that aren't numbers to pydantic, which refuses them."""
    try:
        finite = cmath.isfinite(complex(value))
    except (ValueError, TypeError, OverflowError):
        return value
    if not finite:
        raise PydanticKnownError("finite_number")
    return value


def _check_number(kind: str, value: Any) -> Any:
    """Refuse a duration that is neither a timedelta nor a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, timedelta) and not (is_number and math.isfinite(value)):
        raise PydanticKnownError(f"{kind}_type")  # type: ignore[arg-type]
    return value


def _check_iso(kind: str, pattern: re.Pattern[str], example: str, instances: type[Any], value: Any) -> Any:
    """Refuse a value that is neither an ISO 8601 string nor one of `instances`, such as a timestamp as a number.

    Pydantic checks the details of the string later.

    Args:
        kind: The beginning of pydantic's error types, for example "date" for "date_parsing".
        example: A correct string, for the error.
    """
    if isinstance(value, str):
        if not pattern.fullmatch(value):
            raise PydanticKnownError(f"{kind}_parsing", {"error": f"like {example}"})  # type: ignore[arg-type]
    elif not isinstance(value, instances):
        raise PydanticKnownError(f"{kind}_type")  # type: ignore[arg-type]
    return value


def _check_uuid(value: Any) -> Any:
    if isinstance(value, str) and not _UUID.fullmatch(value):
        raise PydanticKnownError("uuid_parsing", {"error": "like 123e4567-e89b-42d3-a456-426614174000"})
    return value


def _check_choice(choices: list[Any], value: Any) -> Any:
    """Refuse a string, number or boolean that isn't one of the choices. Unlike in Python, True doesn't equal 1."""
    if isinstance(value, str | int | float) and not isinstance(value, enum.Enum):
        equal = [choice for choice in choices if choice == value]
        if not any((type(choice) is bool) == (type(value) is bool) for choice in equal):
            raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, choices))})
    return value


def _check_text(value: Any) -> Any:
    if isinstance(value, int | float):
        raise PydanticKnownError("string_type")
    return value


def _check_array(value: Any) -> Any:
    if isinstance(value, dict):
        raise PydanticKnownError("tuple_type")
    return value


def _check_json(value: Any) -> Any:
    """Refuse a JSON string that contains NaN or an infinite number. Pydantic alone would accept `NaN`."""
    if isinstance(value, str):
        try:
            json.loads(value, parse_constant=_finite, parse_float=_finite)
        except OverflowError:
            raise PydanticKnownError("finite_number") from None
        except (ValueError, RecursionError) as error:
            raise PydanticKnownError("json_invalid", {"error": str(error)}) from None
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise OverflowError
    return number


def _check_fields(validator: SchemaValidator, value: Any) -> Any:
    """Validate the arguments of a class that defines its own `__init__`.

    Pydantic calls such an `__init__` first, and it passes the arguments to pydantic's own validator, without our
    checks.
    """
    if isinstance(value, dict):
        validator.validate_python(value)
    return value


_FINITE: Mapping[str, Callable[[Any], Any]] = {"complex": _check_finite, "json": _check_json}
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "int": _check_integer,
    "float": _check_float,
    "bool": _check_boolean,
    "decimal": _check_decimal,
    "fraction": _check_fraction,
    "complex": _check_complex,
    "date": partial(_check_iso, "date", _DATE, "2026-03-05", date),
    "datetime": partial(_check_iso, "datetime", _DATETIME, "2026-03-05T14:30:00", date),
    "time": partial(_check_iso, "time", _TIME, "14:30:00", time),
    "timedelta": partial(_check_iso, "time_delta", _DURATION, "P1DT2H30M", timedelta),
    "uuid": _check_uuid,
    "named-tuple": _check_array,
    "json": _check_json,
}
