"""Functions that an agent can call, and the runtime that calls them on an environment.

Names and behaviour are those of AgentDojo's `agentdojo.functions_runtime`. docs/write/agentdojo.md lists the deliberate
differences. This module works without the rest of the server, and knows neither sessions nor snapshots. It must not be
moved or renamed, because stored snapshots name its classes.
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
    """An empty environment, for functions without dependencies."""


@dataclass(frozen=True)
class Depends:
    """Marks a parameter that the environment provides, not the agent: `Annotated[Account, Depends("account")]`.

    Args:
        env_dependency: The name of an attribute of the environment, or a callable that takes the environment.
    """

    env_dependency: str | Callable[[Any], Any] = ""  # registration refuses a function whose `Depends` has this default

    def extract_dep_from_env(self, env: BaseModel) -> Any:
        """Return the parameter's value from the environment."""
        if callable(self.env_dependency):
            return self.env_dependency(env)
        return getattr(env, self.env_dependency)


class FunctionCall(BaseModel):
    """A call that an agent requests. As an argument of another call, it runs first and is replaced by its result."""

    function: str
    args: MutableMapping[str, "FunctionCallArgTypes"]
    id: str | None = None
    placeholder_args: Mapping[str, "FunctionCallArgTypes"] | None = None


FunctionCallArgTypes = str | int | float | bool | None | dict | list | FunctionCall  # type: ignore[type-arg]


