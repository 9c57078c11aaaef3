"""Large environments, stored as a chain of groups of objects, so that a call loads and writes only what it touches.

A *group* is a set of objects that are read and written together; `snapshots/pieces.py` explains how an environment is
cut into groups. The environment is stored like a volume, as a *chain* of pieces: the first piece contains all groups
(the *base*), and each later piece contains the groups that a call changed. A call receives a *lazy graph*. Its objects
are empty at first, and the first access to an object loads the object's group.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel
from typing_extensions import override

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import TooLargeError
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.comparison import Difference, difference, first_difference
from toolpack_server.snapshots.lazy_graph import LazyGraph
from toolpack_server.snapshots.pieces import Base, Group, Groups, LazyTable, Vocabulary
from toolpack_server.snapshots.splitting import split
from toolpack_server.volumes.volume import (
    Body,
    Chain,
    Content,
    Mount,
    VolumeContext,
    damaged_error,
    first_piece,
    part_name,
)
from toolpack_server.volumes.working_copy import Key, PieceInfo, WorkingCopy

KIND = "objects"
MIN_SHARE = 0.5  # minimum share of an environment's bytes that is outside the first group, which is always loaded
BASES_BYTES = 256 * 2**20  # size of a process's cache of bases
ROOT_BYTES = 400  # estimated memory of one lazy object


def lazy_name(toolpack: str) -> str:
    """Return the name of the chain of a toolpack's environment: the name of a volume with an empty path."""
    return f"{toolpack}/"


class _CachedBase(NamedTuple):
    """Entry of the cache of bases."""

    base: Base
    piece: PieceInfo


