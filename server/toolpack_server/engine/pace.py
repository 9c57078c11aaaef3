"""Pace: statistics of each kind of job, such as whether it is quick, and whether it waits or computes.

The statistics only set priorities, so a wrong guess costs time but no correctness. Kinds are the names of registered
functions and a few fixed words, so their number is bounded. A long wall-clock time alone proves little, because the
process may have been stopped or may have got no CPU. So a long run counts only with its CPU time, or if it is one of
several in a row. Durations of running jobs are counted in looks of the watcher.

Each run of a job updates two properties of its kind:

- Is it quick? A run below 3 ms increases `quick_runs` by one, up to eight. A longer run that computes decreases it by
  four. With four or more, the kind is quick and needs no slot of a lane. So a kind with eight stays quick after one
  long run. Four long runs in a row make a kind slow even if they only waited.
- If it is slow, does it wait or compute? The watcher looks at a running job every 5 ms. A job that has used more than
  10% of that time on the CPU computes. A job that has used less than 5% waits. Between these, nothing changes.

Calls of an async function share an event loop, from the first call on. A function that blocks the loop or computes
there is *blamed* (`blame`): until the worker ends, its calls run in threads.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass

QUICK_SECONDS = 0.003
QUICK_RUNS = 4  # min `quick_runs` of a quick kind; a slow run that computes subtracts this
SLOW_RUNS = 4  # long runs in a row, until a quick kind becomes slow, or a kind that was quick may be known to wait
SLOW_LOOKS = 4  # looks of the watcher at one job, until its kind isn't quick
LOOK_SECONDS = 0.005  # between two looks
# Min CPU time of a job that computes, and its min share of the time: small, because such jobs share the CPU.
COMPUTES_SECONDS, COMPUTES_SHARE = 0.003, 0.1
WAITS_SHARE = 0.05  # max share of CPU time of a job that waits
CALL_BYTES = 24 * 1024  # initial estimate of the memory of a waiting call
TRIALS = 4  # max jobs at once, without a slot to compute, of a kind that isn't known to wait or to compute

# The interpreter's switch interval. It is long as a rule, because calls are short, and lose a third of their speed if
# they interrupt each other. It is short while a function computes: a call then waits several times for the interpreter,
# and each wait lasts for the whole interval.
SLICE_SECONDS = 0.001
SHORT_SLICE_SECONDS = 0.000005


@dataclass(slots=True)
class _Kind:
    quick_runs: int = 0  # quick runs minus slow runs, within bounds
    slow_runs: int = 0  # long runs in a row
    long_looks: int = 0  # jobs in a row that the watcher has looked at SLOW_LOOKS times
    was_quick: bool = False  # the kind was quick, and too few jobs have been long since to say that it waits
    waits: bool | None = None  # None: unknown
    trials: int = 0  # running jobs that started without a slot to compute, because `waits` was unknown
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
        stats = self._kinds[kind]
        if stats.waits is None and stats.trials < TRIALS:
            stats.trials += 1
            return True
        return bool(stats.waits)

    def record_run(self, kind: str, seconds: float, used_processor: float) -> None:
        """Update the statistics after a job.

        Args:
            seconds: Duration of the job, by the wall clock.
            used_processor: CPU time of the job in seconds.
        """
        stats = self._kinds[kind]
        stats.trials = max(0, stats.trials - 1)
        if seconds < QUICK_SECONDS:
            stats.slow_runs = stats.long_looks = 0
            stats.quick_runs = min(stats.quick_runs + 1, 2 * QUICK_RUNS)
            if stats.quick_runs == QUICK_RUNS:
                stats.was_quick, stats.waits = True, None  # if the kind gets slow again, determine `waits` again
            return
        stats.slow_runs += 1
        if used_processor > QUICK_SECONDS:
            stats.quick_runs = max(stats.quick_runs - QUICK_RUNS, 0)
        elif stats.quick_runs < QUICK_RUNS or stats.slow_runs >= SLOW_RUNS:
            stats.quick_runs = 0

    def record_look(self, kind: str, looks: int, used_processor: float) -> bool:
        """Update the statistics with a running job that isn't quick. Return whether its kind waits.

        The watcher calls this at each look at the job.

        Args:
            looks: Number of looks at the job so far.
            used_processor: CPU time of the job during these looks, in seconds.
        """
        stats = self._kinds[kind]
        if looks == SLOW_LOOKS:
            stats.quick_runs = 0
            stats.long_looks += 1
            # If a job of a quick kind takes long without CPU time, it may wait, or it may have got no CPU. Only
            # several such jobs in a row prove that the kind waits now.
            stats.was_quick &= stats.long_looks < SLOW_RUNS
        seconds = looks * LOOK_SECONDS
        if used_processor > max(COMPUTES_SECONDS, COMPUTES_SHARE * seconds):
            stats.waits = False
        elif used_processor < WAITS_SHARE * seconds and not stats.was_quick:
            stats.waits = True
        return bool(stats.waits)

    # Async functions

    def awaits(self, kind: str) -> bool:
        """Return whether the last call of a kind awaited on a shared loop, and its function isn't blamed."""
        function = self._kinds.get(kind, _UNKNOWN).function
        return bool(function) and function not in self._blamed

    def held(self, kind: str) -> int:
        """Return the estimated bytes that a waiting call of a kind holds."""
        return self._kinds[kind].held

    def is_blamed(self, function: str) -> bool:
        return function in self._blamed

    def may_share(self, kind: str, function: str) -> bool:
        """Return whether a call of a kind may await an async function's coroutine on the shared loop."""
        return function not in self._blamed and not self.is_quick(kind)

    def record_handover(self, kind: str, function: str, held: int) -> bool:
        """Update the statistics with a call that moves to a shared loop. Return whether its kind's last call didn't.

        Args:
            held: Memory of the call in bytes.
        """
        stats, is_new = self._kinds[kind], not self.awaits(kind)
        stats.trials = max(0, stats.trials - 1)
        stats.waits, stats.function = True, function
        stats.held = (3 * stats.held + held) // 4
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
