"""Functions that an agent can call, and the runtime that calls them on an environment.

Names and meanings are those of AgentDojo's `agentdojo.functions_runtime`; docs/write/agentdojo.md lists the few
deliberate differences. This module works in one process without the rest of the server, and knows neither sessions nor
snapshots. It must not be moved or renamed, because stored snapshots name its classes.
"""

import copy
import inspect
import re
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, PrivateAttr
from pydantic_core import PydanticCustomError, ValidationError

from toolpack_server.base.errors import MAX_SHOWN, NoEnvironmentError, ToolNotFoundError, shown
from toolpack_server.functions.argument_validators import finite_validator
from toolpack_server.functions.signatures import FunctionSignature, read_signature
from toolpack_server.functions.steps import Steps, WrappedStopIteration, awaited, run_steps

__all__ = [
    "Depends",
    "EmptyEnv",
    "Function",
    "FunctionCall",
    "FunctionsRuntime",
    "TaskEnvironment",
    "ToolNotFoundError",
    "error_message",
    "error_text",
    "finite_validator",
    "is_ready",
    "make_function",
]

MAX_CALL_DEPTH = 16
MAX_LISTED_ERRORS = 100

Registered = TypeVar("Registered")


class TaskEnvironment(BaseModel):
    """Base class of the environments that functions act on."""


class EmptyEnv(TaskEnvironment):
    """The environment of functions that need none."""


@dataclass(frozen=True)
class Depends:
    """Marks a parameter that comes from the environment, not the agent: `Annotated[Account, Depends("account")]`.

    Args:
        env_dependency: The name of an attribute of the environment, or a callable that takes the environment.
    """

    env_dependency: str | Callable[[Any], Any]

    def extract_dep_from_env(self, env: BaseModel) -> Any:
        if callable(self.env_dependency):
            return self.env_dependency(env)
        return getattr(env, self.env_dependency)


class FunctionCall(BaseModel):
    """A call that an agent requests; as an argument of another call it is run first and replaced by its result."""

    function: str
    args: MutableMapping[str, "FunctionCallArgTypes"]
    id: str | None = None
    placeholder_args: Mapping[str, "FunctionCallArgTypes"] | None = None


FunctionCallArgTypes = str | int | float | bool | None | dict | list | FunctionCall  # type: ignore[type-arg]


