"""Test of failovers of Postgres under load: no answered call may be lost or run twice, and calls must continue soon.

    python -m tools.failover --rounds 20
    python -m tools.failover --rounds 20 --asynchronous    show which calls are lost without a synchronous standby

The test uses two real Postgres servers: a primary, and a standby that follows it by synchronous streaming replication.
The URL of the Toolpack Servers names both. In each round, clients call functions while the test kills all processes of
the primary with SIGKILL. The standby may have lost contact with the primary up to half a second earlier. The test
promotes the standby, and the killed server becomes the standby of the next round. Exit status 1 means that a call was
lost or run twice, or that calls continued too late.
"""

import contextlib
import itertools
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import click
from postgres_server import Postgres, ask, folder

from tools.faults.clients import Connection, NeverAnsweredError
from tools.faults.world import Server, Wire, wait_until

MAX_RESUME_SECONDS = 5.0  # maximum time until calls continue after the promotion
ANSWER_TIMEOUT_SECONDS = 120.0
MAX_LAG_SECONDS = 0.5
CALLS_PER_ROUND = 20  # calls of each client before the kill
PAGE = 1000


class Client(threading.Thread):
    """A thread that calls a function in a session of its own, and sends each call until it is answered.

    Attributes:
        answers: For each answered call, the time and the length of the session's ledger.
        problem: The reason why the client ended early, or None.
    """

    def __init__(self, ports, number):
        super().__init__(daemon=True)
        self._connection = Connection(ports, random.Random(number))
        self._number = number
        self._ended = threading.Event()
        self.answers = []
        self.problem = None
        session = self._connection.insist("create_session", {"toolpacks": ["ledger"]}, time.monotonic() + 60)
        self.session_id = session["session_id"]

    def run(self):
        try:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                entry = f"{self._number}.{number}"
                call = {"function": "append", "kwargs": {"entry": entry}, "call_id": entry}
                until = time.monotonic() + ANSWER_TIMEOUT_SECONDS
                envelope = self._connection.insist("run_function", call | {"session_id": self.session_id}, until)
                if envelope["error"]:
                    self.problem = f"{entry}: {envelope['error']}"
                    return
                self.answers.append((time.monotonic(), envelope["result"]["length"]))
        except NeverAnsweredError as error:
            self.problem = f"{self.session_id}: no answer for {ANSWER_TIMEOUT_SECONDS:g} s: {error}"

    def end(self):
        self._ended.set()
        self.join(ANSWER_TIMEOUT_SECONDS)

    def find_problems(self, send):
        """Return the problems of the session: each answered call must be recorded once, in order, with its answer."""
        records, entries = [], [f"{self._number}.{number}" for number in range(len(self.answers))]
        while page := send("get_trace", {"session_id": self.session_id, "after": len(records) - 1, "limit": PAGE}):
            records += page
        stored = [record["call_id"] for record in records]
        problems = [] if self.problem is None else [self.problem]
        lost = [entry for entry in entries if entry not in {*stored}]
        if lost:
            problems.append(f"{self.session_id}: {len(lost)} answered calls are lost: {', '.join(lost[:5])} …")
        twice = len(stored) - len({*stored})
        if twice:
            problems.append(f"{self.session_id}: {twice} calls are recorded twice")
        lengths = [length for _, length in self.answers]
        if lengths != [*range(1, len(lengths) + 1)]:
            problems.append(f"{self.session_id}: the ledger's length didn't grow by one with each answer")
        (ledger,) = send("get_environment", {"session_id": self.session_id}).values()
        length = ledger["ledger"]["length"]
        # The last call may have been committed without an answer to the client.
        if not len(self.answers) <= length <= len(self.answers) + 1:
            problems.append(f"{self.session_id}: {len(self.answers)} calls were answered, the ledger has {length}")
        return problems


