"""Layouts of classes: access to the state of instances without running code of the class.

State is read and written through the descriptors that the interpreter created for `__dict__` and `__slots__`. The
descriptors are collected before the first instance is read. So no property, `__getattr__`, `__setattr__`, `__init__` or
validator runs.
"""

import enum
import pickle
import types
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Literal

_FIELDS_SET = "__pydantic_fields_set__"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for every class that a `class` statement makes

_GET_CONTENT: dict[type, Callable[[Any], Any]] = {
    bool: bool,  # bool can't be subclassed, although it is itself a subclass of int
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    frozenset: lambda value: frozenset().union(value),
    list: list.copy,
    dict: dict.copy,
    set: lambda value: set().union(value),
}
_SET_CONTENT: dict[type, Callable[[Any, Any], Any]] = {list: list.extend, dict: dict.update, set: set.update}

BUILTIN_BASES = tuple(_GET_CONTENT)
"""Builtin classes whose subclasses can be stored. The content of an instance is written as the plain builtin."""


class Unset:
    """The type of `UNSET`."""

    __slots__ = ()


UNSET = Unset()
"""Marks an empty slot."""


class Layout:
    """Access to the state of a class's instances.

    The state of an instance is a tuple. It consists of the content, if the class derives from a builtin, then the
    `__dict__`, if the instance has one, and then the values of all slots.

    Attributes:
        cls: The class.
        name: Name of the class in snapshots.
        base: The builtin base class, or `object`.
        has_content: Whether the class derives from a builtin.
        immutable: Whether this builtin is immutable. An instance then gets its content when it is created.
        slots: The descriptors of the `__dict__` and of the slots.
        hashed: How the class computes the hash of an instance; see `_hashed`.
        has_dict: Whether instances have a `__dict__`.
    """

    def __init__(self, cls: type, name: str, base: Any) -> None:
        self.cls = cls
        self.name = name
        self.base: Any = base  # Any, because mypy confuses `base.__new__` with `type.__new__`
        self.has_content = base is not object
        self.immutable = self.has_content and base not in _SET_CONTENT
        members = [d for kind in cls.__mro__ for d in vars(kind).values() if isinstance(d, types.MemberDescriptorType)]
        dicts = [vars(kind)["__dict__"] for kind in cls.__mro__ if "__dict__" in vars(kind)]
        dicts = [d for d in dicts if isinstance(d, types.GetSetDescriptorType)]
        self.slots: tuple[Any, ...] = (*dicts[:1], *members)
        self.hashed = _hashed(cls)
        self.has_dict = bool(dicts)
        self._getters = [slot.__get__ for slot in self.slots]
        self._setters = [slot.__set__ for slot in reversed(self.slots)]
        self._length = self.has_content + len(self.slots)
        names = [slot.__name__ for slot in self.slots]
        # Index of pydantic's `model_fields_set` in the state. 0 means that the state contains none.
        self._fields_set = names.index(_FIELDS_SET) if _FIELDS_SET in names and not self.has_content else 0

    def new(self) -> Any:
        """Create an empty instance, to be filled later."""
        if self.immutable:
            raise pickle.UnpicklingError("an immutable instance can't be created empty")
        return self.base.__new__(self.cls)

    def make(self, state: tuple[Any, ...]) -> Any:
        """Create an instance with this state. The state might be forged, so its types are checked."""
        if not self.immutable:
            instance = self.base.__new__(self.cls)
        elif state and type(state[0]) is self.base:
            instance = self.base.__new__(self.cls, state[0])
        else:
            raise pickle.UnpicklingError("this isn't the content of an instance")
        self.set_state(instance, state)
        return instance

    def get_state(self, instance: Any) -> tuple[Any, ...]:
        """Return the state of an instance. An empty slot has the value `UNSET`."""
        try:
            slot_values = tuple([get(instance) for get in self._getters])
        except AttributeError:  # at least one slot is empty
            slot_values = tuple(map(self._get_slot, self._getters, [instance] * len(self._getters)))
        return (_GET_CONTENT[self.base](instance), *slot_values) if self.has_content else slot_values

    def get_stable_state(self, instance: Any) -> tuple[Any, ...]:
        """Return the state with `model_fields_set` as a sorted tuple, or as True if it contains all attributes.

        So an instance always has the same bytes, although the order of a set can change when it is written and read.
        """
        state = self.get_state(instance)
        index = self._fields_set
        if not index or type(state[index]) is not set or _references(state, index) > _OWN_REFERENCES:
            return state  # another object also refers to the set, so the set must stay a shared object
        names: Any = state[index]
        return (*state[:index], True if names == state[0].keys() else tuple(sorted(names)), *state[index + 1 :])

    @staticmethod
    def _get_slot(get: Callable[[Any], Any], instance: Any) -> Any:
        """Return the value of a slot, or `UNSET` if the slot is empty."""
        try:
            return get(instance)
        except AttributeError:
            return UNSET

    def set_state(self, instance: Any, state: Any) -> None:
        """Fill an empty instance with this state. The state might be forged, so its types are checked.

        The `__dict__` is set last: `lazy_classes` recognizes an instance without state by its `__dict__`.
        """
        if type(state) is not tuple or len(state) != self._length:
            raise pickle.UnpicklingError("this isn't the state of an instance")
        if self.has_content:
            content, *state = state
            if type(content) is not self.base:
                raise pickle.UnpicklingError("this isn't the content of an instance")
            if not self.immutable:
                _SET_CONTENT[self.base](instance, content)
        if self.has_dict and type(state[0]) is not dict:
            raise pickle.UnpicklingError("attributes must come in a dict")
        index = self._fields_set
        if index and type(state[index]) is not set:
            state = self._with_fields_set(state, index)
        for set_slot, value in zip(self._setters, reversed(state), strict=True):
            if value is not UNSET:
                set_slot(instance, value)

    @staticmethod
    def _with_fields_set(state: Any, index: int) -> Any:
        """Return a state from `get_stable_state` in the form that `get_state` returns."""
        names = state[0] if state[index] is True else state[index]
        return (*state[:index], {*names}, *state[index + 1 :]) if type(names) in (tuple, dict) else state


