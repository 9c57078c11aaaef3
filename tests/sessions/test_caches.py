"""A worker's memory for caches is bounded in bytes, for any requests."""

import contextlib
import itertools
import tracemalloc

import pytest
from pydantic import BaseModel
from serving import CATALOG, NO_VOLUMES, open_store

from toolpack_server import TaskEnvironment, Toolpack
from toolpack_server.execution import initial
from toolpack_server.execution.codec import PlainCodec
from toolpack_server.execution.initial import InitialEnvironments
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.jsonio.strict import dumps
from toolpack_server.packs.catalog import Catalog

MEGABYTE = 2**20


class Numbers(BaseModel):
    numbers: list[int] = []


class SmallEnvironment(TaskEnvironment):
    numbers: Numbers = Numbers()


def make_small(given: list[int] = ()) -> SmallEnvironment:
    """Make an environment that doesn't contain its options.

    :param given: Any numbers.
    """
    del given
    return SmallEnvironment()


small = Toolpack("small", make_small)


@small.function
def look() -> int:
    """Look."""
    return 1


SMALL = Catalog({"small": small})


@pytest.fixture(params=["sqlite", "memory"])
def store(request, store_url):
    with contextlib.closing(open_store(store_url(request.param))) as new_store:
        yield new_store


@pytest.mark.parametrize("params", ["options", "environment"])
def test_the_session_cache_counts_creation_parameters(store, params, make_bench):
    bench = make_bench(SMALL, store, cache_bytes=MEGABYTE)
    value = {"given": [1] * 50_000} if params == "options" else {"numbers": {"numbers": [1] * 50_000}}
    for _ in range(20):
        bench.result(bench.create("small", **{params: {"small": value}}), "look")
    cache = bench.sessions.queues.cache
    assert 1 <= len(cache) <= 10
    assert cache.size <= MEGABYTE


def test_initial_environments_are_counted_with_their_options(make_bench):
    bench = make_bench(SMALL)
    initial = InitialEnvironments(bench.sessions._context.initial._build, 64 * 1024)
    for number in range(200):
        initial.get("small", {"given": [number] * 10_000})
    assert len(initial._built) < 64
    assert all(len(digest) == 64 for _, digest in initial._built._entries)
    assert initial._built.size <= 64 * 1024


def test_the_cache_of_toolpack_orders_is_bounded(monkeypatch, make_bench):
    monkeypatch.setattr("toolpack_server.rpc.listings.MAX_CACHE_BYTES", 2**17)
    bench = make_bench()
    names = [*CATALOG.toolpacks]
    listings = {}
    for order in itertools.permutations(names):
        session_id = bench.create(*order)
        listing = bench.rpc("list_functions", session_id=session_id)["result"]
        listings[order] = [function["toolpack"] for function in listing]
        assert [*dict.fromkeys(listings[order])] == [*order]
    cache = bench.service.listings._cache
    cached_bytes = sum(len(entry) for entry, _ in cache._entries.values())
    assert cached_bytes == cache.size <= 2**17
    assert 0 < len(cache) < len(listings)
    assert bench.sessions._context.runtime.cache_info().maxsize == 256


def test_the_same_initial_bytes_are_verified_once(monkeypatch):
    compared = []
    monkeypatch.setattr(initial, "difference", lambda *pair: compared.append(pair))
    context = ExecutionContext(PlainCodec(CATALOG, 2**20, NO_VOLUMES), 2**20)
    first, second = (initial.build(context, "ledger", {}) for _ in range(2))
    assert first == second
    assert len(compared) == 1


def test_cached_json_needs_as_much_memory_as_its_length():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        texts = [dumps({"number": number}) for number in range(1000)]
        allocated = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert allocated < 10 * sum(map(len, texts))
