"""The protocol of a session store: its rows and its methods.

A store keeps rows and bytes. It doesn't know what a snapshot or a call means, it is called from several
threads and may block, and each method is one atomic step. All stores pass one contract test.

A session's environment is stored in *parts*. The content of a part is a *blob*, which is written once and then only
referred to: version *v* of a part is the newest blob that a commit gave it at or before *v*. So a commit costs only
what it changed, and a fork or a new session only references. A blob is deleted with the last reference to it.

A fork refers to its past: its parent's records up to the last one at that time, and what the parent itself refers to.
So a session that is deleted while it has forks is *kept* for them, unseen: `ancestor`, `records` and `parts_at` still
answer, and its bytes still count for its owner. It goes with the last of these forks. What none of them needs is
deleted at once: later records, and all versions, but for the first one of a session that isn't a fork itself.

Numbers come back when a store loses its newest data, as after the failover of a Redis: then another record gets the
same index, and another lease the same epoch. So each record has a random id, and a commit names the record before it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from toolpack_server.base.after_fork import id_numbers


def new_record_id() -> str:
    """Make an id that no other record has."""
    return f"{id_numbers.getrandbits(64):016x}"


FAMILY = slice(28, 36)


def family_of(session_id: str) -> str:
    """Get what the ids of a session and of all its forks have in common, by which a store may keep them together."""
    return session_id[FAMILY]


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a session's trace."""

    index: int  # its position in the trace, from 0, without gaps
    version: int  # the session's version after it: the one before or the next
    call_id: str | None
    body: bytes  # JSON text; opaque to the store
    id: str = field(default_factory=new_record_id)  # by which the next commit names it


@dataclass(frozen=True, slots=True)
class History:
    """What a session has gone through elsewhere.

    The changes are, for each version above 0 that is kept, in order and without gaps, the blob id of each part that
    differs from the version kept before it. The last one is the current version.
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
        """Get the changes as version, part and blob, in order."""
        return [(version, *change) for version in sorted(self.changes) for change in self.changes[version].items()]


NO_HISTORY = History()


class ForkPoint(NamedTuple):
    """Where a session was forked from another one."""

    session_id: str
    version: int
    last: int = -1  # index of the last of its records to which the fork refers; -1 if it refers to none
    record: str = ""  # that record's id; "" if there is none


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it was created; only `expires_at` ever changes.

    The recipe and the details are opaque. The labels must not be changed: a store may keep the objects that it was
    given, and return them again.
    """

    id: str  # also the order in which sessions are listed; of a fork, in the family of its parent
    agent_key: str  # the secret part of its agents' address
    owner: str  # whose token created it; "" where there are no tokens
    recipe: bytes  # what it is made from; may be large. All forks of a session have the same, which is stored once
    labels: Mapping[str, str]
    ttl_seconds: float  # after its last call
    created_at: float  # since the epoch, in seconds
    expires_at: float  # likewise, but by the time by which sessions live: see `SessionStore.count_time`
    parent: ForkPoint | None = None
    details: bytes = b""  # what else is its own; few bytes


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Which sessions a list has, and in what order."""

    owner: str | None  # None: of all
    labels: Mapping[str, str]  # all of which a session has
    after: str  # the id of the session before the first one; "" to begin with the first
    limit: int
    parent: str | None = None  # forks of this session only, which needn't exist any more
    newest_first: bool = False  # by time of creation, and by id where that is the same, both descending; else by id


@dataclass(frozen=True, slots=True)
class Head:
    """The current state of a session."""

    index: int  # of its last record; -1 before the first
    version: int
    parts: Mapping[str, str]  # the blob id of each part of its current version
    epoch: int = 0  # how often its lease has been taken; a commit must name the current one
    last: str = ""  # the id of its last record; "" before the first
    size: int = field(default=0, compare=False)  # about the bytes of its records, and of blobs after version 0


class Commit(NamedTuple):
    """A record and the changes of its call, to be committed together or not at all."""

    session_id: str
    epoch: int  # of the lease under which the call ran
    record: Record  # its index must follow the session's last one
    parts: Mapping[str, str] = MappingProxyType({})  # blob ids of what the call changed; empty: same version
    blobs: Mapping[str, bytes] = MappingProxyType({})  # the new ones; one that is stored stays as it is
    expires_at: float | None = None  # the new time of expiry; None leaves it
    release: bool = False  # the lease, with this commit
    after: str = ""  # the id of the session's record before this one; "" if it is the first
    holder: str | None = None  # of the lease; None in a store that isn't shared


HELD_SECONDS = 86_400.0
"""How long a session outlives its TTL at most while a worker holds its lease: one that has died unseen does, too."""


class StoreClock(NamedTuple):
    """The time by which sessions live, as counted at one moment, and by how many seconds the clock is ahead of it."""

    now: float
    uncounted: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The holder of a session's lease, who alone may commit to it, as read at one moment.

    A worker that waits for the lease watches how many heartbeats its holder has sent: if the number doesn't change for
    long enough by the waiter's clock, the holder is dead. No two clocks are compared.
    """

    holder: str
    heartbeat: int


