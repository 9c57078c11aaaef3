"""Functions that an agent can call, and the runtime that calls them on an environment.

The names and their meanings are those of AgentDojo's `agentdojo.functions_runtime`, so whoever knows that module knows
this one; the README lists the few deliberate differences. The rule: this file works in one process with nothing else
of the server running, and knows neither sessions nor snapshots.
"""

import asyncio
import concurrent.futures
import copy
import inspect
import re
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, create_model
from pydantic_core import PydanticCustomError, ValidationError

from server.errors import NoEnvironmentError, RegistrationError, ToolNotFoundError

__all__ = [
    "Depends",
    "EmptyEnv",
    "Function",
    "FunctionCall",
    "FunctionsRuntime",
    "TaskEnvironment",
    "ToolNotFoundError",
    "error_text",
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
    """Marks a parameter that the environment gives, not the agent: `Annotated[Account, Depends("account")]`.

    Args:
        env_dependency: The name of the environment's attribute, or a callable that gets the environment.
    """

    env_dependency: str | Callable[[Any], Any]

    def extract_dep_from_env(self, env: BaseModel) -> Any:
        """Get what this dependency names in `env`."""
        if callable(self.env_dependency):
            return self.env_dependency(env)
        return getattr(env, self.env_dependency)


class FunctionCall(BaseModel):
    """One call that an agent asks for; as an argument of another call it is run first and replaced by its result."""

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function."""
        return self.run(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate an agent's arguments into those that the plain function gets: models as models.

        Raises:
            ValidationError: An argument is missing, unknown or of the wrong type.
        """
        # `__dict__` rather than attribute access: a parameter may be named like a method of BaseModel.
        bound = dict(self.parameters.model_validate(arguments).__dict__)
        if self._fresh_defaults:
            bound.update(copy.deepcopy(self._fresh_defaults))
        return bound


FUNCTION_FIELDS = frozenset(Function.model_fields)


def is_ready(candidate: object) -> bool:
    """Whether `candidate` has all fields of a `Function`, as AgentDojo's own objects do."""
    return all(hasattr(candidate, field) for field in FUNCTION_FIELDS)


def make_function(function: Callable[..., Any]) -> Function:
    """Make a `Function` from a plain function's type hints and docstring (Sphinx, Google or NumPy style).

    Parameters with a default that the docstring leaves out are hidden from agents.

    Raises:
        RegistrationError: The docstring, the signature or a type doesn't allow it; the text says what to change.
    """
    name = getattr(function, "__name__", None)
    if name is None:
        raise RegistrationError(f"{function!r} has no name: wrap it in a function with `def`.")
    if not function.__doc__ or function.__doc__.isspace():  # Python 3.13 would strip it by itself
        raise RegistrationError("there is no docstring: add one whose first line says what the function does.")
    docs = docstring_parser.parse(function.__doc__)
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
    descriptions = _descriptions(docs.params)
    _check_signature(signature, hints, descriptions, dependencies)
    made = Function.model_construct(
        name=name,
        description="\n".join(filter(None, [docs.short_description, docs.long_description])).replace("None", "null"),
        parameters=_parameters_model(name, signature, hints, descriptions),
        dependencies=dependencies,
        run=function,
        full_docstring=function.__doc__,
        return_type=get_type_hints(function).get("return"),
    )
    # A mutable default that agents don't see would otherwise be one object for all sessions.
    made._fresh_defaults = {  # noqa: SLF001 - made here
        parameter.name: parameter.default
        for parameter in signature.parameters.values()
        if parameter.default is not parameter.empty
        and parameter.name not in descriptions
        and parameter.name not in dependencies
        and _is_copied(parameter.default)
    }
    return made


def _is_copied(default: Any) -> bool:
    """Whether a default can change and can be copied; what can't, like a lock or a sentinel, stays the same object."""
    if isinstance(default, str | int | float | bool | bytes | None) or type(default) is object:
        return False
    try:
        return copy.deepcopy(default) is not default
    except Exception:  # noqa: BLE001 - copying runs the code of its class
        return False


def _dependency(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return None
    return next((mark for mark in hint.__metadata__ if hasattr(mark, "extract_dep_from_env")), None)


def _descriptions(params: Sequence[docstring_parser.DocstringParam]) -> dict[str, str]:
    # NumPy style documents several parameters in one entry: `x, y : float`.
    return {name.strip(): param.description or "" for param in params for name in param.arg_name.split(",")}


def _check_signature(
    signature: inspect.Signature,
    hints: Mapping[str, Any],
    descriptions: Mapping[str, str],
    dependencies: Mapping[str, Any],
) -> None:
    for name, description in descriptions.items():
        if name not in signature.parameters:
            raise RegistrationError(f"the docstring describes `{name}`, which is no parameter: correct or remove it.")
        if name in dependencies:
            raise RegistrationError(
                f"the docstring describes `{name}`, which comes from the environment: remove it, agents don't pass it."
            )
        if not description:
            raise RegistrationError(f"the docstring says nothing of parameter `{name}`: describe it.")
    for name, parameter in signature.parameters.items():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise RegistrationError(f"`{parameter}` takes any argument: name each parameter.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RegistrationError(f"parameter `{name}` is positional-only, but agents pass names: remove the `/`.")
        if name in dependencies:
            continue
        if parameter.default is parameter.empty and name not in descriptions:
            raise RegistrationError(f"parameter `{name}` has no default and isn't described: describe it.")
        if name in descriptions and name not in hints:
            raise RegistrationError(f"parameter `{name}` has no type hint: add one.")


def _parameters_model(
    function_name: str, signature: inspect.Signature, hints: Mapping[str, Any], descriptions: Mapping[str, str]
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, description in descriptions.items():
        default = signature.parameters[name].default
        default = ... if default is inspect.Parameter.empty else default
        fields[name] = (hints[name], Field(description=description, default=default))
    config = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=False)
    try:
        with warnings.catch_warnings():
            # A parameter may be named like a method of BaseModel (`copy`, `json`): `bind` copes with that.
            warnings.simplefilter("ignore", UserWarning)
            model = create_model(f"Input schema for `{function_name}`", __config__=config, **fields)
            model.model_json_schema()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise RegistrationError(f"no JSON Schema can be made of its parameters ({reason}): use other types.") from error
    return model


class FunctionsRuntime:
    """Functions by name, and the way to run them on an environment.

    Args:
        functions: The functions to start with.
    """

    def __init__(self, functions: Sequence[Any] = ()) -> None:
        self.functions: dict[str, Any] = {function.name: function for function in functions}

    def register_function(self, function: Registered) -> Registered:
        """Add a plain function, or a ready `Function` as it is, and return what was given.

        Raises:
            RegistrationError: No `Function` can be made of it.
        """
        given: Any = function
        ready = given if is_ready(given) else make_function(given)
        self.functions[ready.name] = ready
        return function

    def update_functions(self, new_functions: dict[str, Any]) -> None:
        """Replace all functions."""
        self.functions = new_functions

    def run_function(
        self, env: BaseModel | None, function: str, kwargs: Mapping[str, Any], raise_on_error: bool = False
    ) -> tuple[Any, str | None]:
        """Run a function on `env`, which it may change, and return `(result, error)`.

        Args:
            env: The environment; None does for functions without dependencies.
            function: The function's name.
            kwargs: Its arguments; a `FunctionCall` among them is run first and replaced by its result.
            raise_on_error: Let exceptions through instead of returning `("", "ErrorType: message")`.

        Raises:
            ToolNotFoundError: With `raise_on_error`, there is no such function.
            ValidationError: With `raise_on_error`, the arguments don't fit.
            NoEnvironmentError: There is no environment, and the function depends on one.
        """
        try:
            return self.call(env, function, kwargs), None
        except Exception as error:
            if raise_on_error or isinstance(error, NoEnvironmentError):
                raise
            return "", error_text(error)

    def call(self, env: Any, name: str, kwargs: Mapping[str, Any], depth: int = 0) -> Any:
        """Run a function, and first what its arguments call, and return the result; exceptions pass through."""
        function = self.functions.get(name)
        if function is None:
            raise ToolNotFoundError(f"The requested function `{name}` is not available.")
        arguments = {
            parameter: self.nested_result(env, name, value, depth + 1) if isinstance(value, FunctionCall) else value
            for parameter, value in kwargs.items()
        }
        # A ready function of AgentDojo's keeps AgentDojo's handling: its models are dumped to dicts.
        bind = getattr(function, "bind", None)
        bound = bind(arguments) if bind else function.parameters.model_validate(arguments).model_dump()
        bound.update(self.dependencies(env, function))
        return self.run(env, function, bound)

    def run(self, env: Any, function: Any, arguments: dict[str, Any]) -> Any:  # noqa: ARG002 - a subclass looks at it
        """Run the plain function, sync or async, with arguments that are ready for it."""
        result = function.run(**arguments)
        return run_coroutine(result) if inspect.iscoroutine(result) else result

    def nested_result(self, env: Any, outer: str, call: FunctionCall, depth: int) -> Any:
        """Run a call that stands as an argument of `outer`.

        Raises:
            ValidationError: Calls are nested too deeply.
        """
        if depth > MAX_CALL_DEPTH:
            problem = PydanticCustomError("call_depth", f"Calls can be nested {MAX_CALL_DEPTH} deep, no deeper")
            raise ValidationError.from_exception_data(
                f"Input schema for `{outer}`", [{"type": problem, "loc": (call.function,), "input": "$call"}]
            )
        return self.call(env, call.function, call.args, depth)

    def dependencies(self, env: Any, function: Any) -> dict[str, Any]:
        """Take a function's dependencies from the environment."""
        if env is None and function.dependencies:
            raise NoEnvironmentError(f"Function {function.name} has dependencies but no environment was provided.")
        return {name: dependency.extract_dep_from_env(env) for name, dependency in function.dependencies.items()}


_INFORMATION_LINE = re.compile(r"\n    For further information visit https://errors\.pydantic\.dev/\S*")


def error_text(error: BaseException) -> str:
    """Describe an exception as AgentDojo does, `ErrorType: message`, less pydantic's information lines."""
    if isinstance(error, ValidationError) and error.error_count() > MAX_LISTED_ERRORS:
        # Each would be told in some hundred characters, and a small request can cause a million.
        return f"ValidationError: {error.error_count()} validation errors for {error.title}, too many to list"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ may be broken
        message = ""
    if isinstance(error, ValidationError):
        message = _INFORMATION_LINE.sub("", message)
    # A lone surrogate has no place in JSON.
    return f"{type(error).__name__}: {message}".encode("utf-8", "replace").decode()


# The event loop that each thread keeps for async functions: making one costs more than most functions.
_runners: dict[int, asyncio.Runner] = {}


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end from sync code, inside a running event loop too, and return its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_on_own_loop(coroutine)
    with concurrent.futures.ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(asyncio.run, coroutine).result()


def wake_loop(thread: int) -> None:
    """Make another thread's event loop, if it has one, go through Python code once, where it can be interrupted."""
    runner = _runners.get(thread)
    if runner is not None:
        runner.get_loop().call_soon_threadsafe(lambda: None)


def close_loop() -> None:
    """Close this thread's event loop, if it has one."""
    runner = _runners.pop(threading.get_ident(), None)
    if runner is not None:
        runner.close()


def _run_on_own_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    if threading.current_thread() is threading.main_thread():
        return asyncio.run(coroutine)
    runner = _runners.get(threading.get_ident())
    if runner is None:
        runner = _runners[threading.get_ident()] = asyncio.Runner()
    try:
        return runner.run(coroutine)
    finally:
        # What the function left running would otherwise wake up inside somebody else's call.
        leftovers = asyncio.all_tasks(runner.get_loop())
        if leftovers:
            runner.run(_cancel(leftovers))


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
