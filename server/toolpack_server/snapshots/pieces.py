"""Object graphs in pieces, which let a call read and write only the objects that it touches.

How it works:

1. A graph is cut at each dict or list that contains many instances. Each of these instances, with all objects that are
   reachable only through it, is a *piece*. An instance that several objects refer to also becomes a piece. Pieces that
   share a list, dict or set form one *group*, which is read and written as a whole.
2. A call gets real dicts and lists that contain lazy instances (`lazy_classes`). The first access to an instance loads
   its group.
3. After the call, the loaded groups are written again. A group has changed if its bytes differ. A group that wasn't
   loaded can't have changed, because every access to an instance loads its group.
4. If two groups contain the same instance, the instance becomes a separate piece. If they share another mutable object,
   the two groups become one group.
5. A version consists of a base, which many sessions share, and the groups that have changed since. After a call, all
   loaded pieces become lazy again.

Terms
-----

root
    An object with a number: the graph's first object (0), the instance of each piece, and each *chunked container*.
trunk
    The group of root 0: all objects that belong to no piece. The trunk is always loaded.
chunked container
    A dict or list of the trunk with many instances. Its items are stored in chunks, so that adding an item writes only
    one chunk. A chunk is a group without roots.
vocabulary
    The operators (the functions that create objects when bytes are read) and the most frequent class names of a base.
    Groups refer to them by number.
base
    A vocabulary and all groups of one version of an environment. All sessions that started from this version share the
    base, and store only the groups that have changed since.

The tests compare each result and each state with those of `freeze` and `thaw` for the whole graph.
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

MAX_NAMES = 32  # maximum number of class names in a vocabulary

Roots = tuple[tuple[int, str], ...]
"""The number and the kind of each root. The kind is a class's name, `dict` or `list`."""


class Group(NamedTuple):
    """Bytes that are read and written as a whole.

    Attributes:
        roots: The number and the kind of each root. The kind is a class's name, `dict` or `list`. A chunk has no roots.
        data: The states of the roots, or the items of a chunk, as bytes. Empty for a chunked container.
        chunks: For a chunked container, the number of each chunk, with its count of items. None for other groups.
        references: The numbers of other groups' roots that the data refers to. Empty for chunks.
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
"""Groups by number. None means that the group was removed."""


def referrers(groups: Groups) -> dict[int, list[int]]:
    """Return a mapping from the number of each root to the numbers of the roots that refer to it."""
    roots_by_reference: dict[int, list[int]] = {}
    for group in groups.values():
        for number in group.references if group else ():
            roots_by_reference.setdefault(number, []).extend(root for root, _ in group.roots)  # type: ignore[union-attr]
    return roots_by_reference


def root_operator(number: int) -> Any:
    """Raise an error.

    The bytes of a group contain calls of this function, but a reader replaces it by `LazyGraph.root`.
    """
    raise pickle.UnpicklingError(number)


def chunked_in(groups: Groups) -> dict[int, int]:
    """Return a mapping from the number of each chunk to the number of its container."""
    containers = [group for group in groups.values() if group and group.chunks is not None]
    return {chunk: group.roots[0][0] for group in containers for chunk, _ in group.chunks or ()}


class Vocabulary:
    """Operators and class names with a number each. The bytes of groups refer to them by number, which saves space.

    All groups of one base use the base's vocabulary, which is stored with the base.

    Attributes:
        names: The names of the operators, and the names of the classes.
        preamble: Bytes to prepend to each group's data. They put the objects into the unpickler's memo.
        memo: The numbers of the same objects, in the form of the pickler's memo.
    """

    def __init__(self, operators: OperatorTable, names: tuple[Sequence[str], Sequence[str]]) -> None:
        self.names = names
        by_class_name = {layout.name: layout.name for layout in operators.layouts.values()}
        operators_by_name = {name: operator for (_, name), operator in operators.find.items()}
        values = [root_operator, *(operators_by_name[name] for name in names[0])]
        # Use the layouts' own string objects, because the pickler recognizes an object by its identity.
        values += [by_class_name.get(name, name) for name in names[1]]
        self.memo = {id(value): (index, value) for index, value in enumerate(values)}
        texts = [pickle.BINUNICODE + struct.pack("<I", len(text)) + text for text in map(str.encode, names[1])]
        self.preamble = memoizing([*map(fetching, ("root", *names[0])), *texts])


class LazyTable:
    """The lazy classes for a class table. Each lazy class is created at first use."""

    def __init__(self, classes: ClassTable) -> None:
        self.operators = operators_of(classes)
        self.layouts: Mapping[type, Layout] = self.operators.layouts
        self.by_name = {layout.name: layout for layout in self.layouts.values()}
        self.writers = self.operators.stable_writers()
        self._lazy: dict[type, type | None] = {}

    @classmethod
    def of(cls, classes: ClassTable) -> "LazyTable":
        """Return the `LazyTable` of a class table. Each class table has only one."""
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
    """Groups that are shared by all sessions that started from them.

    The attributes are computed once for all these sessions.

    Attributes:
        vocabulary: The vocabulary of the groups.
        groups: The groups by number.
        homes: The number of each root's group.
        kinds: The kind of each root.
        next: The first unused number.
        size: Approximate size of all groups in bytes.
        contents: Cache of the content of chunked containers: the keys (None for a list), and the numbers and kinds of
            the values.
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
        """The numbers of the roots that refer to each root, by the number of that root."""
        return referrers(self.groups)

    @cached_property
    def chunked(self) -> dict[int, int]:
        """The number of each chunk's container, by the number of the chunk."""
        return chunked_in(self.groups)


