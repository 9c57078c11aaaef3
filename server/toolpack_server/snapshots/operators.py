"""Operators: the only callables that a snapshot's bytes can reach. Writers produce the calls of operators.

A snapshot can fetch only operators, by name. An operator has no mutable state, and checks the exact types of its
arguments. It receives the name of a class, and looks the class up in the `ClassTable`. It can only create an object or
fill an empty object.

Instances are written in two steps, (new, (name,), state, fill), which allows cycles. An instance that hashes by value
must have its state before it is added to a set, so it is written in one step, (make, (name, *state)). One step isn't
possible if the instance is part of a cycle. In that case, `freeze` starts again with `two_steps`, and reads the result
back to check it.
"""

import collections
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, timezone
from enum import Enum, Flag
from typing import Any, NoReturn, Protocol

from toolpack_server.base.errors import CycleError, UnsupportedObjectError
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.layouts import UNSET, Layout, layout_of
from toolpack_server.snapshots.plain_types import FACTORIES, PLAIN, Plain
from toolpack_server.volumes.volume import Volume


class WriteProgress(Protocol):
    """State that all writers share while one snapshot is written."""

    two_steps: bool
    """Whether to also write instances that hash by value in two steps."""
    must_verify: bool
    """Whether the snapshot must be read back, to check that sets and dicts find their members."""
    started: set[int]
    """The ids of the instances whose writing in one step has begun."""


Write = Callable[[WriteProgress, Any], tuple[Any, ...]]
"""Writer of objects of one type. Its return value has the form that `__reduce__` returns."""


class OperatorTable:
    """Operators and writers for a table of classes. Preparing them is slow, so each table has one object.

    Attributes:
        layouts: The layouts of the classes, by class.
        writers: The writers, by the type of an object.
        derived: Cache of values that other modules derive from the table.
        make: The operator that creates an instance in one step.
        find: All objects that a snapshot's bytes can fetch, by module and name.
        preamble: Start of every snapshot. It puts each operator into the unpickler's memo, so that the rest of the
            bytes can refer to the operator by number.
        memo: The numbers of the same operators, in the form of the pickler's memo.
    """

    def __init__(self, classes: ClassTable) -> None:
        self.layouts = classes.layouts
        self.writers: dict[type, Write] = _WritersOrRefusal()
        self.derived: dict[Any, Any] = {}
        operators: dict[str, Any] = {}
        for prepare in (_instances, _plain, _enums, _defaultdict):
            operators_of_kind, writers = prepare(classes)
            operators |= operators_of_kind
            self.writers |= writers
        self.make = operators["make"]
        self.find = {(_MODULE, name): operator for name, operator in operators.items()}
        self.memo = {id(operator): (index, operator) for index, operator in enumerate(operators.values())}
        self._operators = operators
        self.preamble = memoizing(map(fetching, operators))

    def stable_writers(self) -> dict[type, Write]:
        """Return writers that reproduce an object's bytes after the object was read from them.

        Only the order of sets can still differ.
        """
        writers = _WritersOrRefusal(self.writers)
        for cls, layout in self.layouts.items():
            writers[cls] = _instance_writer(layout, layout.get_stable_state, self._operators)
        return writers


def fetching(name: str) -> bytes:
    """Return the pickle code that pushes an operator onto the unpickler's stack."""
    return pickle.GLOBAL + f"{_MODULE}\n{name}\n".encode()


def memoizing(pushes: Iterable[bytes]) -> bytes:
    """Return the beginning of a pickle that puts values into the unpickler's memo.

    Args:
        pushes: For each value, the pickle code that pushes it.
    """
    body = b"".join(push + pickle.MEMOIZE + pickle.POP for push in pushes)
    return pickle.PROTO + b"\x05" + pickle.FRAME + struct.pack("<Q", len(body)) + body


def operators_of(classes: ClassTable) -> OperatorTable:
    """Return the operators for a table of classes. They are prepared at first use."""
    operators = classes.operators
    if operators is None:
        operators = classes.operators = OperatorTable(classes)
    return operators  # type: ignore[no-any-return]


def _operator(call: Callable[..., Any]) -> Any:
    """Return a callable object without attributes. Its code belongs to its own class, which the bytes can't reach."""
    return type("Operator", (), {"__slots__": (), "__call__": staticmethod(call)})()


def _plain_str(name: object) -> str:
    """Return a name if it is a plain string. A forged name could be an object with its own `__eq__`."""
    if type(name) is not str:
        raise pickle.UnpicklingError("a name must be a string")
    return name


_MODULE = "toolpack"
_Prepared = tuple[dict[str, Any], dict[type, Write]]
"""Operators by name, and writers by type."""


def _refuse(_progress: WriteProgress, value: Any) -> NoReturn:
    """Raise an error that says why an object of this type can't be stored."""
    if isinstance(value, type):
        raise UnsupportedObjectError("a class isn't state; store its name instead")
    if isinstance(value, Volume):
        raise UnsupportedObjectError(
            "make it a field of the environment itself, so that calls, views and diffs can name it"
        )
    if callable(value) and type(value).__module__ in ("builtins", "functools"):
        raise UnsupportedObjectError("code isn't state; store its name and look the function up")
    if not isinstance(value, Enum) and layout_of(type(value), "") is None:
        raise UnsupportedObjectError("it has state that can't be read; make it in the functions that need it")
    raise UnsupportedObjectError(
        "its class is neither in the environment's annotations nor in the toolpack's `state_types`, nor a plain type",
        undeclared=True,
    )


class _WritersOrRefusal(dict[type, Write]):
    """Writers by type. A type without its own writer has the writer `_refuse`."""

    def __missing__(self, _kind: type) -> Write:
        return _refuse


