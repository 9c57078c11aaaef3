"""Kills of the server while an agent calls functions over plain HTTP, as NeMo Gym's agents do."""

import contextlib
import threading
import time
import uuid

import httpx
import pytest
from killed_episodes import STORES, TOKEN, plays_on
from patience import PATIENCE

pytestmark = pytest.mark.heavy


def insist(agent, path, body):
    """Send a request until a server answers it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(httpx.TransportError):
            reply = agent.post(path, json=body)
            if reply.status_code != 503:
                assert reply.status_code == 200, reply.text
                return reply
        assert time.monotonic() < deadline, path
        time.sleep(0.1)


def play(url, episodes, kill, start):
    """Play episodes with their cookies. Calls have no ids and can't be repeated, so kill the server between calls."""
    starting = []
    for episode in episodes:
        name = uuid.uuid4().hex
        with httpx.Client(base_url=url, auth=("me", TOKEN), timeout=PATIENCE) as agent:
            insist(agent, "/seed_session", {"resources_session_id": name, "task_data": {"task": episode["task"]}})
            for number, (function, kwargs) in enumerate(episode["calls"]):
                if episode["pause"] and number == len(episode["calls"]) // 2:
                    kill()
                    starting.append(threading.Thread(target=start))
                    starting[-1].start()
                insist(agent, f"/{function}", kwargs)
            said = {"type": "message", "content": [{"type": "output_text", "text": episode["answer"]}]}
            verified = insist(agent, "/verify", {"response": {"output": [said]}}).json()
            assert not verified["mask_sample"]
            insist(agent, "/close_session", {"resources_session_id": name})
        yield [verified["reward"]]
    for thread in starting:
        thread.join(PATIENCE)


@pytest.mark.parametrize("store", STORES)
def test_agent_continues_after_kills_of_the_server(tmp_path, store, request):
    plays_on(tmp_path, store, request, "nemo_gym", play)
