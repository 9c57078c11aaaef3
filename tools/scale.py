"""The two tables of docs/operate/scale.md: the costs of a call and a session, and the store that a fleet needs.

    python -m tools.scale              print both tables; the second is computed from the first
    python -m tools.scale --measure    measure the first table's figures on a real Redis

Measured figures are copied into this file by hand. `test_deploy.py` compares the page with this program's output.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
import redis
from redis_server import start

from tools.faults.clients import Connection
from tools.faults.world import Server, children

SESSIONS, TURNS, CALLERS = 200, 10, 8
FOLDERS = ("archive", "inbox")
IDLE_SECONDS = 4
SIZES = (10, 100, 1000)
BUSY = 0.5  # share of each server's processor core that is used
READS = 0.5  # share of reads in all calls
CALL_EVERY_SECONDS = 5.0  # time between two calls of a session
CHANGES = 20  # changes of a session. It has as many reads. The store has their records until the session is closed


class Cost(NamedTuple):
    """The cost of a call or of a new session.

    Attributes:
        to_store: Bytes sent to the store.
        from_store: Bytes received from the store.
        stored: Bytes that the store keeps.
        store: Processor time of the store, in µs.
        server: Processor time of the server, in µs.
    """

    to_store: float
    from_store: float
    stored: float
    store: float
    server: float


REDIS = {
    "new session": Cost(763, 30, 2695, 242, 700),
    "change": Cost(11670, 202, 12967, 180, 610),
    "change on another server": Cost(11742, 10418, 13197, 244, 1050),
    "read": Cost(1984, 760, 1770, 129, 460),
}
IDLE = Cost(426, 687, 0, 1021, 10000)  # cost of a worker without calls, per second
CONNECTIONS = 12  # connections of a worker to Redis, with 8 calls at once


def cost_rows() -> Iterator[str]:
    """Yield the rows of the table of costs."""
    yield "| Per | bytes to Redis | bytes from Redis | bytes kept | Redis' µs | server's µs |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name, cost in [*REDIS.items(), ("second of a server without calls", IDLE)]:
        yield f"| {name} | " + " | ".join(f"{figure:,.0f}" for figure in cost) + " |"


def fleet_rows() -> Iterator[str]:
    """Yield the rows of the table with the needs of fleets."""
    change, read = REDIS["change on another server"], REDIS["read"]
    call = Cost(*(READS * one + (1 - READS) * other for one, other in zip(read, change, strict=True)))
    calls_of_server = BUSY * 1e6 / call.server  # calls/s of one server
    yield "| servers | calls/s | sessions | GB kept | MB/s to Redis | MB/s from Redis | processors | connections |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for servers in SIZES:
        calls = servers * calls_of_server
        sessions = calls * CALL_EVERY_SECONDS
        stored = sessions * (REDIS["new session"].stored + CHANGES * change.stored + CHANGES * read.stored)
        to_store, from_store = calls * call.to_store, calls * call.from_store
        processors = (calls * call.store + servers * IDLE.store) / 1e6
        figures = [f"{servers:,}", f"{calls:,.0f}", f"{sessions:,.0f}", f"{stored / 1e9:,.1f}"]
        figures += [f"{to_store / 1e6:,.1f}", f"{from_store / 1e6:,.1f}", f"{processors:,.1f}"]
        yield "| " + " | ".join([*figures, f"{servers * CONNECTIONS:,}"]) + " |"


class Pair:
    """Two servers with one worker each, on one Redis that writes each commit to disk. Measures their costs."""

    def __init__(self, folder: str, url: str, store: Any) -> None:
        self._store = store
        self._servers = [
            Server(folder, url, 1, f"server-{n}", log_level="warning", packs="workspace") for n in range(2)
        ]
        self._ids: list[str] = []

    def start(self) -> None:
        for server in self._servers:
            server.start()

    def end(self) -> None:
        for server in self._servers:
            server.end()

    def total_cost(self) -> Cost:
        """Return the costs since the start of the processes."""
        info, ticks = self._store.info(), 0
        for server in self._servers:
            for pid in [server.process.pid, *children(server.process.pid)]:
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        usage = 1e6 * (info["used_cpu_user"] + info["used_cpu_sys"])
        sent, received = info["total_net_output_bytes"], info["total_net_input_bytes"]
        return Cost(received, sent, info["used_memory"], usage, 1e6 * ticks / os.sysconf("SC_CLK_TCK"))

    def cost_of_each(self, count: float, do: Callable[[], object]) -> Cost:
        """Return the average cost of one repetition. `do` makes `count` repetitions."""
        before = self.total_cost()
        do()
        return Cost(*((after - first) / count for first, after in zip(before, self.total_cost(), strict=True)))

    def create(self) -> None:
        (one, _), *_ = self._connections(1)
        self._ids = [one.send("create_session", {"toolpacks": ["workspace"]})["session_id"] for _ in range(SESSIONS)]

    def call(self, function: str, *, alternates: bool = False) -> None:
        """Call a function in all sessions, eight calls at once. `alternates` uses the servers by turns in a session."""

        def run(indexes: range, connections: Sequence[Any]) -> None:
            for turn, session in itertools.product(range(TURNS), indexes):
                kwargs = {"query": "a"} if function == "search_files" else {"mail_id": 41, "folder": FOLDERS[turn % 2]}
                params = {"session_id": self._ids[session], "function": function, "kwargs": kwargs}
                envelope = connections[(turn + session // CALLERS) % 2 if alternates else 0].send(
                    "run_function", params
                )
                if envelope["error"]:
                    raise click.ClickException(envelope["error"])

        shares = [range(start, SESSIONS, CALLERS) for start in range(CALLERS)]
        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(run, shares, self._connections(CALLERS)))

    def connections(self) -> float:
        """Return the number of connections to Redis per server."""
        return (self._store.info()["connected_clients"] - 1) / len(self._servers)

    def _connections(self, number: int) -> list[list[Any]]:
        return [[Connection([server.port], Random(seed)) for server in self._servers] for seed in range(number)]


def measure() -> Iterator[str]:
    """Measure the costs, and yield a line for each."""
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with (
        tempfile.TemporaryDirectory(prefix="toolpack-scale-") as folder,
        start(Path(folder), *durable) as (url, _),
        redis.Redis.from_url(url) as store,
    ):
        pair, calls = Pair(folder, url, store), SESSIONS * TURNS
        try:
            pair.start()
            idle = pair.cost_of_each(2 * IDLE_SECONDS, lambda: time.sleep(IDLE_SECONDS))
            yield f"second of a server without calls: {idle}"
            yield f"new session: {pair.cost_of_each(SESSIONS, pair.create)}"
            pair.call("move_mail")
            yield f"change: {pair.cost_of_each(calls, lambda: pair.call('move_mail'))}"
            moves = pair.cost_of_each(calls, lambda: pair.call("move_mail", alternates=True))
            yield f"change on another server: {moves}"
            yield f"read: {pair.cost_of_each(calls, lambda: pair.call('search_files'))}"
            yield f"connections of a server: {pair.connections():g}"
        finally:
            pair.end()


@click.command()
@click.option("--measure", "do_measure", is_flag=True, help="Measure the costs of a call and of a session.")
def main(do_measure):
    """Compute the needs of 10, 100 and 1,000 servers."""
    for line in measure() if do_measure else [*cost_rows(), "", *fleet_rows()]:
        click.echo(line)


if __name__ == "__main__":
    main()
