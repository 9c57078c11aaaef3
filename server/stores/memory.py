"""A store in the memory of this process: nothing survives it, nobody else sees it.

The rule: plain dictionaries behind one lock, and the contract to the letter, so that it can stand as the model that
the other stores are compared with.
"""

import dataclasses
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from server.errors import MissingBlobError, SessionNotFoundError, VersionNotRetainedError
from server.stores.base import Commit, Head, Lease, Record, StoredSession
from server.stores.history import Change, parts_at, trim


@dataclass(slots=True)
class _Entry:
    """A session and all that is its own; `oldest` is the oldest version that is kept, version 0 aside."""

    session: StoredSession
    expires_at: float
    parts: Mapping[str, str]
    changes: list[Change]
    version: int = 0
    oldest: int = 1
    epoch: int = 0
    holder: str | None = None
    records: list[Record] = field(default_factory=list)
    calls: dict[str, Record] = field(default_factory=dict)

    def view(self) -> StoredSession:
        if self.session.expires_at != self.expires_at:
            self.session = dataclasses.replace(self.session, expires_at=self.expires_at)
        return self.session

    def head(self) -> Head:
        return Head(len(self.records) - 1, self.version, self.parts, self.epoch)


class MemoryStore:
    """Keeps sessions in dictionaries; the meaning of each method is `SessionStore`'s."""

    shared = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._ids: list[str] = []  # sorted
        self._agents: dict[str, str] = {}
        self._owners: Counter[str] = Counter()
        self._blobs: dict[str, bytes] = {}
        self._references: Counter[str] = Counter()
        self._beats: defaultdict[str, int] = defaultdict(int)

    def create(self, sessions: Sequence[StoredSession], parts: Mapping[str, str], blobs: Mapping[str, bytes]) -> None:
        """Add sessions, each at version 0 with these parts."""
        parts = dict(parts)  # one copy, which all of them share until they change something
        changes = [Change(0, part, blob) for part, blob in parts.items()]
        with self._lock:
            if any(blob not in blobs and blob not in self._blobs for blob in parts.values()):
                raise MissingBlobError
            new = [session for session in sessions if session.id not in self._entries]
            for session in new:
                self._entries[session.id] = _Entry(session, session.expires_at, parts, changes.copy())
                self._agents[session.agent_key] = session.id
                self._owners[session.owner] += 1
                self._refer(changes, blobs)
            self._ids.extend(session.id for session in new)
            self._ids.sort()

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Get a session and where it stands."""
        with self._lock:
            entry = self._entries.get(session_id)
            return (entry.view(), entry.head()) if entry else None

    def find_agent(self, agent_key: str) -> str | None:
        """Get the id of the session with this agent key."""
        return self._agents.get(agent_key)

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Keep commits in their order; say for each whether it was kept."""
        with self._lock:
            return [self._commit(commit) for commit in commits]

    def _commit(self, commit: Commit) -> bool:
        entry = self._entries.get(commit.session_id)
        if entry is None:
            return False
        record = commit.record
        if record.index < len(entry.records):
            return entry.records[record.index] == record
        if (
            record.index > len(entry.records)
            or commit.epoch != entry.epoch
            or record.call_id in entry.calls
            or any(blob not in commit.blobs and blob not in self._blobs for blob in commit.parts.values())
        ):
            return False
        entry.records.append(record)
        entry.version = record.version
        if record.call_id is not None:
            entry.calls[record.call_id] = record
        if commit.parts:
            entry.parts = {**entry.parts, **commit.parts}
            changes = [Change(record.version, part, blob) for part, blob in commit.parts.items()]
            entry.changes += changes
            self._refer(changes, commit.blobs)
        if commit.expires_at is not None:
            entry.expires_at = commit.expires_at
        if commit.release:
            entry.holder = None
        return True

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Get blobs by id."""
        with self._lock:
            try:
                return {blob: self._blobs[blob] for blob in ids}
            except KeyError as missing:
                raise MissingBlobError(*missing.args) from None

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Get the blob id of each part of a version."""
        with self._lock:
            entry = self._entry(session_id)
            if version != 0 and not entry.oldest <= version <= entry.version:
                raise VersionNotRetainedError(version, entry.oldest)
            return parts_at(entry.changes, version)

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        """Get the record of a call_id, if the session has one."""
        with self._lock:
            entry = self._entries.get(session_id)
            return entry.calls.get(call_id) if entry else None

    def records(self, session_id: str, after: int, limit: int) -> list[Record]:
        """Get up to `limit` records whose index is above `after`, in order."""
        first = max(after + 1, 0)
        with self._lock:
            entry = self._entries.get(session_id)
            return entry.records[first : first + limit] if entry else []

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Forget old versions, never their records."""
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is None:
                return
            sizes = {change.blob: len(self._blobs[change.blob]) for change in entry.changes}
            kept = range(entry.oldest, entry.version + 1)
            entry.oldest, unneeded = trim(entry.changes, kept, sizes, keep_versions, keep_bytes)
            forgotten = set(unneeded)
            entry.changes = [change for change in entry.changes if change not in forgotten]
            self._forget(unneeded)

    def renew(self, session_id: str, expires_at: float) -> None:
        """Set a session's time of expiry."""
        with self._lock:
            if entry := self._entries.get(session_id):
                entry.expires_at = expires_at

    def list(
        self, owner: str | None, labels: Mapping[str, str], after: str, limit: int
    ) -> Sequence[tuple[StoredSession, int]]:
        """Get sessions of an owner (None: of all) that carry all these labels, with their versions, by id."""
        with self._lock:
            later = islice(self._ids, bisect_right(self._ids, after), None)
            found = (
                (entry.view(), entry.version)
                for entry in map(self._entries.__getitem__, later)
                if owner in {None, entry.session.owner} and labels.items() <= entry.session.labels.items()
            )
            return list(islice(found, limit))

    def count(self, owner: str | None = None) -> int:
        """Count the sessions of an owner, or all."""
        with self._lock:
            return len(self._entries) if owner is None else self._owners[owner]

    def expired(self, now: float, limit: int) -> Sequence[str]:
        """Get the ids of up to `limit` sessions whose time of expiry is at or before `now`."""
        with self._lock:
            return list(islice((id_ for id_, entry in self._entries.items() if entry.expires_at <= now), limit))

    def delete(self, session_ids: Sequence[str]) -> int:
        """Delete sessions with all that is theirs, and say how many there were."""
        with self._lock:
            before = len(self._entries)
            for session_id in session_ids:
                entry = self._entries.pop(session_id, None)
                if entry is not None:
                    del self._agents[entry.session.agent_key]
                    self._owners[entry.session.owner] -= 1
                    self._forget(entry.changes)
            deleted = before - len(self._entries)
            if deleted:
                self._ids = [id_ for id_ in self._ids if id_ in self._entries]
            return deleted

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Take the leases of sessions; get for each where it stands, or else who has it, or None if it is gone."""
        with self._lock:
            return [self._claim(session_id, holder, dead) for session_id in session_ids]

    def _claim(self, session_id: str, holder: str, dead: Collection[Lease]) -> Head | Lease | None:
        entry = self._entries.get(session_id)
        if entry is None:
            return None
        if entry.holder is not None and entry.holder != holder:
            lease = Lease(entry.holder, self._beats[entry.holder])
            if lease not in dead:
                return lease
        entry.holder = holder
        entry.epoch += 1
        return entry.head()

    def release(self, session_id: str, epoch: int) -> None:
        """Give a lease back without a commit; does nothing if `epoch` is not the session's."""
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is not None and entry.epoch == epoch:
                entry.holder = None

    def heartbeat(self, holder: str) -> None:
        """Show that a worker is alive: add 1 to its number."""
        with self._lock:
            self._beats[holder] += 1

    def ping(self) -> None:
        """Do nothing: memory is always there."""

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def _entry(self, session_id: str) -> _Entry:
        try:
            return self._entries[session_id]
        except KeyError:
            raise SessionNotFoundError from None

    def _refer(self, changes: Iterable[Change], blobs: Mapping[str, bytes]) -> None:
        for change in changes:
            if change.blob not in self._blobs:
                self._blobs[change.blob] = blobs[change.blob]
            self._references[change.blob] += 1

    def _forget(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._references[change.blob] -= 1
            if not self._references[change.blob]:
                del self._references[change.blob], self._blobs[change.blob]
