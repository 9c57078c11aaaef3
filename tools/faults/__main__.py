"""The fault test: it injects faults while clients call functions, and at the end checks every session.

    python -m tools.faults --seconds 60 --store sqlite --store redis

The server guarantees that no acknowledged call is lost or run twice, whatever process or connection fails. Exit status
1 means that a guarantee was violated; the details are printed.
"""

import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tools.faults.checks import check_all
from tools.faults.clients import RULES, Clients, Connection
from tools.faults.faults import Faults
from tools.faults.world import World

STORES = ("sqlite", "redis", "postgres")
MAX_PRINTED = 5
MANY_CALLS = 2000  # with so many calls, a run must have had calls that match each rule
RULE_BY_TEXT = {rule[effect]: rule["name"] for rule in RULES for effect in ("error", "lost") if effect in rule}
# Actions that each run must have done at least once. Otherwise the run would pass without a test of them.
EXPECTED_ACTIONS = ["append_patiently", "append_and_hang", "append_too_late", "deadlines", "put", "take"]
EXPECTED_ACTIONS += [
    "put_and_fail",
    "say",
    "messages expected",
    "messages heard",
    "add_message",
    "verdicts",
    "views",
    "forks",
    "resets",
    "sent twice",
    "calls over ORS",
    "steps of OpenEnv",
    "calls of NeMo Gym",
    "steps on WebSockets",
    "episodes begun on WebSockets",
    "sessions begun over MCP",
    "sessions left over MCP",
]


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Duration for each store and isolation.")
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), help="Store to test.  [default: all]")
@click.option(
    "--isolation",
    "isolations",
    multiple=True,
    type=click.Choice(["thread", "process"]),
    help="Isolation to test.  [default: both]",
)
@click.option("--workers", default=2, show_default=True, help="Number of workers of each server.")
@click.option("--clients", default=12, show_default=True, help="Number of client threads.")
@click.option("--sessions", default=8, show_default=True, help="Number of sessions at the start; forks are added.")
@click.option("--seed", type=int, help="Seed of the clients' and faults' choices; their timing may differ.")
@click.option("--calm", is_flag=True, help="Inject no faults.")
@click.option("--logs", is_flag=True, help="Print the servers' logs.")
@click.option("--keep", is_flag=True, help="Keep the folder with the store and the logs if a guarantee was violated.")
def main(stores, isolations, seed, keep, **options):
    """Inject faults into a running server, and check that it keeps its guarantees."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the processes on SIGTERM too
    seed = random.randrange(2**32) if seed is None else seed
    click.echo(f"seed {seed}")
    any_violated = False
    for store, isolation in itertools.product(stores or STORES, isolations or ("thread", "process")):
        folder = tempfile.mkdtemp(prefix="toolpack-faults-")
        violated = run(store, isolation, folder, seed=seed, **options)
        any_violated |= violated
        if violated and keep:
            click.echo(f"{folder} has the store and the logs")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(any_violated)


def run(store, isolation, folder, *, seconds, workers, clients, sessions, seed, calm, logs):
    """Test one store, print a report, and return whether a guarantee was violated."""
    name = f"{store}, {isolation}"
    world = World(store, folder, workers, isolation=isolation)
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
        duration = time.monotonic() - began
        connection = Connection(ports, random.Random(seed))

        def send(method, params, path="/rpc"):
            return connection.insist(method, params, time.monotonic() + 30, path)

        unanswered = crowd.counts["forks without an answer"]
        problems = check_all(send, crowd.sessions, unanswered, isolated=isolation == "process")
        connection.close()
    finally:
        faults.stop()  # a running fault may still start servers
        world.end()
        if logs:
            for path in sorted(Path(folder).glob("*.log")):
                click.echo(f"--- {path.name}\n{path.read_text(errors='replace')}")
    return report(name, crowd, faults, problems, duration)


def find_missing_actions(crowd):
    """Return the kinds of action that this run should have done, but hasn't."""
    counts = Counter(crowd.counts)
    for session in crowd.sessions.values():
        for call in session.calls:
            error = str(call.envelope["error"]) if isinstance(call.envelope, dict) else ""
            counts[call.function] += call.envelope is not None
            counts[f"rule {RULE_BY_TEXT.get(error)}"] += 1
            counts["deadlines"] += call.late and error.startswith("TimeoutError")
    rules = RULE_BY_TEXT.values() if crowd.counts["calls"] > MANY_CALLS else ()
    names = [*EXPECTED_ACTIONS, *(f"rule {name}" for name in rules)]
    return [name for name in names if not counts[name]]


def report(store, crowd, faults, problems, seconds):
    """Print the counts and every violation. Return whether there was a violation."""
    calls = [call for session in crowd.sessions.values() for call in session.calls]
    answered = [call for call in calls if call.envelope is not None]
    click.echo(
        f"{store}: {len(calls)} calls in {seconds:.0f} s ({len(answered) / seconds:.0f}/s), {len(answered)} answered, "
        f"{sum(call.refused for call in calls)} refused, {crowd.counts['sent twice']} sent twice; "
        f"{crowd.counts['forks']} forks, {crowd.counts['resets']} resets, {crowd.counts['views']} old versions read, "
        f"{crowd.counts['messages heard']} messages heard, {crowd.counts['verdicts']} verdicts"
    )
    kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(faults.injected.items()))
    click.echo(f"{store}: {sum(faults.injected.values())} faults: {kinds or 'none'}")
    click.echo(f"{store}: longest wait after a kill of a lease's holder: {max(faults.waits, default=0):.1f} s")
    for sentence, times in crowd.overloaded.most_common():
        click.echo(f"{store}: this answer came {times} times: {sentence}")
    missing = [f"the run did none of these: {', '.join(names)}"] if (names := find_missing_actions(crowd)) else []
    violations = {"clients": crowd.unexpected_answers, "processes": faults.violations, "mix": missing} | problems
    for where, problems_there in violations.items():
        for problem in problems_there[:MAX_PRINTED]:
            click.echo(f"{store}: VIOLATION in {where}: {problem[:1200]}")
        if len(problems_there) > MAX_PRINTED:
            click.echo(f"{store}: … and {len(problems_there) - MAX_PRINTED} more in {where}")
    failed = sum(bool(problems_there) for problems_there in violations.values())
    click.echo(f"{store}: {len(violations) - failed} passed, {failed} failed (sessions, clients, processes, mix)")
    return failed > 0


if __name__ == "__main__":
    main()
