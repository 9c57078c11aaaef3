"""Which calls are running, so that the supervisor can say what a worker was running when it ended.

The numbers are in memory that a worker shares with its supervisor, because a process that is killed says nothing any
more. Noting a call takes no lock and no system call, and has no effect on it.
"""

import mmap
from collections.abc import Iterable, Sequence
from typing import Self

from toolpack_server.observability.suspects import Suspects

SLOTS = 512  # more calls than that may run, but aren't noted
NUMBER_BYTES = 8


class RunningFunctions:
    """The functions, each with the name of its toolpack, that the workers are running; a row for each worker.

    Attributes:
        suspects: The calls that were running when a worker ended.
    """

    def __init__(self, functions: Iterable[tuple[str, str]] = (), rows: int = 1) -> None:
        self._names: Sequence[tuple[str, str]] = [("", ""), *functions]
        self._numbers = {name: number for number, name in enumerate(self._names) if number}
        self.suspects = Suspects()
        # In each row the functions, by their numbers, and then the calls.
        memory = memoryview(mmap.mmap(-1, rows * 2 * SLOTS * NUMBER_BYTES)).cast("Q")
        self._rows = [memory[start : start + 2 * SLOTS] for start in range(0, len(memory), 2 * SLOTS)]
        self.of_row(0)

    def of_row(self, number: int) -> Self:
        """Write to another row from now on; for the process of one worker, when it starts."""
        self._row = self._rows[number]
        self._row[:] = memoryview(bytes(2 * SLOTS * NUMBER_BYTES)).cast("Q")
        self._free: list[int] = [*range(SLOTS)]
        return self

    def begin(self, toolpack: str, function: str, call: int) -> int:
        """Note that a function starts, in a call known by this number; get the slot to give back when it has ended."""
        try:
            slot: int = self._free.pop()
        except IndexError:
            return -1
        self._row[slot] = self._numbers.get((toolpack, function), 0)
        self._row[SLOTS + slot] = call
        return slot

    def end(self, slot: int) -> None:
        if slot >= 0:
            self._row[slot] = self._row[SLOTS + slot] = 0
            self._free.append(slot)

    def names(self, row: int) -> list[str]:
        """Get the functions that a worker is running, or was when it ended: `toolpack.function`, sorted."""
        numbers = {number for number in self._rows[row][:SLOTS] if number < len(self._names)} - {0}
        return sorted(".".join(self._names[number]) for number in numbers)

    def worker_ended(self, row: int) -> None:
        """Suspect the calls that a worker was running when it ended."""
        self.suspects.blame({*self._rows[row][SLOTS:]} - {0})
