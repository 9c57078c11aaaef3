"""Signals between two modules of the server; `server.errors` shows the whole tree."""

from typing import Any

from server.errors.base import ToolpackServerError


class InternalSignal(ToolpackServerError):  # noqa: N818 - a signal, not an error
    """Passes between two modules of the server, which handle it; no caller of the server sees it."""


class UnsupportedObjectError(InternalSignal):
    """One object can't be stored in a snapshot; the text says why."""


class PlainObjectError(InternalSignal):
    """A value that is to be shown as JSON holds a plain object, or refers to itself through one."""


class CycleError(InternalSignal):
    """An instance that hashes by value is part of a cycle."""


class CallFailedError(InternalSignal):
    """A call failed that is to be answered with a JSON-RPC error; `outcome` says how."""

    def __init__(self, outcome: Any) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


class McpRefusedError(InternalSignal):
    """A message of MCP is refused, the request with this id; `malformed`: it breaks the protocol."""

    def __init__(self, described: Any, *, malformed: bool = True, request_id: Any = None) -> None:
        super().__init__(described[1])
        self.described, self.malformed, self.request_id = described, malformed, request_id


class HeavyReadError(InternalSignal):
    """A read takes so much of the processor that it must wait for its turn."""


class ExecutorGoneError(InternalSignal):
    """The process at the other end of a channel has ended.

    Attributes:
        unread: It hasn't read what was sent to it last.
    """

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__("The process at the other end has ended.")
        self.unread = unread


class MissingBlobError(InternalSignal, LookupError):
    """A blob that was referred to isn't in the store, or no longer."""


class NotTogetherError(InternalSignal):
    """Some of these commits must be refused, or examined one by one."""


class RowGoneError(InternalSignal, LookupError):
    """A session was deleted between two reads."""
