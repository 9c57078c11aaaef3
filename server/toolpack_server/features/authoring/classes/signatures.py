"""Reader of signatures of methods, constructors and factories, in classes that weren't written for agents.

Authors can't always edit these classes, so type hints, descriptions and exact docstrings can be missing. A signature is
rejected only if calls would fail.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Optional, get_type_hints

import docstring_parser
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from toolpack_server.base.errors import RegistrationError
from toolpack_server.functions.docstrings import description, parameter_descriptions, parse_docstring
from toolpack_server.functions.fields import check_default, default_of, described_outside, field_of, is_required
from toolpack_server.functions.signatures import (
    NEEDED,
    FunctionSignature,
    is_passed,
    parameters_model,
    unknown_keys,
)


def _parse(text: str) -> docstring_parser.Docstring:
    """Parse a docstring. If parsing fails, the first line becomes the short description, the rest the long one."""
    try:
        return parse_docstring(text)
    except docstring_parser.ParseError:
        docs = docstring_parser.Docstring()
        docs.short_description, _, docs.long_description = inspect.cleandoc(text).partition("\n")
        return docs


def read_loosely(
    function: Callable[..., Any],
    name: str,
    docstring: str,
    *,
    receiver: bool = False,
    only: Mapping[str, str] | None = None,
    optional: bool = False,
) -> FunctionSignature:
    """Return the signature of a function, whose parameters can lack type hints and descriptions.

    Args:
        name: The function's name for agents.
        receiver: Whether the first parameter is the instance, which agents don't pass.
        only: The parameters that agents can pass, with their descriptions. None: all parameters with names that don't
            begin with `_`.
        optional: Whether agents can omit parameters that have no default. An omitted parameter is then None.

    Raises:
        RegistrationError: An agent couldn't call the function; the message says why.
    """
    signature, hints = _signature(function)
    docs = _parse(docstring)
    descriptions = parameter_descriptions(docs.params) | dict(only or {})
    fields: dict[str, tuple[Any, Any]] = {}
    hidden: dict[str, Any] = {}
    for parameter in [*signature.parameters.values()][receiver:]:  # True counts as 1, so the instance is skipped
        if only is not None and parameter.name not in only and parameter.kind in _VARIADIC:
            continue
        hint = hints.get(parameter.name, Any)
        if optional and is_required(parameter) and parameter.kind not in _VARIADIC:
            # A required parameter with a default has a pydantic `Field`, which can contain limits for values.
            limits = () if parameter.default is parameter.empty else (parameter.default,)
            hint = Annotated[(Optional[Annotated[(hint, *limits)] if limits else hint], NEEDED)]  # noqa: UP045 - `|` fails for some
            parameter = parameter.replace(default=None)  # noqa: PLW2901 - the rest of the loop uses the new default
        field = _field(parameter, hint, descriptions)
        if only is None:
            offered = not parameter.name.startswith("_")
        else:
            offered = parameter.name in only or described_outside(hint, parameter.default) is not None
        if offered and (parameter.name in descriptions or _can_be_offered(parameter, field)):
            fields[parameter.name] = field
        elif is_required(parameter):
            raise RegistrationError(f"parameter `{parameter.name}` has no default and can't be given by an agent.")
        else:
            hidden[parameter.name] = parameter.default
    parameters = parameters_model(name, fields)
    return FunctionSignature(
        name=name,
        description=description(docs),
        parameters=parameters,
        dependencies={},
        fresh_defaults={name: default_of(default) for name, default in hidden.items() if is_passed(default)},
        return_type=hints.get("return"),
        unknown_keys=unknown_keys(parameters),
    )


# The name of a class that both dataclasses and pydantic define. If a parameter's default is an instance of it, a
# factory creates the actual default.
_FACTORY = "_HAS_DEFAULT_FACTORY_CLASS"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return a function's signature and its type hints. Raise `RegistrationError` if the hints can't be read."""
    try:
        signature = inspect.signature(function)
        hinted = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        hints = get_type_hints(hinted, include_extras=True)
    except Exception as error:
        raise RegistrationError(f"its type hints can't be read ({error}).") from error
    for parameter in signature.parameters.values():  # for pydantic models, only the signature contains the hints
        if parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str):
            hints.setdefault(parameter.name, parameter.annotation)
    return signature, hints


def _field(parameter: inspect.Parameter, hint: Any, descriptions: dict[str, str]) -> tuple[Any, Any]:
    """Return the type and the pydantic field of a parameter. Raise `RegistrationError` if agents can't pass it."""
    if parameter.kind in _VARIADIC:
        raise RegistrationError(f"`{parameter}` takes any argument.")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise RegistrationError(f"parameter `{parameter.name}` is positional-only, but agents pass names.")
    check_default(parameter.name, parameter.default)
    text = descriptions.get(parameter.name) or described_outside(hint, parameter.default)
    if type(parameter.default).__name__ == _FACTORY:
        return hint, Field(default_factory=lambda: None, description=text)  # `_InstanceMaker` never passes this None
    return field_of(hint, parameter.default, text)


def _can_be_offered(parameter: inspect.Parameter, field: tuple[Any, Any]) -> bool:
    """Return whether agents can set an undocumented parameter.

    A parameter without a default must be set. Any other parameter can be set if its default can be converted to JSON
    and its type has a JSON Schema.
    """
    if is_required(parameter):
        return True
    try:
        to_jsonable_python(default_of(parameter.default))
        parameters_model(parameter.name, {parameter.name: field})
    except Exception:  # noqa: BLE001 - the type can be any class, and calls can use the default
        return False
    return True


def documented_options(kind: type) -> dict[str, str]:
    """Return the constructor's documented parameters with their descriptions.

    Descriptions come from the docstrings of the class and `__init__`, and from the fields of a pydantic model.
    """
    texts = [vars(kind).get("__doc__") or "", getattr(kind.__init__, "__doc__", None) or ""]  # type: ignore[misc]
    if issubclass(kind, BaseModel):
        texts.pop()
    descriptions: dict[str, str] = {}
    for text in texts:
        descriptions |= parameter_descriptions(_parse(text).params)
    for name, field in getattr(kind, "__pydantic_fields__", {}).items():
        descriptions.setdefault(name, field.description)
    return {name: descriptions[name] for name in inspect.signature(kind).parameters if descriptions.get(name)}
