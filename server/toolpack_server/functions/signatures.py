"""Reader of a plain function's signature and docstring, which refuses functions that agents couldn't use correctly.

If a description or a type is missing, the reader doesn't guess. Instead, it raises an error that says what to change.
`features/authoring/classes/signatures.py` is the more lenient reader, for methods of classes not written for agents.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from toolpack_server.base.errors import RegistrationError
from toolpack_server.functions.argument_validators import argument_validator
from toolpack_server.functions.docstrings import description, parameter_descriptions, parse_docstring
from toolpack_server.functions.fields import (
    ParametersModel,
    check_default,
    default_of,
    described_outside,
    field_of,
    is_required,
)
from toolpack_server.volumes.volume import Volume

NEEDED = object()
"""Default of an option that can be omitted. If it is omitted, the method that uses it to prepare the environment isn't
called."""

_NO_SCHEMAS = {"default", "expected", "metadata"}  # keys of a core schema that hold the author's values, not schemas


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """Signature of a function, as agents see it and as the server binds arguments to it."""

    name: str
    description: str  # the docstring's short and long description
    parameters: type[BaseModel]  # the model that validates the documented parameters
    dependencies: dict[str, Any]  # the `Depends` of parameters that the environment provides
    # Defaults of hidden parameters, if they are mutable or specified by a `Field(...)`. Each call gets its own copy.
    fresh_defaults: dict[str, Any]
    return_type: Any | None
    # "forbid": models among the parameters refuse unknown keys, just as the function refuses unknown arguments. None:
    # one of the models is configured to accept or ignore unknown keys.
    unknown_keys: Literal["forbid"] | None


def read_signature(function: Callable[..., Any]) -> FunctionSignature:
    """Return the signature of a plain function, from its type hints and docstring.

    Raises:
        RegistrationError: Agents couldn't use the function correctly. The message says what to change.
    """
    name = getattr(function, "__name__", None)
    if name is None:
        raise RegistrationError(f"{function!r} has no name: wrap it in a function with `def`.")
    if isinstance(function, type):
        raise RegistrationError("it is a class: register functions, or make a toolpack of it with Toolpack.from_class.")
    if name == "<lambda>":
        raise RegistrationError("it is a lambda, which has no name and no docstring: write a function with `def`.")
    if not function.__doc__ or function.__doc__.isspace():  # before Python 3.13, a docstring can be only whitespace
        raise RegistrationError("there is no docstring: add one whose first line says what the function does.")
    docs = parse_docstring(function.__doc__)
    if not docs.short_description:
        raise RegistrationError("the docstring has no short description: say in its first line what the function does.")
    try:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except Exception as error:
        raise RegistrationError(f"its type hints can't be read ({error}): import or correct the names.") from error
    dependencies = {
        parameter: dependency
        for parameter, hint in hints.items()
        if (dependency := _dependency(hint)) is not None and parameter in signature.parameters
    }
    descriptions = parameter_descriptions(docs.params)
    for key, parameter in signature.parameters.items():
        text = None if key in dependencies else described_outside(hints.get(key), parameter.default)
        if text and not descriptions.get(key):
            descriptions[key] = text
    _check(signature, hints, descriptions, dependencies)
    fields = {key: field_of(hints[key], signature.parameters[key].default, descriptions[key]) for key in descriptions}
    parameters = parameters_model(name, fields)
    return FunctionSignature(
        name=name,
        description=description(docs),
        parameters=parameters,
        dependencies=dependencies,
        fresh_defaults={
            parameter.name: default_of(parameter.default)
            for parameter in signature.parameters.values()
            if parameter.default is not parameter.empty
            and parameter.name not in descriptions
            and parameter.name not in dependencies
            and is_passed(parameter.default)
        },
        return_type=get_type_hints(function).get("return"),
        unknown_keys=unknown_keys(parameters),
    )


def unknown_keys(parameters: type[BaseModel]) -> Literal["forbid"] | None:
    """Return the value of `FunctionSignature.unknown_keys` for a model of parameters."""
    return None if _accepts_unknown(parameters.__pydantic_core_schema__) else "forbid"


def _accepts_unknown(schema: Any) -> bool:
    """Return whether a class in a core schema is configured to accept or ignore unknown keys."""
    if isinstance(schema, list | tuple):
        return any(map(_accepts_unknown, schema))
    if not isinstance(schema, dict):
        return False
    lenient = {schema.get("extra_fields_behavior"), schema.get("extra_behavior")} & {"allow", "ignore"}
    # A dictionary without a type maps names of fields or choices, which can be equal to one of these keys.
    skipped = _NO_SCHEMAS if isinstance(schema.get("type"), str) else ()
    return bool(lenient) or any(_accepts_unknown(part) for key, part in schema.items() if key not in skipped)


def is_passed(default: Any) -> bool:
    """Return whether each call must get a copy of a hidden parameter's default: it is mutable, or it is a `Field(...)`.

    A default that can't be copied, such as a lock or a sentinel, stays the same object in all calls.
    """
    if isinstance(default, FieldInfo):
        return True
    if isinstance(default, str | int | float | bool | bytes | None) or type(default) is object:
        return False
    try:
        return copy.deepcopy(default) is not default
    except Exception:  # noqa: BLE001 - copying runs code of the object's class
        return False


def _dependency(hint: Any) -> Any:
    """Return the `Depends` in a type hint, or None.

    If the hint names another type for a volume, return a dependency that converts the volume to that type.
    """
    if get_origin(hint) is not Annotated:
        return None
    dependency = next((item for item in hint.__metadata__ if hasattr(item, "extract_dep_from_env")), None)
    target = get_args(hint)[0]
    if dependency is not None and any(target in kind.alternative_types for kind in Volume.__subclasses__()):
        return _ConvertedDependency(dependency, target)
    return dependency


class _ConvertedDependency:
    """A dependency on a volume that the function accepts as another type, such as a database connection.

    It stands in for the author's `Depends`, and converts the volume at each call.
    """

    def __init__(self, dependency: Any, target: type) -> None:
        self.env_dependency = dependency.env_dependency
        self._dependency = dependency
        self._target = target

    def extract_dep_from_env(self, env: Any) -> Any:
        value = self._dependency.extract_dep_from_env(env)
        return value.convert(self._target) if isinstance(value, Volume) else value


def _check(
    signature: inspect.Signature,
    hints: Mapping[str, Any],
    descriptions: Mapping[str, str],
    dependencies: Mapping[str, Any],
) -> None:
    """Raise a `RegistrationError` if a parameter lacks a type or a description, or can't be passed by name."""
    for name, text in descriptions.items():
        if name not in signature.parameters:
            raise RegistrationError(f"the docstring describes `{name}`, which isn't a parameter: correct or remove it.")
        if name in dependencies:
            raise RegistrationError(
                f"the docstring describes `{name}`, which comes from the environment: remove it, agents don't pass it."
            )
        if not text:
            raise RegistrationError(f"the docstring doesn't describe parameter `{name}`: add a description.")
        if name == "model_config" or name.startswith("_"):
            raise RegistrationError(f"pydantic doesn't allow the parameter name `{name}`: rename it.")
    for name, parameter in signature.parameters.items():
        _check_kind(name, parameter, hints)
    arguments = [name for name in signature.parameters if name not in dependencies]
    if bare := [name for name in arguments if name not in descriptions and is_required(signature.parameters[name])]:
        raise RegistrationError(f"{_subject(bare)} no default and no description: add one to the docstring.")
    if untyped := [name for name in arguments if name in descriptions and name not in hints]:
        raise RegistrationError(f"{_subject(untyped)} no type hint: add one.")