class Pair:
    """Two Postgres servers: a primary, and a standby that follows it.

    Attributes:
        url: The URL that names both servers.
    """

    def __init__(self, parent, *, synchronous):
        self._servers = [Postgres(parent / name) for name in ("first", "second")]
        self._standby_names = "'*'" if synchronous else "''"
        self.primary, self.standby = self._servers
        ports = ",".join(f"127.0.0.1:{server.port}" for server in self._servers)
        self.url = f"postgresql://tests@{ports}/postgres"
        self.primary.make()
        self.primary.start()
        self.follow()

    def follow(self):
        """Create a new standby from the primary's data, and make the primary's commits wait for it."""
        # Commits wait for a standby only after the copy, because a promoted server has no standby until then.
        self._wire = Wire(self.primary.port)
        self.standby.copy(self._wire.port)
        self.standby.start()
        wait_until(
            lambda: ask(self.primary.url, "SELECT 1 FROM pg_stat_replication"), ANSWER_TIMEOUT_SECONDS, "a standby"
        )
        ask(self.primary.url, f"ALTER SYSTEM SET synchronous_standby_names = {self._standby_names}")
        ask(self.primary.url, "SELECT pg_reload_conf()")
        ask(self.primary.url, "CHECKPOINT")  # returns after its process has applied the new setting
        sync_state = "sync" if self._standby_names == "'*'" else "async"
        state = f"SELECT 1 FROM pg_stat_replication WHERE sync_state = '{sync_state}' AND state = 'streaming'"
        wait_until(lambda: ask(self.primary.url, state), ANSWER_TIMEOUT_SECONDS, "the standby's state")

    def fail_over(self):
        """Kill the primary and promote the standby. Return the times of the kill and of the promotion.

        The standby loses contact shortly before the kill, so the primary's last data doesn't reach it.
        """
        self._wire.mute()
        time.sleep(random.uniform(0, MAX_LAG_SECONDS))
        killed = time.monotonic()
        self.primary.kill()
        self._wire.close()
        self.primary, self.standby = self.standby, self.primary
        ask(self.primary.url, "SELECT pg_promote()")
        wait_until(lambda: not ask(self.primary.url, "SELECT pg_is_in_recovery()")[0][0], 60, "the promotion")
        return killed, time.monotonic()

    def end(self):
        self._wire.close()
        for server in self._servers:
            server.kill()


def wait_for_calls(clients, count):
    """Wait until each client that still runs has received the answers of `count` more calls."""
    totals = [len(each.answers) + count for each in clients]

    def all_answered():
        return all(len(each.answers) >= total or each.problem for each, total in zip(clients, totals, strict=True))

    wait_until(all_answered, ANSWER_TIMEOUT_SECONDS, "calls")


def play(pair, servers, rounds, number_of_clients):
    """Run this number of failovers under load. Print the results, and return the problems."""
    ports = [server.port for server in servers]
    clients = [Client(ports, number) for number in range(number_of_clients)]
    for client in clients:
        client.start()
    problems, waits = [], []
    for number in range(1, rounds + 1):
        wait_for_calls(clients, CALLS_PER_ROUND)
        killed, promoted = pair.fail_over()
        wait_for_calls(clients, 1)
        # For each client, the time of its first answer after the promotion.
        first_answers = [
            next(at for at, _ in each.answers if at > promoted) for each in clients if each.problem is None
        ]
        waits.append(max(first_answers, default=promoted) - promoted)
        calls = sum(len(each.answers) for each in clients)
        click.echo(f"round {number}: {calls} calls answered, the last client continued after {waits[-1]:.2f} s")
        click.echo(f"round {number}: the promotion ended {promoted - killed:.2f} s after the kill")
        if waits[-1] > MAX_RESUME_SECONDS:
            problems.append(f"round {number}: calls continued {waits[-1]:.1f} s after the promotion")
        pair.follow()
    for client in clients:
        client.end()
    connection = Connection(ports, random.Random(0))
    for client in clients:
        problems += client.find_problems(
            lambda method, params: connection.insist(method, params, time.monotonic() + 60)
        )
    calls = sum(len(each.answers) for each in clients)
    click.echo(f"{rounds} failovers, {calls} calls answered; calls continued after {max(waits):.2f} s at most")
    return problems


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Number of failovers.")
@click.option("--clients", default=8, show_default=True, help="Number of client threads, each with its own session.")
@click.option("--servers", default=2, show_default=True, help="Number of servers with one worker each.")
@click.option("--asynchronous", is_flag=True, help="Let the primary commit without waiting for the standby.")
def main(rounds, clients, servers, asynchronous):
    """Kill the primary of two Postgres servers under load, repeatedly."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(folder())
        pair = Pair(parent, synchronous=not asynchronous)
        stack.callback(pair.end)
        logs = Path(tempfile.mkdtemp(prefix="toolpack-failover-"))
        stack.callback(shutil.rmtree, logs, ignore_errors=True)
        running = [Server(logs, pair.url, 1, f"server-{number}") for number in range(servers)]
        for server in running:
            stack.callback(server.end)
            server.start()
        problems = play(pair, running, rounds, clients)
    for problem in problems:
        click.echo(f"VIOLATION: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
