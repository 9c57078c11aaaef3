"""Environments made of instances of any Python classes. The classes aren't changed.

The environment contains a field for each instance. Each function of the toolpack calls a method of an instance.
"""

import enum
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, create_model
from pydantic_core import CoreSchema, core_schema

from toolpack_server.base.errors import RegistrationError
from toolpack_server.features.authoring.classes.methods import ClassMethods, Methods, check_names, names_of
from toolpack_server.features.authoring.classes.signatures import documented_options, read_loosely
from toolpack_server.functions.fields import is_required, with_field_defaults
from toolpack_server.functions.signatures import FunctionSignature
from toolpack_server.functions_runtime import Function, TaskEnvironment
from toolpack_server.snapshots.classes import class_name, is_foreign
from toolpack_server.snapshots.layouts import layout_of
from toolpack_server.volumes.volume import Volume

Maker = str | Callable[..., Any]
"""How an instance is created: a function that returns it, or the name of a method to call on a new instance."""

_ROOT = "root"  # the field of a pydantic RootModel, which is the environment if there is only one class


@dataclass(frozen=True, slots=True)
class ClassWorld:
    """The parts of a toolpack that are derived from its classes.

    Attributes:
        environment: The class of the environment.
        functions: The functions. Each comes with True if it is read-only, else False.
        options: The toolpack's options: an object with `parameters` and `bind`, like a `Function`. None if the toolpack
            accepts no options.
        build: Creates the environment from the bound options.
        state_types: The classes of objects that the instances can contain; see `_state_types`.
    """

    environment: type[BaseModel]
    functions: list[tuple[Function, bool]]
    options: Any
    build: Callable[..., BaseModel]
    state_types: tuple[type, ...]


def world_of_class(
    toolpack: str, kind: type, read_only: Methods, exclude: Methods, options: Maker | None
) -> ClassWorld:
    """Return the parts of a toolpack that is made from one class. Its environment wraps the instance."""
    _check_is_class(kind)
    methods = ClassMethods(kind, "", read_only, exclude)
    maker = _instance_maker(kind, options)
    environment: Any = create_model(
        f"World[{toolpack}]", __base__=RootModel, __module__=kind.__module__, root=(_annotation(kind), ...)
    )
    return ClassWorld(
        environment=environment,
        functions=methods.functions(_ROOT, frozenset()),
        options=maker if maker.parameters.model_fields else None,
        build=lambda **arguments: environment.model_construct(root=maker.run(**arguments)),
        state_types=tuple(_state_types(kind)),
    )


def world_of_classes(
    toolpack: str,
    kinds: Mapping[str, type],
    read_only: Methods,
    exclude: Methods,
    options: Mapping[str, Maker],
) -> ClassWorld:
    """Return the parts of a toolpack that is made from several classes, whose instances are fields of the environment.

    Raises:
        RegistrationError: An argument is invalid; the message says what to change.
    """
    if not isinstance(kinds, Mapping) or not kinds:
        raise RegistrationError('give each instance a name and its class, as in {"files": FileSystem}.')
    if not isinstance(options, Mapping):
        example = f"{{{next(iter(kinds))!r}: {_shown(options)}}}"
        raise RegistrationError(
            f"options={_shown(options)} must be a dict by the names of the instances: write options={example}."
        )
    unknown = [name for name in options if name not in kinds]
    if unknown:
        raise RegistrationError(f"options has {unknown[0]!r}, which isn't one of the instances: correct the name.")
    for field, kind in kinds.items():
        _check_is_class(kind)
        if not field.isidentifier() or field.startswith("_"):
            raise RegistrationError(
                f"{field!r} isn't a valid name of an instance: use a Python identifier that doesn't begin with `_`."
            )
    makers = {field: _instance_maker(kind, options.get(field)) for field, kind in kinds.items()}
    by_field = {field: ClassMethods(kind, field, read_only, exclude) for field, kind in kinds.items()}
    for what, selection in (("read_only", read_only), ("exclude", exclude)):
        if not callable(selection):
            check_names(
                what, names_of(selection), {name for methods in by_field.values() for name in methods.all_names}
            )
    names = [name for methods in by_field.values() for name in methods.offered]
    clashing = frozenset(name for name in names if names.count(name) > 1)
    fields: dict[str, Any] = {field: (_annotation(kind), ...) for field, kind in kinds.items()}
    module = next(iter(kinds.values())).__module__
    environment = create_model(f"World[{toolpack}]", __base__=TaskEnvironment, __module__=module, **fields)
    with_options = {field: maker for field, maker in makers.items() if maker.parameters.model_fields}

    def build(**arguments: Mapping[str, Any]) -> BaseModel:
        instances = {field: maker.run(**arguments.get(field, {})) for field, maker in makers.items()}
        return environment.model_construct(**instances)

    return ClassWorld(
        environment=environment,
        functions=[function for field in kinds for function in by_field[field].functions(field, clashing)],
        options=_Options(with_options) if with_options else None,
        build=build,
        state_types=tuple(dict.fromkeys(held for kind in kinds.values() for held in _state_types(kind))),
    )


