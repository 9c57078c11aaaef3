"""Lazy instances: objects without their state, which is loaded at the first access.

A lazy instance stays the same object when its state is loaded. Until then, its class is a generated *lazy class*, in
which a hook replaces each special method and attribute of the real class. The first hook that runs loads the state,
sets `__class__` to the real class, and repeats the access. From then on, the instance has no hooks.
`importlib.util.LazyLoader` treats modules in the same way.

The method resolution order of a lazy class contains the real class, but the `__bases__` of the lazy class don't. So
`isinstance` and class attributes work. But no `__init_subclass__` runs, and `__subclasses__()` doesn't list the lazy
class.

A class gets a lazy class only if hooks cover every access to its instances' state. `lazy_class` lists the classes that
get none. `tests/snapshots/test_ways_in.py` compares each known kind of access with a real instance.
"""

import threading
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel
from typing_extensions import Format, get_annotations

from toolpack_server.snapshots.classes import is_foreign
from toolpack_server.snapshots.layouts import Layout

_set_class: Callable[[Any, type], None] = object.__dict__["__class__"].__set__
_MODEL_SLOTS = frozenset(BaseModel.__slots__)

_BINARY = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift"),
    *("and", "or", "xor"),
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_NAMES = (
    *("hash", "repr", "str", "bytes", "format", "bool", "len", "length_hint"),
    *("iter", "next", "reversed", "contains", "getitem", "setitem", "delitem", "missing", "call", "enter", "exit"),
    *("aenter", "aexit", "await", "aiter", "anext", "neg", "pos", "abs", "invert", "index", "int", "float", "complex"),
    *("round", "trunc", "floor", "ceil", "copy", "deepcopy", "replace", "reduce", "reduce_ex", "getstate"),
    *("getnewargs", "getnewargs_ex", "dir", "sizeof", "fspath", "buffer", "release_buffer", "get", "set", "delete"),
    *("instancecheck", "subclasscheck", "prepare"),
    *_COMPARISONS,
)
_SPECIAL = frozenset(f"__{name}__" for name in _NAMES)
"""Methods that the interpreter looks up on the type, without calling `__getattribute__`."""

_OPERATORS = (
    *(f"__{name}__" for name in _COMPARISONS),
    *(f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _BINARY),
)

_INHERITED = frozenset(
    f"__{name}__" for name in ("repr", "str", "format", "reduce", "reduce_ex", "getstate", "dir", "sizeof")
)
"""Special methods that `object` defines and that read the instance's state."""


class Loader(Protocol):
    """Source of the states of lazy instances."""

    def load(self, instance: Any) -> None:
        """Load the state of a lazy instance and set its class, unless another thread has already done so."""


class Marker(dict[str, Any]):
    """The `__dict__` that all lazy instances of one loader share.

    The dict stays empty. An item in the dict shows that code has set an attribute without running a hook.
    """

    __slots__ = ("loader",)
    loader: Loader


class _LazyClass(NamedTuple):
    """A lazy class with its real class."""

    cls: type
    real: type
    dict_slot: Any  # descriptor of the instances' `__dict__`


# Lazy classes by their id. The classes themselves can't be keys, because they compare equal to their real classes.
_lazy_classes: dict[int, _LazyClass] = {}
_errors = threading.local()  # `last`: the error that `_Hooks.__getattribute__` passes to `_Hooks.__getattr__`


def is_lazy(instance: object) -> bool:
    """Return whether the state of an object isn't loaded yet."""
    return id(type(instance)) in _lazy_classes


def load(instance: Any) -> None:
    """Load the state of an instance if the instance is lazy."""
    entry = _lazy_classes.get(id(type(instance)))
    if entry is None:  # another thread has loaded it
        return
    attributes = entry.dict_slot.__get__(instance)
    if type(attributes) is Marker:
        attributes.loader.load(instance)
    elif type(instance) is entry.cls:  # Code that called `type(lazy_instance)(…)` has created this instance
        _set_class(instance, entry.real)


def unload(layout: Layout, lazy: type, instance: Any, marker: Marker) -> None:
    """Drop the state of an instance, and make it an instance of its lazy class."""
    for slot in layout.slots[1:]:
        try:
            slot.__delete__(instance)
        except AttributeError:  # the slot is already empty
            continue
    layout.slots[0].__set__(instance, marker)
    _set_class(instance, lazy)


