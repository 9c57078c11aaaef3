"""A function as its toolpack has registered it.

It never changes; in a session that calls it otherwise, a copy has the other name.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class PackFunction:
    """A function as its toolpack registered it."""

    function: Any  # the ready `Function`: ours, or any object with the same fields
    toolpack: str
    read_only: bool = False  # it promises to leave the environment unchanged
    timeout_seconds: float | None = None  # its own deadline in seconds; None means the server's default
    registered_name: str = ""  # the name with which it was registered; in a session it may be called otherwise

    def __post_init__(self) -> None:
        if not self.registered_name:
            object.__setattr__(self, "registered_name", self.function.name)

    @property
    def name(self) -> str:
        name: str = self.function.name
        return name

    def renamed(self, name: str) -> "PackFunction":
        if name == self.name:
            return self
        function = copy.copy(self.function)
        function.name = name
        return replace(self, function=function, registered_name=self.registered_name)


def is_offered(function: PackFunction, offered: frozenset[str]) -> bool:
    """Whether a function is among these names, with or without its toolpack's."""
    registered = function.registered_name
    return not offered.isdisjoint({function.name, registered, f"{function.toolpack}.{registered}"})
