"""Fixtures: a server with tasks, and the URL of agents."""

import pytest
import server_process
from a2a_serving import PAIR, serve_agents


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    (folder / "pair.py").write_text(PAIR)
    with server_process.served(folder, "--pack-dir", str(folder), "--packs", "bank,pair") as served:
        yield served


@pytest.fixture(scope="session")
def url(server):
    with serve_agents(server) as (url, _):
        yield url
