"""Lazy graphs, which are stored in pieces, behave like whole snapshots: same results, same refusals, same states."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import CLASSES, act, world

from toolpack_server.base.errors import SnapshotError
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.lazy_graph import LazyGraph
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.snapshots.pieces import Base, LazyTable
from toolpack_server.snapshots.splitting import split

TABLE = LazyTable.of(CLASSES)
CALLS = 8


def run(seed, env):
    """Run a random function, and return its result or the type of its error."""
    try:
        return act(seed, env)
    except (ValueError, RecursionError, TypeError) as error:
        return type(error)


def frozen(env):
    try:
        return freeze(env, CLASSES)
    except SnapshotError:
        return None


def committed(graph):
    try:
        graph.commit()
    except SnapshotError:
        return False
    return True


def loaded(base, delta):
    graph = LazyGraph(TABLE, base, delta)
    graph.load_all()
    return graph.first


def compare_with_whole_snapshots(seed, min_items):
    """Run the same random functions on lazy graphs and on whole snapshots, and compare the results.

    A cold lazy graph is opened anew for each function, and a warm one stays loaded.
    """
    env = world(seed)
    blob = frozen(env)
    if blob is None or difference(env, thaw(blob, CLASSES)):
        return
    base, delta = split(env, CLASSES, min_items=min_items), {}
    assert difference(env, loaded(base, delta)) is None
    warm = LazyGraph(TABLE, base)
    for number in range(CALLS):
        warm.end_call()
        warm.open()
        cold, whole = LazyGraph(TABLE, base, delta), thaw(blob, CLASSES)
        result = run((seed, number), whole)
        assert run((seed, number), cold.first) == result
        assert run((seed, number), warm.first) == result
        after = None if isinstance(result, type) else frozen(whole)
        if not isinstance(result, type):
            assert committed(cold) == (after is not None)
        if after is None:
            warm = LazyGraph(TABLE, base, delta)
            continue
        warm.commit()
        blob, delta = after, cold.delta
        assert difference(thaw(blob, CLASSES), loaded(base, delta)) is None
        assert difference(thaw(blob, CLASSES), loaded(base, warm.delta)) is None
        if seed % 5 == number:  # as when the server rewrites a chain
            base, delta = Base(base.vocabulary, cold.collected()), {}
            warm = LazyGraph(TABLE, base)


@pytest.mark.parametrize("min_items", [2, 8])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_pieces_equal_the_whole_snapshot(min_items, seed):
    compare_with_whole_snapshots(seed, min_items)


@pytest.mark.heavy
@pytest.mark.parametrize("min_items", [2, 8])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_many_pieces_equal_the_whole_snapshot(min_items, seed):
    compare_with_whole_snapshots(seed, min_items)
