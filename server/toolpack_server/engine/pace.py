"""Pace: statistics of each kind of job, such as whether it is quick, and whether it waits or computes.

The statistics only set priorities, so a wrong guess costs time but never leads to a wrong result. Kinds are the names
of registered functions and a few fixed words, so their number is bounded. A long wall-clock time alone proves little,
because the process might have been suspended or might have lacked CPU. So a long run counts only if it used CPU time,
or if it is one of several long runs in a row. The duration of a running job is measured in *looks*, the watcher's
checks.

Each run of a job updates two properties of its kind:

- Is it quick? A run below 3 ms increases `quick_runs` by one, up to eight. A longer run that computes decreases it by
  four. A kind with four or more is quick and needs no slot in a lane. So a kind with eight stays quick after one long
  run. Four long runs in a row make a kind slow, even if they only waited.
- If it is slow, does it wait or compute? The watcher checks a running job every 5 ms. A job that has used the CPU for
  more than 10% of this time computes. A job that has used it for less than 5% waits. Between these two limits, the
  property doesn't change.

Calls of an async function share an event loop, from the first call on. A function that blocks the loop or computes
there is *blamed* (`blame`): until the worker exits, its calls run in threads.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass

QUICK_SECONDS = 0.003
QUICK_RUNS = 4  # minimum `quick_runs` of a quick kind; a slow run that computes subtracts this number
SLOW_RUNS = 4  # long runs in a row that make a quick kind slow, or that prove that a formerly quick kind waits
SLOW_LOOKS = 4  # looks at one job after which its kind isn't quick any more
LOOK_SECONDS = 0.005  # time between two looks
# Minimum CPU time of a job that computes, and its minimum share of the elapsed time. The share is small, because
# several jobs that compute share the CPU.
COMPUTES_SECONDS, COMPUTES_SHARE = 0.003, 0.1
WAITS_SHARE = 0.05  # maximum share of CPU time of a job that waits
CALL_BYTES = 24 * 1024  # initial estimate of the memory of a waiting call
TRIALS = 4  # maximum number of trials of a kind at once: jobs that start without a slot to compute

# The interpreter's switch interval. It is usually long, because calls are short, and calls that interrupt each other
# lose a third of their speed. It is short while a function computes, because another call must then wait several times
# for the interpreter, and each wait lasts for the whole interval.
SLICE_SECONDS = 0.001
SHORT_SLICE_SECONDS = 0.000005


@dataclass(slots=True)
class _Kind:
    """Statistics of one kind of job."""

    quick_runs: int = 0  # quick runs minus slow runs, within bounds; see the module's docstring
    slow_runs: int = 0  # number of long runs in a row
    long_looks: int = 0  # number of jobs in a row that were running at SLOW_LOOKS looks
    was_quick: bool = False  # the kind was quick, and since then too few jobs were long to prove that it waits
    waits: bool | None = None  # True: it waits; False: it computes; None: unknown
    trials: int = 0  # number of running jobs that started without a slot to compute, because `waits` was unknown
    function: str = ""  # the async function that a call of this kind last awaited on a shared loop
    held: int = CALL_BYTES  # moving average of the memory of a waiting call, in bytes


_UNKNOWN = _Kind()
"""The statistics of an unknown kind. They must not be changed."""


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
        """Return whether a slow job can start without a slot to compute: its kind waits, or the job is a trial."""
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
        stats.trials = max(0, stats.trials - 1)  # this job might have been a trial
        if seconds < QUICK_SECONDS:
            stats.slow_runs = stats.long_looks = 0
            stats.quick_runs = min(stats.quick_runs + 1, 2 * QUICK_RUNS)
            if stats.quick_runs == QUICK_RUNS:
                stats.was_quick, stats.waits = True, None  # determine `waits` again if the kind becomes slow again
            return
        stats.slow_runs += 1
        if used_processor > QUICK_SECONDS:
            stats.quick_runs = max(stats.quick_runs - QUICK_RUNS, 0)
        elif stats.quick_runs < QUICK_RUNS or stats.slow_runs >= SLOW_RUNS:
            stats.quick_runs = 0

    def record_look(self, kind: str, looks: int, used_processor: float) -> bool:
        """Update the statistics with a running job that isn't quick. Return whether its kind waits.

        The watcher calls this at each look.

        Args:
            looks: Number of looks so far at which the job was running.
            used_processor: CPU time of the job during these looks, in seconds.
        """
        stats = self._kinds[kind]
        if looks == SLOW_LOOKS:
            stats.quick_runs = 0
            stats.long_looks += 1
            # If a job of a quick kind takes long without using CPU time, it might wait, or it might have lacked CPU.
            # Only several such jobs in a row prove that the kind now waits.
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
        """Return the estimated memory of a waiting call of a kind, in bytes."""
        return self._kinds[kind].held

    def is_blamed(self, function: str) -> bool:
        return function in self._blamed

    def may_share(self, kind: str, function: str) -> bool:
        """Return whether a call of a kind can await an async function's coroutine on the shared loop.

        Quick calls await on their own thread, because switching to the shared loop would take longer.
        """
        return function not in self._blamed and not self.is_quick(kind)

    def record_handover(self, kind: str, function: str, held: int) -> bool:
        """Update the statistics with a call that moves to a shared loop.

        Return True if the last call of its kind didn't await on a shared loop.

        Args:
            held: Memory of the call in bytes.
        """
        stats, is_new = self._kinds[kind], not self.awaits(kind)
        stats.trials = max(0, stats.trials - 1)
        stats.waits, stats.function = True, function
        stats.held = (3 * stats.held + held) // 4
        return is_new

    def blame(self, function: str) -> bool:
        """Make a function's calls run in threads from now on. Return False if they already did."""
        is_new = function not in self._blamed
        self._blamed.add(function)
        return is_new

    def share_interpreter(self, *, computing: bool) -> None:
        """Set the interpreter's switch interval, which is shorter while a function computes."""
        seconds = SHORT_SLICE_SECONDS if computing else SLICE_SECONDS
        if seconds != self._slice_seconds:
            self._slice_seconds = seconds
            sys.setswitchinterval(seconds)
