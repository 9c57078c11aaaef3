"""Contract tests for stores: they check the promises in the docstrings of `SessionStore` and `SharedStore`.

To test your store, import all names in a test file and define a fixture that opens the store:

    from toolpack_server.testing.store_contract import *

    @pytest.fixture
    def new_store(tmp_path):
        return lambda: functools.partial(MyStore, tmp_path / secrets.token_hex())

The fixture returns a function. Each call to this function creates a new empty store and returns an opener. Each call to
the opener opens the store, the first time as well as after the store was closed. Tests of leases are skipped for a
store without `claim`.

The tests call only the methods of `SessionStore` and `SharedStore`. They need pytest and hypothesis.
"""

import pytest

from toolpack_server.testing.store_contract.commits import (
    TestCommit,
    TestCreate,
    TestGet,
    TestKept,
    test_commit_to_session_deleted_since_last_one_is_refused,
)
from toolpack_server.testing.store_contract.comparison import test_random_operations_match_memory_store
from toolpack_server.testing.store_contract.history import TestHistory
from toolpack_server.testing.store_contract.lifetimes import TestDelete, TestExpiryAndListing, TestLeases, TestLifetime
from toolpack_server.testing.store_contract.samples import session

__all__ = [
    "TestCommit",
    "TestCreate",
    "TestDelete",
    "TestExpiryAndListing",
    "TestGet",
    "TestHistory",
    "TestKept",
    "TestLeases",
    "TestLifetime",
    "one",
    "store",
    "test_commit_to_session_deleted_since_last_one_is_refused",
    "test_random_operations_match_memory_store",
]


@pytest.fixture
def store(new_store):
    """An empty store."""
    empty = new_store()()
    yield empty
    empty.close()


@pytest.fixture
def one(store):
    """A stored session with two parts."""
    sample = session()
    store.create([sample], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0"})
    return sample
