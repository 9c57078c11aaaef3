"""Fields of the model that validates a function's arguments, built from type hints, defaults and descriptions.

A default `Field(...)` means the same as in a pydantic model. A parameter with the default None accepts None, even if
its type hint doesn't.
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
    """Generator of the JSON Schema that agents see. It omits defaults that JSON can't represent, such as infinity."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the JSON Schema of a field with a default. Pydantic calls this for each such field."""
        published = super().default_schema(schema)
        try:
            json.dumps(to_jsonable_python(schema.get("default"), inf_nan_mode="constants"), allow_nan=False)
        except ValueError:
            published.pop("default", None)
        except (TypeError, PydanticSerializationError):
            pass  # pydantic has already omitted this default
        return published


class ParametersModel(BaseModel):
    # No docstring here: it would become the description of every function's schema.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=False)

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        return super().model_json_schema(*args, **{"schema_generator": PublishedSchema, **options})


def field_of(hint: Any, default: Any, text: str | None) -> tuple[Any, Any]:
    """Return the annotation and the pydantic field of a parameter, as `create_model` expects them.

    Args:
        text: The parameter's description in the docstring. None: there is no description.
    """
    if isinstance(default, FieldInfo):
        described = Annotated[hint, Field(description=text)] if text else hint
        return _with_none(described) if default.default is None else described, default
    default = ... if default is inspect.Parameter.empty else default
    return _with_none(hint) if default is None else hint, Field(default=default, description=text)


def _with_none(hint: Any) -> Any:
    """Return a type that also allows None. Return the type unchanged if it already does."""
    try:
        TypeAdapter(hint).validate_python(None)
    except ValidationError:
        return Optional[hint]  # noqa: UP045 - `|` fails for some hints
    except Exception:  # noqa: BLE001 - creating the model will fail for the same reason, with a better message
        return hint
    return hint


def described_outside(hint: Any, default: Any) -> str | None:
    """Return the description in a parameter's default or annotation, or None if neither contains a description."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    fields = [item.description for item in (default, *metadata) if isinstance(item, FieldInfo)]
    texts = [*fields, *(item.documentation for item in metadata if isinstance(item, Doc))]
    return next(filter(None, texts), None)


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a call must pass this parameter, because it has no default."""
    default = parameter.default
    return default is parameter.empty or (isinstance(default, FieldInfo) and default.is_required())


def check_default(name: str, default: Any) -> None:
    """Raise a `RegistrationError` if a default is a `dataclasses.field(...)`, because the author meant another value.

    In a plain function, the field object itself would become the argument.
    """
    if isinstance(default, dataclasses.Field):
        raise RegistrationError(
            f"the default of parameter `{name}` is a dataclasses.field(...), which has no meaning in a function: write "
            "the default itself."
        )


def default_of(default: Any) -> Any:
    """Return the value of a default: the default itself, or the value or factory's result of a `Field(...)`."""
    return default.get_default(call_default_factory=True) if isinstance(default, FieldInfo) else default


def with_field_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that an omitted argument gets the value of its `Field(...)` default, not the field itself."""
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
