"""Graph of lazy instances, which loads groups during a call, and writes the groups that the call has changed.

The module `pieces` explains how a graph is divided into pieces and groups.
"""

import itertools
import pickle
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolpack_server.base.errors import CycleError, SnapshotError
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.snapshots.chunks import CHUNK, Items
from toolpack_server.snapshots.graph import ATOMS, is_immutable
from toolpack_server.snapshots.lazy_classes import Marker, is_lazy, load, restore, unload
from toolpack_server.snapshots.pickling import explain
from toolpack_server.snapshots.pieces import (
    Base,
    ContainerWriter,
    Dump,
    Group,
    GroupReader,
    Groups,
    GroupWriter,
    LazyTable,
    Roots,
    Vocabulary,
)

PLAIN = ATOMS | {float}
"""Types of the items that a chunked container can contain besides instances."""


_CONTAINERS = {"dict": dict, "list": list}


class LazyGraph:
    """An object graph of one session. Only one call at a time uses it.

    Args:
        table: The lazy classes.
        base: The groups at the start of the session.
        delta: The groups that have changed since.

    Attributes:
        first: The graph's first object.
        delta: The groups that differ from the base, by number. None means that the group was removed.
        failure: The error of a group that couldn't be loaded. It is kept here, because an author's code might catch and
            drop it.
        numbers: The numbers of the roots in memory, by id.
        contents: The stored items of the loaded chunked containers, by number.
    """

    def __init__(self, table: LazyTable, base: Base, delta: Groups | None = None) -> None:
        self.table = table
        self.base = base
        self.delta: dict[int, Group | None] = dict(delta or {})
        self._homes: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        for number, group in self.delta.items():
            for root, kind in group.roots if group else ():
                self._homes[root], self._kinds[root] = number, kind
        self._next = max((base.next, *(number + 1 for number in (*self.delta, *self._homes))))
        self._marker = Marker()
        self._marker.loader = self
        # The roots by number; this keeps the roots alive, so that no id in `numbers` is reused.
        self._roots: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.failure: Exception | None = None
        self._loaded: dict[int, Group] = {}
        self._loading: set[int] = set()
        self._container_ids: set[int] = set()  # ids of the roots that are dicts or lists
        self.contents: dict[int, Items] = {}
        self._lock = threading.RLock()
        self._is_open = True
        self.first: Any = None
        if base.groups:
            self.first = self._add(0, table.by_name[self._kind(0)].new())
            self._load_group(0)

    @property
    def size(self) -> int:
        """Approximate size in bytes of the stored graph."""
        base = self.base.groups
        replaced = sum(base[number].size for number in self.delta if number in base)
        return self.base.size - replaced + sum(group.size for group in self.delta.values() if group)

    @property
    def count(self) -> int:
        """The number of roots in memory."""
        return len(self._roots)

    # Reading

    def root(self, number: int) -> Any:
        """Return a root, which is lazy unless it was loaded.

        A group's bytes call this method, so the number might be forged.
        """
        if type(number) is not int:
            raise pickle.UnpicklingError("a root has a number")
        root = self._roots.get(number)
        if root is None:
            kind = self._kind(number)
            if kind in _CONTAINERS:
                root = self._add(number, _CONTAINERS[kind]())
                self._container_ids.add(id(root))
                home = self._home(number)
                if home not in self._loading:
                    self._load_group(home)
            else:
                (root,) = self._create([number], [kind])
        return root

    def load(self, instance: Any) -> None:
        """Load the group of a lazy instance.

        Raises:
            ValueError: The call has ended.
        """
        with uninterruptible, self._lock:
            if not is_lazy(instance):  # another thread was faster
                return
            if not self._is_open:
                raise ValueError("this object belongs to a call that has ended, and can't be used any more")
            try:
                self._load_group(self._home(self.numbers[id(instance)]))
            except Exception as error:
                self.failure = error
                raise

    def load_all(self) -> None:
        """Load all groups."""
        while pending := [root for root in self._roots.values() if is_lazy(root)]:
            for instance in pending:
                load(instance)

    def _load_group(self, number: int) -> GroupReader | None:
        """Set the states of a group's roots.

        Return the reader of the group's data, or None if the group has no data or was already loaded.
        """
        if number in self._loaded:
            return None
        if number in self._loading:
            raise pickle.UnpicklingError("the state of an object is needed to create it")
        group, reader = self._group(number), None
        self._loading.add(number)
        try:
            if group.chunks is not None:
                self._load_container(group.roots[0], group)
            else:
                reader = self._reader(group)
                targets = [self.root(root) for root, _ in group.roots]
                for target, (_, kind), state in zip(targets, group.roots, reader.load(), strict=True):
                    if kind == "dict":
                        target.update(zip(*state, strict=True))
                    elif kind == "list":
                        target.extend(state)
                    else:
                        restore(self.table.by_name[kind], target, state)
            self._loaded[number] = group
        finally:
            self._loading.discard(number)
        return reader

    def _load_container(self, root: tuple[int, str], group: Group) -> None:
        """Fill a chunked container with lazy instances."""
        number, kind = root
        container = self.root(number)
        # Use the base's cache if the group and the chunks of the base are unchanged.
        of_base = self.base.groups.get(number) is group
        derived = self.base.contents.get(number) if of_base else None
        if derived is not None:
            keys, numbers, kinds = derived
            values = self._create(numbers, kinds)
        else:
            keys, values, numbers, is_plain = None if kind == "list" else [], [], [], False
            for chunk, _ in group.chunks or ():
                some_keys, some_numbers, others = self._reader(self._group(chunk)).load()
                if keys is not None:
                    keys += some_keys
                values += [others[index] if n is None else self.root(n) for index, n in enumerate(some_numbers)]
                numbers += some_numbers
                is_plain |= bool(others)
            if of_base and not is_plain and len({*numbers}) == len(numbers):
                kinds = [self.base.kinds[n] for n in numbers]
                if _CONTAINERS.keys().isdisjoint(kinds):
                    self.base.contents[number] = keys, numbers, kinds
        if keys is None:
            container.extend(values)
        else:
            container.update(zip(keys, values, strict=True))
        self.contents[number] = Items(container, keys, values)

    def _create(self, numbers: Sequence[int], kinds: Iterable[str]) -> list[Any]:
        """Return the roots with these numbers. Create the missing roots as lazy instances.

        The loops run in C (`map`, `zip`), because a container can have a million instances.
        """
        if not self._roots.keys().isdisjoint(numbers):
            return [self.root(number) for number in numbers]
        instances: list[Any] = []
        for kind, run in itertools.groupby(kinds):
            layout = self.table.by_name[kind]
            lazy: Any = self.table.lazy(layout.cls)
            created: list[Any] = [*map(object.__new__, itertools.repeat(lazy, sum(1 for _ in run)))]
            for _ in map(layout.slots[0].__set__, created, itertools.repeat(self._marker)):
                pass
            instances += created
        self._roots.update(zip(numbers, instances, strict=True))
        self.numbers.update(zip(map(id, instances), numbers, strict=True))
        return instances

    def _reader(self, group: Group) -> GroupReader:
        """Return a reader for the data of a group."""
        return GroupReader(self.table, self.vocabulary, group.data, self.root)

    def _group(self, number: int) -> Group:
        """Return the group with this number. Raise an error if no group has it."""
        group = self.delta.get(number)
        return self.base.groups[number] if group is None else group

    def group(self, number: int) -> Group | None:
        """Return the group with this number, or None."""
        return self.delta[number] if number in self.delta else self.base.groups.get(number)

    def _home(self, root: int) -> int:
        """Return the number of a root's group."""
        home = self._homes.get(root)
        return self.base.homes[root] if home is None else home

    def _kind(self, root: int) -> str:
        """Return the kind of a stored root, by its number."""
        return self._kinds.get(root) or self.base.kinds[root]

    def _add(self, number: int, value: Any) -> Any:
        """Add a root to memory, and return it."""
        self._roots[number] = value
        self.numbers[id(value)] = number
        return value

    # Calls

    def open(self) -> None:
        """Allow access to lazy instances."""
        self._is_open = True

    def end_call(self) -> None:
        """Make the loaded roots lazy again, except for the trunk and containers.

        From then on, refuse access to lazy instances.
        """
        with self._lock:
            for number, group in [*self._loaded.items()]:
                kinds = [kind for _, kind in group.roots]
                if number and group.chunks is None and _CONTAINERS.keys().isdisjoint(kinds):
                    for root, kind in group.roots:
                        layout = self.table.by_name[kind]
                        unload(layout, self.table.lazy(layout.cls), self._roots[root], self._marker)  # type: ignore[arg-type] # a root can be lazy
                    del self._loaded[number]
            self._is_open = False

    def close(self) -> None:
        """Free the objects. Code that still refers to a lazy instance can't load that instance any more."""
        self._is_open = False
        self._roots.clear()
        self.contents.clear()
        self.first = None

    # Writing

    def commit(self, *, may_share: bool = True) -> dict[int, Group | None]:
        """Write the loaded groups, and return the groups that have changed since the last commit.

        Args:
            may_share: Whether two groups might contain the same object. That is impossible if no object has changed
                since the groups were read.

        Raises:
            SnapshotError: An object can't be stored exactly. After this error, the graph can't be used any more.
        """
        with self._lock:
            try:
                return self._commit(may_share=may_share)
            except SnapshotError:
                raise
            except Exception as error:  # noqa: BLE001 - writing can fail in any way
                self.load_all()
                raise explain(self.first, self.table.operators, error) from None

    def _commit(self, *, may_share: bool) -> dict[int, Group | None]:
        """Implement `commit`, without its error handling."""
        if self._marker:
            names = ", ".join(map(repr, self._marker))
            raise SnapshotError(
                f"{names} can't be stored: `object.__setattr__` set it on an object that wasn't loaded."
            )
        changes: dict[int, Group | None] = {}
        members = {
            number: [root for root, _ in group.roots] for number, group in self._loaded.items() if group.chunks is None
        }
        for number, contents in [*self.contents.items()]:
            if contents.is_changed():
                if self._add_items(contents, members):
                    changes |= self._write_chunks(number, contents)
                else:  # the container becomes a group of its own, without chunks
                    members[number] = [number]
                    changes |= dict.fromkeys(chunk for chunk, _ in self._loaded[number].chunks or ())
        written = _Writing(self, members)
        written.run(may_share=may_share)
        changes |= written.changes(self._loaded)
        self._apply(changes)
        for number in written.unverified.intersection(changes):  # a new graph, to read the new bytes back
            LazyGraph(self.table, self.base, self.delta).check_members(number)
        return changes

    def _apply(self, changes: Groups) -> None:
        """Update the graph from the groups that have changed."""
        for number, group in changes.items():
            self.delta[number] = group
            if group is None or group.chunks is None:
                self.contents.pop(number, None)
            if group is None:
                self._loaded.pop(number, None)
            elif group.roots:
                self._loaded[number] = group
                for root, kind in group.roots:
                    self._homes[root], self._kinds[root] = number, kind
                if group.chunks is not None:
                    self.contents[number] = Items.of(self._roots[number])

    def _add_items(self, contents: Items, members: dict[int, list[int]]) -> bool:
        """Turn the new instances in a container into roots. Return whether the container can stay in chunks.

        The container can stay in chunks if all its other items and its keys are plain values.
        """
        is_plain = contents.keys is None or PLAIN.issuperset(map(type, contents.container))
        for value in contents.current_values():
            if id(value) not in self.numbers and type(value) not in PLAIN:
                if self.table.can_be_lazy(value):
                    number = self.add_root(value)
                    members[number] = [number]
                else:
                    is_plain = False
        return is_plain

    def add_root(self, value: Any) -> int:
        """Give an object a number, and return the number."""
        number, self._next = self._next, self._next + 1
        self._add(number, value)
        if type(value) in (dict, list):
            self._container_ids.add(id(value))
        return number

    def roots_of(self, numbers: Iterable[int]) -> Roots:
        """Return the number and the kind of each root."""
        return tuple((number, self._kind_of(self._roots[number])) for number in numbers)

    def _kind_of(self, root: Any) -> str:
        """Return the kind of an object in memory."""
        layout = self.table.layouts.get(type(root))
        return type(root).__name__ if layout is None else layout.name

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the base."""
        return self.base.vocabulary

    def dump(self, numbers: Sequence[int]) -> Dump:
        """Write the states of a group's roots."""
        try:
            return self._dump(numbers, two_steps=False)
        except CycleError:
            return self._dump(numbers, two_steps=True)

    def _dump(self, numbers: Sequence[int], *, two_steps: bool) -> Dump:
        """Write the states of a group's roots. Raise `CycleError` if that needs two steps.

        The faster writer is tried first, because most groups, unlike the trunk, contain no root that is a dict or list.
        """
        states = [self._state(self._roots[number]) for number in numbers]
        if numbers[0]:
            dump = GroupWriter(self.table, self.vocabulary, self.numbers, two_steps=two_steps).run(states)
            if self._container_ids.isdisjoint(dump.memo):
                return dump
        return ContainerWriter(self.table, self.vocabulary, self.numbers, two_steps=two_steps).run(states)

    def _state(self, root: Any) -> Any:
        """Return the state of a root: the content of a dict or list, or the state of an instance."""
        if type(root) is dict:
            return [*root], [*root.values()]
        return [*root] if type(root) is list else self.table.layouts[type(root)].get_stable_state(root)

    def _write_chunks(self, number: int, contents: Items) -> dict[int, Group | None]:
        """Write the chunks of a container that have changed. Return these chunks and the container's group."""
        stored = self._loaded.get(number)
        before = (stored and stored.chunks) or ()
        changes: dict[int, Group | None] = {}
        values = contents.current_values()
        keys = None if contents.keys is None else [*contents.container]
        front, back, start, end = contents.changed_slices(before, keys, values)
        free = [chunk for chunk, _ in before[front:back]]  # numbers of the replaced chunks, which the new chunks reuse
        middle = []
        while start < end:
            stop = min(end, start + CHUNK)
            if free:
                chunk = free.pop()
            else:
                chunk, self._next = self._next, self._next + 1
            numbers = [self.numbers.get(id(value)) for value in values[start:stop]]
            others = {index: values[start + index] for index, n in enumerate(numbers) if n is None}
            items = None if keys is None else keys[start:stop], numbers, others
            changes[chunk] = Group((), GroupWriter(self.table, self.vocabulary, {}, two_steps=False).run(items).data)
            middle.append((chunk, stop - start))
            start = stop
        changes |= dict.fromkeys(free)
        chunks = (*before[:front], *middle, *before[back:])
        changes[number] = Group(((number, type(contents.container).__name__),), b"", chunks)
        return changes

    def check_members(self, number: int) -> None:
        """Load a group, and check that every set and dict in the group finds its members.

        A set or dict wouldn't find a member whose hash depends on the state of an instance that is loaded later.

        Raises:
            SnapshotError: A set or dict doesn't find a member.
        """
        reason = "a set or dict of the environment can't be stored: a member's hash depends on a cycle that holds it."
        try:
            reader = self._load_group(number)
        except Exception as error:  # `__hash__` of an empty instance can raise any exception
            raise SnapshotError(reason) from error
        for value in reader.memo.copy().values() if reader else ():
            if isinstance(value, set | frozenset | dict) and not all(member in value for member in list(value)):
                raise SnapshotError(reason)

    def write_all(
        self, value: Any, containers: Iterable[Any], pieces: Iterable[Any], *, may_share: bool
    ) -> dict[int, Group]:
        """Write all groups of a new graph, which has no base yet.

        Args:
            value: The first object.
            containers: The containers to store in chunks.
            pieces: The instances that are pieces. Other instances become pieces if two groups contain them.
            may_share: Whether two groups might contain the same object.
        """
        self.first = value
        self._add(0, value)
        chunked = {self.add_root(container): container for container in containers}
        numbers = [0, *map(self.add_root, pieces)]
        written = _Writing(self, {number: [number] for number in numbers})
        written.run(may_share=may_share)
        groups = written.changes({})
        for number, container in chunked.items():
            groups |= self._write_chunks(number, Items(container, [] if type(container) is dict else None, []))
        return {number: group for number, group in groups.items() if group is not None}

    def collected(self) -> dict[int, Group]:
        """Return all groups that are reachable from the trunk. This omits the groups of removed pieces."""
        fresh = LazyGraph(self.table, self.base, self.delta)
        fresh.load_all()
        groups = {number: fresh._group(number) for number in fresh._loaded}
        return groups | {chunk: fresh._group(chunk) for group in groups.values() for chunk, _ in group.chunks or ()}


