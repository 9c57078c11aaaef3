"""Base class of record kinds that a replay repeats as an operation instead of copying the record.

A copied record isn't checked, but an operation checks its input. Calls and resets don't need this class, because the
replay has its own code for them.
"""

from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.record_kinds import RecordKind, Shown


class RepeatableKind(RecordKind):
    """Base class for a kind of record that a replay repeats as an operation."""

    def repeat(
        self, context: SessionContext, session_id: str, owner: str, shown: Shown, call_id: str | None
    ) -> SessionOperation:
        """Return the operation that creates the record again, just as the kind's JSON-RPC method would.

        Args:
            context: The shared services.
            session_id: The session of the replay.
            owner: Its owner.
            shown: The fields of the recorded record.
            call_id: Idempotency key of the operation, or None.
        """
        raise NotImplementedError
