"""Hooks for features that take part in creating, listing and watching sessions.

`sessions/operation.py` has the hook for operations. A feature changes a request before the session is built. Features
change a request one after the other, in loading order. The core stores the data of features but doesn't interpret it.
A hook that doesn't concern a request costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.protocol.parameters import ForkRequest, Parameters, SessionRequest
from toolpack_server.stores.base import Head, StoredSession


class CreationHook:
    """Hook for requests that create sessions. It handles the parameters that the feature has added.

    The methods raise `InvalidParamsError` to refuse a request.

    Attributes:
        option_names: Names of all data that the feature stores in recipes and details. The server refuses a session
            that has data with an unknown name: a newer version of the server, or a missing feature, created it.
    """

    option_names: ClassVar[frozenset[str]]

    def concerns(self, request: SessionRequest) -> bool:
        """Return whether the request concerns the feature."""
        raise NotImplementedError

    def runs_code(self, request: SessionRequest) -> bool:  # noqa: ARG002 - a subclass uses it
        """Return whether the other methods may run a toolpack's code, or take long, for this request.

        If not, `prepare`, `feature_options` and `details` may be called on the event loop.
        """
        return True

    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Return the request with the feature's changes."""
        return request

    def feature_options(self, request: SessionRequest) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Return the parameters to store in the session's recipe, so that the session can be created again."""
        return {}

    def check_feature_options(self, feature_options: Mapping[str, Any], toolpacks: Sequence[str]) -> None:
        """Check the recipe data of a bundle's session. The toolpacks are loaded."""

    def details(self, request: SessionRequest) -> Mapping[str, Any]:  # noqa: ARG002 - likewise
        """Return the data to store in this session only. Forks have their own details."""
        return {}

    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Return the details of a fork. It is called for every fork, independently of `concerns`, and may block.

        Args:
            head: Head of the parent. Its last record is the last one that may be on the fork's path.
            version: The version that is forked.
        """
        del request, parent, head, version
        return {}

    def conditions(self, details: Mapping[str, Any]) -> ExecutionPolicy | None:
        """Return the execution policy for building the environments of a session with these details."""


class SessionHook:
    """Base class of hooks that concern only some sessions, such as `OperationHook`."""

    def concerns(self, session: StoredSession) -> bool:
        """Return whether the hook concerns a session."""
        raise NotImplementedError


class SessionFilter:
    """Filter for lists of sessions. It uses the parameters that its feature has added to the request."""

    def predicate(self, request: Parameters) -> Callable[[StoredSession], bool] | None:
        """Return a function that tells whether to list a session, or None if the request doesn't use this filter.

        The function may block.
        """
        raise NotImplementedError


class Watcher:
    """Observer of events in a worker's sessions. A subclass overrides the methods that it needs.

    The methods run on the event loop. They get only the session's id; the watcher reads what changed.
    """

    def changed(self, session_id: str) -> None:
        """Handle a session that may have a new record other than a call's, or that has ended."""

    def draining(self) -> None:
        """End everything that waits for an event, because this worker is about to stop."""
