"""Calls that were running when a worker ended, and how often that has happened to each.

A call that ends its process is sent again by its client, and would end one worker after the other. Nobody can tell
which of a worker's calls has ended it, so each of them is a suspect until it has been run to its end.

The supervisor alone adds suspects, in memory that it shares with its workers; they last as long as it does,
and so does the code that the workers run. A worker runs its suspects one at a time, so that soon only the one to blame
is left. All other calls go on beside them. Whoever runs a call says whether its end without harm says anything of the
next one that has the same number: of calls that an agent may vary at will it doesn't, and their number stays.
"""

import mmap
import threading
from collections.abc import Iterable

LIMIT = 3  # a call that has ended its worker so often isn't run again
MOST = 256  # suspects; a further one takes the place of one that has been suspected least often
NUMBER_BYTES = 8


class Suspects:
    """The suspects of a server; each call is known by a number other than 0."""

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, (1 + 3 * MOST) * NUMBER_BYTES)).cast("Q")
        self._any, self._calls = memory[:1], memory[1 : MOST + 1]
        self._times, self._open = memory[MOST + 1 : 2 * MOST + 1], memory[2 * MOST + 1 :]  # open: not cleared since
        self._turn = 0
        self._alone = threading.Lock()

    def blame(self, calls: Iterable[int]) -> None:
        """Suspect the calls that were running in a worker when it ended; for the supervisor.

        Of those that had been suspected before, only the worst are suspected again: they are more likely to blame.
        """
        times = {call: self.times(call) if self._is_open(call) else 0 for call in calls}
        for call, before in times.items():
            if before in {0, max(times.values())}:
                ended = self.times(call) + 1
                place = self._place(call)
                self._calls[place], self._times[place], self._open[place] = call, ended, 1
                self._any[0] = 1

    def times(self, call: int) -> int:
        """Get how often a call is suspected to have ended its worker."""
        if not self._any[0]:
            return 0
        calls = self._calls.tolist()
        return self._times[calls.index(call)] if call in calls else 0

    def begin(self, call: int, seconds: float) -> bool:
        """Wait, unless it was cleared, until no other suspect runs in this worker; say if it runs alone.

        Args:
            call: A suspect.
            seconds: How long to wait at most.
        """
        return self._is_open(call) and self._alone.acquire(timeout=seconds)

    def end(self, call: int, *, alone: bool, forget: bool) -> None:
        """Clear a suspect that has run without ending its worker; `forget` also how often others had."""
        if alone:
            self._alone.release()
        calls = self._calls.tolist()
        if call in calls:
            place = calls.index(call)
            self._open[place] = 0
            if forget:
                self._times[place] = 0

    def _is_open(self, call: int) -> bool:
        calls = self._calls.tolist()
        return call in calls and bool(self._open[calls.index(call)])

    def _place(self, call: int) -> int:
        calls, times = self._calls.tolist(), self._times.tolist()
        if call in calls:
            return calls.index(call)
        self._turn = (self._turn + 1) % MOST
        places = [*range(self._turn, MOST), *range(self._turn)]
        place: int = min(places, key=times.__getitem__)
        return place
