"""Table of the classes that a snapshot can contain: the classes that the environments' annotations reach.

A snapshot contains names of classes, and forged bytes could contain the name of any class. So the server collects the
allowed classes from the toolpacks' declarations before it writes the first snapshot. The writer and the reader use the
same table, and refuse other classes. The table is built once, after all toolpacks are loaded, and never changes.

A walk through the annotations finds two sets of classes:

- The *core* contains the classes that the annotations reach, and their subclasses at the top level of the toolpacks'
  own modules. The core is the same in every process that loads these toolpacks, and the fingerprint covers the core.
- The *table* also contains subclasses from other loaded modules. The fingerprint omits these subclasses, because they
  depend on what else the process has imported.
"""

import enum
import functools
import hashlib
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, ForwardRef, Literal

import pydantic
import typing_extensions
from pydantic import networks

from toolpack_server.base.errors import RegistrationError
from toolpack_server.snapshots.layouts import Layout, layout_of
from toolpack_server.snapshots.plain_types import PLAIN_TYPES
from toolpack_server.volumes.volume import Volume

_PYDANTIC_VALUES = (
    *(pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret, pydantic.ByteSize),
    *(kind for kind in vars(networks).values() if isinstance(kind, type) and hasattr(kind, "_constraints")),
)
"""Pydantic's own value types, which are always allowed. They are ordinary Python classes that wrap a plain value."""

_FOREIGN = {*sys.stdlib_module_names, "annotated_types", "pydantic", "pydantic_core", "typing_extensions"}


class ClassTable:
    """The classes that snapshots can contain.

    Args:
        roots: Environment classes, or annotations.
        state_types: Further classes that a toolpack's author has declared.

    Attributes:
        layouts: The layouts of the classes, by class.
        enums: The names of the enums, by class.
        names: All classes by name.
        operators: The operators for the classes; see `operators_of`.

    Raises:
        RegistrationError: Two classes have the same name, or a state type's instances can't be stored.
    """

    def __init__(self, roots: Iterable[Any], state_types: Iterable[type] = ()) -> None:
        state_types = tuple(state_types)
        declared = _Walk(roots, (*state_types, *_PYDANTIC_VALUES), cached_properties=True)
        names: dict[str, type] = {}
        for cls in declared.classes:
            other = names.setdefault(class_name(cls), cls)
            if other is not cls:
                raise RegistrationError(
                    f"Two different classes are called `{class_name(cls)}`, so a snapshot can't tell them apart: "
                    "rename one of them, or move it to another module or out of the function that defines it."
                )
        declared.add_subclasses(only_own_modules=False)
        self._add_unambiguous(names, declared.classes)
        self.layouts: Mapping[type, Layout] = {
            cls: layout for cls in names.values() if (layout := layout_of(cls, class_name(cls)))
        }
        self.enums: Mapping[type, str] = {
            cls: name for name, cls in names.items() if issubclass(cls, enum.Enum) and cls.__members__
        }
        names = {name: cls for name, cls in names.items() if cls in self.layouts or cls in self.enums}
        for cls in state_types:
            if cls not in names.values() and cls not in PLAIN_TYPES:
                raise RegistrationError(
                    f"The state type `{class_name(cls)}` can't be stored in a snapshot: "
                    "it is abstract, or its instances hold state that only C code can see."
                )
        for cls in self.enums:
            type.__setattr__(cls, "__setstate__", _refuse_state)
        self.names: Mapping[str, type] = types.MappingProxyType(names)
        self.operators: Any = None  # built by `operators.py` at first use

    @staticmethod
    def _add_unambiguous(names: dict[str, type], classes: Iterable[type]) -> None:
        """Add subclasses by name, except where a name is ambiguous.

        `dataclass(slots=True)` and reloads replace a class, but its base class still lists the old class until that is
        garbage-collected. So if several classes have one name, only the class that can be imported counts.
        """
        by_name: dict[str, list[type]] = {}
        for cls in classes:
            by_name.setdefault(class_name(cls), []).append(cls)
        for name, candidates in by_name.items():
            chosen = candidates if len(candidates) == 1 else [cls for cls in candidates if _is_importable(cls)]
            if len(chosen) == 1:
                names.setdefault(name, chosen[0])

    def __len__(self) -> int:
        return len(self.names)


def fingerprint(roots: Iterable[Any], state_types: Iterable[type] = ()) -> str:
    """Hash the names, fields, field types, private attributes, enum members and slots of the core classes.

    Functions, methods, validators and defaults are omitted, so an author can edit them without losing sessions.
    """
    walk = _Walk(roots, state_types, cached_properties=False)
    lines = sorted("\n".join(_describe_class(cls)) for cls in (*walk.classes, *walk.typed_dicts))
    lines += sorted(f"{alias.__name__} = {_describe(alias.__value__)}" for alias in walk.aliases)
    return hashlib.blake2b("\n\n".join(lines).encode(), digest_size=16).hexdigest()


