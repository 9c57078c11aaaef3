"""The contract of stores, run on stores with their blobs in a folder."""

from functools import partial

import pytest
import redis_server

from toolpack_server.features.stores.blobs.store import opened
from toolpack_server.stores.memory import MemoryStore
from toolpack_server.testing.store_contract import *  # noqa: F403 - the tests
from toolpack_server.wiring.stores import open_store

# Then nearly all blobs of the contract are objects. A blob with an id of one letter isn't: no object can have its name.
MIN_BYTES = 1


@pytest.fixture(
    params=[
        "memory",
        pytest.param("sqlite", marks=pytest.mark.heavy),
        pytest.param("redis", marks=pytest.mark.long),
        pytest.param("postgres", marks=pytest.mark.long),
    ]
)
def new_store(request, tmp_path):
    def new():
        if request.param == "memory":
            opener = MemoryStore
        elif request.param == "sqlite":
            for path in tmp_path.glob("*.db*"):
                path.unlink()
            opener = partial(open_store, f"sqlite:///{tmp_path}/{id(object())}.db")
        elif request.param == "redis":
            url = redis_server.emptied(request.getfixturevalue("redis_url"))
            request.addfinalizer(partial(redis_server.emptied, url))  # Other tests expect no blobs outside.
            opener = partial(open_store, url)
        else:
            import postgres_server  # noqa: PLC0415 - most machines have no Postgres

            url = postgres_server.emptied(request.getfixturevalue("postgres_url"))
            request.addfinalizer(partial(postgres_server.emptied, url))
            opener = partial(open_store, url)
        return lambda: opened(opener(), f"file://{tmp_path}/blobs", MIN_BYTES)

    return new
