"""The unmodified clients of OpenEnv 0.10 play all tasks, through kills of the server, on two workers.

The rule: they run in a Python of their own, which TRAINERS names; where they aren't installed a test is skipped.
"""

import httpx
import pytest
import server_process
import serving
from faults.world import Server
from patience import PATIENCE
from test_ors_clients import PACKS, TOKEN, needs, played, solved

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("openenv"), "--packs", ",".join(PACKS)) as served:
        yield served


@pytest.mark.parametrize("client", ["openenv", "openenv-mcp"])
def test_each_client_is_rewarded_once_for_each_solution_and_never_for_nothing(server, client):
    needs("openenv.core")
    episodes = solved(server.rpc)
    assert {episode["env"] for episode in episodes} == {*PACKS}
    for episode, rewards in zip(episodes, played(server.url, episodes, client, token=None), strict=True):
        assert rewards == [*[None] * (len(rewards) - 1), 1.0], episode["task"]
    idle = [{**episode, "calls": [], "answer": ""} for episode in episodes]
    for episode, rewards in zip(idle, played(server.url, idle, client, token=None), strict=True):
        assert len(rewards) == 1, episode["task"]
        assert rewards[0] < 1.0, episode["task"]


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_it_plays_on_when_the_server_is_killed_amid_each_tenth_episode(tmp_path, store, request):
    needs("openenv.core")
    url = request.getfixturevalue("redis_url") if store == "redis" else None
    server = Server(tmp_path, url, 2, packs="bank", tokens=f"ann:{TOKEN}", log_calls="off")
    server.start()
    kills = []

    def kill():
        server.kill()
        server.start()
        kills.append(store)

    def rpc(method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"authorization": f"Bearer {TOKEN}"}
        return serving.result_of(httpx.post(f"{address}/rpc", json=body, headers=headers, timeout=PATIENCE).content)

    address = f"http://127.0.0.1:{server.port}"
    try:
        solutions = [episode for episode in solved(rpc, ["bank"]) if episode["calls"]]
        episodes = [{**each, "pause": not number % 10} for number, each in enumerate(solutions * 4)][:31]
        for rewards in played(address, episodes, "openenv", amid=kill):
            assert rewards == [*[None] * (len(rewards) - 1), 1.0]
        assert len(kills) == 4
        made = rpc("list_sessions", limit=1000)
        assert len(made) == len({session["labels"]["openenv"] for session in made}) == len(episodes)
        for session in made:
            records = rpc("get_trace", session_id=session["session_id"])
            (episode,) = [each for each in solutions if each["task"] == session["task"]]
            calls = [[each["function"], each["kwargs"]] for each in records if each["kind"] == "call"]
            assert calls == episode["calls"]
    finally:
        server.kill()
