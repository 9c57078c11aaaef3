"""The fault test: clients call functions while faults are injected; at the end every session is checked.

    python -m tests.faults --seconds 60 --store sqlite --store redis

Exit status 1 means that a guarantee was violated; the details are printed.
"""

import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.faults.checks import check_all
from tests.faults.clients import Clients, Connection
from tests.faults.faults import Faults
from tests.faults.world import World

MAX_PRINTED = 5


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Duration, for each store.")
@click.option("--store", "stores", multiple=True, type=click.Choice(["sqlite", "redis"]), help="Default: both.")
@click.option("--workers", default=2, show_default=True, help="Worker processes of each server.")
@click.option("--clients", default=12, show_default=True, help="Client threads.")
@click.option("--sessions", default=8, show_default=True, help="Sessions at the start; forks are added.")
@click.option("--seed", type=int, help="Repeats the choices of clients and faults; their timing may differ.")
@click.option("--calm", is_flag=True, help="Inject no faults.")
@click.option("--logs", is_flag=True, help="Show the servers' logs.")
def main(seconds, stores, workers, clients, sessions, seed, calm, logs):
    """Inject faults into a running server, and check that it keeps its guarantees."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes are stopped then too
    seed = random.randrange(2**32) if seed is None else seed
    click.echo(f"seed {seed}")
    broken = False
    for store in stores or ("sqlite", "redis"):
        with tempfile.TemporaryDirectory(prefix="toolpack-faults-") as folder:
            broken |= run(store, folder, seconds, workers, clients, sessions, seed, calm, logs)
    sys.exit(broken)


def run(store, folder, seconds, workers, clients, sessions, seed, calm, logs):
    """Test one store, print a report, and return whether a guarantee was violated."""
    world = World(store, folder, workers)
    faults = Faults(world, seed)
    try:
        ports = [server.port for server in world.servers]
        crowd = Clients(ports, clients, sessions, seed)
        began = time.monotonic()
        crowd.start()
        if not calm:
            faults.start()
        time.sleep(seconds)
        faults.stop()
        crowd.stop()
        lasted = time.monotonic() - began
        connection = Connection(ports, random.Random(seed))
        problems = check_all(
            lambda method, params: connection.insist(method, params, time.monotonic() + 30), crowd.sessions
        )
        connection.close()
    finally:
        faults.stop()  # a running fault may still start servers
        world.end()
        if logs:
            for path in sorted(Path(folder).glob("*.log")):
                click.echo(f"--- {path.name}\n{path.read_text(errors='replace')}")
    return report(store, crowd, faults, problems, lasted)


def report(store, crowd, faults, problems, seconds):
    """Print what was done and every violation; return whether there was one."""
    calls = [call for session in crowd.sessions.values() for call in session.calls]
    answered = [call for call in calls if call.envelope is not None]
    click.echo(
        f"{store}: {len(calls)} calls in {seconds:.0f} s ({len(answered) / seconds:.0f}/s), {len(answered)} answered, "
        f"{sum(call.refused for call in calls)} refused, {crowd.counts['sent twice']} sent twice; "
        f"{crowd.counts['forks']} forks, {crowd.counts['resets']} resets, {crowd.counts['views']} old versions read"
    )
    kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(faults.injected.items()))
    click.echo(f"{store}: {sum(faults.injected.values())} faults: {kinds or 'none'}")
    click.echo(f"{store}: longest wait after a kill of a lease's holder: {max(faults.waits, default=0):.1f} s")
    for sentence, times in crowd.overloaded.most_common():
        click.echo(f"{store}: answered {times} times: {sentence}")
    violations = {"clients": crowd.surprises, "processes": faults.violations} | problems
    for where, found in violations.items():
        for problem in found[:MAX_PRINTED]:
            click.echo(f"{store}: VIOLATION in {where}: {problem}")
        if len(found) > MAX_PRINTED:
            click.echo(f"{store}: … and {len(found) - MAX_PRINTED} more in {where}")
    failed = sum(bool(found) for found in violations.values())
    click.echo(f"{store}: {len(violations) - failed} passed, {failed} failed (sessions, clients, processes)")
    return failed > 0


if __name__ == "__main__":
    main()
