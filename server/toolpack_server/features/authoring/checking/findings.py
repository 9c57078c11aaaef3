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
    what: str  # the fault; findings of one function with equal texts are duplicates
    advice: str = ""  # how to fix the fault, unless `what` says that
    called: str = ""  # when the fault occurs, such as the arguments of the call
    is_problem: bool = False  # False: a note
    details: str = ""  # further lines, such as a traceback
    subject: str = ""  # the shared variable or process state that the function changes, to recognize duplicates
    function: str = ""  # the name of the function

    def __str__(self) -> str:
        advice = f": {self.advice}" if self.advice else ""
        lines = "".join(f"\n    {line}" for line in self.details.splitlines())
        return f"{self.location}: {self.what}{self.called}{advice}{lines}"


class CheckedFunction(NamedTuple):
    """A function to check: the names of its toolpack and of the function, and the location of its definition."""

    toolpack: str
    name: str
    location: str
