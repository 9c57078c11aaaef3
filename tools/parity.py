"""Comparison of a benchmark's own runs with its runs on the server: differences are printed and counted.

`tools.bfcl_parity` and `tools.tau2_parity` use this module. They run each entry of a benchmark in process and on the
server, and give this module the results of both runs.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Run:
    """A run that was made in process and on the server.

    Attributes:
        name: The name of the run, such as `nothing`.
        differences: Differences by kind: `other verdicts`, `with other results`, or a kind that the program names.
        remarks: Notes that aren't differences, by kind.
    """

    name: str
    differences: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)

    def compare_verdicts(self, passed: bool, expected: bool) -> None:
        if passed != expected:
            self.differences["other verdicts"] = f"the server's verdict has passed={passed}, the benchmark's {expected}"

    def compare_results(
        self, results: Sequence[Any], expected: Sequence[Any], same: Callable[[Any, Any], bool]
    ) -> None:
        """Compare the results of the calls, and store the first difference. `same` compares two results."""
        for actual, expected_result in zip(results, expected, strict=True):
            if not same(actual, expected_result):
                self.differences["with other results"] = f"{actual} is not {expected_result}"
                return


def differences(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    """Return the differences by run; empty if there are none."""
    return {run.name: run.differences for run in runs if run.differences}


def compare_all(title: str, entries: Iterable[str], runs_of: Callable[[str], Iterator[Run]]) -> None:
    """Compare the runs of all entries. Print each difference, each remark and the totals."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # the thresholds of the server's workers, because the worlds have many objects
    counts, began = Counter[str](), time.monotonic()
    totals = Counter[str]({"other verdicts": 0, "with other results": 0})
    for entry in entries:
        for run in runs_of(entry):
            counts["runs"] += 1
            for what, text in run.differences.items():
                totals[what] += 1
                print(f"{entry}, {run.name}, {what}: {text[:300]}", flush=True)
            for what, texts in run.remarks.items():
                totals[what] += len(texts)
                for text in texts:
                    print(f"{entry}, {run.name}, {what}: {text}", flush=True)
    sums = ", ".join(f"{count} {what}" for what, count in totals.items())
    print(f"{title}: {counts['runs']} runs in {time.monotonic() - began:.0f} s: {sums}", flush=True)
