"""How long jobs of one kind take, and whether they wait or compute meanwhile, as far as has been seen.

It only steers who goes first; being wrong costs time and nothing else. What counts is processor time and how
often the watcher has looked, never time that has passed: a process that stood still, or got no processor, shows nothing
of its functions. Kinds are the names of registered functions and a few fixed words, so their number is bounded.

Two questions are asked of a kind, and each answer may change with every run:

- Is it quick? `quick_runs` goes up by one with each run below 3 ms, to eight at most, and down by four with each that
  has computed for longer. From four on the kind needs no place in a lane; so one that was quick for long is forgiven
  once. Four runs in a row that only waited make it slow, too.
- If it isn't, does it wait or compute? The watcher looks at a job that runs every 5 ms. Whoever has used a tenth of
  that time on the processor computes, whoever has used a twentieth waits; between these nothing changes.

Calls of an async function await on a loop that they share, from the first one on. A function that blocks or computes
there loses the loop until the worker ends (`blame`); its calls then run in threads.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass

QUICK_SECONDS = 0.003
QUICK_RUNS = 4  # until a kind of job is known to be quick; one that computes for longer than that counts as many
SLOW_RUNS = 4  # in a row, in which it only waited, until a quick kind isn't quick any more, or is known to wait
SLOW_LOOKS = 4  # of the watcher at a single job, after which its kind isn't quick any more
LOOK_SECONDS = 0.005  # between two looks
COMPUTES_SECONDS, COMPUTES_SHARE = 0.003, 0.1  # of the processor: several that compute have to share it
WAITS_SHARE = 0.05
CALL_BYTES = 24 * 1024  # that a call which waits holds, as long as nothing is known of its kind
TRIALS = 4  # at the same time, of a kind of which it isn't known whether it waits or computes

# How long a thread may keep the interpreter while others want it. Calls are brief, and lose a third of their speed if
# they take it from each other. Beside a function that computes, however, each wait lasts that long, and a call has
# several.
SLICE_SECONDS = 0.001
SHORT_SLICE_SECONDS = 0.000005


@dataclass(slots=True)
class _Kind:
    quick_runs: int = 0  # less the slow ones, within bounds
    slow_runs: int = 0  # in a row
    long_looks: int = 0  # at how many jobs in a row the watcher has looked for long
    was_quick: bool = False
    waits: bool | None = None
    trials: int = 0
    function: str = ""  # the async function that was awaited last on a shared loop
    held: int = CALL_BYTES  # how many bytes its calls have held lately while they waited


_UNKNOWN = _Kind()
"""A kind of which nothing was seen; nobody changes it."""


class Pace:
    def __init__(self) -> None:
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._blamed: set[str] = set()
        self._slice_seconds = 0.0
        self.share_interpreter(computing=False)

    def is_quick(self, kind: str) -> bool:
        return self._kinds.get(kind, _UNKNOWN).quick_runs >= QUICK_RUNS

    def waits(self, kind: str) -> bool:
        """Whether a kind is known to wait."""
        return bool(self._kinds.get(kind, _UNKNOWN).waits)

    def may_start(self, kind: str) -> bool:
        """Whether a slow job may start without a turn to compute: its kind waits, or that must be found out."""
        seen = self._kinds[kind]
        if seen.waits is None and seen.trials < TRIALS:
            seen.trials += 1
            return True
        return bool(seen.waits)

    def ran(self, kind: str, seconds: float, used_processor: float) -> None:
        """Note that a job has ended after so many seconds, for some of which it has used the processor."""
        seen = self._kinds[kind]
        seen.trials = max(0, seen.trials - 1)
        if seconds < QUICK_SECONDS:
            seen.slow_runs = seen.long_looks = 0
            seen.quick_runs = min(seen.quick_runs + 1, 2 * QUICK_RUNS)
            if seen.quick_runs == QUICK_RUNS:
                seen.was_quick, seen.waits = True, None  # if it is slow again, that must be found out again
            return
        seen.slow_runs += 1
        if used_processor > QUICK_SECONDS:
            seen.quick_runs = max(seen.quick_runs - QUICK_RUNS, 0)
        elif seen.quick_runs < QUICK_RUNS or seen.slow_runs >= SLOW_RUNS:
            seen.quick_runs = 0

    def is_slow(self, kind: str, looks: int, used_processor: float) -> bool:
        """Note that a job which is running takes long, and say if its kind waits rather than computes.

        Called at each look of the watcher: `looks` at the job by now, and the processor time that it has used since.
        """
        seen = self._kinds[kind]
        if looks == SLOW_LOOKS:
            seen.quick_runs = 0
            seen.long_looks += 1
            # One that was quick has perhaps been kept from running.
            seen.was_quick &= seen.long_looks < SLOW_RUNS
        seconds = looks * LOOK_SECONDS
        if used_processor > max(COMPUTES_SECONDS, COMPUTES_SHARE * seconds):
            seen.waits = False
        elif used_processor < WAITS_SHARE * seconds and not seen.was_quick:
            seen.waits = True
        return bool(seen.waits)

    # Async functions

    def awaits(self, kind: str) -> bool:
        """Return whether calls of a kind wait on a shared loop, as far as is known."""
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
        """Note that a call waits on the shared loop, and how many bytes it holds; return whether that is new."""
        seen, is_new = self._kinds[kind], not self.awaits(kind)
        seen.trials = max(0, seen.trials - 1)
        seen.waits, seen.function = True, function
        seen.held = (3 * seen.held + held) // 4
        return is_new

    def blame(self, function: str) -> bool:
        """Let a function's calls run in threads from now on; return whether that is new."""
        is_new = function not in self._blamed
        self._blamed.add(function)
        return is_new

    def share_interpreter(self, *, computing: bool) -> None:
        """Let threads give way to each other sooner while a function computes."""
        seconds = SHORT_SLICE_SECONDS if computing else SLICE_SECONDS
        if seconds != self._slice_seconds:
            self._slice_seconds = seconds
            sys.setswitchinterval(seconds)
