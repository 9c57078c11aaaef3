"""The operators: all that the bytes of a snapshot can call, and the writers that name them.

A snapshot fetches the operators by name, and no other name can be fetched. The rule: an operator has no state that
could be altered, checks the exact types of its arguments, takes a class as a string that it looks up in the
`ClassTable`, and does nothing but make one object or fill one that was made empty.

Instances are written as (new, (name,), state, fill), so that cycles close. Where a class hashes by value, an instance
must be whole before a set takes it in: it is written as one step, (make, (name, *state)), which a cycle through it
rules out; whoever drives the writers then starts again with `stepwise`, and reads what was written back to check it.
"""

import collections
import pickle
import struct
from collections.abc import Callable
from datetime import UTC, timezone
from enum import Flag
from typing import Any, NoReturn, Protocol

from server.errors import CycleError, UnsupportedObjectError
from server.snapshots.classes import ClassTable
from server.snapshots.layouts import UNSET, Layout
from server.snapshots.plain_types import FACTORIES, PLAIN, Plain


class Progress(Protocol):
    """What the writers know, and note, of one snapshot in the making."""

    stepwise: bool
    """Write also what hashes by value in two steps."""
    doubtful: bool
    """Only reading it back shows whether sets and dicts find their members."""
    begun: set[int]


Write = Callable[[Progress, Any], tuple[Any, ...]]


class OperatorTable:
    """What writing and reading need, prepared once for a table of classes.

    `preamble` opens every snapshot: it fetches each operator by name into the unpickler's memo, where the rest of the
    bytes refers to it by number. `memo` gives the pickler the same numbers. `find` has what can be fetched.
    """

    def __init__(self, classes: ClassTable) -> None:
        self.layouts = classes.layouts
        self.writers: dict[type, Write] = _Refusing()
        operators: dict[str, Any] = {}
        for prepare in (_instances, _plain, _enums, _defaultdict):
            found, writers = prepare(classes)
            operators |= found
            self.writers |= writers
        self.find = {(_MODULE, name): operator for name, operator in operators.items()}
        self.memo = {id(operator): (index, operator) for index, operator in enumerate(operators.values())}
        fetch = b"".join(
            pickle.GLOBAL + f"{_MODULE}\n{name}\n".encode() + pickle.MEMOIZE + pickle.POP for name in operators
        )
        self.preamble = pickle.PROTO + b"\x05" + pickle.FRAME + struct.pack("<Q", len(fetch)) + fetch


def operators_of(classes: ClassTable) -> OperatorTable:
    """Get the operators of a table of classes, prepared at their first use."""
    operators = classes.operators
    if operators is None:
        operators = classes.operators = OperatorTable(classes)
    return operators  # type: ignore[no-any-return]


def _operator(call: Callable[..., Any]) -> Any:
    """Make a callable that holds nothing: its one-off class keeps the code, and the class is out of reach."""
    return type("Operator", (), {"__slots__": (), "__call__": staticmethod(call)})()


def _text(name: object) -> str:
    """Let only a plain string look something up: any other key might bring its own `__eq__`."""
    if type(name) is not str:
        raise pickle.UnpicklingError("a name is a string")
    return name


_MODULE = "toolpack"
_Prepared = tuple[dict[str, Any], dict[type, Write]]


def _refuse(_progress: Progress, value: Any) -> NoReturn:
    if isinstance(value, type):
        raise UnsupportedObjectError("a class isn't state; keep its name instead")
    if callable(value) and type(value).__module__ in ("builtins", "functools"):
        raise UnsupportedObjectError("code isn't state; keep a name and look the function up")
    raise UnsupportedObjectError(
        "its class is neither in the environment's annotations nor in the toolpack's `state_types`, nor a plain type"
    )


class _Refusing(dict[type, Write]):
    def __missing__(self, _kind: type) -> Write:
        return _refuse


