"""What features have to do with sessions besides their operations (`OperationHook`): new ones, lists, what happens.

A feature changes what is asked for before anything is built; the core doesn't look at what it keeps. Features
change a request one after the other, in the order of their parameters. What a request doesn't ask for costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from toolpack_server.execution.conditions import ExecutionPolicy
from toolpack_server.protocol.parameters import ForkRequest, Parameters, SessionRequest
from toolpack_server.stores.base import Head, StoredSession


class CreationHook:
    """What one feature makes of requests for sessions, by the parameters that it has added to them.

    What it can't do it refuses with an `InvalidParamsError`.

    Attributes:
        keeps: The names of all that it keeps with recipes and details. A session that keeps something of another name
            was made by a newer version of the server, or with a feature that isn't there, and isn't used.
    """

    keeps: ClassVar[frozenset[str]]

    def concerns(self, request: SessionRequest) -> bool:
        """Whether the request has anything for it."""
        raise NotImplementedError

    def runs_code(self, request: SessionRequest) -> bool:  # noqa: ARG002 - a subclass uses it
        """Whether `prepare`, `kept` and `details` may run a toolpack's code for this request, or take long.

        Otherwise they may be called on the event loop.
        """
        return True

    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Get the request as the feature changes it."""
        return request

    def kept(self, request: SessionRequest) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass uses it
        """Get the parameters that are kept with the session's recipe, to begin such a session again."""
        return {}

    def check_kept(self, kept: Mapping[str, Any], toolpacks: Sequence[str]) -> None:
        """Check what a bundle says that its session keeps with the recipe; the toolpacks are loaded."""

    def details(self, request: SessionRequest) -> Mapping[str, Any]:  # noqa: ARG002 - likewise
        """Get what is kept with this session alone; its forks have details of their own."""
        return {}

    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Get what is kept with a fork of a version; asked for each fork, whatever `concerns` says. May block.

        The last record of `head` is the last one of the parent's that may be on the fork's path.
        """
        del request, parent, head, version
        return {}

    def conditions(self, details: Mapping[str, Any]) -> ExecutionPolicy | None:
        """Get those under which the environments of a session with these details are built; None if there are none."""


class SessionHook:
    """What one feature does with some sessions; `OperationHook` derives from it."""

    def concerns(self, session: StoredSession) -> bool:
        """Whether it has to do with a session at all."""
        raise NotImplementedError


class SessionFilter:
    """Leaves sessions out of lists, by the parameters that its feature has added to the request."""

    def predicate(self, request: Parameters) -> Callable[[StoredSession], bool] | None:
        """Get what says whether a session is wanted, which may block; None if the request asks for nothing of it."""
        raise NotImplementedError


class Watcher:
    """Is told on the event loop what has happened in a worker's sessions; a subclass overrides what it needs.

    It looks itself at what it is about.
    """

    def changed(self, session_id: str) -> None:
        """A record that isn't a call's may have been made in a session, or it has ended."""

    def draining(self) -> None:
        """This worker is about to stop: whatever waits for something to happen should end."""
