"""What a check has found.

One sentence says where it is, what it is and how to fix it. A problem is certainly wrong; a note may be
intentional.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a check has found."""

    place: str  # file, line and function
    what: str  # another finding of the same function that says this isn't a new one
    advice: str = ""  # "" if `what` says it
    called: str = ""  # how it was found, such as with which arguments
    is_problem: bool = False  # it is wrong for certain
    details: str = ""
    subject: str = ""  # what all sessions share: the variable, or the part of the process's state
    function: str = ""

    def __str__(self) -> str:
        advice = f": {self.advice}" if self.advice else ""
        lines = "".join(f"\n    {line}" for line in self.details.splitlines())
        return f"{self.place}: {self.what}{self.called}{advice}{lines}"


class TrialOutcome(NamedTuple):
    """A function to look at, by the name of its toolpack and its own, and the place of its definition."""

    toolpack: str
    name: str
    place: str
