"""Serialization of environments to bytes and back. Nothing else in the server turns stored bytes into objects.

Bytes might be forged despite their keyed hash, so the reader's abilities are limited before the first byte is read.
Pickle's C implementation does the work, but the bytes can fetch only operators (see `operators.py`), by name, from one
dictionary. Nothing is imported, and the bytes can't reach a class. No `__init__`, validator or property runs. Pickle
calls only `__hash__` and `__eq__` of dict keys and set members. The keyed hash is still necessary, because only the
hash stops bytes that allocate gigabytes, or that make pickle call methods of an allowed instance (`append`, `__call__`,
a property's setter).

An object is written as a call of an operator, with the class as an argument. Usually this takes one step: the operator
creates the object with all its state. In a graph with a cycle, an object that contains itself must exist before its
state. So it is written in two steps: first an empty instance, then its state (`two_steps`). Between the two steps, a
set or a dict might hash a member that has no state yet, and never find the member again. So the bytes of a graph with a
cycle are read back at once, and refused unless each set and dict finds its members.

Most environments have no cycle, so the first attempt uses one step. A cycle is detected at no cost: a writer that meets
an unfinished object again raises `CycleError`.
"""

import copyreg
import io
import pickle
from typing import Any, NoReturn

from pydantic import RootModel

from toolpack_server.base.errors import CycleError, SnapshotError, StateDamagedError, UnsupportedObjectError
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.graph import holders, walk
from toolpack_server.snapshots.operators import OperatorTable, operators_of
from toolpack_server.snapshots.plain_types import NATIVE

_MAX_NESTING = 200
_SHOWN_PATH = 200


def freeze(value: object, classes: ClassTable) -> bytes:
    """Write the object graph as bytes.

    Raises:
        SnapshotError: An object of the graph can't be stored exactly. The message names its path and type.
    """
    operators = operators_of(classes)
    try:
        try:
            return _dump(value, operators, two_steps=False)
        except CycleError:
            return _dump(value, operators, two_steps=True)
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 - writing can fail in any way
        raise explain(value, operators, error) from None


def thaw(data: bytes, classes: ClassTable) -> Any:
    """Read an object graph that `freeze` wrote.

    Raises:
        StateDamagedError: The bytes can't be read.
    """
    try:
        return _load(data, operators_of(classes))
    except Exception as error:
        raise StateDamagedError(
            f"The stored state can't be read back ({type(error).__name__}): restore a backup, or reset the session."
        ) from error


class SnapshotWriter(pickle.Pickler):
    """Pickler that writes objects with the writers of an operator table, except for plain builtins.

    Objects of types without a writer are refused. `WriteProgress` documents `two_steps`, `must_verify` and `started`.
    """

    def __init__(self, buffer: io.BytesIO, operators: OperatorTable, *, two_steps: bool) -> None:
        super().__init__(buffer, 5, buffer_callback=_refuse_buffer)
        self.memo = operators.memo
        self.writers = operators.writers
        self.two_steps = two_steps
        self.must_verify = two_steps
        self.started: set[int] = set()

    def reducer_override(self, obj: Any) -> tuple[Any, ...]:
        """Return the call of an operator that creates the object.

        Pickle calls this method for all objects except plain builtins.
        """
        return self.writers[type(obj)](self, obj)


