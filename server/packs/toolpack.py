"""A toolpack: functions, and the environment they act on.

The rule: it holds what its author registered, and doesn't change after its module has been imported.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ValidationError

from server.errors import InvalidParamsError, RegistrationError, shown
from server.functions_runtime import MAX_LISTED_ERRORS, EmptyEnv, error_text, is_ready, make_function
from server.jsonio.strict import dumps
from server.packs.registration import caller_description, caller_place, located

Plain = TypeVar("Plain", bound=Callable[..., Any])
Registered = TypeVar("Registered")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class PackFunction:
    """A function as its toolpack registered it.

    Attributes:
        function: The ready `Function`: ours, or any object with the same fields.
        toolpack: The name of its toolpack.
        read_only: It promises to leave the environment unchanged.
        timeout_seconds: Its own deadline in seconds; None means the server's default.
    """

    function: Any
    toolpack: str
    read_only: bool = False
    timeout_seconds: float | None = None

    @property
    def name(self) -> str:
        """The function's name."""
        name: str = self.function.name
        return name


class Toolpack:
    """Functions plus the environment they act on.

    Args:
        name: 1-64 letters, digits, `_`, `.` or `-`; unique on a server.
        environment: A pydantic model class with defaults for all fields, or a factory function whose return annotation
            is that class and whose documented keyword parameters are the pack's options.
        functions: Functions to register.
        opt_in: Only sessions that name this pack get it.
        state_types: Classes that the environment may hold besides those in its annotations.

    Attributes:
        description: What it is, for clients: the first paragraph of its module's docstring.

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
    ) -> None:
        self.name = name
        self.description = caller_description()
        self.opt_in = opt_in
        self.state_types = tuple(state_types)
        self.functions: dict[str, PackFunction] = {}
        self.environment_class: type[BaseModel] = EmptyEnv
        self._build: Callable[..., BaseModel] = environment
        self._options: Any = None
        with located(environment if inspect.isfunction(environment) else caller_place(name)):
            if not _NAME.fullmatch(name):
                raise RegistrationError(f"{name!r} is no valid toolpack name: use 1-64 letters, digits, `_`, `.`, `-`.")
            self.environment_class, self._options = _environment_and_options(environment)
        for function in functions:
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
            function: The function.
            read_only: Promise that it leaves the environment unchanged; a call then adds no version to the session.
            timeout_seconds: Its deadline in seconds, instead of the server's default.

        Raises:
            RegistrationError: The function can't be offered to agents; the text says what to change.
        """

        def register(plain: Plain) -> Plain:
            self._add(plain, read_only=read_only, timeout_seconds=timeout_seconds)
            return plain

        return register if function is None else register(function)

    def register_function(self, function: Registered) -> Registered:
        """Register a plain function, or a ready `Function` as it is, and return the argument.

        Raises:
            RegistrationError: The function can't be offered to agents; the text says what to change.
        """
        self._add(function)
        return function

    def _add(self, function: Any, *, read_only: bool = False, timeout_seconds: float | None = None) -> None:
        with located(function):
            ready = function if is_ready(function) else make_function(function)
            if ready.name in self.functions:
                raise RegistrationError(f"toolpack {self.name!r} has a function {ready.name!r} already: rename one.")
            if timeout_seconds is not None and not timeout_seconds > 0:
                raise RegistrationError(f"timeout_seconds is {timeout_seconds}: give a number of seconds above 0.")
            for parameter, dependency in ready.dependencies.items():
                self._check_dependency(parameter, getattr(dependency, "env_dependency", None))
            self.functions[ready.name] = PackFunction(ready, self.name, read_only, timeout_seconds)

    def _check_dependency(self, parameter: str, attribute: object) -> None:
        environment = self.environment_class
        if not isinstance(attribute, str) or hasattr(environment, attribute):
            return
        if attribute not in environment.model_fields and attribute not in environment.__private_attributes__:
            raise RegistrationError(
                f"parameter `{parameter}` depends on `{attribute}`, which {environment.__name__} doesn't have: "
                f"correct the name in Depends or add the field."
            )

    @property
    def task_count(self) -> int:
        """How many tasks it has."""
        return 0

    @property
    def options(self) -> type[BaseModel] | None:
        """The model of this pack's options, or None if it takes none."""
        return self._options.parameters if self._options else None

    def build(self, options: Mapping[str, Any]) -> BaseModel:
        """Build the initial environment.

        Raises:
            InvalidParamsError: The options are invalid, or the environment can't be built from them.
        """
        if self._options is None:
            if options:
                raise InvalidParamsError(f"Toolpack {self.name!r} takes no options: leave them out.")
            arguments = {}
        else:
            try:
                arguments = self._options.bind(options)
            except ValidationError as error:
                raise InvalidParamsError(
                    f"The options of toolpack {self.name!r} don't fit: {_lines(error)}."
                ) from error
        try:
            environment = self._build(**arguments)
        except (Exception, SystemExit) as error:
            raise InvalidParamsError(
                f"Toolpack {self.name!r} can't build its environment from these options: {error_text(error)}"
            ) from error
        if not isinstance(environment, self.environment_class):
            raise InvalidParamsError(
                f"Toolpack {self.name!r} built a {type(environment).__name__}, not the "
                f"{self.environment_class.__name__} that its factory's return annotation names: "
                f"correct one of the two."
            )
        return environment

    def parse(self, environment: Any) -> BaseModel:
        """Build an environment from JSON, with validation.

        Raises:
            InvalidParamsError: The JSON isn't valid for the environment's class.
        """
        try:
            return self.environment_class.model_validate_json(dumps(environment))
        except ValidationError as error:
            raise InvalidParamsError(
                f"The environment of toolpack {self.name!r} doesn't fit: {_lines(error)}."
            ) from error
        except (Exception, SystemExit) as error:
            raise InvalidParamsError(
                f"Toolpack {self.name!r} can't build this environment: {error_text(error)}"
            ) from error


def _environment_and_options(environment: Any) -> tuple[type[BaseModel], Any]:
    if isinstance(environment, type):
        if not issubclass(environment, BaseModel):
            raise RegistrationError(f"{environment.__name__} is not a pydantic model: derive it from TaskEnvironment.")
        return environment, None
    if not callable(environment):
        raise RegistrationError("the environment is neither a pydantic model class nor a factory function of one.")
    returned = get_type_hints(environment).get("return")
    if not (isinstance(returned, type) and issubclass(returned, BaseModel)):
        raise RegistrationError("the factory's return annotation is not a pydantic model class: annotate it with one.")
    options = make_function(environment) if inspect.signature(environment).parameters else None
    if options is not None and options.dependencies:
        raise RegistrationError("the factory has a Depends parameter: there is no environment yet to depend on.")
    return returned, options


def _lines(error: ValidationError) -> str:
    if error.error_count() > MAX_LISTED_ERRORS:
        return f"{error.error_count()} errors, too many to list"
    return "; ".join(
        f"{'.'.join(shown(str(part)) for part in e['loc']) or 'it'}: {e['msg']}"
        for e in error.errors(include_url=False)
    )
