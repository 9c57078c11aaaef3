"""The benchmark: compares Toolpack Server with bare Starlette and with alternatives, in one run.

    python -m tools.benchmarks
    python -m tools.benchmarks --part throughput --only ours --rounds 1 --seconds 2
    python -m tools.benchmarks --part waiting
    python -m tools.benchmarks --part call

It prints a table of results and a table of bounds, which are values that the server should reach. `--out` writes them
as JSON and SVG. Exit status 1 means that answers and state didn't match, or that `wrk` is missing. A missed bound is
only reported, because it depends on the machine.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from tools.benchmarks import auditing, calls, growth, isolation, report, tracing, waiting, workers, worlds
from tools.benchmarks import bounds as measurements
from tools.benchmarks.contenders import bare
from tools.benchmarks.load import find_wrk
from tools.benchmarks.processes import UnavailableError
from tools.benchmarks.rounds import Plan, compare
from tools.benchmarks.workshop import Workshop

PARTS = (
    *("throughput", "latency", "touched", "sessions", "growth", "workers", "isolation", "worlds", "start", "audit"),
    *("waiting", "call", "tracing"),
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "toolpack-server-benchmarks"


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Parts to measure.  [default: all]")
@click.option(
    "--only", multiple=True, help="Measure only contenders that have this word in their name.  [default: all]"
)
@click.option("--rounds", default=3, show_default=True, help="Number of runs of each case.")
@click.option("--seconds", default=4, show_default=True, help="Duration of each run.")
@click.option(
    "--cache",
    type=Path,
    default=CACHE,
    envvar="TOOLPACK_BENCHMARK_CACHE",
    show_default="the user's cache folder",
    help="Folder for the virtual environments of the other projects' servers.",
)
@click.option(
    "--size", "sizes", multiple=True, type=int, help="Number of waiting sessions at once.  [default: 32 … 16384]"
)
@click.option("--out", type=Path, help="Folder for the JSON and SVG files.")
def main(parts, only, rounds, seconds, cache, sizes, out):
    """Measure, and print the results."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the child processes on SIGTERM too
    plan = Plan(rounds, seconds)
    conditions = report.context(plan)
    try:
        with tempfile.TemporaryDirectory(prefix="toolpack-benchmark-") as folder:
            workshop = Workshop(Path(folder), cache)
            crowds, crowd_bounds = [], []
            if not parts or "waiting" in parts:
                crowds, crowd_bounds = waiting.measure_crowds(workshop, only, sizes)
            own_bounds = [*calls.calls(workshop)] if not parts or "call" in parts else []
            own_bounds += [*tracing.tracing(workshop)] if not parts or "tracing" in parts else []
            has_other_parts = not parts or {*parts} - {"waiting", "call", "tracing"}
            rows, bounds = measure(workshop, plan, parts or PARTS, only) if has_other_parts else ([], [])
            bounds += crowd_bounds + own_bounds
    except UnavailableError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)
    machine = f"Python {conditions['python']}, {conditions['processors']} processors"
    machine += f", load before {conditions['load_before']:.2f}"
    click.echo(f"{conditions['date']}, {machine}; {conditions['command']}\n")
    if rows:
        click.echo(f"{report.table(rows)}\n")
    if crowds:
        click.echo(f"{report.crowds_table(crowds)}\n")
    if bounds:
        click.echo(f"{report.bounds_table(bounds)}\n")
    if out:
        for path in report.write(out, conditions, rows, bounds, crowds):
            click.echo(f"written: {path}")
    if any(row.problems for row in rows):
        raise click.ClickException("Answers and state didn't match: see the rows with WRONG in the table.")


def measure(workshop, plan, parts, only):
    """Return the table's rows and the bounds of all parts except `waiting`, `call` and `tracing`."""
    find_wrk()
    rows, bounds = [], []
    with bare(workshop, plain=True) as reference, bare(workshop, plain=False) as fast:
        if "throughput" in parts:
            rows = compare(workshop, (reference, fast), plan, only)
            bounds += measurements.throughput(rows)
        for part, bound_of in (
            ("latency", lambda: measurements.latency(workshop, reference, plan)),
            ("touched", lambda: measurements.untouched_field(workshop, plan)),
            ("sessions", lambda: measurements.sessions(workshop, plan)),
            ("growth", lambda: growth.growth(workshop)),
            ("workers", lambda: workers.two_workers(workshop, plan, only)),
            ("isolation", lambda: isolation.isolation(workshop, plan)),
            ("worlds", lambda: worlds.worlds(workshop)),
            ("start", lambda: measurements.start(workshop, plan)),
            ("audit", lambda: auditing.measure_audit(workshop)),
        ):
            if part in parts:
                for bound in bound_of():
                    click.echo(f"{bound.name}: {bound.value:.3g}{bound.unit}", err=True)
                    bounds.append(bound)
    return rows, bounds


if __name__ == "__main__":
    main()
