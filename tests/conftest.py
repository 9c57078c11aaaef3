"""Fixtures that several test files share."""

import pytest
import redis_server
import serving


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with redis_server.start(tmp_path_factory.mktemp("redis")) as (url, _):
        yield url


@pytest.fixture
def bench():
    """A server without HTTP, with a store in memory."""
    made = serving.Bench()
    yield made
    made.close()


@pytest.fixture(params=["memory", "sqlite"])
def stored_bench(request, tmp_path):
    """A server without HTTP, with each store that needs no other program."""
    made = serving.Bench(store="memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'sessions.db'}")
    yield made
    made.close()
