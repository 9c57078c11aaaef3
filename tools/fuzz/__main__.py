"""The long fuzz test: hostile bodies, expensive requests, malformed HTTP and very many connections.

    python -m tools.fuzz --seconds 600

tests/test_fuzz.py runs a short version. Exit status 1 means that a guarantee was violated; the details are printed,
with the seed that reproduces the violation.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import server_process

from tools.fuzz import crowd
from tools.fuzz.bodies import fuzz_bodies, fuzz_heavy
from tools.fuzz.conversations import LIMITS, RECEIVE_SECONDS, fuzz_conversations
from tools.fuzz.costs import fuzz_costs
from tools.fuzz.floods import fuzz_floods
from tools.fuzz.openenv import fuzz_openenv
from tools.fuzz.trainers import fuzz_trainers
from tools.fuzz.values import HEAVY_BYTES

BODIES_PER_ROUND = 500
CONVERSATIONS_PER_ROUND = 3
TRAINERS_PER_ROUND = 300


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Duration of the rounds with bodies and HTTP.")
@click.option("--seed", type=int, help="Seed of the first round; each next round adds 1.")
@click.option("--connections", default=0, show_default=True, help="Number of connections to open at the end, in steps.")
@click.option(
    "--heavy/--no-heavy",
    default=True,
    show_default=True,
    help="Begin with bodies of 10 MB and with expensive requests.",
)
def main(seconds, seed, connections, heavy):
    """Attack servers with hostile bodies, malformed HTTP, floods and expensive requests."""
    number = random.randrange(2**32) if seed is None else seed
    bodies, statuses, rounds = Counter(), Counter(), 0
    try:
        if heavy:
            stalls = fuzz_heavy(HEAVY_BYTES)
            name = max(stalls, key=stalls.get)
            click.echo(
                f"{len(stalls)} heavy bodies; the event loop was blocked for {stalls[name]:.2f} s at most: {name}"
            )
            costs = fuzz_costs()
            name = max(costs, key=costs.get)
            seconds_spent, size = costs[name]
            click.echo(f"{len(costs)} methods and functions; {size:.1f} KB cost {seconds_spent:.2f} s at most: {name}")
        for http in ("httptools", "h11"):
            if heavy:
                stalls = fuzz_floods(http)
                name = max(stalls, key=stalls.get)
                click.echo(f"{len(stalls)} floods; the event loop was blocked for {stalls[name]:.2f} s at most: {name}")
            end = time.monotonic() + seconds / 2
            with tempfile.TemporaryDirectory(prefix="toolpack-fuzz-") as folder, server(Path(folder), http) as running:
                while time.monotonic() < end:
                    statuses += fuzz_conversations(
                        running, Path(folder) / "server.log", CONVERSATIONS_PER_ROUND, number
                    )
                    statuses += fuzz_openenv(running, Path(folder) / "server.log", BODIES_PER_ROUND, number)
                    statuses += fuzz_trainers(running.url, TRAINERS_PER_ROUND, number)
                    bodies += fuzz_bodies(BODIES_PER_ROUND, number, agent=rounds % 4 == 3)
                    number, rounds = number + 1, rounds + 1
        if connections:
            slowest = open_connections(connections)
            click.echo(f"{connections} connections; the slowest answer meanwhile: {slowest:.2f} s")
    except Exception as error:
        click.echo(f"seed {number}: {error}")
        raise SystemExit(1) from error
    finally:
        report(bodies, statuses)


def server(folder, http):
    """Start a server that parses HTTP with the library `http`."""
    environment = server_process.with_fixed(folder, receive_seconds=RECEIVE_SECONDS)
    return server_process.served(folder, **(LIMITS | server_process.http_on(http, folder) | environment))


def open_connections(connections):
    """Open connections to a server whose limit is 500 lower. Return the seconds of the slowest answer."""
    crowd.allow_files(2 * connections + 1000)
    limits = {"TOOLPACK_LOG_CALLS": "off", "TOOLPACK_MAX_CONNECTIONS": str(connections - 500)}
    with tempfile.TemporaryDirectory(prefix="toolpack-fuzz-") as folder:
        environment = server_process.with_fixed(Path(folder), receive_seconds=crowd.RECEIVE_SECONDS)
        with server_process.served(Path(folder), **limits, **environment) as running:
            return asyncio.run(crowd.crowd(int(running.url.rpartition(":")[2]), connections))


def report(bodies, statuses):
    """Print the number of answers by code and by status."""
    click.echo(f"{sum(bodies.values())} answers to bodies, by code:")
    by_code = Counter()
    for (_, code), times in bodies.items():
        by_code[code] += times
    click.echo("  " + ", ".join(f"{code or 'result'}: {times}" for code, times in by_code.most_common()))
    methods = Counter()
    for (method, code), times in bodies.items():
        methods[method] += times if code == 0 else 0
    answered = ", ".join(f"{method!a} {times}" for method, times in methods.most_common() if times)
    click.echo(f"  results by method: {answered}")
    click.echo(f"{sum(statuses.values())} answers over HTTP, by status:")
    click.echo("  " + ", ".join(f"{status}: {times}" for status, times in statuses.most_common()))


if __name__ == "__main__":
    main()
