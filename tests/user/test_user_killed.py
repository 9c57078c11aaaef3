"""One process plays many users with a slow and faulty endpoint. It is killed repeatedly, and nothing is lost."""

import asyncio
import random
import subprocess
import threading

import phone
import pytest
import server_process
from chat_endpoint import KEY, cut_off, endpoint, error_response, text_message
from ci import without
from serving import PATIENCE, wait_until

from toolpack_server.client import Client

pytestmark = pytest.mark.heavy

KILLS = 3
RUN = {"run": "killed"}


@pytest.fixture
def faulty():
    """Return a slow endpoint that fails at every fifth request."""
    try:
        import openai  # noqa: F401, PLC0415
    except ImportError:
        without("no openai here: pip install -e '.[user]'")
    chance = random.Random(42)

    async def answer(messages):
        await asyncio.sleep(chance.uniform(0, 0.2))
        faults = [error_response(429, retry_after="0.1"), error_response(500), cut_off(), text_message("")]
        if chance.random() < 0.2:
            return chance.choice(faults)
        return phone.the_model([each for each in messages if "[Your last" not in str(each["content"])])

    with endpoint(answer) as endpoint_of_model:
        yield endpoint_of_model


def start_user(url, model_at):
    words = ["--label", "run=killed", "--model", "m", "--base-url", model_at.url, "--retries", "20"]
    command = server_process.command("user", "--url", url, *words)
    environment = server_process.environment(OPENAI_API_KEY=KEY)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.long)])
def test_kills_lose_nothing_of_many_played_sessions(faulty, tmp_path, count):
    packs = ["--pack-dir", str(phone.PACKS), "--packs", "phone"]
    with server_process.served(tmp_path, *packs) as server, Client(server.url) as client:
        url = server.url
        sessions = [client.create_session(task="phone/roam", labels=RUN) for _ in range(count)]
        agents = threading.Thread(target=lambda: asyncio.run(phone.be_all_agents(url, sessions)))
        agents.start()
        process = start_user(url, faulty)
        for kill in range(1, KILLS + 1):
            enough, ended = kill * count, process.poll
            wait_until(lambda enough=enough, ended=ended: len(faulty.asked) >= enough or ended() is not None)
            assert process.poll() is None, process.communicate()[0]
            process.kill()
            process.communicate()
            process = start_user(url, faulty)
        # A busy machine needs minutes for the rest of 200 sessions.
        all_played = f"{count} sessions played: {count} answered.\n"
        assert (process.communicate(timeout=5 * PATIENCE)[0], process.returncode) == (all_played, 0)
        agents.join(PATIENCE)
        summaries = client.summarize_sessions(labels=RUN, evaluate=True)["sessions"]
        while len(summaries) < count:
            summaries += client.summarize_sessions(labels=RUN, evaluate=True, after=summaries[-1]["session_id"])[
                "sessions"
            ]
        verdicts = [each["verdict"] for each in summaries]
        assert [(each["passed"], each["valid"]) for each in verdicts] == [(True, True)] * count
        for session in sessions:
            records = client.get_trace(session["session_id"], limit=1000)
            own = [each["call_id"] for each in records if each.get("by") == "user"]
            assert own == [f"user/turn-{number}" for number in range(5)]
