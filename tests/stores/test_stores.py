"""The contract of stores, for the server's own stores, and promises beyond the contract."""

import contextlib
from functools import partial
from itertools import count, cycle

import postgres_server
import pytest
import redis_server
from serving import open_store

from toolpack_server.base.errors import SettingsError
from toolpack_server.stores.memory import MemoryStore
from toolpack_server.testing.store_contract import *  # noqa: F403 - the tests
from toolpack_server.testing.store_contract.comparison import compare
from toolpack_server.testing.store_contract.model import SharedMemory
from toolpack_server.testing.store_contract.samples import change, fork_of, session

numbers = count()
POSTGRES = pytest.param("postgres", marks=pytest.mark.heavy)


def new_file(folder):
    """Return the path of a new store, and delete the files of earlier ones, 20 MB each."""
    for path in folder.iterdir():
        path.unlink()
    return f"{folder}/{next(numbers)}.db"


@pytest.fixture(
    params=[
        "memory",
        "memory-shared",
        "sqlite",
        "sqlite-shared",
        "redis",
        POSTGRES,
    ]
)
def new_store(request, tmp_path):
    def new():
        if "memory" in request.param:
            return SharedMemory if "shared" in request.param else MemoryStore
        if request.param == "redis":
            return partial(open_store, redis_server.emptied(request.getfixturevalue("redis_url")))
        if request.param == "postgres":
            return partial(open_store, postgres_server.emptied(request.getfixturevalue("postgres_url")))
        return partial(open_store, f"sqlite:///{new_file(tmp_path)}", exclusive="shared" not in request.param)

    return new


def test_a_store_is_shared_and_lasts_or_not(new_store, request):
    kind, opener, stored = request.node.callspec.params["new_store"], new_store(), session()
    with contextlib.closing(opener()) as store:
        assert store.shared == (kind not in {"memory", "sqlite"})
        store.create([stored], {"bank": "b0"}, {"b0": b"bank 0"})
        store.commit([change(stored, 0, "b1")])
    with contextlib.closing(opener()) as again:
        assert (again.get(stored.id) is not None) == ("memory" not in kind)


class InTurn:
    """Several stores on the same data, as several processes open them. Each call uses the next store."""

    def __init__(self, *stores):
        self._stores = stores
        self._turns = cycle(stores)

    def __getattr__(self, name):
        return getattr(next(self._turns), name)

    def close(self):
        for store in self._stores:
            store.close()


@pytest.mark.heavy
def test_random_operations_on_a_sqlite_file_opened_twice(tmp_path):
    def new():
        path = new_file(tmp_path)
        return lambda: InTurn(*(open_store(f"sqlite:///{path}", exclusive=False) for _ in range(2)))

    compare(new, 30, 25)


@pytest.mark.heavy
def test_more_random_operations_on_sqlite(tmp_path):
    compare(lambda: partial(open_store, f"sqlite:///{new_file(tmp_path)}"), 60, 25)


@pytest.mark.parametrize(
    "wrong", ["sqlite:", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///folder/", "x:"]
)
def test_wrong_urls_are_refused(wrong):
    with pytest.raises(SettingsError, match=r"use .*sqlite:///"):
        open_store(wrong)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_fork_is_small(kind, tmp_path, request):
    url = (
        f"sqlite:///{tmp_path}/forks.db"
        if kind == "sqlite"
        else redis_server.emptied(request.getfixturevalue("redis_url"))
    )
    store = open_store(url)

    def size():
        if kind == "redis":
            return store._redis._client.info("memory")["used_memory"]
        return store._file.read("PRAGMA page_count")[0][0] * 4096

    recipe = b"x" * 110_000
    stored = session(recipe=recipe)
    store.create([stored], {"bank": "b"}, {"b": b"x" * 110_000})
    before = size()
    for _ in range(10):
        store.create([fork_of(stored, recipe=recipe) for _ in range(100)], {"bank": "b"}, {})
    assert (size() - before) / 1000 < {"sqlite": 650, "redis": 1400}[kind]
    store.close()


@pytest.mark.parametrize(
    "wrong",
    [
        "redsi://:hidden@host/0",
        "host=localhost password=hidden",
        "redis://:hidden#@host/0",
        "postgresql://user:hidden%zz@host/x",
        "postgresql://user:hidden@[::1/x",
        "postgresql://user:hidden/@host/x",
        "postgresql://user:p@hidden@host/x",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(wrong):
    with pytest.raises(SettingsError) as caught:
        open_store(wrong)
    assert "hidden" not in str(caught.value)
