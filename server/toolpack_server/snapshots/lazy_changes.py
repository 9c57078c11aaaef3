"""Comparison of two graphs in pieces by their groups, which doesn't load the objects.

The module `pieces` explains how a graph is divided into pieces and groups, and what a root is.
"""

from collections.abc import Iterator

from toolpack_server.snapshots.lazy_graph import LazyGraph
from toolpack_server.snapshots.pieces import chunked_in, referrers


def changed_roots(left: LazyGraph, right: LazyGraph) -> set[int] | None:
    """Return the numbers of the roots that might differ between two graphs, or None if all might.

    A root might differ if its group differs, or if it refers to a root that might differ. The loaded objects of both
    graphs must be unchanged since they were loaded.
    """
    numbers = left.delta.keys() | right.delta.keys()
    if left.base is not right.base:
        if left.vocabulary.names != right.vocabulary.names:
            return None
        numbers |= left.base.groups.keys() | right.base.groups.keys()
    differing = [number for number in numbers if left.group(number) != right.group(number)]
    if not differing:
        return set()
    graphs = (left, right)
    pending = [root for graph in graphs for root in _roots_in(graph, differing)]
    links = [referrers_of for graph in graphs for referrers_of in (graph.base.referrers, referrers(graph.delta))]
    containers = [
        (number, [*map(graph.numbers.get, map(id, items.values))])
        for graph in graphs
        for number, items in graph.contents.items()
    ]
    changed: set[int] = set()
    while pending:
        while pending:
            root = pending.pop()
            if root not in changed:
                changed.add(root)
                pending += [referrer for referrers_of in links for referrer in referrers_of.get(root, ())]
        # A loaded container in chunks might also differ if one of its items might.
        pending = [root for root, items in containers if root not in changed and not changed.isdisjoint(items)]
    return changed


def _roots_in(graph: LazyGraph, numbers: list[int]) -> Iterator[int]:
    """Yield the roots of groups.

    Also yield all chunked containers that aren't loaded, because their items are unknown.
    """
    chunked = graph.base.chunked | chunked_in(graph.delta)
    yield from {*chunked.values()} - graph.contents.keys()
    for number in numbers:
        group = graph.group(number)
        yield from (root for root, _ in group.roots) if group else ()
        if number in chunked:
            yield chunked[number]
