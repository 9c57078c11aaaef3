"""The unmodified clients of the Open Reward Standard play all tasks, through kills of the server, on two workers.

The rule: they run in a Python of their own, which TRAINERS names; where they aren't installed a test is skipped, and
with TRAINERS=true, which is this Python, it fails instead.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import server_process
import serving
from faults.world import Server
from patience import PATIENCE

ADVICE = "not installed: pip install -e '.[trainers]'"
TRAINERS = os.environ.get("TRAINERS", "")
PYTHON = TRAINERS if TRAINERS not in {"", "true"} else sys.executable
PLAYER = Path(__file__).with_name("trainers_player.py")
TOKEN = "token-of-ann"
PACKS = ["bank", "workspace", "office"]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False"}


def needs(module):
    found = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode:
        if TRAINERS == "true" and module == "openreward":
            pytest.fail(f"{module}: {ADVICE}")
        pytest.skip(f"{module}: {ADVICE}")


def played(url, episodes, *arguments, first=lambda: None, amid=None, token=TOKEN):
    """Have episodes played, and get the rewards of each; `amid` is called where they go on, `first` just before."""
    with subprocess.Popen(
        [PYTHON, str(PLAYER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "OPENREWARD_SESSION_URL": url},
    ) as process:
        said, waiting = [], []
        listener = threading.Thread(target=lambda: said.append(process.stderr.read()))
        listener.start()
        try:
            print(json.dumps({"url": url, "token": token, "episodes": episodes}), file=process.stdin, flush=True)
            rewards = []
            for line in process.stdout:
                if line == "amid\n":
                    first()
                    waiting.append(threading.Thread(target=amid))
                    waiting[-1].start()
                    print(file=process.stdin, flush=True)
                    continue
                rewards.append(json.loads(line))
            assert process.wait(PATIENCE) == 0, said
        finally:
            process.kill()
            for thread in [*waiting, listener]:
                thread.join(PATIENCE)
    return rewards


def solved(rpc, packs=PACKS):
    """Get the solution of each task, as an episode to play."""
    episodes = []
    for pack in packs:
        for task in rpc("list_tasks", toolpack=pack, limit=1000)["tasks"]:
            if task["has_solution"] and not task.get("participants"):
                session_id = rpc("create_session", task=task["task"])["session_id"]
                solution = rpc("get_solution", session_id=session_id)
                rpc("close_session", session_id=session_id)
                calls = [[call["function"], call["kwargs"]] for call in solution["calls"]]
                episodes.append({"env": pack, "task": task["task"], "calls": calls, "answer": solution["answer"] or ""})
    return episodes


def plays_on(tmp_path, store, request, label, *arguments, has_ids=True):
    """Have a client play episodes while the server is killed amid each tenth.

    Args:
        label: That of their sessions, by which each has another name.
        has_ids: Whether its calls have ids; else none is under way when the server is killed, as it might run twice.
    """
    url = request.getfixturevalue("redis_url") if store == "redis" else None
    server = Server(tmp_path, url, 2, packs="bank", tokens=f"ann:{TOKEN}", log_calls="off")
    server.start()
    kills = []

    def kill():
        if has_ids:
            server.kill()
        server.start()
        kills.append(store)

    def rpc(method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"authorization": f"Bearer {TOKEN}"}
        return serving.result_of(httpx.post(f"{address}/rpc", json=body, headers=headers, timeout=PATIENCE).content)

    address = f"http://127.0.0.1:{server.port}"
    try:
        earlier = {
            session["session_id"] for session in rpc("list_sessions", limit=1000)
        }  # Redis is there for all tests
        solutions = [episode for episode in solved(rpc, ["bank"]) if episode["calls"]]
        episodes = [{**each, "pause": not number % 10} for number, each in enumerate(solutions * 4)][:31]
        first = {} if has_ids else {"first": server.kill}
        for rewards in played(address, episodes, *arguments, amid=kill, **first):
            assert rewards == [*[None] * (len(rewards) - 1), 1.0]
        assert len(kills) == 4
        listed = [each for each in rpc("list_sessions", limit=1000) if each["session_id"] not in earlier]
        made = [session for session in listed if "task" in session]
        assert len(made) == len({session["labels"][label] for session in made}) == len(episodes)
        for session in made:
            records = rpc("get_trace", session_id=session["session_id"])
            (episode,) = [each for each in solutions if each["task"] == session["task"]]
            calls = [[each["function"], each["kwargs"]] for each in records if each["kind"] == "call"]
            assert calls == episode["calls"]
    finally:
        server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("ors"), "--packs", ",".join(PACKS)) as served:
        yield served


def test_the_sdk_is_rewarded_once_for_each_solution_and_never_for_nothing(server):
    needs("openreward")
    episodes = solved(server.rpc)
    assert {episode["env"] for episode in episodes} == {*PACKS}
    for episode, rewards in zip(episodes, played(server.url, episodes, token=None), strict=True):
        assert rewards == [*[None] * (len(rewards) - 1), 1.0], episode["task"]
    idle = [{**episode, "calls": [], "answer": ""} for episode in episodes]
    for episode, rewards in zip(idle, played(server.url, idle, token=None), strict=True):
        assert len(rewards) == 1, episode["task"]
        assert rewards[0] < 1.0, episode["task"]


def test_trl_is_rewarded(server):
    needs("trl.experimental.openreward, datasets")
    episodes = [episode for episode in solved(server.rpc, ["bank"]) if episode["calls"]][:3]
    for rewards in played(server.url, episodes, "trl", token=None):
        assert rewards == [*[None] * (len(rewards) - 1), 1.0]


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_the_sdk_plays_on_when_the_server_is_killed_amid_each_tenth_episode(tmp_path, store, request):
    needs("openreward")
    plays_on(tmp_path, store, request, "ors")
