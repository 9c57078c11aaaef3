"""The world that `toolpack-server conform` calls, as a plain class.

The two servers in this folder serve its methods.
"""

import time
from decimal import Decimal


class World:
    def __init__(self):
        self._total, self._note, self._kept = 0, "", ()
        self._first = self._second = []

    def add(self, amount: int) -> int:
        self._total += amount
        return self._total

    def total(self) -> int:
        return self._total

    def _change_everything(self, amount):
        self._total += amount
        self._first.append(amount)
        self._note = f"note of {amount}"

    def add_and_fail(self, amount: int) -> int:
        self._change_everything(amount)
        raise ValueError(f"failed after adding {amount}")

    def add_and_wait(self, amount: int, seconds: float) -> int:
        self._change_everything(amount)
        time.sleep(seconds)
        return self._total

    def append(self, number: int) -> None:
        self._first.append(number)

    def second(self) -> list[int]:
        return self._second

    def write_note(self, text: str) -> None:
        self._note = text

    def read_note(self) -> str:
        return self._note

    def keep_types(self) -> None:
        self._kept = ((1, 2), {3}, Decimal("1.10"), b"four")

    def kept_types(self) -> list[str]:
        return [repr(value) for value in self._kept]

    def repeat(self, text: str, times: int) -> str:
        return text * times


FUNCTIONS = [name for name in vars(World) if not name.startswith("_")]
