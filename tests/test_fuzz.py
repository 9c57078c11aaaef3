"""No hostile client causes an internal error, a hang, a leak or a refused change: a short run of the fuzz test.

The examples here are the same every time; `python -m tools.fuzz --seconds 600` draws others.
"""

import pytest
import server_process

from tools.fuzz.bodies import fuzz_bodies, fuzz_heavy
from tools.fuzz.conversations import LIMITS, RECEIVE_SECONDS, fuzz_conversations
from tools.fuzz.costs import fuzz_costs
from tools.fuzz.openenv import fuzz_openenv
from tools.fuzz.trainers import fuzz_trainers

pytestmark = pytest.mark.heavy


def served(folder, http="httptools"):
    fixed = server_process.with_fixed(folder, receive_seconds=RECEIVE_SECONDS)
    return server_process.served(folder, **(LIMITS | server_process.http_on(http, folder) | fixed))


def test_hostile_bodies():
    seen = fuzz_bodies(250)
    # Some requests pass all checks.
    assert {method for method, code in seen if code == 0} >= {"run_function", "create_session"}
    assert {code for _, code in seen} >= {0, -32700, -32600, -32602, -32001}


def test_hostile_bodies_from_an_agent():
    seen = fuzz_bodies(150, agent=True)
    assert ("agent run_function", 0) in seen


def test_bodies_that_cause_much_work():
    assert fuzz_heavy(100_000)


def test_requests_that_cost_a_server_more_than_the_sender():
    spent = fuzz_costs(10_000)
    assert {"replay_session", "rules of a stranger", "office.shell, folders", "workspace.search_mails"} <= set(spent)


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_bad_http(tmp_path, http):
    with served(tmp_path, http) as server:
        seen = fuzz_conversations(server, tmp_path / "server.log", 1)
    assert {200, 400} <= set(seen)


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_hostile_clients_of_trainers_protocols(tmp_path, http):
    with served(tmp_path, http) as server:
        seen = fuzz_openenv(server, tmp_path / "server.log", 200)
    assert {200, 400, 404, 422, "observation", "error", 1000, 1002} <= set(seen)


def test_hostile_requests_to_trainers_paths(tmp_path):
    with served(tmp_path) as server:
        seen = fuzz_trainers(server.url, 300, 1)
    assert {200, 400, 404, 422} <= set(seen)
