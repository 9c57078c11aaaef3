"""Object graphs in pieces, so that a call reads and writes only the objects that it touches.

The rule, in five sentences:

1. A graph is cut where a dict or list holds many instances. Each instance, with all objects that are reachable only
   through it, is a *piece*; so is an instance that several places refer to. Pieces that share a list, dict or set form
   one *group*, which is read and written as a whole.
2. A call gets real dicts and lists of lazy instances (`lazy_classes`), and the first access to one loads its group.
3. After the call, the loaded groups are written again, and those with other bytes have changed. No other group can have
   changed, because every access to an instance loads it.
4. An instance that turns up in two groups becomes a piece of its own. Another shared object unites the two groups.
5. A version is a base that many sessions share, and the groups that changed since. After a call, everything loaded
   becomes lazy again.

Terms
-----

root
    An object with a number: the graph's first object (0), each piece's instance, and each *chunked container*.
trunk
    The group of root 0: everything outside of the pieces. It is always loaded.
chunked container
    A dict or list of the trunk with many instances. Its items are stored in chunks, each a group without roots, so
    adding an item writes one chunk.

`freeze` and `thaw` of the whole graph are the reference: tests compare each result and each state with theirs.
"""

import io
import itertools
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.layouts import Layout
from toolpack_server.snapshots.lazy_classes import is_lazy, lazy_class, load
from toolpack_server.snapshots.operators import OperatorTable, fetching, memoizing, operators_of
from toolpack_server.snapshots.pickling import SnapshotWriter

MAX_NAMES = 32  # class names in a vocabulary

Roots = tuple[tuple[int, str], ...]
"""The number and the kind of each root: a class's name, `dict` or `list`."""


class Group(NamedTuple):
    """Bytes that are read and written as a whole.

    Attributes:
        roots: The number and the kind of each root: a class's name, `dict` or `list`. A chunk has no roots.
        data: The states of the roots, or the items of a chunk. Empty for a chunked container.
        chunks: For a chunked container, the numbers of its chunks, each with its count of items; else None.
        references: The numbers of the roots of other groups to which the data refers. Empty for chunks.
    """

    roots: Roots
    data: bytes
    chunks: tuple[tuple[int, int], ...] | None = None
    references: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Approximate number of bytes."""
        return 16 * (1 + len(self.roots)) + len(self.data) + 8 * (len(self.chunks or ()) + len(self.references))


Groups = Mapping[int, Group | None]
"""Groups by number; None if the group was removed."""


def referrers(groups: Groups) -> dict[int, list[int]]:
    """Return, for each root that groups refer to, the roots of these groups."""
    found: dict[int, list[int]] = {}
    for group in groups.values():
        for number in group.references if group else ():
            found.setdefault(number, []).extend(root for root, _ in group.roots)  # type: ignore[union-attr]
    return found


def root_operator(number: int) -> Any:
    """Stand for a root in the bytes. A reader calls `LazyGraph.root` instead."""
    raise pickle.UnpicklingError(number)


def chunked_in(groups: Groups) -> dict[int, int]:
    """Return the container of each chunk."""
    containers = [group for group in groups.values() if group and group.chunks is not None]
    return {chunk: group.roots[0][0] for group in containers for chunk, _ in group.chunks or ()}


class Vocabulary:
    """Objects that the bytes of every group refer to by number: the operators, and names of classes.

    All groups of one base use the base's vocabulary, which is stored with it.

    Attributes:
        names: The names of the operators, and those of the classes.
        preamble: Bytes in front of each group's data; they put the objects into the unpickler's memo.
        memo: The same numbers for the pickler.
    """

    def __init__(self, operators: OperatorTable, names: tuple[Sequence[str], Sequence[str]]) -> None:
        self.names = names
        by_class_name = {layout.name: layout.name for layout in operators.layouts.values()}
        found = {name: operator for (_, name), operator in operators.find.items()}
        values = [root_operator, *(found[name] for name in names[0])]
        values += [by_class_name.get(name, name) for name in names[1]]  # the pickler compares identities
        self.memo = {id(value): (index, value) for index, value in enumerate(values)}
        texts = [pickle.BINUNICODE + struct.pack("<I", len(text)) + text for text in map(str.encode, names[1])]
        self.preamble = memoizing([*map(fetching, ("root", *names[0])), *texts])


class LazyTable:
    """The lazy classes of a class table, created at first use."""

    def __init__(self, classes: ClassTable) -> None:
        self.operators = operators_of(classes)
        self.layouts: Mapping[type, Layout] = self.operators.layouts
        self.by_name = {layout.name: layout for layout in self.layouts.values()}
        self.writers = self.operators.stable_writers()
        self._lazy: dict[type, type | None] = {}

    @classmethod
    def of(cls, classes: ClassTable) -> "LazyTable":
        derived = operators_of(classes).derived
        return derived.get(cls) or derived.setdefault(cls, cls(classes))  # type: ignore[no-any-return]

    def lazy(self, kind: type) -> type | None:
        """Return the lazy class of a class, or None if its instances can't be lazy."""
        layout = self.layouts.get(kind)
        if layout is None:
            return None
        if kind not in self._lazy:
            self._lazy.setdefault(kind, lazy_class(layout, self.layouts.keys()))
        return self._lazy[kind]

    def can_be_lazy(self, value: Any) -> bool:
        """Return whether an object's class has a lazy class, so that the object can be a piece."""
        return self.lazy(type(value)) is not None


