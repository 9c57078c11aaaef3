"""Fuzz test of request bodies: hostile bodies are given to a server without HTTP, so that many can be tried.

After each body, the answer, the log and the session are checked: see `Attack.send`.
"""

import logging
import time
from collections import Counter

import serving
from hypothesis import HealthCheck, Phase, given, seed, settings

from toolpack_server.rpc.codes import FAILURE_CODES
from tools.fuzz.oracle import check_reply, require
from tools.fuzz.values import Target, bodies, heavy_bodies, parse_request

OWNER, OTHER = "fuzz", "another"
# Maximum processor time of one turn of the event loop, so other load on the machine doesn't matter. The supervisor
# kills a worker if its event loop is blocked for 3 s longer than this.
STALL_SECONDS = 2.0
MAX_REPLY_FACTOR = 100  # maximum size of a reply, as a multiple of the request's
CHANGING_METHODS = {"run_function", "reset_session", "add_message"}


class Attack:
    """A server under attack, and its answers.

    Attributes:
        target: The sessions to attack.
        answer_counts: The number of answers, by method and code. Code 0 stands for a result.
    """

    def __init__(self, **limits):
        self.bench = serving.Bench(max_environment_bytes=2**20, max_sessions=5000, **limits)
        self.answer_counts = Counter()
        self._error_log = _ErrorLog()
        logging.getLogger().addHandler(self._error_log)
        packs = ["ledger", "nasty", "halves", "vault"]
        create = self.bench.create
        self.target = Target(create(*packs, owner=OWNER), create(*packs, owner=OWNER), create(*packs, owner=OTHER))
        self.agent_key = self._ask("get_session")["agent_path"].rpartition("/")[2]
        self._state = self._read_state()

    def close(self):
        logging.getLogger().removeHandler(self._error_log)
        self.bench.close()

    def send(self, body, *, agent=False):
        """Send a body, and return the reply. Check the reply, the log, and whether the session may have changed."""
        reply = self.bench.answer(body, **({"agent_key": self.agent_key} if agent else {"owner": OWNER}))
        require(not self._error_log.errors, "the server logged an error", self._error_log.errors, body[:2000])
        answers = check_reply(reply, body)
        request = parse_request(body)
        self._count(request, answers, agent=agent)
        self._check_state(request, answers, body)
        return reply

    def _count(self, request, answers, *, agent):
        method = request.get("method") if isinstance(request, dict) else None
        label = method if isinstance(method, str) and len(answers) == 1 else "other"
        for answer in answers:
            code = answer.get("error", {}).get("code", 0)
            method_name = label if code not in {-32601, -32600} else "other"
            self.answer_counts[f"{'agent ' if agent else ''}{method_name}", code] += 1

    def _check_state(self, request, answers, body):
        before, self._state = self._state, self._read_state()
        if not isinstance(request, dict) or not answers:
            return  # the answers to a batch or a notification don't show which changes were allowed
        method, (answer,) = request.get("method"), answers
        refused = "error" in answer and answer["error"]["code"] not in FAILURE_CODES.values()
        if refused or method not in CHANGING_METHODS:
            require(before == self._state, "a refused or read-only request changed the session", body, answer)
        failed = "error" in answer or (method == "run_function" and answer["result"]["error"] is not None)
        if failed:
            require(before[:2] == self._state[:2], "a failed call changed the session", body, answer)

    def _read_state(self):
        """Return the attacked session's version, environment and last record."""
        last = self._ask("get_session")["version"]
        environment = self._ask("get_environment")
        after = getattr(self, "_state", (0, None, -1))[2]
        while records := self._ask("get_trace", after=after, limit=1000):
            after = records[-1]["index"]
        return last, environment, after

    def _ask(self, method, **params):
        return self.bench.rpc(method, owner=OWNER, session_id=self.target.session, **params)


class _ErrorLog(logging.Handler):
    """Collects the errors that the server logs."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.errors = []

    def emit(self, record):
        self.errors.append(self.format(record))


def fuzz_bodies(examples, number=None, *, agent=False):
    """Send bodies, and return the number of answers by method and code.

    Args:
        examples: Number of bodies.
        number: Seed of the bodies. None means that all runs send the same bodies.
        agent: Send the bodies to the agent's address, not to the client's.
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
        return attack.answer_counts
    finally:
        attack.close()


class StallMeter:
    """Measures the longest processor time between two turns of an event loop, in which no other request is served."""

    def __init__(self, loop):
        self._longest, self._last = 0.0, None
        self._turns = 0
        self._loop = loop
        self._stopped = False
        self._loop.call_soon_threadsafe(self._on_turn)

    def _on_turn(self):
        now = time.thread_time()
        self._longest = max(self._longest, now - (now if self._last is None else self._last))
        self._last, self._turns = now, self._turns + 1
        if not self._stopped:
            self._loop.call_later(0.01, self._on_turn)

    def stop(self):
        """Stop after the next turn, and return the longest time in seconds."""
        turns = self._turns
        serving.wait_until(lambda: self._turns > turns, "a turn of the event loop")
        self._stopped = True
        return self._longest


def fuzz_heavy(size, names=None):
    """Send bodies that cause much work, and return the stall of the event loop for each, in seconds.

    Args:
        size: Size of each body in bytes.
        names: Names of the bodies to send. None means all.
    """
    attack, stalls = Attack(), {}
    try:
        for name, body in heavy_bodies(attack.target, size).items():
            if names is not None and name not in names:
                continue
            meter = StallMeter(attack.bench._loop)
            reply = attack.send(body)
            stalls[name] = meter.stop()
            require(reply is not None, "no answer", name)
            require(stalls[name] < STALL_SECONDS, f"the event loop was blocked for {stalls[name]:.1f} s", name)
            require(len(reply) < MAX_REPLY_FACTOR * size, "the reply is much larger than the request", name, len(reply))
        return stalls
    finally:
        attack.close()
