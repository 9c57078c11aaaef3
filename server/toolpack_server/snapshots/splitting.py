"""Cutting of an object graph into pieces.

`pieces` has the rule and the terms.
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

MIN_ITEMS = 16  # number of instances in a container of the trunk from which on each is a piece
NESTED_FACTOR = 4  # a container within a piece needs so many times as many


def split(value: Any, classes: ClassTable, *, min_items: int = MIN_ITEMS) -> Base:
    """Cut an object graph into the groups of a base.

    Raises:
        SnapshotError: Something in it can't be stored exactly.
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
    except Exception as error:  # noqa: BLE001 - writing may fail in any way
        raise explain(value, table.operators, error) from None
    # Written a second time as it is read: equal strings that are one object in the original may be two when read. From
    # then on, a group that is read and not changed has the same bytes.
    again = LazyGraph(table, Base(vocabulary, groups))
    again.load_all()
    again.commit(may_share=False)
    return Base(vocabulary, groups | {number: group for number, group in again.delta.items() if group is not None})


class _Survey:
    """Search of a graph for the places where it is cut.

    Attributes:
        objects: Every object but plain values.
        containers: The containers of the trunk that can be stored in chunks.
        pieces: The instances that are pieces.
        may_share: Several references lead to an object that isn't cut off.
    """

    def __init__(self, value: Any, table: LazyTable, min_items: int) -> None:
        self._table = table
        self.objects, shared = _walk(value)
        self._pieces = {
            id(found): found for found in self.objects if id(found) in shared and self._table.can_be_lazy(found)
        }
        self.containers: list[Any] = []
        self._pieces.pop(id(value), None)
        trunk = self._cut_trunk(value, min_items)
        for found in self.objects:
            if id(found) not in trunk:
                self._cut(found, NESTED_FACTOR * min_items)
        self.pieces = [*self._pieces.values()]
        others = shared.difference(map(id, [value, *self.pieces, *self.containers]))
        self.may_share = any(id(found) in others and not is_immutable(found) for found in self.objects)

    def _cut_trunk(self, value: Any, min_items: int) -> dict[int, Any]:
        """Cut the containers that can be reached without passing a piece. Return all objects reached in this way."""
        trunk: dict[int, Any] = {}
        pending = [value]
        while pending:
            found = pending.pop()
            if type(found) in PLAIN or id(found) in trunk or id(found) in self._pieces:
                continue
            trunk[id(found)] = found
            others = self._cut(found, min_items)
            if others is not None and PLAIN.issuperset(map(type, others)):
                self.containers.append(found)
            else:
                pending += held_by(found)
        return trunk

    def _cut(self, container: Any, min_items: int) -> list[Any] | None:
        """Make the instances in a container pieces if they are many. Then return its other items, and its keys."""
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
    """Return every object of a graph but plain values, and the ids of those to which several references lead."""
    seen: dict[int, Any] = {}
    shared: set[int] = set()
    pending = [value]
    while pending:
        found = pending.pop()
        if type(found) in PLAIN:
            continue
        if id(found) in seen:
            shared.add(id(found))
            continue
        seen[id(found)] = found
        pending += held_by(found)
    return [*seen.values()], shared
