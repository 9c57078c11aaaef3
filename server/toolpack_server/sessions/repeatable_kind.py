"""Base class of record kinds that a replay repeats as an operation instead of copying the record.

An operation checks its input; a copied record isn't checked. Calls and resets don't need this class, because a replay
repeats them itself.
"""

from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.record_kinds import RecordKind, Shown


class RepeatableKind(RecordKind):
    """A kind of record that a replay repeats."""

    def repeat(
        self, context: SessionContext, session_id: str, owner: str, shown: Shown, call_id: str | None
    ) -> SessionOperation:
        """Return the operation that creates such a record, as the record's JSON-RPC method does."""
        raise NotImplementedError
