"""Fixtures that several files of tests share."""

import pytest
import redis_server
import serving


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with redis_server.start(tmp_path_factory.mktemp("redis")) as (url, _):
        yield url


@pytest.fixture
def bench():
    """Give a server without HTTP, on a store in memory."""
    made = serving.Bench()
    yield made
    made.close()


@pytest.fixture(params=["memory", "sqlite"])
def stored_bench(request, tmp_path):
    """Give a server without HTTP, on each store that needs no other program."""
    made = serving.Bench(store="memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'sessions.db'}")
    yield made
    made.close()
