"""Protocol of a session store: its rows and its methods.

A store holds rows and bytes. It doesn't interpret snapshots or records. Its methods are atomic, can block, and are
called from several threads. All stores pass the same contract test.

A session's environment is stored in *parts*, which are groups of its fields. The content of a part is a *blob*, which
is written once and then referred to by its id. A commit stores blobs only for the parts that it changes. So a part's
content at version *v* is its newest blob from version *v* or an earlier version. A fork stores only references to
blobs. A blob is deleted with the last reference to it.

A fork refers to its parent's records up to the fork point, and to all data that the parent refers to. So a session
that is deleted while it has forks is *kept* for these forks. A kept session is hidden, but `ancestor`, `records` and
`parts_at` still return its data, and its bytes still count for its owner. The kept session is deleted with its last
fork. Data that no fork needs is deleted at once, namely all versions, and the records after the last fork point.
Version 0 is needed, unless the session is itself a fork.

A store can lose its newest data, for example Redis in a failover. It then assigns a record index or a lease epoch a
second time. So each record has a random id, and a commit contains the id of the previous record.
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

    index: int  # position in the trace; positions begin with 0 and have no gaps
    version: int  # the session's version after this record, which is at most 1 higher than before
    call_id: str | None
    body: bytes  # JSON text, which the store doesn't interpret
    id: str = field(default_factory=new_record_id)  # random id; the commit of the next record contains it


@dataclass(frozen=True, slots=True)
class History:
    """Versions and records of a session that is copied from another store.

    `changes` contains an entry for each stored version above 0, in order and without gaps. An entry holds the blob ids
    of the parts that differ from the previous stored version. The last entry is the current version.
    """

    changes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    records: Sequence[Record] = ()

    @property
    def version(self) -> int:
        """The current version."""
        return max(self.changes, default=0)

    @property
    def oldest(self) -> int:
        """The oldest stored version above 0, or 1 if no such version is stored."""
        return min(self.changes, default=1)

    def rows(self) -> list[tuple[int, str, str]]:
        """Return the changes as rows of version, part and blob id, in version order."""
        return [(version, *change) for version in sorted(self.changes) for change in self.changes[version].items()]


NO_HISTORY = History()


class ForkPoint(NamedTuple):
    """The beginning of a fork: parent session, version and record."""

    session_id: str
    version: int
    last: int = -1  # index of the parent's last record that the fork can inherit; -1 if the parent has no records
    record: str = ""  # id of the record `last`; "" if the parent has no records


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it was created. Only `expires_at` ever changes.

    The store doesn't interpret the recipe and the details. Callers must not modify the labels, because a store can
    return the same object again.
    """

    id: str  # lists of sessions are sorted by id
    agent_key: str  # the secret part of the agent path
    owner: str  # the name of the token that created the session; "" if the server has no tokens
    # How the environments are built; can be large, so a session and all its forks share one stored recipe.
    recipe: bytes
    labels: Mapping[str, str]
    ttl_seconds: float  # lifetime after the last call
    created_at: float  # seconds since the epoch
    expires_at: float  # in store time, so in seconds since the epoch minus gaps; see `SessionStore.count_time`
    parent: ForkPoint | None = None
    details: bytes = b""  # further data that belongs to this session but not to its forks; only a few bytes


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Filter and order of a list of sessions."""

    owner: str | None  # None means all owners
    labels: Mapping[str, str]  # list only sessions with all these labels
    after: str  # list the sessions after the session with this id; "" starts at the beginning
    limit: int
    parent: str | None = None  # list only forks of this session, which might have been deleted
    newest_first: bool = False  # True sorts by creation time, then by id, both descending; False sorts by id, ascending


@dataclass(frozen=True, slots=True)
class Head:
    """The current state of a session, which the next commit must continue."""

    index: int  # index of the last record; -1 if there are no records
    version: int
    parts: Mapping[str, str]  # the blob ids of the current version, by part
    epoch: int = 0  # number of times that the lease was granted; a commit must contain the current epoch
    last: str = ""  # id of the last record; "" if there are no records
    size: int = field(default=0, compare=False)  # approximate bytes of the records and of the blobs after version 0


class Commit(NamedTuple):
    """A record and the changes that its call made. They are stored together or not at all."""

    session_id: str
    epoch: int  # epoch of the lease that was held while the call ran
    record: Record  # the session's next record; its index must be one more than that of the last record
    parts: Mapping[str, str] = MappingProxyType({})  # blob ids of the changed parts, by part; empty if no part changed
    blobs: Mapping[str, bytes] = MappingProxyType({})  # new blobs, by id; a blob that is already stored stays unchanged
    expires_at: float | None = None  # the new expiry time; None leaves the expiry unchanged
    release: bool = False  # whether to also release the lease
    after: str = ""  # id of the session's previous record; "" for the first record
    holder: str | None = None  # holder of the lease; None in a store that isn't shared


HELD_SECONDS = 86_400.0
"""Maximum seconds that an expired session stays while it is in use, because its worker might have died unnoticed."""


class StoreClock(NamedTuple):
    """A reading of store time, which decides when sessions expire."""

    now: float  # store time, in seconds since the epoch
    uncounted: float  # seconds that the clock is ahead of store time


@dataclass(frozen=True, slots=True)
class Lease:
    """The holder of a session's lease at one moment. Only the holder is allowed to commit to the session.

    A worker that waits for the lease watches the holder's heartbeat count. It considers the holder dead if the count
    doesn't change for long enough. It measures this time with its own clock, so clocks of different machines are never
    compared.
    """

    holder: str
    heartbeat: int


class SessionStore(Protocol):
    """Store of sessions, their records and their snapshots; see the module's docstring.

    The caller ensures that strings can be encoded as UTF-8 and that integers fit in 53 bits. Every method can also
    raise `OverloadedError` if the store can't be used now, and `StateDamagedError` if stored data can't be read. After
    `commit` has raised an `OverloadedError`, the caller doesn't know whether the commits are stored. It sends them
    again to find out.

    Attributes:
        shared: Whether other processes can commit to the same sessions. If so, the store is a `SharedStore`, and every
            commit needs a lease. A store that isn't shared locks its data for this process, and its epochs stay 0.
    """

    shared: bool

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Add sessions, which all have the same parent, if any, the same version 0, and the same later history.

        The method is idempotent. Blobs and sessions that are already stored stay unchanged, even a session that is only
        kept for its forks.

        Args:
            sessions: The new sessions.
            parts: Blob ids of version 0, by part.
            blobs: Blobs by id. A blob can be omitted if the store already contains it.
            history: Changes and records after version 0.

        Raises:
            SessionNotFoundError: The parent of new sessions doesn't exist. Nothing was added.
            MissingBlobError: A blob is neither in the store nor in `blobs`. Nothing was added.
        """

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Return a session and its head, even if the session has expired. Return None if it doesn't exist."""

    def ancestor(self, session_id: str) -> StoredSession | None:
        """Return a session that exists or is kept for its forks, or None. Its `expires_at` has no meaning."""

    def find_agent(self, agent_key: str) -> str | None:
        """Return the id of the session with this agent key, or None."""

    def commit(self, commits: Sequence[Commit]) -> Sequence[bool]:
        """Apply commits in order, in one transaction. For each commit, return whether it is stored.

        A refused commit changes nothing and doesn't affect the other commits. A commit is refused if:

        - its session doesn't exist,
        - its epoch or holder isn't the session's,
        - its index isn't one more than the index of the session's last record, or `after` isn't that record's id,
        - its call_id is already recorded, or
        - a part refers to a missing blob.

        The method is idempotent. For a record that is already stored, it returns True and changes nothing.
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
            SessionNotFoundError: The session doesn't exist, or is kept for its forks without any version.
        """

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        """Return the session's record with this call_id, or None."""

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Return up to `limit` records with an index above `after`, in order.

        With `max_bytes`, return fewer records if their bodies would exceed this total, but at least one record. A
        session that is kept for its forks has only the records that its forks refer to.
        """

    def records_at(self, ranges: Sequence[tuple[str, range]]) -> list[list[Record]]:
        """Return one list of records for each range of indices of a session. Indices without a record are skipped."""

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions, but never records.

        Version 0 and the current version always stay. Of the other versions, the newest `keep_versions` also stay, as
        long as the blobs that only these versions need take at most `keep_bytes` bytes.
        """

    def renew(self, session_id: str, expires_at: float) -> None:
        """Set a session's expiry time."""

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Return the sessions that match a query, with their versions, in the query's order.

        Raises:
            SessionNotFoundError: The query lists the newest sessions first, and the session `after` doesn't exist.
        """

    def count(self, owner: str | None = None) -> int:
        """Return the number of sessions of an owner, or of all owners."""

    def stored_bytes(self, owner: str) -> int:
        """Return the approximate number of bytes stored for an owner: records, recipes, labels and blobs.

        Data that several of the owner's sessions share counts once. Data that is kept for forks also counts.
        """

    def count_time(self, clock: float | None = None) -> StoreClock:
        """Return the store time, by which sessions expire: the clock's time minus the gaps while no server ran.

        A store remembers its last reading of the clock. If the next reading differs by more than `history.GAP_SECONDS`,
        in either direction, someone set the clock or no server ran. The store doesn't count this gap.

        Args:
            clock: Time in seconds since the epoch. None means that the store reads its own clock, which is the same for
                all servers.
        """

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        """Delete up to `limit` sessions that expire at or before `now`, and return their ids.

        A session in use stays for up to `HELD_SECONDS`. A session is in use if it is in `busy`, or if its lease is held
        by a worker that has sent a heartbeat and isn't known to have ended.
        """

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        """Delete sessions, and their data unless forks need it. Return the ids of the sessions that existed.

        The method must also work in a full store, because it makes room.
        """

    def clean_up(self) -> None:
        """Delete remaining data of deleted sessions. The server calls this method every second.

        So `delete` and `delete_expired` can leave data for later. No other method returns this data, and it counts for
        no owner.
        """

    def ping(self) -> None:
        """Check that the store can be written.

        Raises:
            OverloadedError: The store can't store anything now. The message gives the reason.
        """

    def close(self) -> None:
        """Close files and connections."""


class SharedStore(SessionStore, Protocol):
    """A store that several processes can share.

    A process commits to a session only while it holds the session's lease.
    """

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Acquire the leases of sessions.

        A lease is granted if it is free, if its holder is `holder` or has ended, or if it equals a lease in `dead`.
        Each grant adds 1 to the epoch.

        Args:
            session_ids: The sessions.
            holder: The worker that acquires the leases.
            dead: Leases of dead holders, whose heartbeats the caller has watched for long enough.

        Returns:
            For each session, its head if the lease was granted, or the lease of another holder, or None if the session
            doesn't exist.
        """

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        """Release a lease without a commit. Do nothing if the current lease has another holder or another epoch."""

    def ask(self, session_id: str, holder: str) -> None:
        """Ask the holder to release a session's lease when it doesn't use the session.

        The holder's next `heartbeat` returns the session.
        """

    def heartbeat(self, holder: str) -> Collection[str]:
        """Add 1 to a worker's heartbeat count. Return the sessions that other workers have asked it to release."""

    def holder_ended(self, holder: str) -> None:
        """Record that a worker has exited. Its leases become free, and its other data is deleted soon after."""
