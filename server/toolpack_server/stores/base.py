"""Protocol of a session store: its rows and its methods.

A store holds rows and bytes, and knows nothing of snapshots and calls. Its methods are called from several
threads, may block, and are atomic. All stores pass one contract test.

A session's environment is stored in *parts*. The content of a part is a *blob*. A blob is written once, and everything
else refers to it. Version *v* of a part is the newest blob that a commit gave it at or before *v*. So a commit stores
only its changes, and a fork stores only references. A blob is deleted with the last reference to it.

A fork refers to its parent's records up to the fork point, and to everything that the parent itself refers to. So a
session that is deleted while it has forks is *kept* for them. It is hidden, but `ancestor`, `records` and `parts_at`
still return it, and its bytes still count for its owner. It is deleted with the last of these forks. Data that no fork
needs is deleted at once: later records and all versions. Only version 0 stays, and only if the session isn't a fork.

A store that loses its newest data, as a Redis may in a failover, gives the same record index or lease epoch a second
time. So each record has a random id, and a commit names the id of the record before it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from toolpack_server.base.after_fork import id_numbers


def new_record_id() -> str:
    """Return a new random id for a record."""
    return f"{id_numbers.getrandbits(64):016x}"


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a session's trace."""

    index: int  # position in the trace, from 0, without gaps
    version: int  # the session's version after this record: the same as before, or one more
    call_id: str | None
    body: bytes  # JSON text; opaque to the store
    id: str = field(default_factory=new_record_id)  # the next commit refers to it


@dataclass(frozen=True, slots=True)
class History:
    """Past of a session that is copied from another store.

    `changes` has an entry for each stored version above 0, in order and without gaps: the blob ids of the parts that
    differ from the stored version before it. The last entry is the current version.
    """

    changes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    records: Sequence[Record] = ()

    @property
    def version(self) -> int:
        return max(self.changes, default=0)

    @property
    def oldest(self) -> int:
        return min(self.changes, default=1)

    def rows(self) -> list[tuple[int, str, str]]:
        """Return the changes as rows of version, part and blob id, in version order."""
        return [(version, *change) for version in sorted(self.changes) for change in self.changes[version].items()]


NO_HISTORY = History()


class ForkPoint(NamedTuple):
    """The parent session, version and record of a fork."""

    session_id: str
    version: int
    last: int = -1  # index of the parent's last record that belongs to the fork's history; -1 if none does
    record: str = ""  # that record's id; "" if there is none


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it was created. Only `expires_at` ever changes.

    The recipe and the details are opaque. Callers must not modify the labels: a store may return the same object again.
    """

    id: str  # sessions are listed in the order of their ids
    agent_key: str  # the secret part of its agents' URL
    owner: str  # the name of the token that created it; "" without tokens
    recipe: bytes  # how its environments are built; may be large. A session and its forks share it; it is stored once
    labels: Mapping[str, str]
    ttl_seconds: float  # after its last call
    created_at: float  # seconds since the epoch
    expires_at: float  # the same, but in store time; see `SessionStore.count_time`
    parent: ForkPoint | None = None
    details: bytes = b""  # further data of this session; few bytes


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Filter and order of a list of sessions."""

    owner: str | None  # None: all owners
    labels: Mapping[str, str]  # a session must have all of them
    after: str  # list the sessions after this id; "" to start at the beginning
    limit: int
    parent: str | None = None  # only forks of this session, which may have been deleted
    newest_first: bool = False  # sort by creation time, then by id, both descending. False: by id, ascending


@dataclass(frozen=True, slots=True)
class Head:
    """The current state of a session."""

    index: int  # of its last record; -1 if it has no record
    version: int
    parts: Mapping[str, str]  # the blob id of each part of the current version
    epoch: int = 0  # how many times its lease was granted; a commit must name the current epoch
    last: str = ""  # the id of its last record; "" if it has no record
    size: int = field(default=0, compare=False)  # approximate bytes of its records and of the blobs after version 0


class Commit(NamedTuple):
    """A record and the changes of its call. They are stored together or not at all."""

    session_id: str
    epoch: int  # of the lease that was held while the call ran
    record: Record  # its index must be one more than that of the session's last record
    parts: Mapping[str, str] = MappingProxyType({})  # blob ids of the changed parts; empty if no part changed
    blobs: Mapping[str, bytes] = MappingProxyType({})  # new blobs by id; a stored blob is left unchanged
    expires_at: float | None = None  # the new expiry time; None leaves it unchanged
    release: bool = False  # also release the lease
    after: str = ""  # the id of the session's record before this one; "" if this is the first
    holder: str | None = None  # of the lease; None in a store that isn't shared


HELD_SECONDS = 86_400.0
"""Longest time that an expired session is kept for a lease; its worker may have died unnoticed."""


class StoreClock(NamedTuple):
    """A reading of store time. Sessions expire by store time."""

    now: float  # store time, in seconds since the epoch
    uncounted: float  # seconds that the clock is ahead of store time


@dataclass(frozen=True, slots=True)
class Lease:
    """The holder of a session's lease at one moment. Only the holder may commit to the session.

    A worker that waits for the lease watches the holder's heartbeat count. If the count doesn't change for long enough,
    measured by the waiter's own clock, the holder is dead. So clocks of different machines are never compared.
    """

    holder: str
    heartbeat: int


