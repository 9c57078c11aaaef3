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

Of an async function it is asked, besides, whether its calls may await on a loop that they share. For that its first
calls run on threads: three more without a step of 50 ms than with one, and they may; a step that computes or blocks on
the loop takes it back for good.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass

from toolpack_server.functions.coroutines import Observation

QUICK_SECONDS = 0.003
QUICK_RUNS = 4  # until a kind of job is known to be quick; one that computes for longer than that counts as many
SLOW_RUNS = 4  # in a row, in which it only waited, until a quick kind isn't quick any more, or is known to wait
SLOW_LOOKS = 4  # of the watcher at a single job, after which its kind isn't quick any more
LOOK_SECONDS = 0.005  # between two looks
COMPUTES_SECONDS, COMPUTES_SHARE = 0.003, 0.1  # of the processor: several that compute have to share it
WAITS_SHARE = 0.05
CALL_BYTES = 24 * 1024  # that a call which waits holds, as long as nothing is known of its kind
LONG_STEP_SECONDS = 0.05  # between two waits of a coroutine: others on its loop would have to wait so long
CLEAN_CALLS = 3  # without such a step, more than with one, until an async function may share a loop
ROUGH_CALLS = 4  # with such a step, more than without one, until it is known that it may not
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
    function: str = ""  # the async function that was awaited last
    awaits: bool = False  # its calls wait on a shared loop
    held: int = CALL_BYTES  # how many bytes its calls have held lately while they waited


_UNKNOWN = _Kind()
"""A kind of which nothing was seen; nobody changes it."""


@dataclass(slots=True)
class _Function:
    """What is known of an async function; it has a loop of its own for its calls once some of them were seen."""

    score: int = 0
    shares: bool | None = None


class Pace:
    def __init__(self) -> None:
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._functions: defaultdict[str, _Function] = defaultdict(_Function)
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
        """Whether calls of a kind wait on a shared loop, as far as is known."""
        return self._kinds.get(kind, _UNKNOWN).awaits

    def is_tried(self, kind: str) -> bool:
        """Whether it is being found out if calls of a kind may share a loop."""
        function = self._kinds.get(kind, _UNKNOWN).function
        return bool(function) and self._functions[function].shares is None

    def function(self, kind: str) -> str:
        """Get the async function that a call of a kind has awaited last."""
        return self._kinds[kind].function

    def held(self, kind: str) -> int:
        return self._kinds[kind].held

    def may_share(self, kind: str, function: str) -> bool:
        """Whether a call of a kind may await an async function's coroutine on the shared loop."""
        seen = self._kinds[kind]
        seen.function = function
        return bool(self._functions[function].shares) and not self.is_quick(kind)

    def handed_over(self, kind: str, held: int) -> None:
        """Note that a call waits on the shared loop, and how many bytes it holds."""
        seen = self._kinds[kind]
        seen.trials = max(0, seen.trials - 1)
        seen.quick_runs, seen.waits, seen.awaits = 0, True, True
        seen.held = (3 * seen.held + held) // 4

    def saw(self, function: str, seen: Observation) -> bool:
        """Note what was seen of a function's coroutine on a thread; say if it is now known whether it may share."""
        known = self._functions[function]
        if known.shares is not None or not (seen.waited or seen.used_threads):
            return False
        known.score += 1 if seen.longest < LONG_STEP_SECONDS else -1
        if seen.used_threads or known.score <= -ROUGH_CALLS:
            return self.blame(function)
        known.shares = True if known.score >= CLEAN_CALLS else None
        for kind in list(self._kinds.values()):
            kind.awaits |= bool(known.shares) and kind.function == function
        return known.shares is not None

    def blame(self, function: str) -> bool:
        """Let a function's calls run in threads from now on; say if that is new."""
        known = self._functions[function]
        is_new = known.shares is not False
        known.shares = False
        for kind in list(self._kinds.values()):
            kind.awaits &= kind.function != function
        return is_new

    def kinds_of(self, function: str) -> list[str]:
        return [kind for kind, seen in list(self._kinds.items()) if seen.function == function]

    def share_interpreter(self, *, computing: bool) -> None:
        """Let threads give way to each other sooner while a function computes."""
        seconds = SHORT_SLICE_SECONDS if computing else SLICE_SECONDS
        if seconds != self._slice_seconds:
            self._slice_seconds = seconds
            sys.setswitchinterval(seconds)
