"""What an author gives as a toolpack's environment: its class and its options.

The rule: pure; no environment is built here.
"""

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, RootModel, ValidationError

from server.errors import RegistrationError, shown
from server.functions_runtime import MAX_LISTED_ERRORS, make_function


def as_made(environments: Mapping[str, BaseModel]) -> dict[str, Any]:
    """Get environments, by toolpack, as their authors know them: that of a class is its instance."""
    return {
        toolpack: environment.root if isinstance(environment, RootModel) else environment
        for toolpack, environment in environments.items()
    }


def environment_and_options(environment: Any) -> tuple[type[BaseModel], Any]:
    """Get the class of the environment, and the options like a `Function`; None if there are none.

    Raises:
        RegistrationError: It is neither a model class nor a factory of one.
    """
    if isinstance(environment, type):
        if not issubclass(environment, BaseModel):
            raise RegistrationError(
                f"{environment.__name__} is not a pydantic model: derive it from TaskEnvironment, or use "
                "Toolpack.from_class."
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


def problems(error: ValidationError) -> str:
    """Get what is wrong with options or an environment, in one line."""
    if error.error_count() > MAX_LISTED_ERRORS:
        return f"{error.error_count()} errors, too many to list"
    return "; ".join(
        f"{'.'.join(shown(str(part)) for part in e['loc']) or 'it'}: {e['msg']}"
        for e in error.errors(include_url=False)
    )