def _check_is_class(kind: Any) -> None:
    if not isinstance(kind, type):
        raise RegistrationError(f"{kind!r} is not a class: pass the class itself, not an instance.")


class _InstanceMaker:
    """Creates an instance from options. Omitted options aren't passed, so the parameters' own defaults apply.

    It has the attributes of a `Function` that a toolpack needs to read options: `parameters`, `dependencies`, `bind`.
    """

    dependencies: Mapping[str, Any] = {}

    def __init__(self, signature: FunctionSignature, run: Callable[..., Any]) -> None:
        self.parameters = signature.parameters
        self.run = run
        self._unknown_keys = signature.unknown_keys

    def bind(self, options: Mapping[str, Any]) -> dict[str, Any]:
        validated = self.parameters.model_validate(options, extra=self._unknown_keys)
        return {name: validated.__dict__[name] for name in validated.model_fields_set}


class _Options:
    """The options of several instances, grouped by the names of their fields."""

    dependencies: Mapping[str, Any] = {}

    def __init__(self, makers: Mapping[str, _InstanceMaker]) -> None:
        self._makers = makers
        fields: dict[str, Any] = {}
        for field, maker in makers.items():
            required = any(option.is_required() for option in maker.parameters.model_fields.values())
            fields[field] = (maker.parameters, ... if required else Field(default_factory=maker.parameters))
        self.parameters = create_model("options", __config__=ConfigDict(extra="forbid"), **fields)

    def bind(self, options: Mapping[str, Any]) -> dict[str, Any]:
        self.parameters.model_validate(options)
        return {field: maker.bind(options.get(field, {})) for field, maker in self._makers.items()}


def _instance_maker(kind: type, options: Maker | None) -> _InstanceMaker:
    """Return the maker of an instance, which uses the constructor, a method, or an author's function.

    Raises:
        RegistrationError: The signature of the constructor, method or function can't be used.
    """
    name = kind.__name__
    try:
        if options is None:
            return _InstanceMaker(
                read_loosely(kind, name, name, only=documented_options(kind)), with_field_defaults(kind)
            )
        if isinstance(options, str):
            return _InstanceMaker(*_preparation(kind, options))
        return _InstanceMaker(read_loosely(options, name, options.__doc__ or name), _with_check(kind, options))
    except RegistrationError as error:
        what = f"the constructor of {name}" if options is None else f"options={_shown(options)}"
        raise RegistrationError(
            f"{what}: {error} Pass options=: a function that returns an instance, whose parameters are the options."
        ) from error


def _shown(options: Maker) -> str:
    return repr(options) if isinstance(options, str) else getattr(options, "__qualname__", repr(options))