class LazyEnvironment(Content):
    """The environment of a toolpack, as a lazy graph. `kind_for` creates the class for one process.

    Attributes:
        classes: The classes whose instances an environment can contain.
        max_bytes: Maximum size of an environment.
        bases: Cache of the first pieces of chains, by blob id.
    """

    kind = KIND
    is_shareable = False  # two calls can't use one copy at once, because functions can change its objects
    classes: ClassVar[ClassTable]
    max_bytes: ClassVar[int]
    bases: ClassVar[BoundedCache[str, _CachedBase]]

    def __init__(self) -> None:
        self._changed: dict[Key, int] = {}

    @classmethod
    def kind_for(cls, classes: ClassTable, max_bytes: int) -> type["LazyEnvironment"]:
        """Return a subclass for the loaded toolpacks' classes, with an empty cache."""
        bases = BoundedCache[str, _CachedBase](BASES_BYTES, lambda cached: cached.base.size)
        return type("LazyEnvironment", (cls,), {"classes": classes, "max_bytes": max_bytes, "bases": bases})

    @classmethod
    def first_part(cls, toolpack: str, environment: BaseModel) -> dict[str, bytes]:
        """Return the first piece of an environment's chain, by its part's name.

        Return an empty dictionary if the environment should be stored as a whole. This is so if too few of its objects
        can be loaded one by one, or if the chain wouldn't restore it exactly.
        """
        base = split(environment, cls.classes)
        if base.size - base.groups[0].size < MIN_SHARE * base.size:
            return {}
        restored = LazyGraph(LazyTable.of(cls.classes), base)
        restored.load_all()
        if difference(environment, restored.first):
            return {}
        return {part_name(lazy_name(toolpack), KIND, 0): first_piece(KIND, _pack(base.groups, base.vocabulary))}

    @classmethod
    def read(cls, chain: Chain, context: VolumeContext) -> BaseModel:
        """Return the whole environment with all objects loaded. Raise the same errors as `reading`."""
        with cls.reading(chain, context) as graph:
            graph.load_all()
            environment: BaseModel = graph.first
            return environment

    @classmethod
    @contextmanager
    def reading(cls, chain: Chain, context: VolumeContext) -> Iterator[LazyGraph]:
        """Yield a graph of an environment for reading. Its objects can also be used after the block.

        Raises:
            StateDamagedError: The pieces, or a group that the block has loaded, can't be read.
        """
        copy = cls.open(chain, context)
        try:
            graph = copy.new_graph()
        except MemoryError:
            raise
        except Exception as error:
            raise damaged_error(chain.name) from error
        try:
            yield graph
        except Exception as error:
            if graph.failure is None:
                raise
            raise damaged_error(chain.name) from error
        if graph.failure is not None:  # an object couldn't be loaded, but an author's code has caught the error
            raise damaged_error(chain.name) from graph.failure

    @classmethod
    @override
    def open(cls, chain: Chain, context: VolumeContext) -> "LazyCopy":
        """Read a chain. If possible, take the base from the process's cache, because many sessions share one base."""
        table = LazyTable.of(cls.classes)
        blob_id = chain.key[1] if chain.key else ""
        cached = cls.bases.get(blob_id)
        bodies, pieces = chain.read_pieces(cls, cached and cached.piece)
        try:
            if cached is None:
                first, *bodies = bodies
                vocabulary = Vocabulary(table.operators, first.head["vocabulary"])
                groups = {number: group for number, group in _unpack(first).items() if group is not None}
                cached = _CachedBase(Base(vocabulary, groups), pieces[0])
                if blob_id:
                    cls.bases.put(blob_id, cached)
            delta: dict[int, Group | None] = {}
            for body in bodies:
                delta.update(_unpack(body))
        except (LookupError, TypeError, ValueError) as error:
            raise damaged_error(chain.name) from error
        copy = LazyCopy(table, cached.base, delta)
        copy.pieces = pieces
        return copy

    @classmethod
    @override
    def sizes(cls, body: Body) -> Mapping[Key, int]:
        return {number: _size(group) for number, group in _unpack(body).items()}

    def environment(self) -> BaseModel:
        """Return the environment that the call uses. Its objects are loaded at first access."""
        environment: BaseModel = self._copy.graph.first
        return environment

    def has_changed(self) -> bool:
        """Write the changes made since the last call of this method to the graph, and return whether there are any.

        Raise the same errors as `LazyGraph.commit`, and `TooLargeError` if the environment has grown too large.
        """
        graph = self._copy.graph
        if graph.failure is not None:
            raise damaged_error(self._chain.name) from graph.failure
        changes = graph.commit()
        self._changed.update((number, _size(group)) for number, group in changes.items())
        if changes and graph.size > self.max_bytes:
            toolpack = self._chain.name.removesuffix("/")
            raise TooLargeError(
                f"the environment of {toolpack!r} has grown to {graph.size} bytes; {self.max_bytes} are allowed."
            )
        return bool(changes)

    def state(self) -> dict[int, Group | None]:
        """Write the changes so far, and return the groups that differ from the base, for `change_since`."""
        self.has_changed()
        return dict(self._copy.graph.delta)

    def change_since(self, state: Groups | None) -> Difference | None:
        """Return the first difference from an earlier state, or None if there is no difference.

        Args:
            state: The earlier result of `state()`. None: the state before the call.
        """
        stored = dict(self._copy.graph.delta)
        if not self.has_changed():
            return None
        before = self._copy.new_graph(stored if state is None else state)
        before.load_all()
        self._copy.graph.load_all()
        return first_difference(before.first, self._copy.graph.first)

    @override
    def finish(self) -> Mapping[Key, int]:
        self.has_changed()
        self._end()
        return self._changed

    @override
    def body(self, keys: Mapping[Key, int] | None) -> Body:
        copy = self._copy
        if keys is not None:
            return _pack({int(number): copy.delta.get(int(number)) for number in keys})
        copy.rewrite()
        return _pack(copy.base.groups, copy.base.vocabulary)

    @override
    def abandon(self) -> bool:
        if self._copy.has_graph and self.has_changed():
            return False
        self._end()
        return True

    @override
    def explain(self, error: BaseException) -> BaseException:
        copy = self.mount and self.mount.working_copy
        if isinstance(copy, LazyCopy) and copy.has_graph and copy.graph.failure is not None:
            return damaged_error(self._chain.name)
        return error

    def _end(self) -> None:
        """End the call's use of the graph: make the loaded objects lazy again, so that the next call loads them."""
        self._copy.end_call()
        # A call with an execution policy must be repeatable. The order of a live set can differ from the order of its
        # decoded copy, so the next call must load everything from the stored bytes.
        if self._mounted.pinned:
            self._copy.discard()

    @property
    def _chain(self) -> Chain:
        return self._mounted.chain

    @property
    def _copy(self) -> "LazyCopy":
        copy: Any = self._mounted.copy()  # `open` has created it
        return copy  # type: ignore[no-any-return]

    @property
    def _mounted(self) -> Mount:
        if self.mount is None:
            raise TypeError("these objects aren't bound to a call")
        return self.mount


