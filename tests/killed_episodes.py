"""Episodes that a client plays with the tasks' solutions, while the server is killed during every tenth episode.

Each test defines how its client resumes. This module checks that each episode is one session, that each call runs once,
and that the client gets the reward 1.0 once.
"""

import functools

import httpx
import pytest
import serving
from patience import PATIENCE

from tools.faults.world import Server

TOKEN = "token-of-ann"
STORES = ["sqlite", pytest.param("redis", marks=pytest.mark.long)]


def send(url, method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"authorization": f"Bearer {TOKEN}"}
    return serving.result_of(httpx.post(f"{url}/rpc", json=body, headers=headers, timeout=PATIENCE).content)


def solved(rpc, packs):
    """Return the solution of each task, as an episode that a client can play."""
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
    """Let a client play the bank's tasks on two workers, and check the promises.

    Args:
        label: The name of the label of the episodes' sessions. Its value is different for each episode.
        play: A generator of the rewards of each episode. Its arguments are the server's URL, the episodes, and two
            functions. During an episode with `pause` it calls the first to kill the server, and the second to start it.
    """
    url = request.getfixturevalue("redis_url") if store == "redis" else None
    server = Server(tmp_path, url, 2, packs="bank", tokens=f"ann:{TOKEN}", log_calls="off")
    server.start()
    starts = []

    def start():
        server.start()
        starts.append(store)

    address = f"http://127.0.0.1:{server.port}"
    rpc = functools.partial(send, address)
    try:
        earlier = {
            session["session_id"] for session in rpc("list_sessions", limit=1000)
        }  # the Redis may have data of earlier tests
        solutions = [episode for episode in solved(rpc, ["bank"]) if episode["calls"]]
        episodes = [{**each, "pause": not number % 10} for number, each in enumerate(solutions * 2)][:11]
        for rewards in play(address, episodes, server.kill, start):
            assert rewards == [*[None] * (len(rewards) - 1), 1.0]
        assert len(starts) == 2
        new_sessions = [each for each in rpc("list_sessions", limit=1000) if each["session_id"] not in earlier]
        task_sessions = [session for session in new_sessions if "task" in session]
        assert len(task_sessions) == len({session["labels"][label] for session in task_sessions}) == len(episodes)
        for session in task_sessions:
            records = rpc("get_trace", session_id=session["session_id"])
            (episode,) = [each for each in solutions if each["task"] == session["task"]]
            calls = [[each["function"], each["kwargs"]] for each in records if each["kind"] == "call"]
            assert calls == episode["calls"]
    finally:
        server.kill()
