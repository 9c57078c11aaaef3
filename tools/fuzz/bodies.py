"""Fuzz test of request bodies: hostile bodies for a server without HTTP, with a check of all guarantees after each."""

import logging
import time
from collections import Counter

import serving
from hypothesis import HealthCheck, Phase, given, seed, settings

from toolpack_server.rpc.codes import FAILURE_CODES
from tools.fuzz.oracle import check_reply, require
from tools.fuzz.values import Target, bodies, heavy, strict_request

OWNER, OTHER = "fuzz", "another"
# The supervisor kills a worker whose event loop is blocked for 3 s longer than this. The loop's own processor time is
# measured, so other load doesn't matter.
STALL_SECONDS = 2.0
MAGNIFIED = 100
CHANGING = {"run_function", "reset_session", "add_message"}


class Attack:
    """A server under attack, and its answers.

    Attributes:
        target: The sessions to attack.
        seen: For each method and code, the number of answers; code 0 is a result.
    """

    def __init__(self, **limits):
        self.bench = serving.Bench(max_environment_bytes=2**20, max_sessions=5000, **limits)
        self.seen = Counter()
        self._faults = _Faults()
        logging.getLogger().addHandler(self._faults)
        packs = ["ledger", "nasty", "halves", "vault"]
        create = self.bench.create
        self.target = Target(create(*packs, owner=OWNER), create(*packs, owner=OWNER), create(*packs, owner=OTHER))
        self.agent_key = self._ask("get_session")["agent_path"].rpartition("/")[2]
        self._state = self._read_state()

    def close(self):
        logging.getLogger().removeHandler(self._faults)
        self.bench.close()

    def send(self, body, *, agent=False):
        """Send a body, and check the answer and the session."""
        reply = self.bench.answer(body, **({"agent_key": self.agent_key} if agent else {"owner": OWNER}))
        require(not self._faults.found, "the server logged a fault", self._faults.found, body[:2000])
        answers = check_reply(reply, body)
        request = strict_request(body)
        self._count(request, answers, agent=agent)
        self._check_state(request, answers, body)
        return reply

    def _count(self, request, answers, *, agent):
        method = request.get("method") if isinstance(request, dict) else None
        label = method if isinstance(method, str) and len(answers) == 1 else "other"
        for answer in answers:
            code = answer.get("error", {}).get("code", 0)
            method_name = label if code not in {-32601, -32600} else "other"
            self.seen[f"{'agent ' if agent else ''}{method_name}", code] += 1

    def _check_state(self, request, answers, body):
        before, self._state = self._state, self._read_state()
        if not isinstance(request, dict) or not answers:
            return  # a batch or a notification: the answers don't show which changes were allowed
        method, (answer,) = request.get("method"), answers
        refused = "error" in answer and answer["error"]["code"] not in FAILURE_CODES.values()
        if refused or method not in CHANGING:
            require(before == self._state, "a refused or read-only request changed the session", body, answer)
        failed = "error" in answer or (method == "run_function" and answer["result"]["error"] is not None)
        if failed:
            require(before[:2] == self._state[:2], "a failed call changed the session", body, answer)

    def _read_state(self):
        last = self._ask("get_session")["version"]
        environment = self._ask("get_environment")
        after = getattr(self, "_state", (0, None, -1))[2]
        while records := self._ask("get_trace", after=after, limit=1000):
            after = records[-1]["index"]
        return last, environment, after

    def _ask(self, method, **params):
        return self.bench.rpc(method, owner=OWNER, session_id=self.target.session, **params)


class _Faults(logging.Handler):
    """Collects the errors that the server logs."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.found = []

    def emit(self, record):
        self.found.append(self.format(record))


def fuzz_bodies(examples, number=None, *, agent=False):
    """Send this many bodies and return the count of each answer. They are drawn from the seed `number`; None: always
    the same.
    """
    attack = Attack()
    try:

        @settings(
            max_examples=examples, deadline=None, database=None, derandomize=number is None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink], print_blob=False,
        )  # fmt: skip
        @given(bodies(attack.target, agent=agent))
        def send(body):
            attack.send(body, agent=agent)

        (send if number is None else seed(number)(send))()
        return attack.seen
    finally:
        attack.close()


class Pulse:
    """Measures the longest time that an event loop computes between two turns."""

    def __init__(self, loop):
        self._longest, self._last = 0.0, None
        self._beats = 0
        self._loop = loop
        self._stopped = False
        self._loop.call_soon_threadsafe(self._beat)

    def _beat(self):
        now = time.thread_time()
        self._longest = max(self._longest, now - (now if self._last is None else self._last))
        self._last, self._beats = now, self._beats + 1
        if not self._stopped:
            self._loop.call_later(0.01, self._beat)

    def stop(self):
        beats = self._beats
        serving.wait_until(lambda: self._beats > beats, "a turn of the event loop")
        self._stopped = True
        return self._longest


def fuzz_heavy(size, names=None):
    """Send heavy bodies. Each must be answered soon without blocking the event loop. Return the stall of each."""
    attack, stalls = Attack(), {}
    try:
        for name, body in heavy(attack.target, size).items():
            if names is not None and name not in names:
                continue
            meter = Pulse(attack.bench._loop)
            reply = attack.send(body)
            stalls[name] = meter.stop()
            require(reply is not None, "no answer", name)
            require(stalls[name] < STALL_SECONDS, f"the event loop was blocked for {stalls[name]:.1f} s", name)
            require(len(reply) < MAGNIFIED * size, "the reply is much larger than the request", name, len(reply))
        return stalls
    finally:
        attack.close()