class Dump(NamedTuple):
    """The bytes of one group.

    Attributes:
        data: The bytes.
        memo: Index and object for each object in the bytes, by the id of the object.
        references: The numbers of the roots that the bytes refer to.
        must_verify: Whether the bytes must be read back; see `WriteProgress`.
    """

    data: bytes
    memo: dict[int, tuple[int, Any]]
    references: set[int]
    must_verify: bool


class GroupWriter(SnapshotWriter):
    """Pickler of a group that writes each root as its number, unless the root is a dict or list.

    Args:
        table: The lazy classes.
        vocabulary: The vocabulary of the base.
        numbers: The numbers of the roots, by id.
        two_steps: See `WriteProgress`.
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
        """Write a value. Each writer can be used only once."""
        self.dump(value)
        return Dump(self._buffer.getvalue(), self.memo.copy(), self.references, self.must_verify)

    def reducer_override(self, obj: Any) -> tuple[Any, ...]:
        """Return a reference to a root, or the call of an operator.

        Pickle doesn't call this method for dicts and lists.
        """
        number = self._numbers.get(id(obj))
        if number is not None:
            self.references.add(number)
            return root_operator, (number,)
        if is_lazy(obj):  # the object belongs to another graph
            load(obj)
        return super().reducer_override(obj)


class ContainerWriter(GroupWriter):
    """Pickler of a group that writes every root as its number, including dicts and lists.

    It is slower than its base class, because pickle calls `persistent_id` for each object.
    """

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a root, or None for other objects."""
        number = self._numbers.get(id(obj))
        if number is not None:
            self.references.add(number)
        return number


class GroupReader(pickle.Unpickler):
    """Unpickler that turns a group's bytes into objects. The bytes can reach only the operators and the roots.

    `LazyGraph` creates a reader for each group that it loads.

    Args:
        table: The lazy classes of the class table. The reader uses only its operators.
        vocabulary: The vocabulary that the group was written with. Its preamble comes before the data, because the data
            refers to the vocabulary's objects by number.
        data: The bytes of the group, without the preamble.
        root: Function that returns the root with a given number, for references to other groups.
    """

    def __init__(self, table: LazyTable, vocabulary: Vocabulary, data: bytes, root: Callable[[int], Any]) -> None:
        super().__init__(io.BytesIO(vocabulary.preamble + data))
        self._root = root
        self._find = table.operators.find

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return an operator by name, or the function that returns roots. Pickle would import a module here."""
        return self._root if global_name == "root" else self._find[module_name, global_name]

    def persistent_load(self, number: Any) -> Any:
        """Return the root that `persistent_id` has written as a number."""
        return self._root(number)
