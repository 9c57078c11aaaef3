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


def test_hostile_bodies_get_only_documented_errors():
    outcomes = fuzz_bodies(250)
    # Some requests pass all checks.
    assert {method for method, code in outcomes if code == 0} >= {"run_function", "create_session"}
    assert {code for _, code in outcomes} >= {0, -32700, -32600, -32602, -32001}


def test_hostile_bodies_from_an_agent_get_only_documented_errors():
    outcomes = fuzz_bodies(150, agent=True)
    assert ("agent run_function", 0) in outcomes


def test_bodies_that_cause_much_work_do_not_hang_the_server():
    assert fuzz_heavy(100_000)


def test_requests_that_cost_a_server_more_than_the_sender():
    spent = fuzz_costs(10_000)
    assert {"replay_session", "rules of a stranger", "office.shell, folders", "workspace.search_mails"} <= set(spent)


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_invalid_http_causes_no_internal_error(tmp_path, http):
    with served(tmp_path, http) as server:
        outcomes = fuzz_conversations(server, tmp_path / "server.log", 1)
    assert {200, 400} <= set(outcomes)


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_clients_of_trainers_protocols_cause_no_internal_error(tmp_path, http):
    with served(tmp_path, http) as server:
        outcomes = fuzz_openenv(server, tmp_path / "server.log", 200)
    assert {200, 400, 404, 422, "observation", "error", 1000, 1002} <= set(outcomes)


def test_requests_to_trainers_paths_cause_no_internal_error(tmp_path):
    with served(tmp_path) as server:
        outcomes = fuzz_trainers(server.url, 300, 1)
    assert {200, 400, 404, 422} <= set(outcomes)
