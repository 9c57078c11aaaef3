"""Findings of checks.

A finding is one sentence: the location, the fault, and how to fix it. A problem is certainly a fault; a note may be
intentional.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or a note."""

    location: str  # file, line and function
    what: str  # the fault; two findings of a function with the same text are duplicates
    advice: str = ""  # how to fix it, unless `what` says that
    called: str = ""  # the circumstances, such as the arguments of the call
    is_problem: bool = False  # otherwise a note
    details: str = ""  # further lines
    subject: str = ""  # the variable, or the part of the process's state, that all sessions share
    function: str = ""

    def __str__(self) -> str:
        advice = f": {self.advice}" if self.advice else ""
        lines = "".join(f"\n    {line}" for line in self.details.splitlines())
        return f"{self.location}: {self.what}{self.called}{advice}{lines}"


class TrialOutcome(NamedTuple):
    """A function to check: the name of its toolpack, its own name, and the location of its definition."""

    toolpack: str
    name: str
    location: str
