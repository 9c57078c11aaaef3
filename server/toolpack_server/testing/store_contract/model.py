"""Memory store with leases, as if several processes shared it.

The random operations of `comparison` compare other stores with this one. Tests also use it as a simple shared store.
"""

from collections import defaultdict
from dataclasses import replace

from toolpack_server.stores.base import Lease
from toolpack_server.stores.memory import MemoryStore


class SharedMemory(MemoryStore):
    """A memory store with the methods of `SharedStore`."""

    shared = True

    def __init__(self):
        super().__init__()
        self._leases = {}  # session id -> epoch, and holder or None
        self._heartbeats = defaultdict(int)
        self._requests = defaultdict(set)  # holder -> ids of its sessions that other workers ask for

    def _session_head(self, row):
        epoch, holder = self._leases.get(row.session.id, (0, None))
        return replace(super()._session_head(row), epoch=epoch, holder=holder)

    def _commit(self, commit):
        before = self._rows.get(commit.session_id)
        length = len(before.records) if before else 0
        committed = super()._commit(commit)
        if before and commit.release and len(before.records) > length:
            self._leases[commit.session_id] = commit.epoch, None
        return committed

    def _is_in_use(self, session_id, now, busy):
        holder = self._leases.get(session_id, (0, None))[1]
        return super()._is_in_use(session_id, now, {session_id} if holder in self._heartbeats else busy)

    def _delete(self, session_ids):
        for session_id in session_ids:
            self._leases.pop(session_id, None)
        return super()._delete(session_ids)

    def claim(self, session_ids, holder, dead=()):
        with self._lock:
            return [self._claim(session_id, holder, dead) for session_id in session_ids]

    def _claim(self, session_id, holder, dead):
        """Return the session's head after the claim, the lease of another live holder, or None without the session."""
        row = self._rows.get(session_id)
        if row is None:
            return None
        epoch, other = self._leases.get(session_id, (0, None))
        if other not in {None, holder}:
            lease = Lease(other, self._heartbeats.get(other, 0))
            if lease not in dead:
                return lease
        self._leases[session_id] = epoch + 1, holder
        return self._head(row)

    def release(self, session_id, holder, epoch):
        with self._lock:
            if self._leases.get(session_id) == (epoch, holder):
                self._leases[session_id] = epoch, None

    def ask(self, session_id, holder):
        with self._lock:
            self._requests[holder].add(session_id)

    def heartbeat(self, holder):
        with self._lock:
            self._heartbeats[holder] += 1
            return self._requests.pop(holder, set())

    def holder_ended(self, holder):
        with self._lock:
            self._heartbeats.pop(holder, None)
            self._requests.pop(holder, None)
            for session_id, (epoch, other) in self._leases.items():
                if other == holder:
                    self._leases[session_id] = epoch, None
