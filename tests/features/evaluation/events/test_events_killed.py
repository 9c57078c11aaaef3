"""Kills of workers during calls with events: sessions end as they do without kills.

The variable `EVENT_SESSIONS=200` lets more sessions play at once.
"""

import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import postgres_server
import pytest
import redis_server
import serving
from patience import PATIENCE

from tools.faults.world import Server, send_signal, wait_until

SESSIONS = int(os.environ.get("EVENT_SESSIONS", "6"))
KILLS = 4
RULES = [
    {"name": "tick", "every": 120, "spread": "exponential", "do": "get_fare"},
    {"name": "bargain", "when": {"call": "get_fare", "where": {"/result": {"below": 70}}}, "do": "buy_ticket"},
    {"name": "spree", "after": "bargain", "do": "order", "args": {"item": "hat"}, "notice": "A hat is ordered."},
    {"name": "closes", "call": "take_in", "withdraw": "book_lane", "delay": "5m"},
]
HOUR = {"seconds": 3600, "until_something_happens": False}
CALLS = [
    ("order", {"item": "kettle"}),
    ("wait", {"seconds": 7200}),
    ("take_in", {}),
    ("wait", HOUR),
    ("send_mail", {"recipient": "jonas@home.example", "subject": "Size?"}),
    ("put_bread_in", {}),
    ("wait", {}),
    ("book_lane", {}),
    ("wait", HOUR),
    ("take_bread_out", {}),
    ("order", {"item": "lamp"}),
    ("wait", HOUR),
    ("list_parcels", {}),
]
STORES = ["sqlite", pytest.param("redis", marks=pytest.mark.long), pytest.param("postgres", marks=pytest.mark.long)]
ISOLATIONS = ["thread", "process"] if sys.platform == "linux" else ["thread"]


class Agent:
    """An agent that repeats a request, with its call_id, until it is answered."""

    def __init__(self, server, number):
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE)
        created = self.insist("create_session", toolpacks=["errands"], events=RULES, labels={"of": str(number)})
        self.session_id, self._path = created["session_id"], created["agent_path"]

    def insist(self, method, path="/rpc", **params):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                reply = self.http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
                return serving.result_of(reply.content)
            except (httpx.TransportError, serving.RpcError, ValueError) as error:
                refused = isinstance(error, serving.RpcError) and "changed" not in str(error.data) + error.message
                if refused or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def play(self):
        for number, (function, kwargs) in enumerate(CALLS):
            call = {"function": function, "kwargs": kwargs, "call_id": str(number)}
            answer = self.insist("run_function", self._path, **call)
            assert answer == self.insist("run_function", self._path, **call)

    def outcome(self):
        volatile = {"started_at", "duration_ms"}
        trace = self.insist("get_trace", session_id=self.session_id, limit=1000)
        records = [{name: value for name, value in record.items() if name not in volatile} for record in trace]
        params = {"session_id": self.session_id}
        return records, self.insist("get_environment", **params), self.insist("get_events", **params)


def kill_now_and_then(server, finished, killed):
    rng = random.Random(7)
    while not finished.wait(rng.uniform(0.05, 0.6)) and len(killed) < KILLS:
        workers = server.workers()
        for pid in workers:
            send_signal(pid, signal.SIGKILL)
        killed.append(len(workers))
        if len(killed) % 2:
            wait_until(lambda old={*workers}: server.is_up() and not old & {*server.workers()}, PATIENCE, "new workers")
        else:
            server.kill()
            server.start()


@pytest.mark.heavy
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("store", STORES)
def test_sessions_survive_kills_of_all_workers(tmp_path, store, isolation, request):
    url = {
        "redis": lambda: redis_server.emptied(request.getfixturevalue("redis_url")),
        "postgres": lambda: postgres_server.emptied(request.getfixturevalue("postgres_url")),
    }.get(store, lambda: None)()
    settings = {"packs": "errands", "isolation": isolation, "log_calls": "off"}
    server = Server(tmp_path, url, 2, **settings)
    server.start()
    finished, killed, agents = threading.Event(), [], []
    try:
        calm = Agent(server, "calm")
        agents.append(calm)
        calm.play()
        expected = calm.outcome()
        assert sum("event" in record for record in expected[0]) > 100
        agents += [Agent(server, number) for number in range(SESSIONS)]
        killer = threading.Thread(target=kill_now_and_then, args=(server, finished, killed))
        killer.start()
        with ThreadPoolExecutor(min(SESSIONS, 50)) as pool:
            list(pool.map(Agent.play, agents[1:]))
        finished.set()
        killer.join()
        assert killed
        for agent in agents[1:]:
            assert agent.outcome() == expected
            replay = agent.insist("replay_session", session_id=agent.session_id)
            assert replay["complete"], replay
    finally:
        finished.set()
        for agent in agents:
            agent.http.close()
        server.end()
