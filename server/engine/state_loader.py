"""Loading the state of a session when an operation's turn has come.

The rule: what is known already is used; the store is asked only for what isn't, and for the session's lease.
"""

from server.engine.cache import SessionCache
from server.engine.jobs import Operation
from server.engine.leases import Leases
from server.engine.session_queue import SessionQueue
from server.engine.state import SessionState
from server.errors import SessionNotFoundError
from server.stores.base import SessionStore


class StateLoader:
    """Loads the states of sessions. It blocks, so it is used in threads only.

    Args:
        store: The store.
        cache: What this worker knows of sessions.
        leases: The leases of sessions.
    """

    def __init__(self, store: SessionStore, cache: SessionCache, leases: Leases) -> None:
        self._store = store
        self._cache = cache
        self._leases = leases

    def load(self, queue: SessionQueue, operation: Operation) -> SessionState | None:
        """Load the state of an operation's session into its queue; None if another worker holds its lease.

        Raises:
            SessionNotFoundError: There is no such session, or it is another owner's.
        """
        state = queue.state
        if state is None or state.invalid:
            state = self._cache.get(operation.session_id)
        if state is None or state.invalid:
            found = self._store.get(operation.session_id)
            if found is None:
                raise SessionNotFoundError
            state = SessionState(*found)
        if operation.owner != state.session.owner:
            raise SessionNotFoundError
        queue.state = state
        if not state.leased:
            self._leases.acquire([state])
            if state.invalid:
                raise SessionNotFoundError
        return state if state.leased else None
