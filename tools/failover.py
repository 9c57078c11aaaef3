"""Failover of Postgres under load: no call that was answered may be lost or done twice, and calls go on soon.

    python -m tools.failover --rounds 20
    python -m tools.failover --rounds 20 --asynchronous    shows what is lost without a synchronous standby

Two real Postgres: a primary, and a standby that follows it by synchronous streaming replication. In each round the
primary is killed by SIGKILL with all its processes while clients call functions, and the standby is promoted, which up
to half a second before has heard the last of the primary. Then the
killed one is made anew, as its standby, for the next round. A server has both in its URL. Exit status 1 means that a
call was lost or done twice, or that calls went on too late.
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

RESUMED_SECONDS = 5.0  # after the promotion, calls go on within
ANSWERED_SECONDS = 120.0
LONGEST_LAG_SECONDS = 0.5
CALLS_BEFORE = 20  # of each client, in each round
PAGE = 1000


class Client(threading.Thread):
    """Calls a function on its own session, each call until it is answered.

    Attributes:
        answered: When each call was answered, and what the session's ledger had then.
        problem: Why it ended, if it did.
    """

    def __init__(self, ports, number):
        super().__init__(daemon=True)
        self._connection = Connection(ports, random.Random(number))
        self._number = number
        self._ended = threading.Event()
        self.answered = []
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
                until = time.monotonic() + ANSWERED_SECONDS
                envelope = self._connection.insist("run_function", call | {"session_id": self.session_id}, until)
                if envelope["error"]:
                    self.problem = f"{entry}: {envelope['error']}"
                    return
                self.answered.append((time.monotonic(), envelope["result"]["length"]))
        except NeverAnsweredError as error:
            self.problem = f"{self.session_id}: no answer for {ANSWERED_SECONDS:g} s: {error}"

    def end(self):
        self._ended.set()
        self.join(ANSWERED_SECONDS)

    def checked(self, send):
        """Get what is wrong with the session: each call is in it, once, in order, and was answered so."""
        records, entries = [], [f"{self._number}.{number}" for number in range(len(self.answered))]
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
        lengths = [length for _, length in self.answered]
        if lengths != [*range(1, len(lengths) + 1)]:
            problems.append(f"{self.session_id}: the ledger's length didn't grow by one with each answer")
        (ledger,) = send("get_environment", {"session_id": self.session_id}).values()
        length = ledger["ledger"]["length"]
        if not len(self.answered) <= length <= len(self.answered) + 1:  # of the last one the answer may not have come
            problems.append(f"{self.session_id}: {len(self.answered)} calls were answered, the ledger has {length}")
        return problems


class Pair:
    """Two Postgres, of which one follows the other.

    Attributes:
        url: The URL that names both.
    """

    def __init__(self, parent, *, synchronous):
        self._servers = [Postgres(parent / name) for name in ("first", "second")]
        self._waits = "'*'" if synchronous else "''"
        self.primary, self.standby = self._servers
        ports = ",".join(f"127.0.0.1:{server.port}" for server in self._servers)
        self.url = f"postgresql://tests@{ports}/postgres"
        self.primary.make()
        self.primary.start()
        self.follow()

    def follow(self):
        """Make the standby anew, and have the primary wait for it."""
        # Copied before the primary waits for it: once it is promoted, it has no standby, and must wait for none.
        self._wire = Wire(self.primary.port)
        self.standby.copy(self._wire.port)
        self.standby.start()
        wait_until(lambda: ask(self.primary.url, "SELECT 1 FROM pg_stat_replication"), ANSWERED_SECONDS, "a standby")
        ask(self.primary.url, f"ALTER SYSTEM SET synchronous_standby_names = {self._waits}")
        ask(self.primary.url, "SELECT pg_reload_conf()")
        ask(self.primary.url, "CHECKPOINT")  # the process that does this is the one that has read the setting by then
        wanted = "sync" if self._waits == "'*'" else "async"
        state = f"SELECT 1 FROM pg_stat_replication WHERE sync_state = '{wanted}' AND state = 'streaming'"
        wait_until(lambda: ask(self.primary.url, state), ANSWERED_SECONDS, "the standby's state")

    def fail_over(self):
        """Kill the primary and promote the standby; get when that was, and when the standby was promoted.

        For a moment before, the standby hears nothing any more, and what is on its way gets lost with the primary.
        """
        self._wire.mute()
        time.sleep(random.uniform(0, LONGEST_LAG_SECONDS))
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


def await_calls(clients, more):
    """Wait until each client that can go on has so many calls more answered."""
    wanted = [len(each.answered) + more for each in clients]

    def have():
        return all(len(each.answered) >= count or each.problem for each, count in zip(clients, wanted, strict=True))

    wait_until(have, ANSWERED_SECONDS, "calls")


def play(pair, servers, rounds, number_of_clients):
    """Fail over so many times under load; print what came out, and get what is wrong."""
    ports = [server.port for server in servers]
    clients = [Client(ports, number) for number in range(number_of_clients)]
    for client in clients:
        client.start()
    problems, waits = [], []
    for number in range(1, rounds + 1):
        await_calls(clients, CALLS_BEFORE)
        killed, promoted = pair.fail_over()
        await_calls(clients, 1)
        # Of each client the first call that was answered after the promotion.
        answered = [next(at for at, _ in each.answered if at > promoted) for each in clients if each.problem is None]
        waits.append(max(answered, default=promoted) - promoted)
        calls = sum(len(each.answered) for each in clients)
        click.echo(f"round {number}: {calls} calls answered, the last client went on after {waits[-1]:.2f} s")
        click.echo(f"round {number}: the promotion was over {promoted - killed:.2f} s after the kill")
        if waits[-1] > RESUMED_SECONDS:
            problems.append(f"round {number}: calls went on {waits[-1]:.1f} s after the promotion")
        pair.follow()
    for client in clients:
        client.end()
    connection = Connection(ports, random.Random(0))
    for client in clients:
        problems += client.checked(lambda method, params: connection.insist(method, params, time.monotonic() + 60))
    calls = sum(len(each.answered) for each in clients)
    click.echo(f"{rounds} failovers, {calls} calls answered; calls went on after {max(waits):.2f} s at most")
    return problems


@click.command()
@click.option("--rounds", default=20, show_default=True, help="How many primaries are killed.")
@click.option("--clients", default=8, show_default=True, help="Client threads, each with its own session.")
@click.option("--servers", default=2, show_default=True, help="Servers of one worker each.")
@click.option("--asynchronous", is_flag=True, help="Don't have commits wait for the standby.")
def main(rounds, clients, servers, asynchronous):
    """Kill the primary of two Postgres under load, again and again."""
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