class SessionStore(Protocol):
    """Keeps sessions, their records and their snapshots; see the module's docstring for the rule.

    The caller ensures that texts can be encoded as UTF-8 and that integers fit 53 bits. Every method may also raise
    `OverloadedError`, if the store can't be used for now (the outcome of a commit is then unknown until it is sent
    again), and `StateDamagedError`, if stored data can't be read.

    Attributes:
        shared: Other processes may commit to the same sessions, so every commit needs a lease: it is a `SharedStore`. A
            store that isn't shared has locked its data for this process alone, and epochs stay 0.
    """

    shared: bool

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Add sessions, which have the same parent, if any, each at version 0 with these parts; then with this history.

        `blobs` holds the blobs among those that may be new. Idempotent: blobs and sessions that are stored already, if
        only for their forks, are left unchanged.

        Raises:
            SessionNotFoundError: The parent of new sessions doesn't exist; nothing was added.
            MissingBlobError: One of all these refers to a blob that is neither in the store nor in `blobs`; nothing was
                added.
        """

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Get a session, expired or not, and its head; None if there is none."""

    def ancestor(self, session_id: str) -> StoredSession | None:
        """Get a session that exists or is kept for its forks, as it was created; its time of expiry means nothing."""

    def find_agent(self, agent_key: str) -> str | None:
        """Get the id of the session with this agent key."""

    def commit(self, commits: Sequence[Commit]) -> Sequence[bool | None]:
        """Apply commits in order, in one transaction; return for each whether it was committed.

        A store of several parts, of which one can't be used for now, has a transaction in each: where nobody knows
        whether a commit was stored, the answer is None.

        A commit is refused as a whole, without affecting the others, if its session doesn't exist, its epoch or its
        holder is not the session's, the session's last record isn't the one with the index and the id before it, its
        call_id is recorded already, or a part refers to a missing blob. Idempotent: if the same record is stored
        already, the answer is True and nothing changes.
        """

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Get blobs by id.

        Raises:
            MissingBlobError: A blob isn't stored.
        """

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Get the blob id of each part of a version.

        Of a session that is kept for its forks, and isn't a fork itself, there is version 0.

        Raises:
            VersionNotRetainedError: The version is no longer stored, or has never existed.
            SessionNotFoundError: The session doesn't exist, or has no version any more.
        """

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        """Get the record of a call_id, if the session has one."""

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Get up to `limit` records whose index is above `after`, in order.

        They end before the one with which their bodies would have more than `max_bytes` bytes, but after the first. Of
        a session that is kept for its forks there are those that they refer to.
        """

    def records_at(self, wanted: Sequence[tuple[str, range]]) -> list[list[Record]]:
        """Get the records of sessions at these indices, for each session and range, as far as they exist, in order."""

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions, but never records.

        Version 0 and the current one always stay. Of the others the newest stay: at most `keep_versions`, and only as
        long as the blobs that they need beyond those two have at most `keep_bytes` bytes in all.
        """

    def renew(self, session_id: str, expires_at: float) -> None:
        """Set a session's time of expiry."""

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Get the sessions that a query asks for, with their versions, in its order.

        Raises:
            SessionNotFoundError: Newest first, and there is no session `after`.
        """

    def count(self, owner: str | None = None) -> int:
        """Count the sessions of an owner, or all."""

    def stored_bytes(self, owner: str) -> int:
        """Get about how many bytes are stored for an owner: records, recipes, labels and blobs.

        What several of the owner's sessions share counts once, and so does what is kept for forks.
        """

    def count_time(self, clock: float | None = None) -> StoreClock:
        """Get the time by which sessions live: what the clock says, without the seconds that nobody has counted.

        A store notes when it was asked last. If that is more than `history.GAP_SECONDS` away, in either direction, the
        clock was set or nobody counted, and the difference doesn't count.

        Args:
            clock: What the clock says; None to look at the store's own, in the same step, as all servers have that one.
        """

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        """Delete up to `limit` sessions whose time of expiry is at or before `now`, and get their ids.

        Those stay in which something runs, for up to `HELD_SECONDS`: they are `busy`, or a worker that has sent a
        heartbeat, and isn't known to have ended, holds their lease.
        """

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        """Delete sessions with everything that belongs to them and that no fork needs; get the ids of those there were.

        Works in a store that is full, too.
        """

    def clean_up(self) -> None:
        """Delete what is still stored of deleted sessions; called every second.

        `delete` and `delete_expired` may leave that to it, as long as nobody can see it and it counts for no owner.
        """

    def ping(self) -> str | None:
        """Raise `OverloadedError` if nothing can be stored now; its text says why.

        Where only a part of the store can't be used, get a sentence that says which.
        """

    def close(self) -> None:
        """Close files and connections."""


class SharedStore(SessionStore, Protocol):
    """A store that several processes may share: each commits to a session only while it holds the session's lease."""

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Take the leases of sessions; get for each its head, another holder's lease, or None if it doesn't exist.

        A lease is granted if nobody holds it, if `holder` itself or one that has ended does, or if it still equals one
        of `dead`: leases that the caller has watched for long enough to know that their holders are dead. Each grant
        adds 1 to the epoch.
        """

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        """Release a lease without a commit; does nothing if it isn't this holder's lease of this epoch."""

    def ask(self, session_id: str, holder: str) -> None:
        """Ask the holder of a lease to release it if it doesn't use it; it hears of it with its next heartbeat."""

    def heartbeat(self, holder: str) -> Collection[str]:
        """Show that a worker is alive: add 1 to its heartbeat count. Get the sessions that it was asked for."""

    def holder_ended(self, holder: str) -> None:
        """Note that a worker has ended: its leases are free, and nothing else is kept of it for long."""