def restore(layout: Layout, instance: Any, state: Any) -> None:
    """Give a lazy instance its state, which might be forged, and its real class."""
    layout.set_state(instance, state)  # this sets the `__dict__` last; until then, other threads wait for the loader
    _set_class(instance, layout.cls)


class _Hooks:
    """Base class of lazy classes that handles attribute access.

    It precedes the real class in the method resolution order.
    """

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        """Load the instance, and return the attribute of the real instance."""
        load(self)
        try:
            return getattr(self, name)
        except AttributeError as error:
            _errors.last = error
            raise

    def __getattr__(self, name: str) -> Any:
        """Raise again the error that `__getattribute__` raised."""
        # The interpreter calls this method after `__getattribute__` has raised an error. By then, the real class's
        # `__getattr__` has already run, so its error is raised.
        error, _errors.last = getattr(_errors, "last", None), None
        raise error or AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        load(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        load(self)
        delattr(self, name)


class _AttributeHook:
    """Data descriptor that loads an instance when code gets or sets one attribute.

    `_Hooks` handles normal access. This class handles `object.__getattribute__` and `object.__setattr__`, which call
    descriptors.
    """

    def __init__(self, name: str, real: type) -> None:
        self._name = name
        self._real = real

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return getattr(self._real, self._name)
        load(instance)
        return object.__getattribute__(instance, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        load(instance)
        object.__setattr__(instance, self._name, value)

    def __delete__(self, instance: Any) -> None:
        load(instance)
        object.__delattr__(instance, self._name)


def _method_hook(name: str) -> Callable[..., Any]:
    """Return a method that loads its instance, and then calls the real class's method with this name."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        load(self)
        cls = type(self)
        attribute = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
        # Bind the method in the same way as the interpreter; a static method isn't bound.
        bind = getattr(type(attribute), "__get__", None)
        return (attribute if bind is None else bind(attribute, self, cls))(*args, **kwargs)

    method.__name__ = method.__qualname__ = name
    return method


_METHOD_HOOKS = {name: _method_hook(name) for name in _SPECIAL | _INHERITED}


def lazy_class(layout: Layout, table: Collection[type]) -> type | None:
    """Create the lazy class of a layout's class, or return None if its instances can't be lazy.

    Instances can't be lazy in one of these cases:

    - The class hashes by value, derives from a builtin, has `__slots__`, or has no `__dict__`.
    - The class defines `__del__`, `__getattribute__` or `__set_name__`, or its metaclass defines `mro`.
    - The class defines operators. Python chooses between the methods of both operands by their types.
    - A base class is in the table. In a union, pydantic-core would serialize an instance as that base class.
    - Pydantic validates instances of subclasses again (`revalidate_instances`): in the model itself or, if the class is
      a dataclass, in any model.

    Args:
        layout: The layout of the class.
        table: All classes that the environment can contain.
    """
    cls = layout.cls
    is_model = issubclass(cls, BaseModel)

    own_slots = {slot.__name__ for slot in layout.slots} - (_MODEL_SLOTS if is_model else {"__dict__"})
    if (
        layout.hashed != "by identity"
        or layout.has_content
        or not layout.has_dict
        or own_slots
        or hasattr(cls, "__del__")
        or any(name in vars(base) for base in cls.__mro__[:-1] for name in ("__getattribute__", "__set_name__"))
        or type(cls).mro is not type.mro
        or any(_is_own_operator(cls, name) for name in _OPERATORS)
        or any(base in table for base in cls.__mro__[1:-1])
        or any(map(_revalidates, (cls,) if is_model else (cls, *table)))
    ):
        return None
    base = _layout_base(cls)
    if base is None:
        return None
    lazy = _create(cls, base, _namespace(layout))
    if lazy is not None:
        _lazy_classes[id(lazy)] = _LazyClass(lazy, cls, layout.slots[0])
    return lazy


def _is_own_operator(cls: type, name: str) -> bool:
    """Return whether a class defines its own method for an operator.

    Methods that pydantic or `dataclass` generates don't count.
    """
    owner = next((base for base in cls.__mro__[:-1] if name in vars(base)), None)
    if owner is None or owner.__module__.startswith("pydantic."):
        return False
    method = vars(owner)[name]
    is_generated = "__dataclass_params__" in vars(owner) and isinstance(method, FunctionType)
    return not (is_generated and method.__code__.co_filename == "<string>")


def _revalidates(cls: type) -> bool:
    """Return whether pydantic validates instances of a class's subclasses again."""
    configs = (getattr(cls, name, None) or {} for name in ("model_config", "__pydantic_config__"))
    return any(config.get("revalidate_instances") == "subclass-instances" for config in configs)


def _layout_base(cls: type) -> type | None:
    """Return the base class for a lazy class: the nearest ancestor that adds no `__dict__`, or `BaseModel`.

    Return None if this ancestor is an author's class, because its `__subclasses__()` would list the lazy class.
    """
    base: type = cls
    while base is not BaseModel and (base.__dictoffset__ or base.__weakrefoffset__):
        base = base.__base__  # type: ignore[assignment] # `object` ends the loop
    return base if base in (object, BaseModel) or is_foreign(base) else None


def _namespace(layout: Layout) -> dict[str, Any]:
    """Return the namespace of a lazy class: hooks for the real class's special methods and attributes."""
    cls = layout.cls
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    for name in _SPECIAL | _INHERITED:
        own = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if own is not None and (own is not vars(object).get(name) or name in _INHERITED):
            namespace[name] = _METHOD_HOOKS[name]
    namespace["__hash__"] = cls.__hash__
    if "__dataclass_fields__" in vars(cls):  # orjson reads this name from the class's own namespace
        namespace["__dataclass_fields__"] = vars(cls)["__dataclass_fields__"]
    names = {slot.__name__ for slot in layout.slots}
    names.update(getattr(cls, "__pydantic_fields__", ()), getattr(cls, "__dataclass_fields__", ()))
    for base in cls.__mro__:
        names.update(get_annotations(base, format=Format.FORWARDREF))
    return namespace | {name: _AttributeHook(name, cls) for name in names - {"__class__"}}


def _create(cls: type, base: type, namespace: dict[str, Any]) -> type | None:
    """Create a lazy class, or return None if its instances can't become instances of `cls`."""
    added = [
        f"__{name}__"
        for name in ("dict", "weakref")
        if getattr(cls, f"__{name}offset__") and not getattr(base, f"__{name}offset__")
    ]
    # The interpreter adds these two descriptors to a class without `__slots__`.
    if added != ["__dict__", "__weakref__"]:
        namespace["__slots__"] = tuple(added)
    if "__dict__" in namespace.get("__slots__", ()):
        del namespace["__dict__"]  # the interpreter creates it

    def derive(_meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> type:
        """Create the class for code that derives a class from `type(lazy_instance)`. Its base is the real class."""
        real: Any = type(cls)
        real_bases = (entry.real if (entry := _lazy_classes.get(id(base))) else base for base in bases)
        return real(name, tuple(real_bases), namespace, **kwargs)  # type: ignore[no-any-return]

    # Code that uses `type(lazy_instance)` gets the attributes of the real class.
    meta_namespace = {
        "mro": lambda lazy: (lazy, _Hooks, *cls.__mro__),
        "__new__": derive,
        "__getattribute__": lambda _lazy, name: getattr(cls, name),
        "__setattr__": lambda _lazy, name, value: setattr(cls, name, value),
        "__delattr__": lambda _lazy, name: delattr(cls, name),
        "__eq__": _equals(cls),
        "__hash__": lambda _lazy: type.__hash__(cls),
        "__instancecheck__": lambda _lazy, instance: isinstance(instance, cls),
        "__subclasscheck__": lambda _lazy, other: issubclass(other, cls),
    }
    try:
        meta: Any = type.__new__(type, type(cls).__name__, (type(cls),), meta_namespace)
        lazy: type = type.__new__(meta, cls.__name__, (base,), namespace)
        _set_class(object.__new__(lazy), cls)
    except TypeError:  # the memory layouts differ
        return None
    return lazy


def _equals(cls: type) -> Callable[[type, object], bool]:
    """Return an `__eq__` method that makes a lazy class equal to its real class."""

    def equals(lazy: type, other: object) -> bool:
        entry = _lazy_classes.get(id(other))
        return other is lazy or other is cls or (entry is not None and entry.real is cls)

    return equals