class LazyCopy(WorkingCopy):
    """Working copy of a lazy environment: the groups of one version, and the lazy graph that a session's calls use.

    Attributes:
        base: The groups in the chain's first piece.
        delta: The groups in the later pieces. None marks a removed group.
    """

    def __init__(self, table: LazyTable, base: Base, delta: Groups) -> None:
        self.base = base
        self.delta = delta
        self._table = table
        self._graph: LazyGraph | None = None

    @property
    def graph(self) -> LazyGraph:
        """The graph for the session's calls. It is created at first use, and opened if a call had ended its use."""
        if self._graph is None:
            self._graph = self.new_graph()
        self._graph.open()
        self.delta = self._graph.delta
        return self._graph

    @property
    def has_graph(self) -> bool:
        return self._graph is not None

    def new_graph(self, delta: Groups | None = None) -> LazyGraph:
        """Return a new graph of this version.

        Args:
            delta: The changed groups of another version, to return a graph of that version instead.
        """
        return LazyGraph(self._table, self.base, self.delta if delta is None else delta)

    def rewrite(self) -> None:
        """Make the current version the base, and drop the groups of removed objects."""
        self.base = Base(self.base.vocabulary, self.new_graph().collected())
        self.delta = {}
        self.discard()

    def end_call(self) -> None:
        if self._graph is not None:
            self._graph.end_call()

    @property
    @override
    def size(self) -> int:
        graph = 0 if self._graph is None else ROOT_BYTES * self._graph.count
        return graph + sum(map(_size, self.delta.values()))

    @override
    def clone(self) -> "LazyCopy":
        copy = LazyCopy(self._table, self.base, dict(self.delta))
        copy.pieces = self.pieces
        return copy

    @override
    def discard(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None


def _size(group: Group | None) -> int:
    return 16 if group is None else group.size


def _pack(groups: Groups, vocabulary: Vocabulary | None = None) -> Body:
    """Return groups as the content of a piece. None marks a removed group.

    Args:
        vocabulary: The class names that the groups refer to; only the first piece of a chain contains them.
    """
    kinds: dict[str, int] = {}
    entries: list[list[Any]] = []
    data: list[bytes] = []
    for number, group in groups.items():
        if group is None:
            entries.append([number])
            continue
        roots = [[root, kinds.setdefault(kind, len(kinds))] for root, kind in group.roots]
        entries.append([number, roots, len(group.data) if group.chunks is None else group.chunks])
        if group.references:
            entries[-1].append(group.references)
        data.append(group.data)
    head: dict[str, Any] = {"kinds": [*kinds], "groups": entries}
    if vocabulary is not None:
        head["vocabulary"] = vocabulary.names
    return Body(head, b"".join(data))


def _unpack(body: Body) -> dict[int, Group | None]:
    """Return the groups that `_pack` has written into a piece."""
    kinds, data, start = body.head["kinds"], bytes(body.data), 0
    groups: dict[int, Group | None] = {}
    for number, *rest in body.head["groups"]:
        if not rest:
            groups[number] = None
            continue
        roots = tuple((root, kinds[kind]) for root, kind in rest[0])
        if isinstance(rest[1], int):  # the length of the data; `rest[2]` exists only if the group has references
            groups[number] = Group(roots, data[start : start + rest[1]], references=tuple(*rest[2:]))
            start += rest[1]
        else:
            groups[number] = Group(roots, b"", tuple((chunk, count) for chunk, count in rest[1]))
    return groups
