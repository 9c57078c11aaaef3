"""A method, and who calls it.

The rule: what a method does is said elsewhere; this is what all of them have in common.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from server.rpc.parameters import Params


class Caller(NamedTuple):
    """The authenticated sender of a request.

    Attributes:
        owner: The name of the request's token, or the owner of the agent's session; "" if the server has no tokens.
        session_id: The session of the agent's path to which the request was sent; None for other callers.
    """

    owner: str = ""
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its name, its parameters' class, and the function that answers it."""

    name: str
    params: type[Params]
    answer: Callable[[Caller, Any], Awaitable[Any]]

    @property
    def summary(self) -> str:
        """The method's description: the docstring of its parameters' class."""
        return (self.params.__doc__ or "").strip()


def session_of(caller: Caller, params: Any) -> Any:
    """Get the session that a request is about; an agent's path stands for it."""
    return params.session_id if caller.session_id is None else caller.session_id