def _references(state: tuple[Any, ...], index: int) -> int:
    """Return the reference count of a value in a state."""
    return getrefcount(state[index])


# Reference count of a value in a state that, besides this state, only one slot of one instance refers to.
_OWN_REFERENCES = _references(([],), 0) + 1


def layout_of(cls: type, name: str) -> Layout | None:
    """Return the layout of a class, or None if instances of the class can't be stored.

    Instances can't be stored if only C code can read their state, or if an empty instance can't be created. An enum has
    no layout, because its members are stored by name.
    """
    if issubclass(cls, enum.Enum):
        return None
    base: Any = next((base for base in cls.__mro__ if base in BUILTIN_BASES), object)
    if cls is base or any(not kind.__flags__ & _HEAP_TYPE and kind not in (base, object) for kind in cls.__mro__):
        return None
    if not hasattr(cls, "__del__"):  # otherwise `__del__` would run for the empty instance that is created below
        try:
            base.__new__(cls)
        except TypeError:  # the class is abstract, or only its own `__new__` can create instances
            return None
    return Layout(cls, name, base)


def _hashed(cls: type) -> Literal["by identity", "by fields", "by its own code"]:
    """Return how a class computes hashes.

    "By fields" means with a method that pydantic or `dataclass` has generated.
    """
    function: Any = cls.__hash__
    if function is None or function is object.__hash__:
        return "by identity"
    generated = (
        not isinstance(function, types.FunctionType)
        or function.__module__.startswith("pydantic.")
        or (hasattr(cls, "__dataclass_params__") and function.__code__.co_filename == "<string>")
    )
    return "by fields" if generated else "by its own code"
