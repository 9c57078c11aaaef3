"""Hooks for features that take part in creating, listing and watching sessions.

Before a session is built, the features change its request one after the other, in loading order. The server stores the
features' data with the session, but doesn't interpret it. The hook for operations is in `sessions/operation.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.protocol.parameters import ForkRequest, Parameters, SessionRequest
from toolpack_server.stores.base import Head, StoredSession


class CreationHook:
    """Hook for requests that create sessions. It handles the parameters that the feature has added to these requests.

    The methods raise `InvalidParamsError` to refuse a request.

    Attributes:
        option_names: Names of all data that the feature stores in recipes and details. The server refuses a session
            that contains data with an undeclared name, because a newer server or a missing feature created that data.
    """

    option_names: ClassVar[frozenset[str]]

    def concerns(self, request: SessionRequest) -> bool:
        """Return whether the request uses the feature."""
        raise NotImplementedError

    def runs_code(self, request: SessionRequest) -> bool:  # noqa: ARG002 - a subclass uses it
        """Return whether the other methods might run a toolpack's code, or take long, for this request.

        If this method returns False, the server can call `prepare`, `feature_options` and `details` on the event loop.
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
        """Return the feature's data, by name, that belongs to this session only. Forks have their own details."""
        return {}

    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Return the details of a fork. The server calls this method for every fork. The method is allowed to block.

        Args:
            request: The request.
            parent: The session that is forked.
            head: Head of the parent. Its last record is replaced by the last record that the fork can inherit.
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
        """Return a function that decides whether to list a session. That function is allowed to block.

        Return None if the request doesn't use this filter.
        """
        raise NotImplementedError


class Watcher:
    """Observer of events in a worker's sessions. A subclass overrides the methods that it needs.

    The methods run on the event loop. They get only the session's id, so a watcher must read the change from the store.
    """

    def changed(self, session_id: str) -> None:
        """Handle a session that was closed or expired, or that might have a new record other than a call."""

    def draining(self) -> None:
        """End all waits for events, because this worker is about to stop."""
