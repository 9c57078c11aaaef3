"""Digest of a world, which shows whether two worlds are equal without sending them.

Two worlds have the same digest if they have the same types, values, order of lists and dicts, private attributes and
`model_fields_set`. Three differences don't change the digest: the order of sets, the division into parts, and whether
equal objects are the same object.

The digest reads objects by the layouts of snapshots, so no code of an author's class runs. The digest covers the same
content as a snapshot. Each field of an environment has its own digest, so the entries of a part don't depend on other
parts.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel

from toolpack_server.jsonio.strict import dumps
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.layouts import UNSET, Layout
from toolpack_server.snapshots.operators import OperatorTable, operators_of
from toolpack_server.volumes.volume import SEPARATOR, VolumeContext, is_void, read_piece

MAX_BYTES = 64 * 2**20
"""Max size of an environment when each reference to a shared object is written out. Larger ones get no digest."""

_BYTES = 16
_SETS = frozenset((set, frozenset))
_NO_PROGRESS: Any = None  # first argument of each writer; the writers of plain types and enums don't use it
_FIELDS, _FIELDS_SET = "__dict__", "__pydantic_fields_set__"

Entries = tuple[str, ...]
"""The content of a part as lines: one with its class, and one for each field with the digest of its value."""


def part_entries(part: BaseModel, classes: ClassTable, max_bytes: int = MAX_BYTES) -> Entries | None:
    """Return the entries of a part of an environment.

    Return None if an object refers to itself, or if the part is larger than `max_bytes` when shared objects are
    repeated.
    """
    operators = operators_of(classes)
    layout = operators.layouts[type(part)]
    digests = _Digests(operators, max_bytes)
    entries = [f"class {layout.name}"]
    try:
        for slot, content in zip(layout.slots, layout.get_state(part), strict=True):
            if slot.__name__ == _FIELDS:
                entries += [f"field {digests.of(value)} {name!a}" for name, value in content.items()]
            elif slot.__name__ == _FIELDS_SET:
                entries += [f"set {name!a}" for name in content]
            elif content is not None and content is not UNSET:
                entries.append(f"slot {digests.of(content)} {slot.__name__}")
    except Exception:  # noqa: BLE001 - a value that pickle can't write gets no digest
        return None
    return tuple(entries)


def piece_entries(part: str, payload: bytes, context: VolumeContext) -> Entries:
    """Return the entries of a piece of a volume."""
    if is_void(payload):
        return ()
    name, kind, slot = part.split(SEPARATOR)
    if name.endswith("/"):  # a piece of an environment, which `StateDigests` reads as a whole
        return ()
    return (f"volume {name.partition('/')[2]} {slot} {context.kinds[kind].digest(read_piece(payload))}",)


def world_digest(parts: Iterable[tuple[str, Entries | None]]) -> str | None:
    """Return the digest of a world, 32 hexadecimal digits. Return None if a part has no entries.

    Args:
        parts: The toolpack and the entries of each part.
    """
    # The entries of all parts of a toolpack are sorted together, so the division into parts doesn't count.
    by_toolpack: dict[str, set[str]] = {}
    for toolpack, entries in parts:
        if entries is None:
            return None
        by_toolpack.setdefault(toolpack, set()).update(entries)
    text = dumps([[toolpack, sorted(by_toolpack[toolpack])] for toolpack in sorted(by_toolpack)])
    return hashlib.blake2b(text, digest_size=_BYTES).hexdigest()


class _Sink:
    """File-like object that hashes the written bytes. It raises `OverflowError` when its budget of bytes is used up."""

    def __init__(self, budget: list[int]) -> None:
        self.hash = hashlib.blake2b(digest_size=_BYTES)
        self._budget = budget

    def write(self, data: bytes | memoryview) -> int:
        self._budget[0] -= len(data)
        if self._budget[0] < 0:
            raise OverflowError
        self.hash.update(data)
        return len(data)


class _Pickler(pickle.Pickler):
    """Pickler with a `__dict__`, because Python 3.13 and later can't set `persistent_id` on a plain `Pickler`."""


class _Digests:
    """Computes digests of values: hashes of their pickles.

    Pickle's C implementation writes equal values as equal bytes if it has no memo. With a memo, it would write the
    second reference to an object differently from an equal object.
    """

    def __init__(self, operators: OperatorTable, max_bytes: int) -> None:
        self._memo = operators.memo
        self._table = operators.derived.get(_writers) or _writers(operators)
        self._budget = [max_bytes]

    def of(self, value: object) -> str:
        """Return the digest of a value.

        Raises:
            Exception: The value refers to itself, or is too large.
        """
        # Pickle writes the elements of a set in the set's own order. Pickle calls `persistent_id` for every object, and
        # this function can return a replacement. But a Python function would triple the time. So the first attempt only
        # collects the objects with `append`. If they include a set, a second attempt replaces sets by sorted lists.
        objects: list[object] = []
        digest = self._hash(value, objects.append)
        return digest if _SETS.isdisjoint(map(type, objects)) else self._hash(value, self._sorted_set)

    def _hash(self, value: object, replace: Callable[[object], Any]) -> str:
        """Return the digest of a value.

        Args:
            replace: Called with each object. Returns a replacement to write, or None to write the object itself.
        """
        sink = _Sink(self._budget)
        pickler = _Pickler(sink, 5)
        pickler.persistent_id = replace  # type: ignore[method-assign]
        pickler.memo = self._memo
        pickler.dispatch_table = self._table
        pickler.fast = True
        pickler.dump(value)
        return sink.hash.hexdigest()

    def _sorted_set(self, value: object) -> Any:
        """Return the replacement of a set: its elements in a fixed order. Return None for other values."""
        if type(value) not in _SETS:
            return None
        members: Any = value
        kind = type(value).__name__
        if all(type(member) is str for member in members):
            return kind, sorted(members)
        return kind, None, sorted(map(self.of, members))


def _writers(operators: OperatorTable) -> Mapping[type, Callable[[Any], tuple[Any, ...]]]:
    """Return the function that writes each type, for a pickler without a memo."""
    operators.derived[_writers] = writers = _Writers(
        {kind: partial(write, _NO_PROGRESS) for kind, write in operators.writers.items()}
    )
    # These writers write an instance in one step. In two steps, pickle would look for the instance in its memo.
    writers |= {kind: _writer(layout, operators.make) for kind, layout in operators.layouts.items()}
    return writers


class _Writers(dict[type, Any]):
    """Writers by type. A missing type raises an exception, because pickle would otherwise write it in its own way."""

    def __missing__(self, kind: type) -> Any:
        raise ValueError(kind)


def _writer(layout: Layout, make: object) -> Callable[[Any], tuple[Any, ...]]:
    """Return the writer of a class: it returns an instance's class name and state, with its fields set sorted."""
    name, get_state = layout.name, layout.get_state
    names = [slot.__name__ for slot in layout.slots]
    if _FIELDS_SET not in names:
        return lambda value: (make, (name, *get_state(value)))
    index = names.index(_FIELDS_SET)

    def write(value: Any) -> tuple[Any, ...]:
        state = get_state(value)
        return make, (name, *state[:index], sorted(state[index]), *state[index + 1 :])

    return write