def _plain(_classes: ClassTable) -> _Prepared:
    """Return the operators and writers for plain types and constants."""
    by_name = {plain.cls.__name__: plain for plain in PLAIN}
    constants = {"Ellipsis": ..., "NotImplemented": NotImplemented, "utc": UTC, "unset": UNSET}
    constant_names = {id(value): name for name, value in constants.items()}

    def write_constant(_progress: WriteProgress, value: Any) -> tuple[Any, ...]:
        return the_constant, (constant_names[id(value)],)

    def writer_for(name: str, plain: Plain) -> Write:
        arguments, items, pairs = plain.arguments, plain.items, plain.pairs
        if items:
            return lambda _progress, value: (the_plain, (name, *arguments(value)), None, items(value))
        if pairs:
            return lambda _progress, value: (the_plain, (name, *arguments(value)), None, None, pairs(value))
        return lambda _progress, value: (the_plain, (name, *arguments(value)))

    the_plain = _operator(lambda name, *args: by_name[_plain_str(name)].checked(*args))
    the_constant = _operator(lambda name: constants[_plain_str(name)])
    writers = {plain.cls: writer_for(name, plain) for name, plain in by_name.items()}
    write_zone = writers[timezone]  # so that `UTC` stays a singleton
    writers[timezone] = lambda progress, value: (write_constant if value is UTC else write_zone)(progress, value)
    writers |= dict.fromkeys((type(...), type(NotImplemented), type(UNSET)), write_constant)
    return {"plain": the_plain, "constant": the_constant}, writers


def _defaultdict(classes: ClassTable) -> _Prepared:
    """Return the operator and writer for `defaultdict`."""
    factories: dict[Any, Any] = {None: None, **FACTORIES, **{x.name: x.cls for x in classes.layouts.values()}}
    names = {factory: name for name, factory in factories.items()}

    def make(name: str | None) -> collections.defaultdict[Any, Any]:
        return collections.defaultdict(factories[None if name is None else _plain_str(name)])

    def write(_progress: WriteProgress, value: Any) -> tuple[Any, ...]:
        if value.default_factory not in names:
            raise UnsupportedObjectError("its default_factory is neither a builtin type nor an admitted class")
        return operator, (names[value.default_factory],), None, None, iter(value.items())

    operator = _operator(make)
    return {"defaultdict": operator}, {collections.defaultdict: write}


def _enums(classes: ClassTable) -> _Prepared:
    """Return the operators and writers for enums.

    Members are written by name, and combined flags by value. The author's `_missing_` method never runs.
    """
    by_name: dict[str, Any] = {name: cls for cls, name in classes.enums.items()}

    def flags(class_name: str, value: int) -> Any:
        """Return the combination of flags with this value, which might be forged."""
        cls = by_name[_plain_str(class_name)]
        if type(value) is not int or not issubclass(cls, Flag):
            raise pickle.UnpicklingError("only flags can be combined, and only by number")
        member = cls._value2member_map_.get(value)
        if member is None:
            member = Flag._missing_.__func__(cls, value)  # type: ignore[attr-defined]
        if type(member) is not cls:
            raise pickle.UnpicklingError("no such flags")
        return member

    def write(_progress: WriteProgress, value: Any) -> tuple[Any, ...]:
        cls = type(value)
        if cls._member_map_.get(value._name_) is value:
            return the_member, (classes.enums[cls], value._name_)
        if isinstance(value, Flag) and type(value._value_) is int:
            return the_flags, (classes.enums[cls], value._value_)
        raise UnsupportedObjectError("it isn't a member of its own enum")

    the_member = _operator(lambda class_name, name: by_name[_plain_str(class_name)]._member_map_[_plain_str(name)])
    the_flags = _operator(flags)
    return {"member": the_member, "flags": the_flags}, dict.fromkeys(classes.enums, write)


def _instances(classes: ClassTable) -> _Prepared:
    """Return the operators and writers for instances of the table's classes."""
    layouts = classes.layouts
    by_name = {layout.name: layout for layout in layouts.values()}
    operators = {
        "new": _operator(lambda name: by_name[_plain_str(name)].new()),
        "fill": _operator(lambda instance, state: layouts[type(instance)].set_state(instance, state)),
        "make": _operator(lambda name, *state: by_name[_plain_str(name)].make(state)),
    }
    return operators, {cls: _instance_writer(layout, layout.get_state, operators) for cls, layout in layouts.items()}


def _instance_writer(
    layout: Layout, get_state: Callable[[Any], tuple[Any, ...]], operators: Mapping[str, Any]
) -> Write:
    """Return the writer for a class's instances.

    Args:
        layout: The layout of the class.
        get_state: `layout.get_state` or `layout.get_stable_state`.
        operators: The operators of `_instances`, by name.
    """
    name, args = layout.name, (layout.name,)
    new, fill, make = operators["new"], operators["fill"], operators["make"]
    own_hash = layout.hashed == "by its own code"

    def in_two_steps(_progress: WriteProgress, value: Any) -> tuple[Any, ...]:
        return new, args, get_state(value), None, None, fill

    def immutable(_progress: WriteProgress, value: Any) -> tuple[Any, ...]:
        return make, (name, *get_state(value))

    def in_one_step(progress: WriteProgress, value: Any) -> tuple[Any, ...]:
        """Write an instance that hashes by value: it gets its state before a set or a dict hashes it."""
        if progress.two_steps:
            return in_two_steps(progress, value)
        if id(value) in progress.started:  # the instance refers to itself, directly or through other objects
            raise CycleError
        progress.started.add(id(value))
        # An author's `__hash__` can also read other objects, which might not have their state yet when it runs.
        progress.must_verify |= own_hash
        return make, (name, *get_state(value))

    if layout.immutable:
        return immutable
    return in_two_steps if layout.hashed == "by identity" else in_one_step
