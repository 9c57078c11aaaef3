"""Episodes of the unmodified Open Reward Standard clients: all tasks, and kills of a server with two workers.

The clients run in the Python that the variable TRAINERS names. Tests of a client that isn't installed are skipped.
TRAINERS=true means the Python of the tests. Then a missing SDK makes the tests fail.
"""

import json
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest
import server_process
from killed_episodes import STORES, TOKEN, plays_on, solved
from patience import PATIENCE

ADVICE = "not installed: pip install -e 'packages/toolpack-trainers[ors]'"
TRAINERS = os.environ.get("TRAINERS", "")
PYTHON = TRAINERS if TRAINERS not in {"", "true"} else sys.executable
PLAYER = Path(__file__).with_name("trainers_player.py")
PACKS = ["bank", "workspace", "office"]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False"}


@cache
def can_import(module):
    return not subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode


def needs(module):
    if not can_import(module):
        if TRAINERS == "true" and module == "openreward":
            pytest.fail(f"{module}: {ADVICE}")
        pytest.skip(f"{module}: {ADVICE}")


def play_episodes(url, episodes, *arguments, first=lambda: None, amid=None, token=TOKEN):
    """Play episodes and return the rewards of each.

    `first` is called where an episode pauses, and `amid` while it continues.
    """
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


def plays_amid_kills(*arguments):
    """Return a function that plays with a client in another process, and kills the server during its calls."""

    def play(url, episodes, kill, start):
        return play_episodes(url, episodes, *arguments, amid=lambda: (kill(), start()))

    return play


def is_rewarded(url, episodes, *arguments):
    """Check that an episode of each toolpack is rewarded once, and that an episode without actions gets no reward."""
    assert {episode["env"] for episode in episodes} == {*PACKS}
    idle = [{**episode, "calls": [], "answer": ""} for episode in episodes]
    rewards_of_all = play_episodes(url, episodes + idle, *arguments, token=None)
    for episode, rewards in zip(episodes, rewards_of_all[: len(episodes)], strict=True):
        assert rewards == [*[None] * (len(rewards) - 1), 1.0], episode["task"]
    for episode, rewards in zip(idle, rewards_of_all[len(episodes) :], strict=True):
        assert len(rewards) == 1, episode["task"]
        assert rewards[0] < 1.0, episode["task"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("ors"), "--packs", ",".join(PACKS)) as served:
        yield served


def test_sdk_is_rewarded_once_and_only_for_solutions(server):
    needs("openreward")
    is_rewarded(server.url, solved(server.rpc, PACKS))


def test_trl_is_rewarded_for_solutions(server):
    needs("trl.experimental.openreward, datasets")
    episodes = [episode for episode in solved(server.rpc, ["bank"]) if episode["calls"]][:3]
    for rewards in play_episodes(server.url, episodes, "trl", token=None):
        assert rewards == [*[None] * (len(rewards) - 1), 1.0]


@pytest.mark.parametrize("store", STORES)
def test_sdk_continues_after_kills_of_the_server(tmp_path, store, request):
    needs("openreward")
    plays_on(tmp_path, store, request, "ors", plays_amid_kills())
