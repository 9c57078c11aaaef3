"""Kinds of records that a replay makes anew by an operation, instead of a copy of the record.

A copy may say anything; an operation checks what it is given. A replay itself repeats calls and resets.
"""

from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.record_kinds import RecordKind, Shown


class RepeatableKind(RecordKind):
    """A kind of record that a replay repeats."""

    def repeat(
        self, context: SessionContext, session_id: str, owner: str, shown: Shown, call_id: str | None
    ) -> SessionOperation:
        """Return the operation that makes such a record, as its method does."""
        raise NotImplementedError
