"""The plan of a call: what is known of it before it runs.

A plan is made once per call, and all code that runs or stores the call uses that plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolpack_server.execution.conditions import ExecutionPolicy
from toolpack_server.execution.nested import NestedCall
from toolpack_server.functions.steps import Steps

Footprint = Mapping[str, frozenset[str] | None]
"""For each toolpack, the attributes of its environment that a call uses; None means unknown."""


def uncompared() -> None:
    """Take no notice of that comparing begins."""


class SessionFunctions(Protocol):
    """The functions of a session, of which one is called."""

    functions: dict[str, Any]  # by what they are called in the session
    offered: frozenset[str] | None  # the names of those that there are; None: all
    distrusted: tuple[str, ...]  # those that have broken their promise to be read-only

    def plan(self, name: str, kwargs: Mapping[str, Any], timeout_seconds: float | None = None) -> "Plan":
        """Make the plan of a call."""

    def steps(self, env: Any, name: str, kwargs: Mapping[str, Any]) -> Steps[Any]:
        """Run a function on the environments of a `World`."""

    def registered_as(self, name: str) -> tuple[str, str]:
        """Get the toolpack that a function belongs to, and its name there."""


@dataclass(slots=True)
class Plan:
    """What is known of a call before it runs."""

    runtime: SessionFunctions
    function: str
    arguments: Mapping[str, Any]  # its arguments, with a `FunctionCall` for each nested call
    toolpack: str  # the toolpack of the function; "" if there is no such function
    registered_name: str  # the function's name in the toolpack; in the session it may be called otherwise
    footprint: Footprint  # the attributes of each toolpack's environment that the call and its nested calls use
    content: bool  # its result is a list of MCP's content blocks
    read_only: bool  # the call and its nested calls promise to leave the environments unchanged
    timeout_seconds: float
    own_timeout_seconds: float  # the function's own deadline, or the default
    trusted: frozenset[str]  # the functions of the session that count as read-only
    compares: bool = False  # whether to compare what its read-only functions leave behind with what they were given
    comparing: Callable[[], None] = uncompared  # called when comparing begins, which its deadline doesn't count
    tracebacks: bool = False  # whether the outcome of a function that raised is to have its traceback
    conditions: ExecutionPolicy | None = None  # under which it runs; None if a feature sets none
    nested: Sequence[NestedCall] = ()  # its nested calls, in the order in which they run

    def read_only_functions(self) -> set[tuple[str, str]]:
        """Return the toolpack of each function of the call that is declared read-only, and its name there."""
        names = {self.function, *(call.function for call in self.nested)}
        return {self.runtime.registered_as(name) for name in names & self.trusted}
