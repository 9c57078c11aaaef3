"""Fields of the model of a function's parameters, made from type hints, defaults and descriptions.

A default of pydantic's `Field(...)` means what it means in a model, and None as a default is also accepted.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Optional, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python
from typing_extensions import Doc

from toolpack_server.base.errors import RegistrationError


class PublishedSchema(GenerateJsonSchema):
    """The JSON Schema that agents see: without defaults that JSON can't express, such as infinity."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        published = super().default_schema(schema)
        try:
            json.dumps(to_jsonable_python(schema.get("default"), inf_nan_mode="constants"), allow_nan=False)
        except ValueError:
            published.pop("default", None)
        except (TypeError, PydanticSerializationError):
            pass  # pydantic has left it out
        return published


class ParametersModel(BaseModel):
    # Without a docstring, which would be the description of each schema.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=False)

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        return super().model_json_schema(*args, **{"schema_generator": PublishedSchema, **options})


def field_of(hint: Any, default: Any, text: str | None) -> tuple[Any, Any]:
    """Return the annotation and the field of a parameter, by its default and its description in the docstring."""
    if isinstance(default, FieldInfo):
        described = Annotated[hint, Field(description=text)] if text else hint
        return _with_none(described) if default.default is None else described, default
    default = ... if default is inspect.Parameter.empty else default
    return _with_none(hint) if default is None else hint, Field(default=default, description=text)


def _with_none(hint: Any) -> Any:
    """Allow None besides a type; it stays as it is where it allows it already."""
    try:
        TypeAdapter(hint).validate_python(None)
    except ValidationError:
        return Optional[hint]  # noqa: UP045 - `|` fails for some hints
    except Exception:  # noqa: BLE001 - the model of all parameters fails, too, and says why
        return hint
    return hint


def described_outside(hint: Any, default: Any) -> str | None:
    """Return the description that a parameter has in its annotation or its default, if any."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    fields = [place.description for place in (default, *notes) if isinstance(place, FieldInfo)]
    texts = [*fields, *(note.documentation for note in notes if isinstance(note, Doc))]
    return next(filter(None, texts), None)


def is_required(parameter: inspect.Parameter) -> bool:
    default = parameter.default
    return default is parameter.empty or (isinstance(default, FieldInfo) and default.is_required())


def check_default(name: str, default: Any) -> None:
    """Refuse a default that isn't a value and that pydantic doesn't read."""
    if isinstance(default, dataclasses.Field):
        raise RegistrationError(
            f"the default of parameter `{name}` is a dataclasses.field(...), which has no meaning in a function: give "
            "the default itself."
        )


def default_of(default: Any) -> Any:
    """Return the value that a default stands for."""
    return default.get_default(call_default_factory=True) if isinstance(default, FieldInfo) else default


def with_field_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that passes on the values of omitted arguments whose default is a `Field(...)`."""
    defaults: Mapping[str, FieldInfo] = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, FieldInfo) and not is_required(parameter)
    }
    if not defaults:
        return function

    def filled(*args: Any, **arguments: Any) -> Any:
        return function(*args, **{name: default_of(field) for name, field in defaults.items()} | arguments)

    return filled
