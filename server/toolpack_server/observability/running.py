"""List of the calls that each worker is running. If a worker dies unexpectedly, the supervisor logs its calls.

The list is in memory that a worker shares with its supervisor, so the supervisor can read it after the worker was
killed. Recording a call needs no lock and no system call.
"""

import mmap
from collections.abc import Iterable, Sequence
from typing import Self

from toolpack_server.observability.suspects import Suspects

SLOTS = 512  # max recorded calls of a worker; further calls run without being recorded
NUMBER_BYTES = 8


class RunningFunctions:
    """The functions that the workers are running. Each worker owns a row of slots, and each running call fills a slot.

    Args:
        functions: The toolpack and the name of each function.
        rows: The max number of workers.

    Attributes:
        suspects: The calls that were running when a worker died.
    """

    def __init__(self, functions: Iterable[tuple[str, str]] = (), rows: int = 1) -> None:
        self._names: Sequence[tuple[str, str]] = [("", ""), *functions]
        self._numbers = {name: number for number, name in enumerate(self._names) if number}
        self.suspects = Suspects()
        # The first half of a row contains the numbers of functions, the second half the numbers of their calls.
        memory = memoryview(mmap.mmap(-1, rows * 2 * SLOTS * NUMBER_BYTES)).cast("Q")
        self._rows = [memory[start : start + 2 * SLOTS] for start in range(0, len(memory), 2 * SLOTS)]
        self.of_row(0)

    def of_row(self, number: int) -> Self:
        """Select the row for this worker's process, and return `self`.

        The row is cleared, because it can contain the calls of an earlier worker that died.
        """
        self._row = self._rows[number]
        self._row[:] = memoryview(bytes(2 * SLOTS * NUMBER_BYTES)).cast("Q")
        self._free: list[int] = [*range(SLOTS)]
        return self

    def begin(self, toolpack: str, function: str, call: int) -> int:
        """Record that a function starts, in the call with the number `call`.

        Return the slot, which must be passed to `end`. If no slot is free, the call isn't recorded, and the result is
        -1.
        """
        try:
            slot: int = self._free.pop()
        except IndexError:
            return -1
        self._row[slot] = self._numbers.get((toolpack, function), 0)
        self._row[SLOTS + slot] = call
        return slot

    def end(self, slot: int) -> None:
        """Record that the function in this slot has ended."""
        if slot >= 0:
            self._row[slot] = self._row[SLOTS + slot] = 0
            self._free.append(slot)

    def names(self, row: int) -> list[str]:
        """Return the functions that a worker is running, or was running when it died, as sorted `toolpack.function`."""
        # A function of native code might have overwritten the memory, so unknown numbers are ignored.
        numbers = {number for number in self._rows[row][:SLOTS] if number < len(self._names)} - {0}
        return sorted(".".join(self._names[number]) for number in numbers)

    def worker_ended(self, row: int) -> None:
        """Mark the calls that a worker was running when it died as suspects. Only the supervisor calls this method."""
        self.suspects.blame({*self._rows[row][SLOTS:]} - {0})
