"""Which functions keep their promise to be read-only, and which of their calls are compared to find that out.

A read-only call isn't frozen. If it changes the environment all the same, the live objects differ from the snapshot:
the next call sees a change that was never committed. Only a comparison of the two finds that.

Comparing costs little. The first calls of each function are compared, then as many as fit into a share of the
time that its calls take and of the time that passes. A setting has all of them compared.
"""

import time
from dataclasses import dataclass

FIRST_CALLS = 3
SHARE = 0.02

Key = tuple[str, str]
"""A toolpack and one of its functions."""


@dataclass(slots=True)
class _Tally:
    """The read-only calls of one function: how many were compared, and the seconds of calling and of comparing."""

    compared: int = 0
    called_seconds: float = 0.0
    compared_seconds: float = 0.0


class Promises:
    """The promises of functions to be read-only."""

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._tallies: dict[Key, _Tally] = {}
        self._broken: set[Key] = set()
        self._began = time.monotonic()
        self._compared_seconds = 0.0

    def is_trusted(self, toolpack: str, function: str) -> bool:
        return (toolpack, function) not in self._broken

    def is_due(self, toolpack: str, function: str) -> bool:
        """Whether the next call of a read-only function is to be compared."""
        if self._always:
            return True
        tally = self._tallies.get((toolpack, function))
        if tally is None or tally.compared < FIRST_CALLS:
            return True
        one = tally.compared_seconds / tally.compared
        if tally.compared_seconds + one > SHARE * tally.called_seconds:
            return False
        # Functions may wait at the same time, but comparing takes the processor.
        return self._compared_seconds + one <= SHARE * (time.monotonic() - self._began)

    def called(self, toolpack: str, function: str, seconds: float, compared_seconds: float | None) -> None:
        """Note a call of a read-only function.

        Threads may call this at the same time: what one of them overwrites makes no difference to the share.
        Of `seconds`, `compared_seconds` were for comparing; None if it wasn't compared.
        """
        tally = self._tallies.get((toolpack, function))
        if tally is None:
            tally = self._tallies.setdefault((toolpack, function), _Tally())
        tally.called_seconds += seconds
        if compared_seconds is not None:
            tally.compared += 1
            tally.compared_seconds += compared_seconds
            self._compared_seconds += compared_seconds

    def break_(self, toolpack: str, function: str) -> bool:
        """Take a function for a changing one from now on; say whether that is new."""
        known = (toolpack, function) in self._broken
        self._broken.add((toolpack, function))
        return not known
