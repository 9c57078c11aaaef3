"""Registered function of a toolpack.

A registered function never changes. A session that renames the function uses a copy with the new name.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class PackFunction:
    """A function, its toolpack, and the options of its registration.

    Attributes:
        function: The ready `Function`: the server's own, or any object with the same fields.
        toolpack: The name of its toolpack.
        read_only: Whether the author declares that the function doesn't change the environment.
        timeout_seconds: Its deadline in seconds. None: the server's default.
        registered_name: Its name in the toolpack. In a session, `name` can differ, for example by a prefix.
    """

    function: Any
    toolpack: str
    read_only: bool = False
    timeout_seconds: float | None = None
    registered_name: str = ""

    def __post_init__(self) -> None:
        if not self.registered_name:
            object.__setattr__(self, "registered_name", self.function.name)

    @property
    def name(self) -> str:
        name: str = self.function.name
        return name

    def renamed(self, name: str) -> "PackFunction":
        """Return this function under another name."""
        if name == self.name:
            return self
        function = copy.copy(self.function)
        function.name = name
        return replace(self, function=function, registered_name=self.registered_name)


def is_offered(function: PackFunction, offered: frozenset[str]) -> bool:
    """Return whether a set of names contains this function's name, with or without its toolpack's name."""
    registered = function.registered_name
    return not offered.isdisjoint({function.name, registered, f"{function.toolpack}.{registered}"})