class Base:
    """The groups that many sessions start from. The process derives data from them once for all sessions.

    Attributes:
        homes: The number of each root's group.
        kinds: The kind of each root.
        next: The first number that isn't used.
        contents: For each chunked container that was read: its keys (None for a list), the numbers of its values, and
            their kinds.
    """

    def __init__(self, vocabulary: Vocabulary, groups: Mapping[int, Group]) -> None:
        self.vocabulary = vocabulary
        self.groups = groups
        self.homes = {root: number for number, group in groups.items() for root, _ in group.roots}
        self.kinds = dict(itertools.chain.from_iterable(group.roots for group in groups.values()))
        self.next = max((0, *self.homes, *groups)) + 1
        self.size = sum(group.size for group in groups.values())
        self.contents: dict[int, tuple[list[Any] | None, list[int], list[str]]] = {}

    @cached_property
    def referrers(self) -> dict[int, list[int]]:
        return referrers(self.groups)

    @cached_property
    def chunked(self) -> dict[int, int]:
        return chunked_in(self.groups)


class Dump(NamedTuple):
    """The bytes of one group.

    Attributes:
        memo: Every object in the bytes, by its id, each with its index.
        references: The numbers of the roots in the bytes.
        must_verify: The bytes must be read back; see `WriteProgress`.
    """

    data: bytes
    memo: dict[int, tuple[int, Any]]
    references: set[int]
    must_verify: bool


class GroupWriter(SnapshotWriter):
    """Writes roots as their numbers, except for roots that are dicts or lists.

    Args:
        numbers: The numbers of the roots, by id.
    """

    def __init__(
        self, table: LazyTable, vocabulary: Vocabulary, numbers: Mapping[int, int], *, two_steps: bool
    ) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, table.operators, two_steps=two_steps)
        self.memo = vocabulary.memo
        self.writers = table.writers
        self._numbers = numbers
        self.references: set[int] = set()

    def run(self, value: Any) -> Dump:
        self.dump(value)
        return Dump(self._buffer.getvalue(), self.memo.copy(), self.references, self.must_verify)

    def reducer_override(self, obj: Any) -> tuple[Any, ...]:
        number = self._numbers.get(id(obj))
        if number is not None:
            self.references.add(number)
            return root_operator, (number,)
        if is_lazy(obj):  # it belongs to another graph
            load(obj)
        return super().reducer_override(obj)


class ContainerWriter(GroupWriter):
    """Writes all roots as their numbers. Slower than its base: pickle calls `persistent_id` for each object."""

    def persistent_id(self, obj: Any) -> int | None:
        number = self._numbers.get(id(obj))
        if number is not None:
            self.references.add(number)
        return number


class GroupReader(pickle.Unpickler):
    """Reads the data of a group. Its bytes can reach the operators and the roots, nothing else.

    Args:
        root: Returns the root with a number.
    """

    def __init__(self, table: LazyTable, vocabulary: Vocabulary, data: bytes, root: Callable[[int], Any]) -> None:
        super().__init__(io.BytesIO(vocabulary.preamble + data))
        self._root = root
        self._find = table.operators.find

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return self._root if global_name == "root" else self._find[module_name, global_name]

    def persistent_load(self, number: Any) -> Any:
        return self._root(number)
