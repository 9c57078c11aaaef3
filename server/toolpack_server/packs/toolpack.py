"""Toolpack: functions and the environment that they act on.

An author's module creates a toolpack and registers functions while it is imported. Afterwards the toolpack doesn't
change.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from pydantic import BaseModel, RootModel, ValidationError

from toolpack_server.base.errors import InvalidParamsError, RegistrationError, shown
from toolpack_server.functions_runtime import EmptyEnv, error_text, finite_validator, is_ready, make_function
from toolpack_server.jsonio.strict import dumps
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.packs.registration import caller_description, caller_location, located
from toolpack_server.packs.registration_checks import (
    check_assignments,
    check_dependency,
    check_function,
    check_name,
    check_volumes,
    classes,
    environment_and_options,
    has_source,
    problems,
)
from toolpack_server.volumes.volume import Volume

Plain = TypeVar("Plain", bound=Callable[..., Any])
Registered = TypeVar("Registered")


class Toolpack:
    """Functions plus the environment that they act on.

    Args:
        name: 1-64 letters, digits, `_`, `.` or `-`; unique on a server.
        environment: A pydantic model class with defaults for all fields, or a factory function that returns an
            environment. The factory's return annotation is the class of the environment, and its documented keyword
            parameters are the toolpack's options.
        functions: Functions to register.
        opt_in: Whether only sessions that name this toolpack get it, for example because it is large.
        state_types: Classes whose instances the environment can hold, besides the classes in its annotations.
        lazy: Load each object of a large environment only when a call uses it. See `snapshots/pieces.py`.

    Attributes:
        location: The file and line that create the toolpack, and its name, for error messages.
        description: The first paragraph of its module's docstring, for clients.
        source: The author's class that defines the environment.
        holds_instances: Whether the environment holds instances of the author's classes, and the server creates the
            model class.
        companions: Toolpacks of the server itself that are loaded together with this toolpack.

    Raises:
        RegistrationError: The name, the environment or a function can't be used.
    """

    def __init__(
        self,
        name: str,
        environment: Callable[..., BaseModel] = EmptyEnv,
        functions: Iterable[Any] = (),
        opt_in: bool = False,
        state_types: Iterable[type] = (),
        lazy: bool = True,
    ) -> None:
        self.name = name
        self.lazy = lazy
        self.description = caller_description()
        self.opt_in = opt_in
        self.location = caller_location(name)
        self.state_types: tuple[type, ...] = ()
        self.functions: dict[str, PackFunction] = {}
        self.environment_class: type[BaseModel] = EmptyEnv
        self._build: Callable[..., BaseModel] = environment
        self._options: Any = None
        self.source: Any = None
        self.holds_instances = False
        self.companions: tuple[Toolpack, ...] = ()
        with located(environment if inspect.isfunction(environment) else self.location):
            check_name(name)
            self.state_types = classes(state_types)
            self.environment_class, self._options = environment_and_options(environment)
            check_volumes(self.environment_class)
        self.source = self.environment_class
        with located(self.location):
            if not isinstance(functions, Iterable):
                raise RegistrationError(f"functions is {shown(repr(functions))}: give a list of functions.")
        for function in functions if isinstance(functions, Iterable) else ():
            self.register_function(function)

    def __repr__(self) -> str:
        return f"Toolpack({self.name!r}, {len(self.functions)} functions)"

    @overload
    def function(self, function: Plain) -> Plain: ...
    @overload
    def function(
        self, *, read_only: bool = False, timeout_seconds: float | None = None
    ) -> Callable[[Plain], Plain]: ...

    def function(
        self, function: Plain | None = None, *, read_only: bool = False, timeout_seconds: float | None = None
    ) -> Plain | Callable[[Plain], Plain]:
        """Decorator: register a plain function and return it unchanged.

        Args:
            read_only: Declare that the function doesn't change the environment. Its calls then add no version to the
                session.
            timeout_seconds: Deadline of the function in seconds, instead of the server's default.

        Raises:
            RegistrationError: The function can't be offered to agents. The text says what to change.
        """

        def register(plain: Plain) -> Plain:
            return self.register_function(plain, read_only=read_only, timeout_seconds=timeout_seconds)

        if function is not None and not callable(function):
            with located(caller_location(self.name)):
                raise RegistrationError(f"{function!r} isn't a function: write @toolpack.function(read_only=True).")
            return lambda plain: plain  # the error was collected, so the import continues
        return register if function is None else register(function)

    def register_function(
        self, function: Registered, *, read_only: bool = False, timeout_seconds: float | None = None
    ) -> Registered:
        """Register a plain function or a ready `Function`, and return it unchanged. See `function` for the arguments.

        Raises:
            RegistrationError: The function can't be offered to agents. The text says what to change.
        """
        with located(function if has_source(function) else caller_location(self.name)):
            check_function(function, timeout_seconds)
            ready: Any = function
            if not is_ready(ready):
                ready = make_function(ready)
            if ready.name in self.functions:
                raise RegistrationError(f"toolpack {self.name!r} has a function {ready.name!r} already: rename one.")
            for parameter, dependency in ready.dependencies.items():
                check_dependency(self.environment_class, parameter, getattr(dependency, "env_dependency", None))
            if ready.dependencies and not read_only and not is_ready(function):
                check_assignments(function, ready.dependencies, self.environment_class)
            self.functions[ready.name] = PackFunction(ready, self.name, read_only, timeout_seconds)
        return function

    @property
    def factory(self) -> Any:
        """The environment's class, or the author's factory function."""
        return self._build if inspect.isfunction(self._build) and not self.holds_instances else self.source

    def details(self) -> Mapping[str, Any]:
        """Return the fields that features add to the toolpack's description for clients."""
        return {}

    @property
    def options(self) -> type[BaseModel] | None:
        """The model of this toolpack's options, or None if it has no options."""
        return self._options.parameters if self._options else None

    def build(self, options: Mapping[str, Any]) -> BaseModel:
        """Build the initial environment from these options.

        Raises:
            InvalidParamsError: The options are invalid, or the factory raised an exception.
        """
        if self._options is None:
            if options:
                raise InvalidParamsError(f"Toolpack {self.name!r} accepts no options: omit them.")
            arguments = {}
        else:
            try:
                arguments = self._options.bind(options)
            except ValidationError as error:
                nested = self.name in options and self.name not in self._options.parameters.model_fields
                hint = " Don't nest them under the toolpack's name." if nested else ""
                raise InvalidParamsError(
                    f"The options of toolpack {self.name!r} are invalid: {problems(error)}.{hint}"
                ) from error
        source = " from these options" if self._options else ""
        try:
            environment = self._build(**arguments)
        except (Exception, SystemExit) as error:
            reason = error_text(error)
            if isinstance(error, ValidationError):
                hint = "" if self._options else ": give each field a default that fits, or build it in a factory"
                reason = f"{problems(error)}{hint}."
            raise InvalidParamsError(f"Toolpack {self.name!r} can't build its environment{source}: {reason}") from error
        if not isinstance(environment, self.environment_class):
            raise InvalidParamsError(
                f"Toolpack {self.name!r} built a {type(environment).__name__}, not the "
                f"{self.environment_class.__name__} that its factory's return annotation names: "
                f"correct one of the two."
            )
        return environment

    def parse(self, environment: Any) -> BaseModel:
        """Build an environment from JSON.

        Raises:
            InvalidParamsError: The JSON doesn't match the environment's class, or the class raised an exception.
        """
        try:
            return self._parsed(environment)
        except ValidationError as error:
            raise InvalidParamsError(
                f"The environment of toolpack {self.name!r} is invalid: {problems(error)}."
            ) from error
        except (Exception, SystemExit) as error:
            raise InvalidParamsError(
                f"Toolpack {self.name!r} can't build this environment: {error_text(error)}"
            ) from error

    def _parsed(self, environment: Any) -> BaseModel:
        """Validate an environment from JSON. Its volumes get the options of the class's default volumes."""
        parsed: BaseModel = finite_validator(self.environment_class).validate_json(dumps(environment))
        for name, field in self.environment_class.model_fields.items():
            if isinstance(field.default, Volume) and isinstance(parsed.__dict__[name], Volume):
                parsed.__dict__[name].adopt(field.default)
        return parsed


def as_made(environments: Mapping[str, BaseModel]) -> dict[str, Any]:
    """Return environments in the form in which their authors declared them, by toolpack.

    For a toolpack that `Toolpack.from_class` created, this is the instance of the author's class, not the server's
    model around it.
    """
    return {
        toolpack: environment.root if isinstance(environment, RootModel) else environment
        for toolpack, environment in environments.items()
    }
