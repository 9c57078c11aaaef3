"""Inventory of the toolpacks that a process has loaded, in a form that it can send to another process.

A worker compares its inventory with its supervisor's, and an executor's with its own. Only processes that loaded equal
toolpacks can work on the same sessions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self


class Entry(NamedTuple):
    """The properties of a toolpack that two processes compare."""

    fingerprint: str  # digest of its environment classes
    functions: tuple[str, ...]
    opt_in: bool


@dataclass(frozen=True)
class Inventory:
    """Toolpacks by name, in the order of loading, and notices for the operator."""

    toolpacks: Mapping[str, Entry]
    notices: Sequence[str] = ()

    @property
    def functions(self) -> list[tuple[str, str]]:
        """The names of all functions, each after the name of its toolpack."""
        return [(name, function) for name, entry in self.toolpacks.items() for function in entry.functions]

    def difference(self, other: "Inventory") -> str | None:
        """Return the name of a toolpack that differs or that one inventory lacks. Return None if all are equal."""
        names = [*self.toolpacks, *other.toolpacks]
        return next((name for name in names if self.toolpacks.get(name) != other.toolpacks.get(name)), None)

    def to_json(self) -> str:
        """Return the inventory as JSON text, for another process."""
        return json.dumps([self.toolpacks, [*self.notices]])

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the inventory for the result of `to_json`."""
        toolpacks, notices = json.loads(text)
        return cls(
            {
                name: Entry(fingerprint, tuple(functions), opt_in)
                for name, (fingerprint, functions, opt_in) in toolpacks.items()
            },
            notices,
        )