class _Reader(pickle.Unpickler):
    """Unpickler that lets bytes fetch only operators."""

    def __init__(self, buffer: io.BytesIO, operators: OperatorTable) -> None:
        super().__init__(buffer)
        self._find = operators.find

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return an operator by name. Pickle would import a module here."""
        return self._find[module_name, global_name]


def _dump(value: object, operators: OperatorTable, *, two_steps: bool) -> bytes:
    """Write the object graph, and check the bytes if needed. Raise `CycleError` if that takes two steps."""
    buffer = io.BytesIO()
    buffer.write(operators.preamble)
    writer = SnapshotWriter(buffer, operators, two_steps=two_steps)
    writer.dump(value)
    data = buffer.getvalue()
    if writer.must_verify:
        _check_members(data, value, operators)
    return data


def _load(data: bytes, operators: OperatorTable) -> Any:
    """Read an object graph from bytes that might be forged."""
    if copyreg._extension_cache:  # type: ignore[attr-defined]  # noqa: SLF001 - it bypasses find_class, so it must be empty
        copyreg.clear_extension_cache()
    buffer = io.BytesIO(data)
    value = _Reader(buffer, operators).load()
    if buffer.tell() != len(data):
        raise pickle.UnpicklingError("unexpected bytes after the end")
    return value


def _check_members(data: bytes, value: object, operators: OperatorTable) -> None:
    """Check that every set and dict finds its members after it was read back.

    A set doesn't find a member that was hashed before the member had its state, if the hash depends on the state.

    Raises:
        SnapshotError: A set or dict doesn't find a member.
    """
    reason = "a member's hash depends on a cycle that the member is part of"
    try:
        read_back = _load(data, operators)
    except Exception:  # `__hash__` of an empty instance can raise anything
        for path, _depth, obj in walk(value):
            if isinstance(obj, (set, frozenset, dict)) and any(_hashes_by_value(m, operators) for m in list(obj)):
                raise SnapshotError(_problem(path, obj, reason)) from None
        raise
    for obj in holders(read_back):
        if isinstance(obj, (set, frozenset, dict)) and not all(member in obj for member in list(obj)):
            path = next(path for path, _depth, other in walk(read_back) if other is obj)
            raise SnapshotError(_problem(path, obj, reason))


def _hashes_by_value(member: object, operators: OperatorTable) -> bool:
    """Return whether an object's hash depends on its state."""
    layout = operators.layouts.get(type(member))
    return layout is not None and layout.hashed != "by identity"


def explain(value: object, operators: OperatorTable, error: Exception) -> SnapshotError:
    """Return an error with the path of the object that can't be written.

    This is slow, so call it only after a failure.
    """
    writer = SnapshotWriter(io.BytesIO(), operators, two_steps=True)
    too_deep = isinstance(error, RecursionError)
    try:
        for path, depth, obj in walk(value):
            if too_deep and depth > _MAX_NESTING:
                return SnapshotError(_problem(path, obj, f"it is nested deeper than {_MAX_NESTING} levels"))
            if type(obj) not in NATIVE:
                try:
                    writer.reducer_override(obj)
                except Exception as why:  # noqa: BLE001 - writing can fail in any way
                    # The path omits the only field of a root model (`root`), because pydantic chose that name, not the
                    # author.
                    path = path.removeprefix(".root" * isinstance(value, RootModel))  # noqa: PLW2901 - returned next
                    undeclared = isinstance(why, UnsupportedObjectError) and why.undeclared
                    inside = _other_obstacle(obj, writer) if undeclared else None
                    undeclared = undeclared and inside is None
                    return SnapshotError(_problem(path, obj, inside or str(why)), undeclared=undeclared)
    except RecursionError:  # the stack was already nearly full before this call
        too_deep = True
    reason = "it is nested too deeply" if too_deep else f"{type(error).__name__}: {error}"
    return SnapshotError(_problem("", value, reason))


def _other_obstacle(value: object, writer: SnapshotWriter) -> str | None:
    """Return why an instance of an undeclared class couldn't be stored even if the class were declared.

    Return None if it could be stored.
    """
    for path, _depth, obj in walk(value):
        why = None if type(obj) in NATIVE else _refusal(obj, writer)
        if why is not None and not why.undeclared:
            return f"in it `{path.removeprefix('.')[:_SHOWN_PATH]}`, a `{_type_name(obj)}`, can't be: {why}"
    return None


def _refusal(value: object, writer: SnapshotWriter) -> UnsupportedObjectError | None:
    """Return why a writer refuses an object, or None if the writer accepts it."""
    try:
        writer.reducer_override(value)
    except Exception as why:  # noqa: BLE001 - writing can fail in any way
        return why if isinstance(why, UnsupportedObjectError) else None
    return None


def _problem(path: str, obj: object, reason: str) -> str:
    """Return the message about an object that can't be stored."""
    where = path.removeprefix(".")
    where = f"`{where[:_SHOWN_PATH]}{'…' * (len(where) > _SHOWN_PATH)}`" if where else "The environment itself"
    return f"{where} can't be stored, its type is `{_type_name(obj)}`: {reason}."


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse_buffer(_buffer: object) -> NoReturn:
    """Refuse a `PickleBuffer`, which pickle would otherwise write outside of the bytes."""
    raise UnsupportedObjectError("a buffer is a view of memory that something else owns")