class _Writing:
    """Writer of several groups. It repeats the writing until no two groups contain the same mutable object.

    Args:
        graph: The graph.
        members: The numbers of the roots of each group.
    """

    def __init__(self, graph: LazyGraph, members: dict[int, list[int]]) -> None:
        self._graph = graph
        self._members = members
        self._dumps: dict[int, Dump] = {}
        # For each group that was merged into another group, the number of that other group.
        self._united: dict[int, int] = {}

    def run(self, *, may_share: bool) -> None:
        """Write the groups."""
        pending = sorted(self._members)
        while pending:
            for number in pending:
                self._dumps[number] = self._graph.dump(self._members[number])
            pending = self._separate(self._shared()) if may_share else []

    @property
    def unverified(self) -> set[int]:
        """Numbers of the groups to read back, because a hash by an author's code might depend on a cycle."""
        return {number for number, dump in self._dumps.items() if dump.must_verify}

    def changes(self, stored: Mapping[int, Group]) -> dict[int, Group | None]:
        """Return the groups that differ from the stored groups, by number."""
        changes: dict[int, Group | None] = dict.fromkeys(self._united)
        for number, dump in self._dumps.items():
            members = self._members[number]
            references = tuple(sorted(dump.references.difference(members)))
            group = Group(self._graph.roots_of(members), dump.data, references=references)
            if stored.get(number) != group:
                changes[number] = group
        return changes

    def _shared(self) -> list[tuple[Any, int, int]]:
        """Return each mutable object that two groups contain, with the groups' numbers, in a reproducible order."""
        shared = []
        owners: dict[int, int] = {}
        fixed = self._graph.vocabulary.memo.keys()  # the ids of objects that are in every group's memo
        for number, dump in sorted(self._dumps.items()):
            common = (owners.keys() & dump.memo.keys()) - fixed
            common_objects = [dump.memo[key] for key in common if key not in self._graph.numbers]
            mutable = [(index, value) for index, value in common_objects if not is_immutable(value)]
            mutable.sort(key=lambda entry: entry[0])
            shared += [(value, owners[id(value)], number) for _, value in mutable]
            owners |= dict.fromkeys(dump.memo, number)
        return shared

    def _separate(self, shared: list[tuple[Any, int, int]]) -> list[int]:
        """Turn shared instances into roots.

        If no instance is shared, unite the groups. Return the groups to write again.
        """
        again: set[int] = set()
        for value, left, right in shared:
            if id(value) in self._graph.numbers:  # an earlier iteration of this loop has made the object a root
                again |= {left, right}
            elif self._graph.table.can_be_lazy(value):
                number = self._graph.add_root(value)
                self._members[number] = [number]
                again |= {left, right, number}
        if not again:
            for _, left, right in shared:
                again |= self._unite(left, right)
        return sorted(again.intersection(self._members))

    def _unite(self, left: int, right: int) -> set[int]:
        """Unite two groups.

        Return a set with the number of the united group, or an empty set if they were already united.
        """
        low, high = sorted((self._find(left), self._find(right)))
        if low == high:
            return set()
        self._united[high] = low
        self._members[low] += self._members.pop(high)
        self._dumps.pop(high, None)
        return {low}

    def _find(self, number: int) -> int:
        """Return the number of the group into which a group was merged, or its own number."""
        while number in self._united:
            number = self._united[number]
        return number