def class_name(cls: type) -> str:
    """Return `module:qualname`. The name of a parametrized generic class also includes its arguments."""
    origin = _origin(cls)
    if origin is not cls:
        arguments = cls.__dict__["__pydantic_generic_metadata__"]["args"]
        return f"{class_name(origin)}[{', '.join(map(_describe, arguments))}]"
    # Python 3.13 defines pathlib's classes in a submodule, unlike other versions, so use one name for all versions.
    module = "pathlib" if cls.__module__ == "pathlib._local" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def _origin(cls: type) -> type:
    """Return the generic class of a parametrized model, or the class itself.

    A parametrized model isn't enough, because its `__module__` is the module that first used it.
    """
    metadata = cls.__dict__.get("__pydantic_generic_metadata__")
    return (metadata and metadata["origin"]) or cls


class _Walk:
    """Walk through annotations that collects all classes reachable from them.

    Args:
        roots: Environment classes, or annotations.
        state_types: Further classes that a toolpack's author has declared.
        cached_properties: Whether to include the types of cached properties. The table needs them, because cached
            values are state. The fingerprint doesn't, because it omits functions.

    Attributes:
        classes: The classes, in the order of discovery.
        typed_dicts: The `TypedDict` types. Their instances are plain dicts, but the fingerprint includes their fields.
        aliases: The type aliases.
    """

    def __init__(self, roots: Iterable[Any], state_types: Iterable[type], *, cached_properties: bool) -> None:
        self.cached_properties = cached_properties
        self.classes: dict[type, None] = {}
        self.typed_dicts: list[type] = []
        self.aliases: list[typing_extensions.TypeAliasType] = []
        # The visited annotations by id, because some can't be hashed. The dict keeps them alive, so that no id is
        # reused.
        self._seen: dict[int, Any] = {}
        state_types = [cls for cls in state_types if cls not in PLAIN_TYPES]
        self.classes.update(dict.fromkeys(state_types))  # these classes are allowed without the checks in `_is_state`
        for root in (*roots, *state_types):
            self._visit(root)
        self._modules = {cls.__module__ for cls in map(_origin, self.classes) if not is_foreign(cls)}
        self.add_subclasses(only_own_modules=True)

    def add_subclasses(self, *, only_own_modules: bool) -> None:
        """Add the subclasses of the toolpacks' own classes, and all classes that their annotations reach.

        Args:
            only_own_modules: Whether to add only subclasses at the top level of the toolpacks' own modules.
        """
        pending = list(self.classes)
        while pending:
            cls = pending.pop()
            if is_foreign(cls):
                continue
            count = len(self.classes)
            for subclass in _subclasses(cls):
                if only_own_modules and not (subclass.__module__ in self._modules and _is_importable(subclass)):
                    continue
                self._visit(subclass)
            pending += list(self.classes)[count:]

    def _visit(self, root: Any) -> None:
        """Add all classes that an annotation or a class reaches."""
        pending: list[tuple[Any, type | None]] = [(root, None)]  # Annotations, each with the class that contains it.
        while pending:
            annotation, owner = pending.pop()
            if isinstance(annotation, (str, ForwardRef)):
                pending += [(resolved, owner) for resolved in _resolve(annotation, owner)]
                continue
            if id(annotation) in self._seen:
                continue
            self._seen[id(annotation)] = annotation
            if isinstance(annotation, typing_extensions.TypeAliasType):
                self.aliases.append(annotation)
            if isinstance(annotation, type) and not typing.get_origin(annotation):
                pending += [(inner, inside) for inner, inside in self._enter(annotation)]
            else:
                pending += [(inner, owner) for inner in _inner_annotations(annotation)]

    def _enter(self, cls: type) -> Iterator[tuple[Any, type]]:
        """Add a class if it is allowed. Yield its annotations, each with the class that contains it."""
        if typing_extensions.is_typeddict(cls):
            self.typed_dicts.append(cls)
            yield from _hints(cls, cached_properties=self.cached_properties)
        elif cls in self.classes or _is_state(cls):
            self.classes[cls] = None
            yield from _hints(cls, cached_properties=self.cached_properties)
            if issubclass(cls, pydantic.BaseModel):
                cls.model_rebuild(raise_errors=False)  # resolves forward references
                yield from ((field.annotation, cls) for field in cls.model_fields.values())
                metadata = cls.__pydantic_generic_metadata__
                yield from ((inner, cls) for inner in (metadata["origin"], *metadata["args"]) if inner)


def _subclasses(cls: type) -> list[type]:
    """Return the subclasses of a class, in an order that doesn't depend on imports."""
    return sorted(type.__subclasses__(cls), key=class_name)


def is_foreign(cls: type) -> bool:
    """Return whether a class belongs to Python or pydantic. Its use in an annotation doesn't allow it in snapshots."""
    return cls.__module__.partition(".")[0] in _FOREIGN


