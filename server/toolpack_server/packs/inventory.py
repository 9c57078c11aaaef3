"""Which toolpacks a process has loaded, as it tells another process.

Processes with equal toolpacks here can work on the same sessions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self


class Entry(NamedTuple):
    fingerprint: str
    functions: tuple[str, ...]
    opt_in: bool


@dataclass(frozen=True)
class Inventory:
    """Toolpacks by name, in the order in which they were loaded."""

    toolpacks: Mapping[str, Entry]
    notices: Sequence[str] = ()  # for the operator

    @property
    def functions(self) -> list[tuple[str, str]]:
        """The functions, each with the name of its toolpack."""
        return [(name, function) for name, entry in self.toolpacks.items() for function in entry.functions]

    def difference(self, other: "Inventory") -> str | None:
        """Get the name of a toolpack that isn't the same in both."""
        names = [*self.toolpacks, *other.toolpacks]
        return next((name for name in names if self.toolpacks.get(name) != other.toolpacks.get(name)), None)

    def to_json(self) -> str:
        return json.dumps([self.toolpacks, [*self.notices]])

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        toolpacks, notices = json.loads(text)
        return cls(
            {name: Entry(mark, tuple(functions), opt_in) for name, (mark, functions, opt_in) in toolpacks.items()},
            notices,
        )
