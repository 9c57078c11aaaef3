"""Kills of workers during perturbed calls: rules perturb the same calls as without kills, and each call once."""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import PACKS, PATIENCE

from tools.faults.clients import Connection
from tools.faults.world import Server

pytestmark = pytest.mark.heavy

AGENTS, FORKS, BEFORE = 10, 100, 6
DOWN = "ConnectionError: the service is not available"
RULES = [
    {"functions": "pay", "calls": "3,6", "error": DOWN, "name": "down"},
    {"functions": "pay", "calls": "2,5", "lost": "TimeoutError: no answer", "name": "lost"},
    {"functions": "pay", "calls": "4", "phantom": True, "name": "ghost"},
    {"functions": "pay", "rate": 0.4, "append": " obey", "name": "told"},
    {"functions": "read_note", "replace": {"note": "word"}, "name": "other"},
    {"functions": "payments", "calls": "3-", "stale": True, "name": "stale"},
    {"functions": "payments", "corrupt": 0.3, "name": "wrong"},
    {"calls": "13-", "rename": {"read_note": "read_word"}, "name": "new"},
]
CLOCK = {"clock": "2026-03-02T09:30:00Z", "clock_step_seconds": 0}  # Only executors can pin time.
SLOW = {"functions": "now", "calls": "2", "delay": 100, "name": "slow"}
NOW = {"$call": {"function": "now", "args": {}}}
NOTE = {"$call": {"function": "read_note", "args": {}}}


def script(nested):
    """Return the calls of an agent. A rule applies to each of them, also if it is a nested call."""
    calls = [
        call
        for number in range(3)
        for call in (
            ("pay", {"to": "Ann", "amount": number}),
            ("payments", {}),
            ("pay", {"to": "Bob"} | nested),
            ("read_note", {"name": str(number)}),
        )
    ]
    numbered = [*enumerate(calls)]
    return numbered[:BEFORE], numbered[BEFORE:]


class Kills:
    """Counter of answers that kills one worker after a number of answers, and all workers after twice that number."""

    def __init__(self, server, after):
        self._server, self._after = server, after
        self._answered, self._lock = 0, threading.Lock()
        self.killed = []

    def answered(self):
        with self._lock:
            self._answered += 1
            if self._answered in {self._after, 2 * self._after}:
                victims = self._server.workers()[-1 if self._answered == self._after else 0 :]
                for victim in victims:
                    os.kill(victim, signal.SIGKILL)
                self.killed += victims


def play(connection, session, calls, kills=None):
    """Make the calls, and repeat each until it is answered. Return the answers."""
    answers = []
    for number, (function, kwargs) in calls:
        params = {"function": function, "kwargs": kwargs, "call_id": str(number)}
        answers.append(connection.insist("run_function", params, time.monotonic() + PATIENCE, session["agent_path"]))
        if kills:
            kills.answered()
    return answers


def send_to(connection, method, **params):
    return connection.insist(method, params, time.monotonic() + PATIENCE)


def comparable_records(connection, session):
    """Return the records of a session's path, without times and ids."""
    records = send_to(connection, "get_trace", session_id=session["session_id"], path=True)
    own = {"started_at", "duration_ms", "session_id", "index", "version"}
    return [{name: value for name, value in each.items() if name not in own} for each in records]


@pytest.mark.parametrize("isolation", [pytest.param("thread", marks=pytest.mark.long), "process"])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=pytest.mark.long)])
def test_rules_perturb_the_same_calls_despite_kills(tmp_path, request, kind, isolation):
    store = request.getfixturevalue("redis_url") if kind == "redis" else None
    server = Server(tmp_path, store, 2, pack_dir=PACKS, packs="shop", isolation=isolation)
    with contextlib.ExitStack() as stack:
        server.start()
        stack.callback(server.end)

        def connected(seed):
            return stack.enter_context(contextlib.closing(Connection([server.port], random.Random(seed))))

        connection = connected(0)
        rules, nested, params = (
            ([*RULES, SLOW], {"amount": NOW}, CLOCK) if isolation == "process" else (RULES, {"to": NOTE}, {})
        )
        before, after = script(nested)
        params = params | {"toolpacks": ["shop"], "perturbations": {"rules": rules, "seed": "s"}}
        twin, session = [send_to(connection, "create_session", **params) for _ in range(2)]
        first, kills = play(connection, session, before), Kills(server, 200)
        forks = send_to(connection, "fork_session", session_id=session["session_id"], count=FORKS)

        def go_on(number):
            mine = connected(number)
            return [play(mine, each, after, kills) for each in forks[number::AGENTS]]

        with ThreadPoolExecutor(AGENTS) as pool:
            answers = list(itertools.chain.from_iterable(pool.map(go_on, range(AGENTS))))
        assert len(set(kills.killed)) >= 2
        expected = play(connection, twin, before + after)
        assert (first, answers) == (expected[:BEFORE], [expected[BEFORE:]] * FORKS)
        truth = comparable_records(connection, twin)
        met = {name for each in truth for name in (each.get("perturbed") or {"rules": []})["rules"]}
        assert met == {rule["name"] for rule in rules}
        assert [comparable_records(connection, each) == truth for each in forks] == [True] * FORKS
        ids = [each["session_id"] for each in (twin, *forks)]
        worlds = [send_to(connection, "get_environment", session_id=each) for each in ids]
        assert worlds == worlds[:1] * (FORKS + 1)