def _is_state(cls: type) -> bool:
    """Return whether snapshots can contain a class because an annotation uses it."""
    if issubclass(cls, enum.Enum):
        return bool(cls.__members__)
    if issubclass(cls, Volume):  # volumes are stored separately, outside the snapshot
        return False
    return not is_foreign(cls) and not getattr(cls, "_is_protocol", False)


def _is_importable(cls: type) -> bool:
    """Return whether importing the class by its module and name returns this class."""
    value: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        value = getattr(value, part, None)
    return value is cls


def _hints(cls: type, *, cached_properties: bool) -> Iterator[tuple[Any, type]]:
    """Yield the annotations of all attributes of a class, each with the class or base class that contains it."""
    for base in cls.__mro__:
        if is_foreign(base):
            continue
        yield from ((hint, base) for hint in annotations_of(base).values())
        for value in vars(base).values() if cached_properties else ():
            inner = getattr(value, "wrapped", value)
            if isinstance(inner, functools.cached_property):
                yield annotations_of(inner.func).get("return"), base


def annotations_of(owner: Any) -> dict[str, Any]:
    """Return the annotations of a class, without its base classes, or of a function.

    An unknown name stays a forward reference.
    """
    return typing_extensions.get_annotations(owner, format=typing_extensions.Format.FORWARDREF)


def _resolve(annotation: str | ForwardRef, owner: type | None) -> list[Any]:
    """Evaluate an annotation that is a string, in the namespace of its class. Return a list that contains the result.

    Return an empty list if the annotation can't be evaluated. The annotation then allows no class.
    """
    if isinstance(annotation, ForwardRef) and getattr(annotation, "__forward_value__", None) is not None:
        return [annotation.__forward_value__]
    module = sys.modules.get(owner.__module__) if owner else None
    local = {**vars(owner), owner.__name__: owner} if owner else {}
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return [typing.get_type_hints(holder, vars(module) if module else {}, local, include_extras=True)["it"]]
    except Exception:  # noqa: BLE001 - evaluating an annotation can raise anything
        return []


def _inner_annotations(annotation: Any) -> Iterable[Any]:
    """Return the annotations inside an annotation that isn't a class, such as `list` and `int` in `list[int]`."""
    if isinstance(annotation, (typing.TypeVar, typing_extensions.TypeVar)):
        default = getattr(annotation, "__default__", None)
        return [annotation.__bound__, *annotation.__constraints__, default]
    if isinstance(annotation, typing_extensions.TypeAliasType):
        return [annotation.__value__]
    if isinstance(annotation, (list, tuple)):
        return annotation
    if isinstance(annotation, typing.NewType):
        return [annotation.__supertype__]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is ClassVar:
        return ()
    if origin is Literal:
        return [type(value) for value in args if isinstance(value, enum.Enum)]
    if origin is typing.Annotated:
        return args[:1]
    return [origin, *args]


def _refuse_state(self: Any, state: Any) -> None:  # noqa: ARG001 - pickle's interface
    """Refuse to change an enum member, because all sessions in the process share the member."""
    raise TypeError("enum members have no state")


def _describe_class(cls: type) -> Iterator[str]:
    """Yield the lines that describe a class in the fingerprint."""
    yield class_name(cls)
    if issubclass(cls, enum.Enum):
        for name, member in cls.__members__.items():
            plain = type(member._value_) in (int, str, float, bool, bytes, type(None))
            yield f"member {name} = {member._value_!r}" if plain else f"member {name}"
        return
    fields = getattr(cls, "__pydantic_fields__", {})
    yield from (f"field {name}: {_describe(fields[name].annotation)}" for name in sorted(fields))
    for base in cls.__mro__:
        if not is_foreign(base):
            hints = annotations_of(base)
            yield from (f"{name}: {_describe(hints[name])}" for name in sorted(hints) if name not in fields)
    if layout := layout_of(cls, class_name(cls)):
        yield f"{layout.base.__name__} {[slot.__name__ for slot in layout.slots]}"


def _describe(annotation: Any) -> str:  # noqa: PLR0911 - one return for each kind of annotation
    """Return a description of a type that is the same in every process.

    So the description contains no memory addresses, and its order doesn't depend on the caches of `typing`.
    """
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        return class_name(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _describe(args[0])
    if origin is Literal:
        return f"Literal[{', '.join(sorted(f'{type(value).__qualname__} {value!r}' for value in args))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(map(_describe, args)))
    if isinstance(annotation, (list, tuple)):
        return f"[{', '.join(map(_describe, annotation))}]"
    if args:
        return f"{_describe(origin)}[{', '.join(map(_describe, args))}]"
    return str(getattr(annotation, "__qualname__", None) or getattr(annotation, "__name__", type(annotation).__name__))
