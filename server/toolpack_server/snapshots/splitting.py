"""Splitter that cuts an object graph into pieces, for an environment that isn't stored in pieces yet.

The module `pieces` explains how a graph is divided into pieces and groups.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from toolpack_server.base.errors import SnapshotError
from toolpack_server.snapshots.classes import ClassTable
from toolpack_server.snapshots.graph import held_by, is_immutable
from toolpack_server.snapshots.lazy_graph import PLAIN, LazyGraph
from toolpack_server.snapshots.pickling import explain
from toolpack_server.snapshots.pieces import MAX_NAMES, Base, LazyTable, Vocabulary

MIN_ITEMS = 16  # a container of the trunk is cut into pieces if it contains at least this many instances
NESTED_FACTOR = 4  # a container inside a piece needs this many times as many instances as a container of the trunk


def split(value: Any, classes: ClassTable, *, min_items: int = MIN_ITEMS) -> Base:
    """Split an object graph into groups, and return them as a base.

    Args:
        value: The first object of the graph.
        classes: The classes that the graph can contain.
        min_items: Number of instances from which on a container is cut, so that each instance is a piece.

    Raises:
        SnapshotError: An object of the graph can't be stored exactly.
    """
    table = LazyTable.of(classes)
    survey = _Survey(value, table, min_items)
    kinds = Counter(type(instance) for instance in survey.objects if type(instance) in table.layouts)
    vocabulary = Vocabulary(
        table.operators,
        (
            [name for _, name in table.operators.find],
            [table.layouts[kind].name for kind, _ in kinds.most_common(MAX_NAMES)],
        ),
    )
    try:
        groups = LazyGraph(table, Base(vocabulary, {})).write_all(
            value, survey.containers, survey.pieces, may_share=survey.may_share
        )
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 - writing can fail in any way
        raise explain(value, table.operators, error) from None
    # Read the groups and write them a second time. Equal strings that are one object in the original can be two objects
    # after reading, which changes the bytes. After the second time, reading and writing an unchanged group yields the
    # same bytes.
    again = LazyGraph(table, Base(vocabulary, groups))
    again.load_all()
    again.commit(may_share=False)
    return Base(vocabulary, groups | {number: group for number, group in again.delta.items() if group is not None})


class _Survey:
    """Survey of a graph that decides where to cut the graph.

    Attributes:
        objects: All objects except plain values.
        containers: The containers of the trunk that can be stored in chunks.
        pieces: The instances that are pieces.
        may_share: Whether several references lead to a mutable object that is neither a piece nor one of these
            containers.
    """

    def __init__(self, value: Any, table: LazyTable, min_items: int) -> None:
        self._table = table
        self.objects, shared = _walk(value)
        self._pieces = {id(obj): obj for obj in self.objects if id(obj) in shared and self._table.can_be_lazy(obj)}
        self.containers: list[Any] = []
        self._pieces.pop(id(value), None)  # the first object belongs to the trunk, even if other objects refer to it
        trunk = self._cut_trunk(value, min_items)
        for obj in self.objects:
            if id(obj) not in trunk:
                self._cut(obj, NESTED_FACTOR * min_items)
        self.pieces = [*self._pieces.values()]
        others = shared.difference(map(id, [value, *self.pieces, *self.containers]))
        self.may_share = any(id(obj) in others and not is_immutable(obj) for obj in self.objects)

    def _cut_trunk(self, value: Any, min_items: int) -> dict[int, Any]:
        """Cut the containers that are reachable without passing through a piece.

        Return all objects that are reachable in this way.
        """
        trunk: dict[int, Any] = {}
        pending = [value]
        while pending:
            obj = pending.pop()
            if type(obj) in PLAIN or id(obj) in trunk or id(obj) in self._pieces:
                continue
            trunk[id(obj)] = obj
            others = self._cut(obj, min_items)
            if others is not None and PLAIN.issuperset(map(type, others)):
                self.containers.append(obj)
            else:
                pending += held_by(obj)
        return trunk

    def _cut(self, container: Any, min_items: int) -> list[Any] | None:
        """If a container has many instances, make these instances pieces, and return its other items and its keys.

        Otherwise return None.
        """
        if type(container) not in (dict, list) or len(container) < min_items:
            return None
        items: Collection[Any] = container if isinstance(container, list) else container.values()
        instances = [item for item in items if self._table.can_be_lazy(item)]
        if len(instances) < min_items:
            return None
        self._pieces.update((id(instance), instance) for instance in instances)
        keys = container if isinstance(container, dict) else ()
        return [*keys, *(item for item in items if not self._table.can_be_lazy(item))]


def _walk(value: Any) -> tuple[list[Any], set[int]]:
    """Return all objects of a graph except plain values, and the ids of the objects that several references lead to."""
    seen: dict[int, Any] = {}
    shared: set[int] = set()
    pending = [value]
    while pending:
        obj = pending.pop()
        if type(obj) in PLAIN:
            continue
        if id(obj) in seen:
            shared.add(id(obj))
            continue
        seen[id(obj)] = obj
        pending += held_by(obj)
    return [*seen.values()], shared