class Function(BaseModel):
    """A function that an agent can call; `make_function` makes one from a plain Python function."""

    name: str
    description: str
    parameters: type[BaseModel]
    dependencies: dict[str, Depends]
    run: Callable[..., Any]
    full_docstring: str
    return_type: Any | None

    _fresh_defaults: dict[str, Any] = PrivateAttr(default_factory=dict)
    _unknown_keys: Literal["forbid"] | None = PrivateAttr(None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    @property
    def forbids_unknown_keys(self) -> bool:
        """Whether an argument's model or dataclass, at any depth, refuses keys that it doesn't have."""
        return self._unknown_keys == "forbid"

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate an agent's arguments and convert them to those of the plain function.

        Raises:
            ValidationError: An argument is missing, unknown or of the wrong type.
        """
        # `__dict__` rather than attribute access: a parameter may be named like a method of BaseModel.
        own = self.__pydantic_private__ or {}  # a private attribute takes ten times as long
        validate = self.parameters.__pydantic_validator__.validate_python
        bound = dict(validate(arguments, extra=own.get("_unknown_keys")).__dict__)
        if own.get("_fresh_defaults"):
            bound.update(copy.deepcopy(self._fresh_defaults))
        return bound


def is_ready(candidate: object) -> bool:
    """Return whether `candidate` has all fields of a `Function`, as AgentDojo's own objects do."""
    return all(hasattr(candidate, field) for field in Function.model_fields)


def make_function(function: Callable[..., Any]) -> Function:
    """Make a `Function` from a plain function's type hints and docstring (Sphinx, Google or NumPy style).

    Parameters with a default that the docstring leaves out are hidden from agents.

    Raises:
        RegistrationError: The docstring, the signature or a type can't be used; the text says what to change.
    """
    return function_of(read_signature(function), function, function.__doc__ or "")


def function_of(signature: FunctionSignature, run: Callable[..., Any], docstring: str) -> Function:
    """Make a `Function` whose signature has been read."""
    made = Function.model_construct(
        name=signature.name,
        description=signature.description,
        parameters=signature.parameters,
        dependencies=signature.dependencies,
        run=run,
        full_docstring=docstring,
        return_type=signature.return_type,
    )
    made._fresh_defaults = signature.fresh_defaults  # noqa: SLF001 - made here
    made._unknown_keys = signature.unknown_keys  # noqa: SLF001
    return made


def not_found(name: str, functions: Collection[str]) -> ToolNotFoundError:
    """Get the error of a call of a function that isn't among those of these names."""
    similar = get_close_matches(shown(name), functions)
    return ToolNotFoundError(f"The requested function `{shown(name)}` is not available.", similar)


class FunctionsRuntime:
    """Holds functions by name and runs them on an environment."""

    def __init__(self, functions: Sequence[Any] = ()) -> None:
        self.functions: dict[str, Any] = {function.name: function for function in functions}

    def register_function(self, function: Registered) -> Registered:
        """Add a plain function, or a ready `Function` as it is, and return what was given.

        Raises:
            RegistrationError: No `Function` can be made from it.
        """
        given: Any = function
        ready = given if is_ready(given) else make_function(given)
        self.functions[ready.name] = ready
        return function

    def update_functions(self, new_functions: dict[str, Any]) -> None:
        self.functions = new_functions

    def run_function(
        self, env: BaseModel | None, function: str, kwargs: Mapping[str, Any], raise_on_error: bool = False
    ) -> tuple[Any, str | None]:
        """Run a function on `env`, which it may change, and return `(result, error)`.

        Args:
            env: The environment; may be None for functions without dependencies.
            function: The function's name.
            kwargs: Its arguments; a `FunctionCall` among them is run first and replaced by its result.
            raise_on_error: Raise exceptions instead of returning `("", "ErrorType: message")`.

        Raises:
            ToolNotFoundError: With `raise_on_error`, there is no such function.
            ValidationError: With `raise_on_error`, the arguments are invalid.
            NoEnvironmentError: There is no environment, and the function depends on one.
        """
        try:
            return self.call(env, function, kwargs), None
        except Exception as error:
            if raise_on_error or isinstance(error, NoEnvironmentError):
                raise
            return "", error_text(error)

    def call(self, env: Any, name: str, kwargs: Mapping[str, Any]) -> Any:
        """Run the calls among the arguments, then the function, and return its result or raise its exception."""
        try:
            return run_steps(self.steps(env, name, kwargs))
        except WrappedStopIteration as passed:
            raise passed.error from None

    def steps(self, env: Any, name: str, kwargs: Mapping[str, Any], depth: int = 0) -> Steps[Any]:
        """Do what `call` does, but let somebody else await the coroutines."""
        function = self.functions.get(name)
        if function is None:
            raise not_found(name, self.functions)
        arguments = {}
        for parameter, value in kwargs.items():
            is_call = isinstance(value, FunctionCall)
            arguments[parameter] = (yield from self.nested_result(env, name, value, depth + 1)) if is_call else value
        try:
            # A ready function of AgentDojo's keeps AgentDojo's handling, but for NaN: its models are dumped to dicts.
            bind = getattr(function, "bind", None)
            bound = (
                bind(arguments)
                if bind
                else finite_validator(function.parameters).validate_python(arguments).model_dump()
            )
            bound.update(self.dependencies(env, function))
        except StopIteration as error:
            raise WrappedStopIteration(error) from None
        return (yield from self.run(env, function, bound))

    def run(self, env: Any, function: Any, arguments: dict[str, Any]) -> Steps[Any]:  # noqa: ARG002 - a subclass uses it
        """Run the plain function, sync or async, with its final arguments."""
        try:
            result = function.run(**arguments)
        except StopIteration as error:
            raise WrappedStopIteration(error) from None
        return (yield from awaited(function.name, result)) if inspect.iscoroutine(result) else result

    def nested_result(self, env: Any, outer: str, call: FunctionCall, depth: int) -> Steps[Any]:
        """Run a call that is an argument of `outer`; a `ValidationError` if calls are nested too deeply."""
        if depth > MAX_CALL_DEPTH:
            problem = PydanticCustomError("call_depth", f"Calls can be nested {MAX_CALL_DEPTH} deep, no deeper")
            raise ValidationError.from_exception_data(
                f"Input schema for `{outer}`", [{"type": problem, "loc": (call.function,), "input": "$call"}]
            )
        return (yield from self.steps(env, call.function, call.args, depth))

    def dependencies(self, env: Any, function: Any) -> dict[str, Any]:
        """Get a function's dependencies from the environment; a `NoEnvironmentError` if there is none."""
        if env is None and function.dependencies:
            raise NoEnvironmentError(f"Function {function.name} has dependencies but no environment was provided.")
        return {name: dependency.extract_dep_from_env(env) for name, dependency in function.dependencies.items()}


_INFORMATION_LINE = re.compile(r"\n    For further information visit https://errors\.pydantic\.dev/\S*")


def error_text(error: BaseException) -> str:
    """Format an exception like AgentDojo, `ErrorType: message`, without pydantic's information lines."""
    return f"{type(error).__name__}: {error_message(error)}"


def error_message(error: BaseException) -> str:
    """Get the message of an exception, without pydantic's information lines."""
    if isinstance(error, ValidationError) and error.error_count() > MAX_LISTED_ERRORS:
        # A small request can cause a million errors of some hundred characters each.
        return f"{error.error_count()} validation errors for {error.title}, too many to list"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ may be broken
        message = ""
    if isinstance(error, ValidationError):
        message = _INFORMATION_LINE.sub("", message)
        names = {part for problem in error.errors(include_url=False, include_input=False) for part in problem["loc"]}
        for name in names:
            if isinstance(name, str) and len(name) > MAX_SHOWN:
                message = message.replace(name, shown(name))
    # JSON can't contain a lone surrogate.
    return message.encode("utf-8", "replace").decode()
