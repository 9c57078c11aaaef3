"""The protocol of a store of sessions: the rows that it keeps and the methods that it has.

The rule: a store keeps rows and bytes. It doesn't know what a snapshot or a call means, it is called from worker
threads and may block, and each method is one atomic step. All stores pass one contract test.

A session's environment is kept in *parts*, each a *blob* that is written once and then only referred to: version *v*
of a part is the newest blob that a commit gave it at or before *v*. So a commit costs what it changed, and a fork or a
new session costs references. A blob that nothing refers to is deleted with the last reference.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it was created; of all this only `expires_at` ever changes.

    Its mappings are for reading: a store may keep the very objects that it was given, and give them out again.

    Attributes:
        id: The session's id, also the order in which sessions are listed.
        agent_key: The secret part of its agents' address.
        owner: The name whose token created it; "" where there are no tokens.
        toolpacks: The names of its toolpacks.
        options: The options of each toolpack, as given.
        environment: The environments that were given in place of the toolpacks' own, as JSON values.
        labels: The client's own labels.
        ttl_seconds: How long it lives after its last call.
        created_at: Seconds since the epoch.
        expires_at: Seconds since the epoch.
        parent: The session and the version that it was forked from.
    """

    id: str
    agent_key: str
    owner: str
    toolpacks: tuple[str, ...]
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    labels: Mapping[str, str]
    ttl_seconds: float
    created_at: float
    expires_at: float
    parent: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Where a session stands.

    Attributes:
        index: The index of its last record; -1 before the first.
        version: Its current version.
        parts: The blob id of each part of its current version.
        epoch: How often its lease has been taken; a commit must name the current one.
    """

    index: int
    version: int
    parts: Mapping[str, str]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a session's trace.

    Attributes:
        index: Its place, from 0, without gaps.
        version: The session's version after it: the one before or the next.
        call_id: The call_id that the client sent; None where it sent none.
        body: The record as JSON text; opaque to the store.
    """

    index: int
    version: int
    call_id: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """A record, and what it changes, to be kept together or not at all.

    Attributes:
        session_id: The session.
        epoch: The epoch of the lease under which the call ran.
        record: The record; its index must follow the session's last one.
        parts: The blob id of each part that the call changed; always empty where the version stays.
        blobs: The new blobs among those, by id; one that is there already is left as it is.
        expires_at: The session's new time of expiry, or None to leave it.
        release: Give the lease back with this commit.
    """

    session_id: str
    epoch: int
    record: Record
    parts: Mapping[str, str] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    expires_at: float | None = None
    release: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may commit to a session, as one look at the store shows it.

    Attributes:
        holder: The worker that holds it.
        heartbeat: How many heartbeats that worker has sent. Whoever waits for the lease watches this number: if it
            stands still for long enough on the waiter's own clock, the holder is dead. No two clocks are compared.
    """

    holder: str
    heartbeat: int


class SessionStore(Protocol):
    """Keeps sessions, their records and their snapshots; see the module's docstring for the rule.

    The caller sees to it that texts can be UTF-8 and integers fit 53 bits. Besides what a method says, each may raise
    `OverloadedError`, where the store can't be used for now: after a commit, whether it was kept is then unknown until
    it is sent again; and `StateDamagedError`, where what is stored can't be read.

    Attributes:
        shared: Other processes may commit to the same sessions, so that every commit needs a lease. A store that is
            not shared has locked its data for this process alone; leases are then never taken and epochs stay 0.
    """

    shared: bool

    def create(self, sessions: Sequence[StoredSession], parts: Mapping[str, str], blobs: Mapping[str, bytes]) -> None:
        """Add sessions, each at version 0 with these parts.

        `blobs` holds those of the referred blobs that may be new; one that is there already is left as it is. So is a
        session that is there already: sending again what may have been lost is harmless.

        Raises:
            MissingBlobError: A part refers to a blob that is neither in the store nor in `blobs`; nothing was added.
        """

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        """Get a session and where it stands, expired or not; None if there is none."""

    def find_agent(self, agent_key: str) -> str | None:
        """Get the id of the session with this agent key."""

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Keep commits, in their order, in one transaction; say for each whether it was kept.

        A commit is refused, alone and whole, if its session is gone, its epoch is not the session's, a record with its
        index exists or the one before it doesn't, its call_id is recorded already, or a part refers to a missing blob.
        Sending a commit again whose outcome was lost is harmless: where the very same record is there already, the
        answer is True and nothing changes.
        """

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Get blobs by id.

        Raises:
            MissingBlobError: One isn't there.
        """

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Get the blob id of each part of a version.

        Raises:
            VersionNotRetainedError: The version is gone, or hasn't come yet.
            SessionNotFoundError: The session is gone.
        """

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        """Get the record of a call_id, if the session has one."""

    def records(self, session_id: str, after: int, limit: int) -> list[Record]:
        """Get up to `limit` records whose index is above `after`, in order."""

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Forget old versions, never their records.

        Version 0 and the current one always stay; of the others the newest `keep_versions`, as long as the blobs that
        only they need, among all versions of this session, come to at most `keep_bytes`.
        """

    def renew(self, session_id: str, expires_at: float) -> None:
        """Set a session's time of expiry."""

    def list(
        self, owner: str | None, labels: Mapping[str, str], after: str, limit: int
    ) -> Sequence[tuple[StoredSession, int]]:
        """Get sessions of an owner (None: of all) that carry all these labels, with their versions, by id."""

    def count(self, owner: str | None = None) -> int:
        """Count the sessions of an owner, or all."""

    def expired(self, now: float, limit: int) -> Sequence[str]:
        """Get the ids of up to `limit` sessions whose time of expiry is at or before `now`."""

    def delete(self, session_ids: Sequence[str]) -> int:
        """Delete sessions with all that is theirs, and say how many there were."""

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Take the leases of sessions; get for each where it stands, or else who has it, or None if it is gone.

        A lease is given if nobody holds it, if `holder` itself does, or if it still stands as one of `dead`, which the
        caller has watched for long enough to know that its holder is gone. Each time it is given the epoch grows by 1.
        """

    def release(self, session_id: str, epoch: int) -> None:
        """Give a lease back without a commit; does nothing if `epoch` is not the session's."""

    def heartbeat(self, holder: str) -> None:
        """Show that a worker is alive: add 1 to its number."""

    def ping(self) -> None:
        """Raise an exception if the store can't be reached."""

    def close(self) -> None:
        """Let go of files and connections."""
