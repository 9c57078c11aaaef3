"""The contract of stores as tests: each sentence of `SessionStore` and `SharedStore`, for a store of anybody's.

A file of tests imports all of it, and says how a store is opened:

    from toolpack_server.testing.store_contract import *

    @pytest.fixture
    def new_store(tmp_path):
        return lambda: functools.partial(MyStore, tmp_path / secrets.token_hex())

`new_store` gives a function that opens one empty store, and opens it again when it is called again; each call of
`new_store` is for another store. A store without `claim` belongs to one process: tests of leases are skipped.

A test looks at a store through its methods alone. It needs pytest and hypothesis.
"""

import pytest

from toolpack_server.testing.store_contract.commits import (
    TestCommit,
    TestCreate,
    TestGet,
    TestKept,
    test_a_session_that_was_deleted_since_its_last_commit_is_not_committed_to,
)
from toolpack_server.testing.store_contract.comparison import test_random_operations_do_what_they_do_in_memory
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
    "test_a_session_that_was_deleted_since_its_last_commit_is_not_committed_to",
    "test_random_operations_do_what_they_do_in_memory",
]


@pytest.fixture
def store(new_store):
    """An empty store."""
    opened = new_store()()
    yield opened
    opened.close()


@pytest.fixture
def one(store):
    """A session with two parts, in the store."""
    kept = session()
    store.create([kept], {"bank": "b0", "mail": "m0"}, {"b0": b"bank 0", "m0": b"mail 0"})
    return kept