class Function(BaseModel):
    """A function that an agent can call. `make_function` creates it from a plain Python function."""

    name: str
    description: str
    parameters: type[BaseModel]
    dependencies: dict[str, Depends]
    run: Callable[..., Any]
    full_docstring: str
    return_type: Any | None

    _fresh_defaults: dict[str, Any] = PrivateAttr(default_factory=dict)  # copied for each call, which can change them
    _unknown_keys: Literal["forbid"] | None = PrivateAttr(None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    @property
    def forbids_unknown_keys(self) -> bool:
        """Whether models and dataclasses among the arguments, at any depth, refuse unknown keys."""
        return self._unknown_keys == "forbid"

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate an agent's arguments and return the arguments for the plain function, without its dependencies.

        Raises:
            ValidationError: An argument is missing, unknown or of the wrong type.
        """
        # `__dict__` instead of attribute access, because a parameter can have the name of a method of BaseModel.
        private = self.__pydantic_private__ or {}  # faster than a private attribute by a factor of ten
        validate = self.parameters.__pydantic_validator__.validate_python
        bound = dict(validate(arguments, extra=private.get("_unknown_keys")).__dict__)
        if private.get("_fresh_defaults"):
            bound.update(copy.deepcopy(self._fresh_defaults))
        return bound


def is_ready(candidate: object) -> bool:
    """Return whether `candidate` has all fields of a `Function`, as AgentDojo's own objects do."""
    return all(hasattr(candidate, field) for field in Function.model_fields)


def make_function(function: Callable[..., Any]) -> Function:
    """Create a `Function` from a plain function's type hints and docstring (Sphinx, Google or NumPy style).

    Parameters that have a default and aren't in the docstring are hidden from agents.

    Raises:
        RegistrationError: The docstring, the signature or a type can't be used. The message says what to change.
    """
    return function_of(read_signature(function), function, function.__doc__ or "")


def function_of(signature: FunctionSignature, run: Callable[..., Any], docstring: str) -> Function:
    """Create a `Function` that calls `run`, from a signature that was read before."""
    created = Function.model_construct(
        name=signature.name,
        description=signature.description,
        parameters=signature.parameters,
        dependencies=signature.dependencies,
        run=run,
        full_docstring=docstring,
        return_type=signature.return_type,
    )
    created._fresh_defaults = signature.fresh_defaults  # noqa: SLF001 - created here
    created._unknown_keys = signature.unknown_keys  # noqa: SLF001
    return created


def not_found(name: str, functions: Collection[str]) -> ToolNotFoundError:
    """Return the error for an unknown function, which suggests similar names among `functions`."""
    similar = get_close_matches(shown(name), functions)
    return ToolNotFoundError(f"The requested function `{shown(name)}` is not available.", similar)


class FunctionsRuntime:
    """Holds functions by name and runs them on an environment."""

    def __init__(self, functions: Sequence[Any] = ()) -> None:
        self.functions: dict[str, Any] = {function.name: function for function in functions}

    def register_function(self, function: Registered) -> Registered:
        """Add a plain function or a ready `Function`. Return the argument, so that this can be used as a decorator.

        Raises:
            RegistrationError: No `Function` can be created from it.
        """
        candidate: Any = function
        ready = candidate if is_ready(candidate) else make_function(candidate)
        self.functions[ready.name] = ready
        return function

    def update_functions(self, new_functions: dict[str, Any]) -> None:
        """Replace all functions."""
        self.functions = new_functions

    def run_function(
        self, env: BaseModel | None, function: str, kwargs: Mapping[str, Any], raise_on_error: bool = False
    ) -> tuple[Any, str | None]:
        """Run a function on `env`, which the function can change, and return `(result, error)`.

        Args:
            env: The environment. It can be None for functions without dependencies.
            function: The function's name.
            kwargs: The arguments. A `FunctionCall` among them runs first and is replaced by its result.
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
        except WrappedStopIteration as wrapped:  # a function raised StopIteration, which a generator can't pass on
            raise wrapped.error from None

    def steps(self, env: Any, name: str, kwargs: Mapping[str, Any], depth: int = 0) -> Steps[Any]:
        """Do the same as `call`, as a generator that the caller drives.

        The generator yields the coroutine of each async function. The caller awaits the coroutine and sends the result
        back, so that a call of an async function needn't block a thread; see `toolpack_server.functions.steps`.

        Args:
            depth: How many calls this call is an argument of, one inside the other. 0: this is the agent's own call.
        """
        function = self.functions.get(name)
        if function is None:
            raise not_found(name, self.functions)
        arguments = {}
        for parameter, value in kwargs.items():
            is_call = isinstance(value, FunctionCall)
            arguments[parameter] = (yield from self.nested_result(env, name, value, depth + 1)) if is_call else value
        try:
            # AgentDojo's own function objects have no `bind`. Dump models to dicts just as AgentDojo does, but also
            # refuse NaN and infinity.
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
        """Run the plain function with its final arguments, and return its result.

        This is a generator, as `steps` is. If the function is async, the generator yields the function's coroutine, and
        the caller awaits it and sends the result back. A subclass can override this method, for example to check what
        the function changes.
        """
        try:
            result = function.run(**arguments)
        except StopIteration as error:
            raise WrappedStopIteration(error) from None
        return (yield from awaited(function.name, result)) if inspect.iscoroutine(result) else result

    def nested_result(self, env: Any, outer: str, call: FunctionCall, depth: int) -> Steps[Any]:
        """Run a call that is an argument of a call of the function `outer`, and return its result; see `steps`.

        Raises:
            ValidationError: Calls are nested too deeply.
        """
        if depth > MAX_CALL_DEPTH:
            problem = PydanticCustomError("call_depth", f"Calls can be nested {MAX_CALL_DEPTH} deep, no deeper")
            raise ValidationError.from_exception_data(
                f"Input schema for `{outer}`", [{"type": problem, "loc": (call.function,), "input": "$call"}]
            )
        return (yield from self.steps(env, call.function, call.args, depth))

    def dependencies(self, env: Any, function: Any) -> dict[str, Any]:
        """Return a function's dependencies, taken from the environment.

        Raises:
            NoEnvironmentError: The function has dependencies, but there is no environment.
        """
        if env is None and function.dependencies:
            raise NoEnvironmentError(f"Function {function.name} has dependencies but no environment was provided.")
        return {name: dependency.extract_dep_from_env(env) for name, dependency in function.dependencies.items()}


_INFORMATION_LINE = re.compile(r"\n    For further information visit https://errors\.pydantic\.dev/\S*")


def error_text(error: BaseException) -> str:
    """Return an exception in AgentDojo's format, `ErrorType: message`, without pydantic's information lines."""
    return f"{type(error).__name__}: {error_message(error)}"


def error_message(error: BaseException) -> str:
    """Return the message of an exception for agents, without pydantic's information lines.

    Long names of arguments are shortened, and a long list of validation errors is replaced by their number.
    """
    if isinstance(error, ValidationError) and error.error_count() > MAX_LISTED_ERRORS:
        # A small request can cause a million errors of a few hundred characters each.
        return f"{error.error_count()} validation errors for {error.title}, too many to list"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ might raise
        message = ""
    if isinstance(error, ValidationError):
        message = _INFORMATION_LINE.sub("", message)
        names = {part for problem in error.errors(include_url=False, include_input=False) for part in problem["loc"]}
        for name in names:
            if isinstance(name, str) and len(name) > MAX_SHOWN:
                message = message.replace(name, shown(name))
    # JSON can't contain a lone surrogate.
    return message.encode("utf-8", "replace").decode()
