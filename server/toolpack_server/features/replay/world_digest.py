"""A digest of what environments hold, by which two worlds are compared without being sent.

Two worlds have the same digest if types, values, the order of lists and dicts, private attributes and
`model_fields_set` agree. The order of sets, the division into parts, and which equal objects are one object make no
difference.

What is digested is what a snapshot holds, read by the same layouts; no code of a class runs. An environment
is digested field by field, so that the digest of a part doesn't depend on the others.
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
"""What an environment may take as text in which shared objects are repeated; a larger one has no digest."""

_BYTES = 16
_SETS = frozenset((set, frozenset))
_NO_PROGRESS: Any = None  # the writers of plain types and enums don't use it
_FIELDS, _FIELDS_SET = "__dict__", "__pydantic_fields_set__"

Entries = tuple[str, ...]
"""What a part holds: a line for its class and for each field, with the digest of the field's value."""


def part_entries(part: BaseModel, classes: ClassTable, max_bytes: int = MAX_BYTES) -> Entries | None:
    """Get what a part of an environment holds, for `world_digest`.

    None if something in it refers to itself, or holds so much twice that it can't be written out.
    """
    operators = operators_of(classes)
    layout = operators.layouts[type(part)]
    digests = _Digests(operators, max_bytes)
    entries = [f"class {layout.name}"]
    try:
        for slot, held in zip(layout.slots, layout.get_state(part), strict=True):
            if slot.__name__ == _FIELDS:
                entries += [f"field {digests.of(value)} {name!a}" for name, value in held.items()]
            elif slot.__name__ == _FIELDS_SET:
                entries += [f"set {name!a}" for name in held]
            elif held is not None and held is not UNSET:
                entries.append(f"slot {digests.of(held)} {slot.__name__}")
    except Exception:  # noqa: BLE001 - whatever can't be written out has no digest
        return None
    return tuple(entries)


def piece_entries(part: str, payload: bytes, context: VolumeContext) -> Entries:
    """Get what a piece of a volume holds."""
    if is_void(payload):
        return ()
    name, kind, slot = part.split(SEPARATOR)
    return (f"volume {name.partition('/')[2]} {slot} {context.kinds[kind].digest(read_piece(payload))}",)


def world_digest(parts: Iterable[tuple[str, Entries | None]]) -> str | None:
    """Get the digest of a world, 32 hexadecimal digits.

    Args:
        parts: The entries of each part, with the part's toolpack; None if it has none, and then there is no digest.
    """
    worlds: dict[str, set[str]] = {}
    for toolpack, entries in parts:
        if entries is None:
            return None
        worlds.setdefault(toolpack, set()).update(entries)
    text = dumps([[toolpack, sorted(worlds[toolpack])] for toolpack in sorted(worlds)])
    return hashlib.blake2b(text, digest_size=_BYTES).hexdigest()


class _Sink:
    """Hashes what is written to it, as long as the budget lasts."""

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
    """Has attributes: on an instance of its base, Python 3.13 and later refuse `persistent_id`."""


class _Digests:
    """Digests values with pickle's C implementation, which without its memo writes equal values as equal bytes."""

    def __init__(self, operators: OperatorTable, max_bytes: int) -> None:
        self._memo = operators.memo
        self._table = operators.derived.get(_writers) or _writers(operators)
        self._budget = [max_bytes]

    def of(self, value: object) -> str:
        """Get the digest of a value.

        Raises:
            Exception: It refers to itself, or is too large.
        """
        # Pickle writes a set as it is ordered, unless a function that it calls for every object says what to write
        # instead. A function of Python takes twice the time of all the rest, so most often `append` is called.
        objects: list[object] = []
        digest = self._written(value, objects.append)
        return digest if _SETS.isdisjoint(map(type, objects)) else self._written(value, self._ordered)

    def _written(self, value: object, instead: Callable[[object], Any]) -> str:
        sink = _Sink(self._budget)
        pickler = _Pickler(sink, 5)
        pickler.persistent_id = instead  # type: ignore[method-assign]
        pickler.memo = self._memo
        pickler.dispatch_table = self._table
        pickler.fast = True
        pickler.dump(value)
        return sink.hash.hexdigest()

    def _ordered(self, value: object) -> Any:
        """Get what is written instead of a set: its members in a fixed order; None for anything else."""
        if type(value) not in _SETS:
            return None
        members: Any = value
        kind = type(value).__name__
        if all(type(member) is str for member in members):
            return kind, sorted(members)
        return kind, None, sorted(map(self.of, members))


def _writers(operators: OperatorTable) -> Mapping[type, Callable[[Any], tuple[Any, ...]]]:
    """Get the function that writes each type, for a pickler without memo."""
    operators.derived[_writers] = writers = _Undigestible(
        {kind: partial(write, _NO_PROGRESS) for kind, write in operators.writers.items()}
    )
    # In one step: written in two, an instance would be expected in the memo.
    writers |= {kind: _writer(layout, operators.make) for kind, layout in operators.layouts.items()}
    return writers


class _Undigestible(dict[type, Any]):
    def __missing__(self, kind: type) -> Any:
        raise ValueError(kind)


def _writer(layout: Layout, make: object) -> Callable[[Any], tuple[Any, ...]]:
    name, get_state = layout.name, layout.get_state
    names = [slot.__name__ for slot in layout.slots]
    if _FIELDS_SET not in names:
        return lambda value: (make, (name, *get_state(value)))
    place = names.index(_FIELDS_SET)

    def write(value: Any) -> tuple[Any, ...]:
        state = get_state(value)
        return make, (name, *state[:place], sorted(state[place]), *state[place + 1 :])

    return write