class SessionStore(Protocol):
    """Store of sessions, their records and their snapshots; see the module's docstring.

    The caller ensures that texts can be encoded as UTF-8 and that integers fit in 53 bits. Every method may also raise
    `OverloadedError` if the store can't be used now, and `StateDamagedError` if stored data can't be read. After an
    `OverloadedError` the outcome of a commit is unknown until it is sent again.

    Attributes:
        shared: True if other processes may commit to the same sessions. Then it is a `SharedStore`, and every commit
            needs a lease. A store that isn't shared has locked its data for this process, and epochs stay 0.
    """

    shared: bool

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Add sessions. All have the same parent, if any, the same parts at version 0, and the same history after it.

        Idempotent: stored blobs are left unchanged, and so are stored sessions, also those that are kept for forks.

        Args:
            sessions: The new sessions.
            parts: Blob ids of version 0, by part.
            blobs: Blobs by id: all that `parts` and `history` refer to and that may not be stored yet.
            history: Changes and records after version 0.

        Raises:
            SessionNotFoundError: The parent of new sessions doesn't exist. Nothing was added.
            MissingBlobError: A blob is neither in the store nor in `blobs`. Nothing was added.
        """

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Return a session, expired or not, and its head. Return None if it doesn't exist."""

    def ancestor(self, session_id: str) -> StoredSession | None:
        """Return a session that exists or is kept for its forks. Its `expires_at` has no meaning."""

    def find_agent(self, agent_key: str) -> str | None:
        """Return the id of the session with this agent key."""

    def commit(self, commits: Sequence[Commit]) -> Sequence[bool]:
        """Apply commits in order, in one transaction. Return for each whether it is stored.

        A refused commit changes nothing and doesn't affect the others. A commit is refused if:

        - its session doesn't exist,
        - its epoch or holder isn't the session's,
        - its index isn't one more than that of the session's last record, or `after` isn't that record's id,
        - its call_id is already recorded, or
        - a part refers to a missing blob.

        Idempotent: if the same record is already stored, the answer is True and nothing changes.
        """

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return blobs by id.

        Raises:
            MissingBlobError: A blob isn't stored.
        """

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Return the blob id of each part of a version.

        A session that is kept for its forks has only version 0, or none if it is itself a fork.

        Raises:
            VersionNotRetainedError: The version is no longer stored, or never existed.
            SessionNotFoundError: The session doesn't exist, or has no version any more.
        """

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        """Return the record of a call_id, if the session has one."""

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Return up to `limit` records with an index above `after`, in order.

        With `max_bytes`, stop before the bodies exceed that many bytes in total, but return at least one record. A
        session that is kept for its forks has only the records that its forks refer to.
        """

    def records_at(self, ranges: Sequence[tuple[str, range]]) -> list[list[Record]]:
        """Return the existing records in each range of indices of a session, in order: one list for each range."""

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions, but never records.

        Version 0 and the current version always stay. Of the others, the newest `keep_versions` stay, as long as the
        blobs that only they need take at most `keep_bytes` bytes.
        """

    def renew(self, session_id: str, expires_at: float) -> None:
        """Set a session's expiry time."""

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Return the sessions that match a query, with their versions, in the query's order.

        Raises:
            SessionNotFoundError: The order is newest first, and the session `after` doesn't exist.
        """

    def count(self, owner: str | None = None) -> int:
        """Return the number of sessions of an owner, or of all."""

    def stored_bytes(self, owner: str) -> int:
        """Return the approximate bytes that are stored for an owner: records, recipes, labels and blobs.

        Data that several of the owner's sessions share counts once. Data that is kept for forks counts, too.
        """

    def count_time(self, clock: float | None = None) -> StoreClock:
        """Return the store time: the clock without the gaps while no server ran. Sessions expire by it.

        A store remembers the last reading. If the next one differs by more than `history.GAP_SECONDS`, in either
        direction, the clock was set or no server ran. Such a gap doesn't count.

        Args:
            clock: Time in seconds since the epoch. None: the store reads its own clock, which all servers share, in the
                same step.
        """

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        """Delete up to `limit` sessions that expire at or before `now`, and return their ids.

        A session in use stays for up to `HELD_SECONDS`. It is in use if it is in `busy`, or if its lease is held by a
        worker that has sent a heartbeat and isn't known to have ended.
        """

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        """Delete sessions with all their data that no fork needs. Return the ids of the sessions that existed.

        This must also work in a full store.
        """

    def clean_up(self) -> None:
        """Delete remaining data of deleted sessions. The server calls this every second.

        `delete` and `delete_expired` may leave data behind that no method returns and that counts for no owner.
        """

    def ping(self) -> None:
        """Check that the store can be written.

        Raises:
            OverloadedError: Nothing can be stored now; the message says why.
        """

    def close(self) -> None:
        """Close files and connections."""


class SharedStore(SessionStore, Protocol):
    """A store that several processes may share. A process commits to a session only while it holds its lease."""

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Acquire the leases of sessions.

        A lease is granted if it is free, if its holder is `holder` or has ended, or if it equals one in `dead`. Each
        grant adds 1 to the epoch.

        Args:
            session_ids: The sessions.
            holder: The worker that acquires the leases.
            dead: Leases of dead holders. The caller has watched their heartbeats for long enough.

        Returns:
            For each session its head if the lease was granted, otherwise the lease of another holder. None if the
            session doesn't exist.
        """

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        """Release a lease without a commit. Does nothing if it isn't this holder's lease of this epoch."""

    def ask(self, session_id: str, holder: str) -> None:
        """Ask the holder of a lease to release it when unused. The holder learns of it with its next heartbeat."""

    def heartbeat(self, holder: str) -> Collection[str]:
        """Add 1 to a worker's heartbeat count. Return the sessions that it should release, as others need them."""

    def holder_ended(self, holder: str) -> None:
        """Record that a worker has ended. Its leases become free, and its other data is deleted soon after."""
