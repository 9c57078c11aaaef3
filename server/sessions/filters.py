"""Filters of features for lists of sessions.

The rule: a filter that a request doesn't ask for costs nothing.
"""

from collections.abc import Callable

from server.protocol.parameters import Parameters
from server.stores.base import StoredSession


class SessionFilter:
    """Leaves sessions out of lists, by the parameters that its feature has added to the request."""

    def wanted(self, request: Parameters) -> Callable[[StoredSession], bool] | None:
        """Get what says whether a session is wanted, which may block; None if the request asks for nothing of it."""
        raise NotImplementedError
