"""Plan of a call: everything that the server determines before the call runs.

A plan is created once for each call. All code that runs or stores the call uses the plan, so no step decides anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolpack_server.execution.nested import NestedCall
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.functions.steps import Steps

Footprint = Mapping[str, frozenset[str] | None]
"""For each toolpack, the attributes of its environment that a call uses; None means unknown."""


def uncompared() -> None:
    """Do nothing. This is the default of `Plan.comparing`."""


class SessionFunctions(Protocol):
    """The functions of a session, as plans and calls use them."""

    functions: dict[str, Any]  # by name in the session
    offered: frozenset[str] | None  # the names of the functions that the session offers; None: all
    distrusted: tuple[str, ...]  # the functions that are declared read-only but changed an environment

    def plan(self, name: str, kwargs: Mapping[str, Any], timeout_seconds: float | None = None) -> "Plan":
        """Create the plan of a call."""

    def steps(self, env: Any, name: str, kwargs: Mapping[str, Any]) -> Steps[Any]:
        """Run a function on the environments of a `World`."""

    def registered_as(self, name: str) -> tuple[str, str]:
        """Return the toolpack of a function, and the function's name in the toolpack."""


@dataclass(slots=True)
class Plan:
    """The plan of a call."""

    runtime: SessionFunctions
    function: str
    arguments: Mapping[str, Any]  # with a `FunctionCall` in place of each nested call
    toolpack: str  # the toolpack of the function; "" if there is no such function
    registered_name: str  # the function's name in the toolpack; its name in the session may differ
    footprint: Footprint  # of the call and its nested calls
    content: bool  # the result is a list of MCP content blocks
    read_only: bool  # the call and its nested calls are declared read-only
    timeout_seconds: float
    own_timeout_seconds: float  # the function's own timeout, or the default
    trusted: frozenset[str]  # the functions of the session that count as read-only
    compares: bool = False  # check that the read-only functions leave the environments unchanged
    comparing: Callable[[], None] = uncompared  # called when the check starts; the deadline excludes its time
    tracebacks: bool = False  # add the traceback to the outcome of a function that raised
    policy: ExecutionPolicy | None = None  # None: no feature has set one
    nested: Sequence[NestedCall] = ()  # the nested calls, in order

    def read_only_functions(self) -> set[tuple[str, str]]:
        """Return the toolpack and registered name of each read-only function of the call."""
        names = {self.function, *(call.function for call in self.nested)}
        return {self.runtime.registered_as(name) for name in names & self.trusted}
