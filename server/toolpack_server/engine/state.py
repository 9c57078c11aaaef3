"""What a worker knows of one session, and how the result of an operation moves it on.

A state belongs to one operation at a time, and forgetting it changes nothing but speed. It may be ahead of
the store by the commits that are on their way; where one of them is refused, the state is invalid.

What a worker believes
----------------------

All that a worker remembers of sessions and the store could contradict, here and elsewhere. Each line says who may make
it stale, and what notices that before it does harm. `tests/engine/test_beliefs.py` has a test for each.

============================== ===================================== ==================================================
Belief                         Made stale by                         Noticed by
============================== ===================================== ==================================================
The session exists             whoever closes it, or the sweep       the store, which gives no lease and refuses
                                                                     commits; `Queues.forget` in the same worker
index, version, parts, last,   another worker's commits; a store     the lease, which comes with the head (`follow`);
stored                         that has lost its newest data         a commit names the record before it
blobs, live, working copies    the same                              `follow`, which keeps those of the same blobs
memo: counters, digests        the same; a thread that was given up  `follow`, which drops it; `remembered`
leased, epoch, holder          whoever takes this worker for dead    a commit names both
uncommitted call_ids           a commit that is refused              the state is invalid then; all other call_ids are
                                                                     asked of the store
expires_at                     another worker that renews it         nothing: it is only later then, and is written
                                                                     again. Whoever deletes sessions asks the store
`SessionClock`                 a store whose clock is set            each look for expired sessions, every second
`Quotas`, numbers of sessions  other workers; sessions that end      the store is asked again before anything is
                                                                     refused, and every few seconds
Agents' keys                   whoever closes the session            the session isn't found: the key is forgotten
How records follow each other  a store that has lost its newest data the id of the last one that is known (`Paths`)
============================== ===================================== ==================================================

What never changes needs no notice: what a session is made of, its addresses, and the digest of a blob.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Any, Generic

from pydantic import BaseModel
from typing_extensions import TypeVar

from toolpack_server.base.times import expiry
from toolpack_server.stores.base import Commit, Head, Record, StoredSession
from toolpack_server.volumes.volume import live_name

T = TypeVar("T")
F = TypeVar("F", default=Any)

LIVE_FACTOR = 8  # a live environment takes about this many times the bytes of its snapshot
STATE_BYTES = 8192

CLOSED = "The session was closed meanwhile."
NONE: Mapping[Any, Any] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Effect:
    """What an operation has done to a session.

    Attributes:
        answer: What the caller gets. Whoever is around the operation may replace it; the record stays as it is.
        members: The members of the record that are the kind's own; None if nothing is to be recorded.
        versions: By how much the session's version increases.
        seconds: How long it took.
        parts: The new blob id of each part that has changed.
        new_blobs: The bytes of those blobs that the store doesn't have yet, by id.
        blobs: The current bytes of parts, as far as they are known.
        live: The live environments that equal those bytes.
        private: What only the server reads of the record.
        record: The record to commit, once it is written; None if there is nothing to commit.
        memo: What each of those around the operation remembers of the session as of this record.
    """

    answer: Any
    members: dict[str, Any] | None = None
    versions: int = 0
    seconds: float = 0.0
    parts: Mapping[str, str] = field(default_factory=dict)
    new_blobs: Mapping[str, bytes] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    live: Mapping[str, BaseModel] = field(default_factory=dict)
    private: dict[str, Any] = field(default_factory=dict)
    record: Record | None = None
    memo: dict[Any, Any] = field(default_factory=dict)


class SessionState(Generic[F]):
    """What is known of one session.

    An operation may read it: `session` is how it was created, `version` its current version, and `index` that of its
    last record. What the operation changes is its `Effect`. `facts` is what the operations have made of `session`; the
    engine only keeps it.
    """

    __slots__ = (
        *("session", "expires_at", "index", "version", "parts", "epoch", "holder", "last", "stored", "untrimmed"),
        *("leased", "blobs", "live", "uncommitted", "unstored", "memo", "facts", "invalid"),
        "_session_bytes",
    )

    def __init__(self, session: StoredSession, head: Head) -> None:
        self.session = session
        self.expires_at = session.expires_at  # its expiry as stored last
        self.blobs: dict[str, bytes] = {}  # the bytes of those parts that were needed so far
        # The environments that equal those bytes; an operation takes them out while it runs.
        self.live: dict[str, BaseModel] = {}
        self.parts: dict[str, str] = {}  # the blob id of each part
        self.uncommitted: dict[str, Record] = {}  # the records whose commit is on its way, by call_id
        self.unstored: dict[str, bytes] = {}  # the blobs that are on their way with those commits, by id
        self.leased = False
        self.facts: F | None = None  # None until the session has proved to be as it was created
        self._session_bytes = _size(session)
        # Who holds the lease, as the store knows this worker; None in a store that isn't shared.
        self.holder: str | None = None
        self.untrimmed = 0  # how many bytes of blobs were added since its old versions were deleted last
        # Why nothing may build upon this state, for example because a commit was refused; "" if it is valid.
        self.invalid = ""
        self.follow(head)

    def follow(self, head: Head) -> None:
        """Take over the session's head from the store, and keep the bytes and objects that still belong to it."""
        for part in {**self.parts, **head.parts}:  # a volume may have more parts than before
            if head.parts.get(part) != self.parts.get(part):
                self.blobs.pop(part, None)
                self.live.pop(live_name(part), None)
        self.index, self.version, self.epoch = head.index, head.version, head.epoch
        self.last = head.last
        self.stored = head.size  # about how many bytes the store holds for what its calls have added
        self.parts = dict(head.parts)
        self.memo: dict[Any, Any] = {}  # what those around operations remember of the session as of its last record

    def remembered(self, hook: Any, read: Callable[[], T]) -> T:
        """Return what a hook remembers of the session as of its last record; read it if it isn't known yet.

        A thread that has passed its deadline may still read while the session goes on. What it reads then belongs to
        the memo that there was before.
        """
        memo = self.memo
        if hook not in memo:
            memo[hook] = read()
        known: T = memo[hook]
        return known

    def take_live(self) -> dict[str, BaseModel]:
        """Take the live environments out: should the operation pass its deadline, no other one meets them again."""
        live, self.live = self.live, {}
        return live

    def apply(self, effect: Effect, now: float, *, release: bool) -> Commit | None:
        """Move on by what an operation has done, and get what is to be committed; `release` ends the lease with it.

        Args:
            now: By the session clock.
        """
        self.blobs.update(effect.blobs)
        self.live.update(effect.live)
        record = effect.record
        if record is None:
            return None
        after, self.last = self.last, record.id
        self.index, self.version = record.index, record.version
        added = added_bytes(record, effect.new_blobs)
        self.stored += added
        self.untrimmed += added - len(record.body)
        if effect.parts:
            self.parts = {**self.parts, **effect.parts}
            self.unstored.update(effect.new_blobs)
        if record.call_id is not None:
            self.uncommitted[record.call_id] = record
        self.memo = effect.memo  # last: see `remembered`
        return Commit(
            session_id=self.session.id,
            epoch=self.epoch,
            record=record,
            parts=effect.parts,
            blobs=effect.new_blobs,
            expires_at=self._renewed_expiry(now),
            release=release,
            after=after,
            holder=self.holder,
        )

    def _renewed_expiry(self, now: float) -> float | None:
        """Renew the session, and get its new expiry if that has to be written."""
        ttl = self.session.ttl_seconds
        if now + ttl <= self.expires_at:
            return None
        self.expires_at = expiry(ttl, now)
        return self.expires_at

    def size(self) -> int:
        """Estimate the memory that this takes, in bytes."""
        live = sum(map(len, map(self.blobs.get, self.live, repeat(b""))))
        return STATE_BYTES + self._session_bytes + sum(map(len, self.blobs.values())) + LIVE_FACTOR * live


def _size(session: StoredSession) -> int:
    """Estimate the memory of what a client has given when it created a session."""
    labels = sum(len(name) + len(value) for name, value in session.labels.items())
    return labels + len(session.recipe) + len(session.details)


def added_bytes(record: Record, blobs: Mapping[str, bytes]) -> int:
    return len(record.body) + sum(map(len, blobs.values()))
