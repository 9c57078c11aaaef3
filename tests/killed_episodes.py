"""Episodes that a client plays by their solutions, while the server is killed during every tenth.

Each test defines how its client resumes. This module checks the common promises: each episode is one session, each call
runs once, and the reward 1.0 comes once.
"""

import functools

import httpx
import pytest
import serving
from patience import PATIENCE

from tools.faults.world import Server

TOKEN = "token-of-ann"
STORES = ["sqlite", pytest.param("redis", marks=pytest.mark.long)]


def asked(url, method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"authorization": f"Bearer {TOKEN}"}
    return serving.result_of(httpx.post(f"{url}/rpc", json=body, headers=headers, timeout=PATIENCE).content)


def solved(rpc, packs):
    """Return the solution of each task, as an episode to play."""
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


def plays_on(tmp_path, store, request, label, play):
    """Let a client play the bank's tasks on two workers.

    Args:
        label: The label of the episodes' sessions; its value differs for each.
        play: Yields the rewards of each episode. Its arguments are the server's URL, the episodes, and two functions:
            for an episode with `pause`, the first kills the server, and the second starts it again.
    """
    url = request.getfixturevalue("redis_url") if store == "redis" else None
    server = Server(tmp_path, url, 2, packs="bank", tokens=f"ann:{TOKEN}", log_calls="off")
    server.start()
    starts = []

    def start():
        server.start()
        starts.append(store)

    address = f"http://127.0.0.1:{server.port}"
    rpc = functools.partial(asked, address)
    try:
        earlier = {
            session["session_id"] for session in rpc("list_sessions", limit=1000)
        }  # the Redis may have data of earlier tests
        solutions = [episode for episode in solved(rpc, ["bank"]) if episode["calls"]]
        episodes = [{**each, "pause": not number % 10} for number, each in enumerate(solutions * 2)][:11]
        for rewards in play(address, episodes, server.kill, start):
            assert rewards == [*[None] * (len(rewards) - 1), 1.0]
        assert len(starts) == 2
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
