"""Suspects: calls that were running when a worker died, with the number of times that this happened.

If a call kills its worker, the client gets no response and might send the call again, so the call could kill one worker
after the other. The supervisor can't know which of a worker's calls killed it, so each of them is a suspect until it
completes. A call that was suspected `LIMIT` times is refused.

Only the supervisor adds suspects, in memory that it shares with its workers. A worker runs its suspects one at a time,
so that each harmless suspect can complete and be cleared. Soon only the call to blame remains. Calls that aren't
suspects run at the same time. When a suspect completes, it is *cleared*: it can run beside other calls again. Its count
stays, unless the caller of `end` resets it. The count isn't reset if an agent can send different calls with the same
number, because one completed call then proves nothing about the next call. A call with the count `LIMIT` is refused
even after it was cleared.
"""

import mmap
import threading
from collections.abc import Iterable

LIMIT = 3  # a call that was suspected this many times isn't run again
MAX_SUSPECTS = 256  # when all slots are used, a new suspect replaces a suspect with the lowest count
NUMBER_BYTES = 8


class Suspects:
    """The suspects of a server, shared by the supervisor and all workers. A call is identified by a number, never 0."""

    def __init__(self) -> None:
        size = MAX_SUSPECTS
        memory = memoryview(mmap.mmap(-1, (1 + 3 * size) * NUMBER_BYTES)).cast("Q")
        self._any, self._calls = memory[:1], memory[1 : size + 1]
        self._times, self._open = memory[size + 1 : 2 * size + 1], memory[2 * size + 1 :]  # open: not cleared by `end`
        self._turn = 0
        self._alone = threading.Lock()  # held while a suspect runs in this worker; each worker has its own copy

    def blame(self, calls: Iterable[int]) -> None:
        """Suspect the calls that were running when a worker died. Only the supervisor calls this method.

        A new suspect gets the count 1, and the count of a cleared suspect is raised by 1. Among calls that were already
        suspects, only the calls with the highest count are counted again, because they probably killed the worker.
        """
        times = {call: self.times(call) if self._is_open(call) else 0 for call in calls}
        for call, before in times.items():
            if before in {0, max(times.values())}:
                times_now = self.times(call) + 1  # not `before`, which is 0 for a cleared suspect
                slot = self._slot(call)
                self._calls[slot], self._times[slot], self._open[slot] = call, times_now, 1
                self._any[0] = 1

    def times(self, call: int) -> int:
        """Return how many workers a call is suspected to have killed."""
        if not self._any[0]:
            return 0
        calls = self._calls.tolist()
        return self._times[calls.index(call)] if call in calls else 0

    def begin(self, call: int, seconds: float) -> bool:
        """Wait until no other suspect runs in this worker. Return True if the call is now the only running suspect.

        Return False if the wait takes longer than `seconds`, or at once if the call is no suspect any more. The caller
        then runs the call nevertheless. After the call, it passes the result to `end`.
        """
        return self._is_open(call) and self._alone.acquire(timeout=seconds)

    def end(self, call: int, *, alone: bool, forget: bool) -> None:
        """Clear a suspect that has completed without killing its worker, so that it needn't run alone again.

        Args:
            call: The suspect.
            alone: The result of `begin`: whether this call holds the lock that lets one suspect run at a time.
            forget: Whether to reset the suspect's count. If the count stays, the call is refused at the count `LIMIT`.
        """
        if alone:
            self._alone.release()
        calls = self._calls.tolist()
        if call in calls:
            slot = calls.index(call)
            self._open[slot] = 0
            if forget:
                self._times[slot] = 0

    def _is_open(self, call: int) -> bool:
        calls = self._calls.tolist()
        return call in calls and bool(self._open[calls.index(call)])

    def _slot(self, call: int) -> int:
        """Return the slot of a suspect. For a new suspect, choose a slot with the lowest count; a free slot's is 0.

        The search starts after the slot where the last search started, so that new suspects don't always replace the
        same suspect.
        """
        calls, times = self._calls.tolist(), self._times.tolist()
        if call in calls:
            return calls.index(call)
        self._turn = (self._turn + 1) % MAX_SUSPECTS
        slots = [*range(self._turn, MAX_SUSPECTS), *range(self._turn)]
        slot: int = min(slots, key=times.__getitem__)
        return slot
