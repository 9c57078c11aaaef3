"""Environments to bytes and back: the only place where bytes become objects.

Bytes may be forged even where a keyed hash stands in front, so the rule is: what the reader can do is fixed before the
first byte is read. Pickle's C implementation moves the data; the only names that it can fetch are those of the
operators (see `operators.py`), found in one dictionary. Nothing is imported, and no class comes within reach of the
bytes. No `__init__`, validator or property runs; what pickle itself asks of an instance is its `__hash__` and `__eq__`
where it is a key or in a set. The hash in front is needed all the same: only it stops bytes that ask for gigabytes, or
that make pickle call what an admitted instance itself offers (`append`, `__call__`, a property's setter).
"""

import copyreg
import io
import pickle
from typing import Any, NoReturn

from server.errors import CycleError, SnapshotError, StateDamagedError, UnsupportedObjectError
from server.snapshots.classes import ClassTable
from server.snapshots.graph import walk
from server.snapshots.operators import OperatorTable, operators_of
from server.snapshots.plain_types import NATIVE

_MAX_NESTING = 200
_SHOWN_PATH = 200


def freeze(value: object, classes: ClassTable) -> bytes:
    """Write the object graph as bytes.

    Raises:
        SnapshotError: Something in it can't be kept exactly; the text names its path and type.
    """
    operators = operators_of(classes)
    try:
        try:
            return _written(value, operators, stepwise=False)
        except CycleError:
            return _written(value, operators, stepwise=True)
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being written
        raise SnapshotError(_blame(value, operators, error)) from None


def thaw(data: bytes, classes: ClassTable) -> Any:
    """Read an object graph that `freeze` wrote.

    Raises:
        StateDamagedError: The bytes can't be read.
    """
    try:
        return _read(data, operators_of(classes))
    except Exception as error:
        raise StateDamagedError(f"The stored state can't be read back: {type(error).__name__}.") from error


class _Writer(pickle.Pickler):
    """Writes everything but plain builtins through the table's writers; what has none is refused."""

    def __init__(self, buffer: io.BytesIO, operators: OperatorTable, *, stepwise: bool) -> None:
        super().__init__(buffer, 5, buffer_callback=_refuse_buffer)
        self.memo = operators.memo
        self.writers = operators.writers
        self.stepwise = stepwise  # write also what hashes by value in two steps
        self.doubtful = stepwise  # only reading it back shows whether sets and dicts find their members
        self.begun: set[int] = set()

    def reducer_override(self, obj: Any) -> tuple[Any, ...]:
        return self.writers[type(obj)](self, obj)


class _Reader(pickle.Unpickler):
    """Fetches operators, and nothing else."""

    def __init__(self, buffer: io.BytesIO, operators: OperatorTable) -> None:
        super().__init__(buffer)
        self._find = operators.find

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return self._find[module_name, global_name]


def _written(value: object, operators: OperatorTable, *, stepwise: bool) -> bytes:
    buffer = io.BytesIO()
    buffer.write(operators.preamble)
    writer = _Writer(buffer, operators, stepwise=stepwise)
    writer.dump(value)
    data = buffer.getvalue()
    if writer.doubtful:
        _check_members(data, value, operators)
    return data


def _read(data: bytes, operators: OperatorTable) -> Any:
    if copyreg._extension_cache:  # type: ignore[attr-defined]  # noqa: SLF001 - read past find_class, so it must be empty
        copyreg.clear_extension_cache()
    buffer = io.BytesIO(data)
    value = _Reader(buffer, operators).load()
    if buffer.tell() != len(data):
        raise pickle.UnpicklingError("there is more behind the end")
    return value


def _check_members(data: bytes, value: object, operators: OperatorTable) -> None:
    """Look whether, read back, every set and dict finds what it holds.

    It doesn't if a member was hashed before its state, or the state that its hash depends on, had arrived.
    """
    reason = "a member's hash depends on a cycle that the member is part of"
    try:
        read_back = _read(data, operators)
    except Exception:  # whatever `__hash__` raises of an instance that is still empty
        for path, _depth, found in walk(value):
            if isinstance(found, (set, frozenset, dict)) and any(_hashes_by_value(m, operators) for m in list(found)):
                raise SnapshotError(_sentence(path, found, reason)) from None
        raise
    for path, _depth, found in walk(read_back):
        if isinstance(found, (set, frozenset, dict)) and not all(member in found for member in list(found)):
            raise SnapshotError(_sentence(path, found, reason))


def _hashes_by_value(member: object, operators: OperatorTable) -> bool:
    layout = operators.layouts.get(type(member))
    return layout is not None and layout.hashed != "by identity"


def _blame(value: object, operators: OperatorTable, error: Exception) -> str:
    """Find the object for which writing failed, and say it with its path. Slow, as it only runs after a failure."""
    writer = _Writer(io.BytesIO(), operators, stepwise=True)
    too_deep = isinstance(error, RecursionError)
    try:
        for path, depth, found in walk(value):
            if too_deep and depth > _MAX_NESTING:
                return _sentence(path, found, f"it is nested deeper than {_MAX_NESTING} levels")
            if type(found) not in NATIVE:
                try:
                    writer.reducer_override(found)
                except Exception as why:  # noqa: BLE001 - whatever keeps it from being written
                    return _sentence(path, found, str(why))
    except RecursionError:  # the caller's own stack is nearly used up
        too_deep = True
    reason = "it is nested too deeply" if too_deep else f"{type(error).__name__}: {error}"
    return _sentence("", value, reason)


def _sentence(path: str, found: object, reason: str) -> str:
    where = path.removeprefix(".")
    where = f"`{where[:_SHOWN_PATH]}{'…' * (len(where) > _SHOWN_PATH)}`" if where else "The environment itself"
    return f"{where} can't be kept, its type is `{_type_name(found)}`: {reason}."


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse_buffer(_buffer: object) -> NoReturn:
    raise UnsupportedObjectError("a buffer is a view of memory that something else owns")
