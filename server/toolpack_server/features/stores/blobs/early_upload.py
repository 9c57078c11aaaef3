"""Hook that uploads large blobs before their commit, in the thread of the call that created them.

One transaction commits many calls, so the transaction shouldn't wait for the object store.
"""

from toolpack_server.engine.state import Effect
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.stores.base import StoredSession


class UploadBeforeCommit(OperationHook):
    """Hook for all sessions of a store that keeps large blobs outside."""

    def __init__(self, context: SessionContext) -> None:
        self._upload = getattr(context.store, "upload_before_commit", None)

    def concerns(self, session: StoredSession) -> bool:  # noqa: ARG002 - all sessions or none
        return self._upload is not None

    def after(self, operation: SessionOperation, state: object, change: Effect) -> None:  # noqa: ARG002
        if change.new_blobs and self._upload is not None:
            self._upload(change.new_blobs)
