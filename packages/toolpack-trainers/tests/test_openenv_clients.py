"""Episodes of the unmodified OpenEnv 0.10 clients: the bundled tasks, and kills of a server with two workers.

The clients run in the Python that the variable TRAINERS names. Tests of a client that isn't installed are skipped.
"""

import subprocess

import pytest
import server_process
from killed_episodes import plays_on, solved
from test_ors_clients import PACKS, PYTHON, is_rewarded, needs, play_episodes, plays_amid_kills

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("openenv"), "--packs", ",".join(PACKS)) as served:
        yield served


@pytest.mark.parametrize("client", ["openenv", "openenv-mcp", "openenv-harness", "verifiers"])
def test_clients_are_rewarded_once_and_only_for_solutions(server, client):
    needs("verifiers.v1" if client == "verifiers" else "openenv.core")
    is_rewarded(server.url, solved(server.rpc, PACKS)[::3], client)


@pytest.mark.parametrize("pack", [PACKS[0], *(pytest.param(pack, marks=pytest.mark.long) for pack in PACKS[1:])])
def test_openenv_validates_a_toolpack(server, pack):
    needs("openenv.core")
    command = [PYTHON, "-m", "openenv.cli", "validate", "--url", f"{server.url}/openenv/{pack}", "--timeout", "60"]
    validated = subprocess.run(command, capture_output=True, text=True, check=False)
    assert validated.stdout.endswith("Verdict: PASS\n"), validated.stdout + validated.stderr


def plays_between_kills(url, episodes, kill, start):
    """Play with the client that sends calls without ids.

    The server is killed only between calls, because a repeated call without an id might run twice.
    """
    return play_episodes(url, episodes, "openenv-mcp", first=kill, amid=start)


@pytest.mark.parametrize("play", [plays_amid_kills("openenv"), plays_between_kills], ids=["openenv", "openenv-mcp"])
@pytest.mark.parametrize("store", [pytest.param("sqlite", marks=pytest.mark.long), "redis"])
def test_clients_continue_after_kills_of_the_server(tmp_path, store, play, request):
    needs("openenv.core")
    plays_on(tmp_path, store, request, "openenv-episode", play)
