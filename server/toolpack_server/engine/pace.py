"""Pace: statistics of each kind of job, such as whether it is quick, and whether it waits or computes.

The statistics only set priorities, so a wrong guess costs time but no correctness. They use CPU time and the number of
the watcher's looks, never wall-clock time: a process that was stopped, or got no CPU, shows nothing of its functions.
Kinds are the names of registered functions and a few fixed words, so their number is bounded.

Each run of a job updates two properties of its kind:

- Is it quick? A run below 3 ms increases `quick_runs` by one, up to eight. A longer run that computes decreases it by
  four. With four or more the kind is quick and needs no slot of a lane. So a kind at eight stays quick after one slow
  run. Four runs in a row that only waited make a kind slow, too.
- If it is slow, does it wait or compute? The watcher looks at a running job every 5 ms. A job that has used more than
  10% of that time on the CPU computes; a job that has used less than 5% waits. Between these, nothing changes.

Calls of an async function share an event loop, from the first call on. A function that blocks or computes there is
blamed (`blame`): until the worker ends, its calls run in threads.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass

QUICK_SECONDS = 0.003
QUICK_RUNS = 4  # min `quick_runs` of a quick kind; a slow run that computes subtracts this
SLOW_RUNS = 4  # slow runs in a row that only waited, until a kind isn't quick or is known to wait
SLOW_LOOKS = 4  # of the watcher at one job, until its kind isn't quick
LOOK_SECONDS = 0.005  # between two looks
COMPUTES_SECONDS, COMPUTES_SHARE = 0.003, 0.1  # CPU time of a job that computes; several such jobs share the CPU
WAITS_SHARE = 0.05
CALL_BYTES = 24 * 1024  # initial estimate of the memory of a waiting call
TRIALS = 4  # jobs at once of a kind that isn't known to wait or to compute

# The interpreter's switch interval. Calls are short, and lose a third of their speed if they interrupt each other. But
# next to a function that computes, each wait for the interpreter lasts this long, and a call has several.
SLICE_SECONDS = 0.001
SHORT_SLICE_SECONDS = 0.000005


@dataclass(slots=True)
class _Kind:
    quick_runs: int = 0  # quick runs minus slow runs, within bounds
    slow_runs: int = 0  # in a row
    long_looks: int = 0  # jobs in a row that the watcher has looked at SLOW_LOOKS times
    was_quick: bool = False
    waits: bool | None = None
    trials: int = 0
    function: str = ""  # the async function that was last awaited on a shared loop
    held: int = CALL_BYTES  # moving average of the bytes that a waiting call holds


_UNKNOWN = _Kind()
"""The statistics of an unknown kind. Read-only."""


class Pace:
    """Statistics of all kinds of jobs in a worker."""

    def __init__(self) -> None:
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._blamed: set[str] = set()
        self._slice_seconds = 0.0
        self.share_interpreter(computing=False)

    def is_quick(self, kind: str) -> bool:
        return self._kinds.get(kind, _UNKNOWN).quick_runs >= QUICK_RUNS

    def waits(self, kind: str) -> bool:
        """Return whether a kind is known to wait."""
        return bool(self._kinds.get(kind, _UNKNOWN).waits)

    def may_start(self, kind: str) -> bool:
        """Return whether a slow job may start without a slot to compute: its kind waits, or the job is a trial."""
        seen = self._kinds[kind]
        if seen.waits is None and seen.trials < TRIALS:
            seen.trials += 1
            return True
        return bool(seen.waits)

    def ran(self, kind: str, seconds: float, used_processor: float) -> None:
        """Update the statistics after a job.

        Args:
            seconds: Duration of the job.
            used_processor: CPU time of the job in seconds.
        """
        seen = self._kinds[kind]
        seen.trials = max(0, seen.trials - 1)
        if seconds < QUICK_SECONDS:
            seen.slow_runs = seen.long_looks = 0
            seen.quick_runs = min(seen.quick_runs + 1, 2 * QUICK_RUNS)
            if seen.quick_runs == QUICK_RUNS:
                seen.was_quick, seen.waits = True, None  # if the kind gets slow again, determine `waits` again
            return
        seen.slow_runs += 1
        if used_processor > QUICK_SECONDS:
            seen.quick_runs = max(seen.quick_runs - QUICK_RUNS, 0)
        elif seen.quick_runs < QUICK_RUNS or seen.slow_runs >= SLOW_RUNS:
            seen.quick_runs = 0

    def is_slow(self, kind: str, looks: int, used_processor: float) -> bool:
        """Update the statistics with a running slow job. Return whether its kind waits rather than computes.

        Called at each look of the watcher.

        Args:
            looks: Number of looks at the job so far.
            used_processor: CPU time of the job during these looks, in seconds.
        """
        seen = self._kinds[kind]
        if looks == SLOW_LOOKS:
            seen.quick_runs = 0
            seen.long_looks += 1
            # A kind that was quick may only have been kept from running.
            seen.was_quick &= seen.long_looks < SLOW_RUNS
        seconds = looks * LOOK_SECONDS
        if used_processor > max(COMPUTES_SECONDS, COMPUTES_SHARE * seconds):
            seen.waits = False
        elif used_processor < WAITS_SHARE * seconds and not seen.was_quick:
            seen.waits = True
        return bool(seen.waits)

    # Async functions

    def awaits(self, kind: str) -> bool:
        """Return whether the last call of a kind awaited on a shared loop, and its function isn't blamed."""
        function = self._kinds.get(kind, _UNKNOWN).function
        return bool(function) and function not in self._blamed

    def held(self, kind: str) -> int:
        return self._kinds[kind].held

    def is_blamed(self, function: str) -> bool:
        return function in self._blamed

    def may_share(self, kind: str, function: str) -> bool:
        """Return whether a call of a kind may await an async function's coroutine on the shared loop."""
        return function not in self._blamed and not self.is_quick(kind)

    def handed_over(self, kind: str, function: str, held: int) -> bool:
        """Update the statistics with a call that now waits on a shared loop. Return whether that is new for its kind.

        Args:
            held: Memory of the call in bytes.
        """
        seen, is_new = self._kinds[kind], not self.awaits(kind)
        seen.trials = max(0, seen.trials - 1)
        seen.waits, seen.function = True, function
        seen.held = (3 * seen.held + held) // 4
        return is_new

    def blame(self, function: str) -> bool:
        """Make a function's calls run in threads from now on. Return whether they used a shared loop before."""
        is_new = function not in self._blamed
        self._blamed.add(function)
        return is_new

    def share_interpreter(self, *, computing: bool) -> None:
        """Set the interpreter's switch interval: shorter while a function computes."""
        seconds = SHORT_SLICE_SECONDS if computing else SLICE_SECONDS
        if seconds != self._slice_seconds:
            self._slice_seconds = seconds
            sys.setswitchinterval(seconds)
