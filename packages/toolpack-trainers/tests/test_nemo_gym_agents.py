"""Episodes of the unmodified NeMo Gym 0.7 agents: all tasks of the bank, and kills of a server with two workers.

The agent runs in the Python that the variable NEMO_GYM names. Without this variable, the tests are skipped with a hint.
"""

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import httpx
import pytest
import server_process
import serving
from patience import PATIENCE

from tools.faults.world import Server

PYTHON = os.environ.get("NEMO_GYM")
ADVICE = "no NeMo Gym: python3.13 -m venv X && X/bin/pip install --ignore-requires-python nemo-gym==0.7.0, NEMO_GYM=…"
PLAYER = Path(__file__).with_name("nemo_gym_player.py")

BY = ["agent", "environment", "gymnasium"]

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(PYTHON is None, reason=ADVICE)]


def rpc(url, method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return serving.result_of(httpx.post(f"{url}/rpc", json=body, timeout=PATIENCE).content)


def solved(url):
    """Yield an episode for each task of the bank, with the calls and the answer of its solution."""
    for line in httpx.get(f"{url}/nemo_gym/bank.jsonl", timeout=PATIENCE).text.splitlines():
        row = json.loads(line)
        solution = rpc(url, "get_solution", session_id=rpc(url, "create_session", task=row["task"])["session_id"])
        calls = [[call["function"], call["kwargs"]] for call in solution["calls"]]
        yield {"row": row, "calls": calls, "answer": solution["answer"] or "", "pause": False}


def play_episodes(url, by, episodes, amid=lambda: None):
    """Play episodes and return their results. `amid` is called where an episode pauses."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        tempfile.TemporaryDirectory() as folder,  # NeMo Gym writes its logs there.
        subprocess.Popen([PYTHON, str(PLAYER)], text=True, cwd=folder, **pipes) as process,
    ):
        errors = []
        listener = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        listener.start()
        try:
            print(json.dumps({"url": url, "by": by, "episodes": episodes}), file=process.stdin, flush=True)
            ended = []
            for line in process.stdout:
                if line == "amid\n":
                    amid()
                    print(file=process.stdin, flush=True)
                elif line.startswith("{"):
                    ended.append(json.loads(line))
            assert process.wait(PATIENCE) == 0, errors
        finally:
            process.kill()
            listener.join(PATIENCE)
    return ended


@pytest.mark.parametrize("by", BY)
def test_solution_is_rewarded_and_no_action_is_not(tmp_path, by):
    with server_process.served(tmp_path, "--packs", "bank") as server:
        episodes = list(solved(server.url))
        assert [each["reward"] for each in play_episodes(server.url, by, episodes)] == [1.0] * len(episodes)
        idle = [{**each, "calls": [], "answer": ""} for each in episodes]
        assert all(each["reward"] < 1.0 for each in play_episodes(server.url, by, idle))


def test_session_contract_of_nemo_gym_holds(tmp_path):
    with server_process.served(tmp_path, "--packs", "bank") as server:
        episodes = list(solved(server.url))[:2]
        assert play_episodes(server.url, "contract", episodes) == [{"reward": None}] * 2


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_episodes_survive_kills_of_the_server(tmp_path, store, by, request):
    url = request.getfixturevalue("redis_url") if store == "redis" else None
    server = Server(tmp_path, url, 2, packs="bank", log_calls="off")
    server.start()
    address, kills = f"http://127.0.0.1:{server.port}", []

    def kill():
        server.kill()
        server.start()
        kills.append(store)

    try:
        solutions = [episode for episode in solved(address) if episode["calls"]]
        episodes = [{**each, "pause": not number % 10} for number, each in enumerate(solutions * 4)][:31]
        ended = play_episodes(address, by, episodes, kill)
        assert [(each["reward"], each["mask_sample"]) for each in ended] == [(1.0, False)] * 31
        assert len(kills) == 4
        for each, episode in zip(ended, episodes, strict=True):
            records = rpc(address, "get_trace", session_id=each["session_id"])
            calls = [[record["function"], record["kwargs"]] for record in records if record["kind"] == "call"]
            assert calls == episode["calls"]
    finally:
        server.kill()
