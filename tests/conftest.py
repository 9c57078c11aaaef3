"""Fixtures that several files of tests share."""

import pytest
import redis_server


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with redis_server.start(tmp_path_factory.mktemp("redis")) as (url, _):
        yield url