def _preparation(kind: type, method: str) -> tuple[FunctionSignature, Callable[..., Any]]:
    """Return the signature of a method, and a function that creates an instance and calls the method.

    If the method has required parameters and the session gives no options, the method isn't called.

    Raises:
        RegistrationError: The class has no method of this name, or its parameters can't become options.
    """
    prepare = getattr(kind, method, None)
    if not callable(prepare):
        raise RegistrationError(f"{kind.__name__} has no method of this name.")
    signature = read_loosely(prepare, kind.__name__, prepare.__doc__ or method, receiver=True, optional=True)
    required = [
        parameter.name for parameter in [*inspect.signature(prepare).parameters.values()][1:] if is_required(parameter)
    ]

    def run(**arguments: Any) -> Any:
        """Create an instance, and call the method with the options.

        If there are no options, but required ones exist, don't call the method. If only some are missing, raise.
        """
        instance = kind()
        missing = [name for name in required if name not in arguments]
        if not missing:
            with_field_defaults(getattr(instance, method))(**arguments)
        elif arguments:
            raise ValueError(f"the option `{missing[0]}` is missing")
        return instance

    return signature, run


def _with_check(kind: type, make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an author's factory with a check that it returns an instance of the class."""

    def run(**arguments: Any) -> Any:
        instance = with_field_defaults(make)(**arguments)
        if not isinstance(instance, kind):
            raise TypeError(f"{_shown(make)} returned a {type(instance).__name__}, not a {kind.__name__}: correct it")
        return instance

    return run


def _annotation(kind: type) -> Any:
    """Return the annotation of the environment's field for an instance. Pydantic accepts any object of the class."""
    if issubclass(kind, BaseModel) or hasattr(kind, "__dataclass_fields__"):
        try:
            TypeAdapter(kind).json_schema(mode="serialization")
        except Exception:  # noqa: BLE001 - pydantic can't create a schema for the class
            return Annotated[kind, _Instance(kind)]
        return kind
    return Annotated[kind, _Instance(kind)]


@dataclass(frozen=True)
class _Instance:
    """Pydantic annotation of a field that contains an instance of a class without a pydantic schema."""

    kind: type

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: Any) -> dict[str, Any]:
        return {"type": "object", "title": self.kind.__name__}

    def _check(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise ValueError(f"a {self.kind.__name__} can't be made from JSON: use the toolpack's options")  # noqa: TRY004
        return value


def _state_types(kind: type) -> Iterator[type]:
    """Yield the classes of objects that an instance can contain.

    These are the classes in the modules of the class and its bases, and the classes in annotations of constructors.
    """
    for base in kind.__mro__:
        if is_foreign(base):
            continue
        if isinstance(vars(base).get("__init__"), FunctionType):
            yield from (held for held in _classes_in(_hints(base.__init__)) if _can_be_stored(held))  # type: ignore[misc]
        module = sys.modules.get(base.__module__)
        for value in [*vars(module).values()] if module else ():
            if isinstance(value, type) and value.__module__ == base.__module__ and _can_be_stored(value):
                yield value


def _hints(function: Any) -> list[Any]:
    try:
        return [*typing.get_type_hints(function).values()]
    except Exception:  # noqa: BLE001 - evaluating an annotation can raise any exception
        return []


def _classes_in(annotations: Iterable[Any]) -> Iterator[type]:
    """Yield the classes in annotations, including classes inside generic types such as `list[Item]`."""
    for annotation in annotations:
        if isinstance(annotation, type) and not typing.get_origin(annotation):
            yield annotation
        elif isinstance(annotation, list | tuple):
            yield from _classes_in(annotation)
        else:
            yield from _classes_in(typing.get_args(annotation))


def _can_be_stored(kind: type) -> bool:
    """Return whether objects of a class can be part of a stored environment."""
    if is_foreign(kind) or issubclass(kind, BaseException | Volume):
        return False
    if issubclass(kind, enum.Enum):
        return bool(kind.__members__)
    return layout_of(kind, class_name(kind)) is not None
