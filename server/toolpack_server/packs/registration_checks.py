"""Checks of the arguments of a toolpack: its name, functions, classes and environment.

A check raises a `RegistrationError` that says what is wrong and what to write instead. No check builds an environment.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from toolpack_server.base.errors import RegistrationError, shown
from toolpack_server.functions_runtime import MAX_LISTED_ERRORS, is_ready, make_function
from toolpack_server.packs.rebinding import find_assignment, is_immutable
from toolpack_server.volumes.volume import Volume

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: Any) -> None:
    """Check the name of a toolpack."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(f"{name!r} isn't a valid toolpack name: use 1-64 letters, digits, `_`, `.`, `-`.")


def classes(state_types: Any) -> tuple[type, ...]:
    """Return the state types as a tuple.

    Raises:
        RegistrationError: The value isn't a list of classes.
    """
    # A single class isn't a list. The None makes the next check fail.
    kinds = [*state_types] if isinstance(state_types, Iterable) else [state_types, None]
    if not all(isinstance(kind, type) for kind in kinds):
        raise RegistrationError(f"state_types is {shown(repr(state_types))}: give a list of classes.")
    return tuple(kinds)


def has_source(function: Any) -> bool:
    """Return whether `location_of` can find the file and line of a function."""
    return inspect.isclass(function) or is_ready(function) or hasattr(inspect.unwrap(function), "__code__")


def check_function(function: Any, timeout_seconds: Any) -> None:
    """Check that a function can be registered, and that its deadline is a number of seconds or None."""
    if inspect.ismethod(function):
        raise RegistrationError(
            "it is a method bound to an object, and all sessions would share that object: register a function and keep "
            "the state in the environment, or make a toolpack of the class with Toolpack.from_class."
        )
    if not is_ready(function) and not callable(function):
        raise RegistrationError(f"{function!r} isn't a function: register a function.")
    is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
    if timeout_seconds is not None and not (is_number and timeout_seconds > 0):
        raise RegistrationError(f"timeout_seconds is {timeout_seconds!r}: give a number of seconds above 0.")


def check_dependency(environment: type[BaseModel], parameter: str, attribute: object) -> None:
    """Check that an environment has the attribute that a parameter depends on."""
    if attribute == "":
        raise RegistrationError(
            f"parameter `{parameter}` has a Depends without a name: give the name of the attribute, such as "
            f"Depends({next(iter(environment.model_fields), 'field')!r})."
        )
    if isinstance(attribute, str) and attribute in environment.__class_vars__:
        raise RegistrationError(
            f"parameter `{parameter}` depends on `{attribute}`, a class variable, which all sessions would share: make "
            "it a field."
        )
    if attribute is not None and not isinstance(attribute, str) and not callable(attribute):
        raise RegistrationError(
            f"parameter `{parameter}` depends on {attribute!r}: give Depends the name of an attribute of the "
            "environment, or a function of the environment."
        )
    if not isinstance(attribute, str) or hasattr(environment, attribute):
        return
    if attribute not in environment.model_fields and attribute not in environment.__private_attributes__:
        raise RegistrationError(
            f"parameter `{parameter}` depends on `{attribute}`, which {environment.__name__} doesn't have: "
            f"correct the name in Depends or add the field."
        )


def check_assignments(function: Any, dependencies: Mapping[str, Any], environment: type[BaseModel]) -> None:
    """Check that a function doesn't assign to a dependency of an immutable type, because that changes nothing."""
    hints = get_type_hints(function)
    names = {
        name: getattr(dependency, "env_dependency", None)
        for name, dependency in dependencies.items()
        if is_immutable(hints[name]) or is_immutable(_annotation(environment, dependency))
    }
    assignment = find_assignment(inspect.unwrap(function), names) if names else None
    if assignment is None:
        return
    name, line = assignment
    attribute = names[name] if isinstance(names[name], str) else name
    raise RegistrationError(
        f"line {line} assigns to `{name}`, which changes nothing in the environment: only changes in place are stored. "
        "Keep the value in a model that is a field of the environment, depend on that model, and assign to its "
        f"attribute, as in `account.{attribute} = ...`. If only this call needs the value, use another variable name."
    )


def _annotation(environment: type[BaseModel], dependency: Any) -> Any:
    """Return the annotation of the field that a dependency names, or `Any`."""
    field = environment.model_fields.get(getattr(dependency, "env_dependency", ""))
    return Any if field is None else field.annotation


def environment_and_options(environment: Any) -> tuple[type[BaseModel], Any]:
    """Return the class of the environment, and the factory's options as a `Function` (None without options).

    Raises:
        RegistrationError: The environment is neither a class of models nor a factory function for one.
    """
    if isinstance(environment, type):
        if not issubclass(environment, BaseModel):
            raise RegistrationError(
                f"{environment.__name__} is not a pydantic model: derive it from TaskEnvironment, or use "
                "Toolpack.from_class instead of Toolpack."
            )
        return environment, None
    if isinstance(environment, BaseModel):
        raise RegistrationError(
            f"the environment is an instance of {type(environment).__name__}, which all sessions would share: give the "
            "class, or a function that makes one."
        )
    if not callable(environment):
        raise RegistrationError(
            "the environment is neither a pydantic model class nor a factory function of one: give a class derived "
            "from TaskEnvironment, or a function that makes one."
        )
    if inspect.iscoroutinefunction(environment):
        raise RegistrationError("the factory is async: make it an ordinary function.")
    try:
        returned = get_type_hints(environment).get("return")
    except Exception as error:
        raise RegistrationError(f"its type hints can't be read ({error}): import or correct the names.") from error
    if not (isinstance(returned, type) and issubclass(returned, BaseModel)):
        raise RegistrationError("the factory's return annotation is not a pydantic model class: annotate it with one.")
    options = make_function(environment) if inspect.signature(environment).parameters else None
    if options is not None and options.dependencies:
        raise RegistrationError("the factory has a Depends parameter: there is no environment yet to depend on.")
    return returned, options


def check_volumes(environment: type[BaseModel]) -> None:
    """Check that volumes (databases and files) are fields of the environment itself, not of models in it.

    The check reads annotations only.
    """
    seen: set[type] = set()
    pending: list[tuple[type[BaseModel], bool]] = [(environment, True)]
    while pending:
        model, is_environment = pending.pop()
        for name, field in model.model_fields.items():
            for kind in _classes_in(field.annotation):
                if issubclass(kind, Volume) and not (is_environment and kind is field.annotation):
                    raise RegistrationError(
                        f"`{model.__name__}.{name}` holds a {kind.__name__}: make it a field of the environment "
                        "itself, so that calls, views and diffs can name it."
                    )
                if issubclass(kind, BaseModel) and kind not in seen:
                    seen.add(kind)
                    pending.append((kind, False))


def _classes_in(annotation: Any) -> Iterator[Any]:
    """Yield the classes that an annotation names, also as arguments of generic types."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from _classes_in(inner)


def problems(error: ValidationError) -> str:
    """Return the errors of options or an environment in one line."""
    if error.error_count() > MAX_LISTED_ERRORS:
        return f"{error.error_count()} errors, too many to list"
    return "; ".join(
        ": ".join(filter(None, (".".join(shown(str(part)) for part in e["loc"]), e["msg"])))
        for e in error.errors(include_url=False)
    )
