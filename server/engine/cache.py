"""A bounded cache of the states of the sessions that were used last.

The rule: only the cache is shared, not the states in it. It changes under the lock of the threads.
"""

from collections import OrderedDict

from server.engine.state import SessionState


class SessionCache:
    """The states of the sessions that were used last, as many as fit.

    Args:
        max_bytes: How much memory they may take, as estimated.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._states: OrderedDict[str, tuple[SessionState, int]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._states)

    def get(self, session_id: str) -> SessionState | None:
        """Get the state of a session, if it is here."""
        found = self._states.get(session_id)
        return found[0] if found else None

    def put(self, state: SessionState) -> None:
        """Keep a state as the one used last, and discard those used longest ago that no longer fit."""
        self.discard(state.session.id)
        size = state.size()
        self._states[state.session.id] = state, size
        self.size += size
        while self.size > self._max_bytes and self._states:
            _, (_, discarded) = self._states.popitem(last=False)
            self.size -= discarded

    def discard(self, session_id: str) -> None:
        """Forget a session."""
        found = self._states.pop(session_id, None)
        if found:
            self.size -= found[1]