def _subject(names: Sequence[str]) -> str:
    quoted = ", ".join(f"`{name}`" for name in names)
    return f"parameter {quoted} has" if len(names) == 1 else f"parameters {quoted} have"


def _check_kind(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    """Raise a `RegistrationError` if agents can't pass this parameter by name, or its default or `Depends` is wrong."""
    if name in {"self", "cls"} and name not in hints:
        raise RegistrationError(
            f"it is a method, as it has the parameter `{name}`: register a function, or make a toolpack of its class "
            "with Toolpack.from_class."
        )
    check_default(name, parameter.default)
    if hasattr(parameter.default, "extract_dep_from_env") or hasattr(hints.get(name), "extract_dep_from_env"):
        raise RegistrationError(
            f"parameter `{name}` has its Depends in the wrong place: annotate it with Annotated[<type>, Depends(...)]."
        )
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise RegistrationError(f"`{parameter}` takes any argument: name each parameter.")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise RegistrationError(f"parameter `{name}` is positional-only, but agents pass names: remove the `/`.")


def parameters_model(function_name: str, fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Create the model that validates a function's arguments.

    Raises:
        RegistrationError: Pydantic can't create a JSON Schema for the fields.
    """
    try:
        with warnings.catch_warnings():
            # Pydantic warns of parameters named like a method of BaseModel (`copy`, `json`), but `bind` handles them.
            warnings.simplefilter("ignore", UserWarning)
            definitions: dict[str, Any] = {**fields}
            model = create_model(f"Input schema for `{function_name}`", __base__=ParametersModel, **definitions)
            model.model_json_schema()
            # Replace pydantic's own validator, because it accepts values that the JSON Schema forbids.
            model.__pydantic_validator__ = argument_validator(model)
    except Exception as error:
        name, reason = _bad_field(function_name, fields) or ("", str(error).partition("\n")[0])
        which = f"parameter `{name}`" if name else "its parameters"
        raise RegistrationError(
            f"no JSON Schema can be made of {which} ({reason}): use a pydantic model, a dataclass or plain types."
        ) from error
    return model


def _bad_field(function_name: str, fields: Mapping[str, tuple[Any, Any]]) -> tuple[str, str] | None:
    """Return the name of the first field that has no JSON Schema, and the reason.

    Return None if pydantic can create a schema for each field alone, so that only their combination fails.
    """
    for name, field in fields.items():
        try:
            definition: dict[str, Any] = {name: field}
            create_model(function_name, **definition).model_json_schema()
        except Exception as error:  # noqa: BLE001 - pydantic raises many classes
            hint = getattr(field[0], "__name__", None) or str(field[0])
            reason = str(error).partition("\n")[0]
            unknown = reason.startswith("Unable to generate pydantic-core schema")
            return name, f"pydantic doesn't know its type `{hint}`" if unknown else reason
    return None
