"""Findings of checks.

A finding is printed as one sentence: the location, the fault, and how to fix the fault. A *problem* is certainly a
fault. A *note* points to code that might be intentional.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or a note."""

    location: str  # file, line and function
    what: str  # the fault; two findings on one function with the same `what` are duplicates
    advice: str = ""  # how to fix the fault; "" if `what` already says so
    called: str = ""  # when the fault occurs, such as the arguments of the call
    is_problem: bool = False  # whether this is a problem; otherwise it is a note
    details: str = ""  # further lines, such as a traceback
    subject: str = ""  # the shared variable or process state that the function changes, to recognize duplicates
    function: str = ""  # the name of the function

    def __str__(self) -> str:
        advice = f": {self.advice}" if self.advice else ""
        lines = "".join(f"\n    {line}" for line in self.details.splitlines())
        return f"{self.location}: {self.what}{self.called}{advice}{lines}"


class CheckedFunction(NamedTuple):
    """A function to check, by the name of its toolpack, its own name, and the location of its definition."""

    toolpack: str
    name: str
    location: str
