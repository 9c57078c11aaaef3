"""Hooks for features that take part in creating, listing and watching sessions.

Features change a request one after the other, in loading order, before the session is built. The server stores the data
of features with the session, but doesn't interpret it. `sessions/operation.py` has the hook for operations.
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
            with data of a name that no feature declares. A newer server, or a feature that is missing now, created such
            data.
    """

    option_names: ClassVar[frozenset[str]]

    def concerns(self, request: SessionRequest) -> bool:
        """Return whether the request concerns the feature."""
        raise NotImplementedError

    def runs_code(self, request: SessionRequest) -> bool:  # noqa: ARG002 - a subclass uses it
        """Return whether the other methods may run a toolpack's code, or take long, for this request.

        If not, the server may call `prepare`, `feature_options` and `details` on the event loop.
        """
        return True

    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Return the request with the feature's changes."""
        return request

    def feature_options(self, request: SessionRequest) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Return the feature's data, by name, for the session's recipe. Forks and replays get the same data."""
        return {}

    def check_feature_options(self, feature_options: Mapping[str, Any], toolpacks: Sequence[str]) -> None:
        """Check the recipe data of a session that is imported from a bundle.

        Args:
            feature_options: The data of all features, by name.
            toolpacks: Names of the session's toolpacks, which are loaded.
        """

    def details(self, request: SessionRequest) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Return the feature's data, by name, for this session only. Forks have their own details."""
        return {}

    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Return the details of a fork. The server calls this method for every fork, and it may block.

        Args:
            request: The request.
            parent: The session that is forked.
            head: Head of the parent, but its last record is the last record that the fork may inherit.
            version: The version that is forked.
        """
        del request, parent, head, version
        return {}

    def conditions(self, details: Mapping[str, Any]) -> ExecutionPolicy | None:
        """Return the execution policy for building the environments of a session with these details, or None."""


class SessionHook:
    """Base class of hooks that concern only some sessions, such as `OperationHook`."""

    def concerns(self, session: StoredSession) -> bool:
        """Return whether the hook concerns a session."""
        raise NotImplementedError


class SessionFilter:
    """Filter for lists of sessions, by parameters that the feature has added to the request."""

    def predicate(self, request: Parameters) -> Callable[[StoredSession], bool] | None:
        """Return a function that returns whether to list a session. It may block.

        Return None if the request doesn't use this filter.
        """
        raise NotImplementedError


class Watcher:
    """Observer of events in a worker's sessions. A subclass overrides the methods that it needs.

    The methods run on the event loop. They get only the session's id, so a watcher has to read the change.
    """

    def changed(self, session_id: str) -> None:
        """Handle a session that may have a new record of another kind than a call, or that was closed or expired."""

    def draining(self) -> None:
        """End everything that waits for an event, because this worker is about to stop."""
