"""The rate of `toolpack-server audit`: attempts per second of processor time, on a world of 10 KB.

The measured time is the processor time of the whole command, with all of its processes.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.benchmarks.bounds import Bound
from tools.benchmarks.workshop import Workshop

PACKS = Path(__file__).parent / "packs"
MIN_RATE = 500.0
RUNS = 3


def measure_audit(workshop: Workshop) -> Iterator[Bound]:
    """Audit the tasks of a toolpack several times. Yield the best rate, because other load only makes a rate worse."""
    report = workshop.folder / "audit.json"
    rates = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "toolpack_server", "audit", "--pack-dir", str(PACKS), "--packs", "bazaar"]
        subprocess.run(
            [*command, "--no-hash-seeds", "--fail-on", "never", "--json", str(report)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rates.append((json.loads(report.read_text())["attempts"] / seconds, seconds))
    rate, seconds = max(rates)
    detail = f"{rate * seconds:.0f} attempts in {seconds:.2f} s"
    yield Bound("attempts of an audit on 10 KB", rate, MIN_RATE, at_least=True, unit="/s", detail=detail)