def _plain(_classes: ClassTable) -> _Prepared:
    by_name = {plain.cls.__name__: plain for plain in PLAIN}
    constants = {"Ellipsis": ..., "NotImplemented": NotImplemented, "utc": UTC, "unset": UNSET}
    constant_names = {id(value): name for name, value in constants.items()}

    def write_constant(_progress: Progress, value: Any) -> tuple[Any, ...]:
        return the_constant, (constant_names[id(value)],)

    def writer_for(name: str, plain: Plain) -> Write:
        take, items, pairs = plain.take, plain.items, plain.pairs
        if items:
            return lambda _progress, value: (the_plain, (name, *take(value)), None, items(value))
        if pairs:
            return lambda _progress, value: (the_plain, (name, *take(value)), None, None, pairs(value))
        return lambda _progress, value: (the_plain, (name, *take(value)))

    the_plain = _operator(lambda name, *args: by_name[_text(name)].checked(*args))
    the_constant = _operator(lambda name: constants[_text(name)])
    writers = {plain.cls: writer_for(name, plain) for name, plain in by_name.items()}
    write_zone = writers[timezone]  # what was UTC itself stays UTC itself
    writers[timezone] = lambda progress, value: (write_constant if value is UTC else write_zone)(progress, value)
    writers |= dict.fromkeys((type(...), type(NotImplemented), type(UNSET)), write_constant)
    return {"plain": the_plain, "constant": the_constant}, writers


def _defaultdict(classes: ClassTable) -> _Prepared:
    factories: dict[Any, Any] = {None: None, **FACTORIES, **{x.name: x.cls for x in classes.layouts.values()}}
    names = {factory: name for name, factory in factories.items()}

    def make(name: str | None) -> collections.defaultdict[Any, Any]:
        return collections.defaultdict(factories[None if name is None else _text(name)])

    def write(_progress: Progress, value: Any) -> tuple[Any, ...]:
        if value.default_factory not in names:
            raise UnsupportedObjectError("its default_factory is neither a builtin type nor an admitted class")
        return operator, (names[value.default_factory],), None, None, iter(value.items())

    operator = _operator(make)
    return {"defaultdict": operator}, {collections.defaultdict: write}


def _enums(classes: ClassTable) -> _Prepared:
    """Members are found by name, combined flags by value as `Flag` does it: no `_missing_` of a pack runs."""
    by_name: dict[str, Any] = {name: cls for cls, name in classes.enums.items()}

    def flags(class_name: str, value: int) -> Any:
        cls = by_name[_text(class_name)]
        if type(value) is not int or not issubclass(cls, Flag):
            raise pickle.UnpicklingError("only flags can be combined, and only by number")
        found = cls._value2member_map_.get(value)
        if found is None:
            found = Flag._missing_.__func__(cls, value)  # type: ignore[attr-defined]
        if type(found) is not cls:
            raise pickle.UnpicklingError("no such flags")
        return found

    def write(_progress: Progress, value: Any) -> tuple[Any, ...]:
        cls = type(value)
        if cls._member_map_.get(value._name_) is value:
            return the_member, (classes.enums[cls], value._name_)
        if isinstance(value, Flag) and type(value._value_) is int:
            return the_flags, (classes.enums[cls], value._value_)
        raise UnsupportedObjectError("it isn't a member of its own enum")

    the_member = _operator(lambda class_name, name: by_name[_text(class_name)]._member_map_[_text(name)])
    the_flags = _operator(flags)
    return {"member": the_member, "flags": the_flags}, dict.fromkeys(classes.enums, write)


def _instances(classes: ClassTable) -> _Prepared:
    layouts = classes.layouts
    by_name = {layout.name: layout for layout in layouts.values()}
    the_new = _operator(lambda name: by_name[_text(name)].new())
    the_fill = _operator(lambda instance, state: layouts[type(instance)].put(instance, state))
    the_make = _operator(lambda name, *state: by_name[_text(name)].make(state))

    def writer_for(layout: Layout) -> Write:
        name, take, args, doubtful = layout.name, layout.take, (layout.name,), layout.hashed == "by its own code"

        def in_steps(_progress: Progress, value: Any) -> tuple[Any, ...]:
            return the_new, args, take(value), None, None, the_fill

        def unchangeable(_progress: Progress, value: Any) -> tuple[Any, ...]:
            return the_make, (name, *take(value))

        def whole(progress: Progress, value: Any) -> tuple[Any, ...]:
            if progress.stepwise:
                return in_steps(progress, value)
            if id(value) in progress.begun:  # asked for again before it was complete
                raise CycleError
            progress.begun.add(id(value))
            progress.doubtful |= doubtful
            return the_make, (name, *take(value))

        if layout.unchangeable:
            return unchangeable
        return in_steps if layout.hashed == "by identity" else whole

    operators = {"new": the_new, "fill": the_fill, "make": the_make}
    return operators, {cls: writer_for(layout) for cls, layout in layouts.items()}
