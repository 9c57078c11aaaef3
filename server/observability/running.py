"""Which functions run at this moment, for whoever finds that a worker has ended.

The numbers are in memory that a worker shares with its supervisor, because a process that is killed says nothing any
more. The rule: noting a function takes no lock and no system call, and has no effect on the call.
"""

import mmap
from collections.abc import Iterable, Sequence
from typing import Self

PLACES = 512  # more functions than that may run, but aren't noted
NUMBER_BYTES = 4


class RunningFunctions:
    """The functions that the workers are at.

    Args:
        functions: All functions, each with the name of its toolpack.
        rows: How many workers there can be.
    """

    def __init__(self, functions: Iterable[tuple[str, str]] = (), rows: int = 1) -> None:
        self._names: Sequence[tuple[str, str]] = [("", ""), *functions]
        self._numbers = {name: number for number, name in enumerate(self._names) if number}
        memory = memoryview(mmap.mmap(-1, rows * PLACES * NUMBER_BYTES)).cast("I")
        self._rows = [memory[start : start + PLACES] for start in range(0, len(memory), PLACES)]
        self.of_row(0)

    def of_row(self, number: int) -> Self:
        """Write to another row from now on; for the process of one worker, when it starts."""
        self._row = self._rows[number]
        self._row[:] = memoryview(bytes(PLACES * NUMBER_BYTES)).cast("I")
        self._free: list[int] = [*range(PLACES)]
        return self

    def begin(self, toolpack: str, function: str) -> int:
        """Note that a function starts; get the place to give back when it has ended."""
        try:
            place: int = self._free.pop()
        except IndexError:
            return -1
        self._row[place] = self._numbers.get((toolpack, function), 0)
        return place

    def end(self, place: int) -> None:
        """Note that a function has ended."""
        if place >= 0:
            self._row[place] = 0
            self._free.append(place)

    def names(self, row: int) -> list[str]:
        """Get the functions that a worker is, or was, at: `toolpack.function`, sorted."""
        numbers = {number for number in self._rows[row] if number < len(self._names)} - {0}
        return sorted(".".join(self._names[number]) for number in numbers)
