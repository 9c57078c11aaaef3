"""Plan of a call: everything that the server determines before the call runs.

A plan is created once for each call. All code that runs or stores the call uses this plan, so that two steps can't
decide differently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolpack_server.execution.nested import NestedCall
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.functions.steps import Steps

Footprint = Mapping[str, frozenset[str] | None]
"""For each toolpack, the attributes of its environment that a call uses. None: the attributes are unknown."""


def uncompared() -> None:
    """Do nothing. The default of `Plan.comparing`."""


class SessionFunctions(Protocol):
    """The functions of a session, as plans and calls use them."""

    functions: dict[str, Any]  # by name in the session
    offered: frozenset[str] | None  # the names of the functions that the session offers; None: all functions
    distrusted: tuple[str, ...]  # the functions that are declared read-only but were caught changing an environment

    def plan(self, name: str, kwargs: Mapping[str, Any], timeout_seconds: float | None = None) -> "Plan":
        """Create the plan of a call."""

    def steps(self, env: Any, name: str, kwargs: Mapping[str, Any]) -> Steps[Any]:
        """Run a function on the environments of a `World`."""

    def registered_as(self, name: str) -> tuple[str, str]:
        """Return the toolpack of a function, and the function's name in the toolpack."""


@dataclass(slots=True)
class Plan:
    """The plan of a call: its function and arguments, and the rules for running them."""

    runtime: SessionFunctions
    function: str
    arguments: Mapping[str, Any]  # with a `FunctionCall` in place of each nested call
    toolpack: str  # the toolpack of the function; "" if there is no such function
    registered_name: str  # the function's name in the toolpack, which can differ from its name in the session
    footprint: Footprint  # the attributes used by the call and its nested calls
    content: bool  # the result is a list of MCP content blocks
    read_only: bool  # the functions of the call and of its nested calls all count as read-only
    timeout_seconds: float
    own_timeout_seconds: float  # the function's own timeout, or the default
    trusted: frozenset[str]  # the functions of the session that count as read-only
    compares: bool = False  # check that the read-only functions leave the environments unchanged
    comparing: Callable[[], None] = uncompared  # called when the check starts: its time doesn't count for the deadline
    tracebacks: bool = False  # if the function raises, include the traceback in the outcome
    policy: ExecutionPolicy | None = None  # None: no feature has set one
    nested: Sequence[NestedCall] = ()  # the nested calls, in order

    def read_only_functions(self) -> set[tuple[str, str]]:
        """Return the toolpack and registered name of each read-only function of the call."""
        names = {self.function, *(call.function for call in self.nested)}
        return {self.runtime.registered_as(name) for name in names & self.trusted}
