"""Fixtures that several test files share."""

import pytest
import redis_server
import serving


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with redis_server.start(tmp_path_factory.mktemp("redis")) as (url, _):
        yield url


@pytest.fixture
def isolation(request, monkeypatch):
    """Where functions run; see `serving.IN_BOTH`."""
    chosen = getattr(request, "param", "thread")
    monkeypatch.setattr(serving, "isolation", chosen)
    return chosen


@pytest.fixture
def in_threads(isolation):
    """For a test of what is only so where functions run in threads of the server."""
    if isolation == "process":
        pytest.skip("this is about functions in threads")


@pytest.fixture
def bench(isolation):  # noqa: ARG001 - it is set by then
    """A server without HTTP, with a store in memory."""
    made = serving.Bench()
    yield made
    made.close()


@pytest.fixture(params=["memory", "sqlite"])
def stored_bench(request, tmp_path, isolation):  # noqa: ARG001 - as above
    """A server without HTTP, with each store that needs no other program."""
    made = serving.Bench(store="memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'sessions.db'}")
    yield made
    made.close()
