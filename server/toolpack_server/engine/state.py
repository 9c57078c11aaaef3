"""Session state: a worker's cache of one session, which each operation updates.

Only one operation at a time uses a state. Dropping a state costs only time. A state can be ahead of the store by
commits that are in progress. If the store refuses one of these commits, the state becomes invalid.

Cached facts
------------

A worker caches facts about sessions, in states and elsewhere, and the store can contradict them. This table lists all
these facts. Each row says what makes the fact stale, and what detects this before the stale fact does harm.
`tests/engine/test_beliefs.py` contains a test for each row.

============================== ===================================== ==================================================
Cached fact                    Made stale by                         Detected by
============================== ===================================== ==================================================
The session exists             a client that closes it, or expiry    the store, which grants no lease and refuses
                                                                     commits; `Queues.forget` in the same worker
index, version, parts, last,   another worker's commits; a store     the lease, which comes with the head (`follow`);
stored                         that has lost its newest data         a commit names the record before it
blobs, live, working copies    the same                              `follow`, which keeps those with the same blob ids
hook states: counters, digests the same; an abandoned thread         `follow`, which drops the states; `remembered`
leased, epoch, holder          a worker that takes this one for dead the store: a commit names epoch and holder
uncommitted call_ids           a refused commit                      the state, which is invalid then; other call_ids
                                                                     are looked up in the store
expires_at                     another worker that renews it         nothing: the expiry is only later, and is written
                                                                     again. Deleting a session checks the store
`SessionClock`                 a store whose clock is set            each look for expired sessions, every second
`Quotas`, numbers of sessions  other workers; sessions that end      the store is asked again before anything is
                                                                     refused, and every few seconds
Agents' keys                   a client that closes the session      the session isn't found: the key is dropped
The order of records           a store that has lost its newest data the id of the last known record (`Paths`)
============================== ===================================== ==================================================

Immutable facts need no check: a session's recipe, its addresses, and the digest of a blob.
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
STATE_BYTES = 8192  # estimated memory of a state without the session's data

CLOSED = "The session was closed meanwhile."
NONE: Mapping[Any, Any] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Effect:
    """The effect of an operation on a session.

    Attributes:
        answer: The answer to the caller. Operation hooks can replace it, which doesn't change the record.
        members: The fields of the record that its kind defines. None: the operation has no record.
        versions: How much the session's version increases.
        seconds: Duration of the operation.
        parts: The new blob ids of the changed parts.
        new_blobs: The bytes of blobs that aren't in the store yet, by id.
        blobs: The current bytes of the parts that the operation has read or written.
        live: The decoded environments that equal these bytes.
        private: The fields of the record that only the server reads.
        record: The record to commit, once it is complete. None: there is nothing to commit.
        hook_state: The state of each operation hook after this record.
        next: An operation in the same session that runs next, before the caller is answered; see `SessionJob`.
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
    hook_state: dict[Any, Any] = field(default_factory=dict)
    next: Any = None


class SessionState(Generic[F]):
    """A worker's cache of one session.

    Operations can read it: `session` contains the session's creation data, `version` is the current version, and
    `index` is the index of the last record. An operation doesn't change the state, but returns its changes as an
    `Effect`. `facts` is a value that operations derive from `session`; the engine only stores it.
    """

    __slots__ = (
        *("session", "expires_at", "index", "version", "parts", "epoch", "holder", "last", "stored", "untrimmed"),
        *("leased", "blobs", "live", "uncommitted", "unstored", "hook_state", "facts", "invalid"),
        "_session_bytes",
    )

    def __init__(self, session: StoredSession, head: Head) -> None:
        self.session = session
        self.expires_at = session.expires_at  # the last stored expiry
        self.blobs: dict[str, bytes] = {}  # the bytes of the parts that were used so far
        # The decoded environments that equal these bytes. An operation takes them out while it runs.
        self.live: dict[str, BaseModel] = {}
        self.parts: dict[str, str] = {}  # the blob id of each part
        self.uncommitted: dict[str, Record] = {}  # the records whose commit is in progress, by call_id
        self.unstored: dict[str, bytes] = {}  # the blobs in these commits, by id
        self.leased = False
        self.facts: F | None = None  # None until the session's stored data was verified
        self._session_bytes = _size(session)
        # This worker's id in the store, if it holds the lease; None if the store isn't shared.
        self.holder: str | None = None
        self.untrimmed = 0  # bytes of blobs added since old versions were last deleted
        # The reason why no operation may use this state, such as a refused commit; "" if it is valid.
        self.invalid = ""
        self.follow(head)

    def follow(self, head: Head) -> None:
        """Update the state from the session's head in the store. Keep the bytes and objects that are still valid."""
        for part in {**self.parts, **head.parts}:  # parts can be new, for example pieces of a volume
            if head.parts.get(part) != self.parts.get(part):
                self.blobs.pop(part, None)
                self.live.pop(live_name(part), None)
        self.index, self.version, self.epoch = head.index, head.version, head.epoch
        self.last = head.last
        self.stored = head.size  # estimated bytes in the store that calls have added
        self.parts = dict(head.parts)
        self.hook_state: dict[Any, Any] = {}  # the state of each operation hook as of the last record

    def remembered(self, hook: Any, read: Callable[[], T]) -> T:
        """Return the state of a hook after the session's last record. Call `read` to create it at first use.

        A thread that has missed its deadline might still be in `read` while the session continues. Its result is then
        stored in the old dictionary, where it does no harm, because each later record has a new dictionary.
        """
        hook_state = self.hook_state  # before `read`, because `apply` might replace the dictionary meanwhile
        if hook not in hook_state:
            hook_state[hook] = read()
        value: T = hook_state[hook]
        return value

    def take_live(self) -> dict[str, BaseModel]:
        """Remove and return the live environments, so that no later operation uses them after a missed deadline."""
        live, self.live = self.live, {}
        return live

    def apply(self, effect: Effect, now: float, *, release: bool) -> Commit | None:
        """Apply the effect of an operation to this state, and return the commit, if any.

        Args:
            now: The time by the session clock.
            release: Release the lease with the commit.
        """
        self.blobs.update(effect.blobs)
        self.live.update(effect.live)
        record = effect.record
        if record is None:
            return None
        after, self.last = self.last, record.id  # the store refuses the commit if `after` isn't its last record
        self.index, self.version = record.index, record.version
        added = added_bytes(record, effect.new_blobs)
        self.stored += added
        self.untrimmed += added - len(record.body)  # only blobs, because a trim deletes no records
        if effect.parts:
            self.parts = {**self.parts, **effect.parts}
            self.unstored.update(effect.new_blobs)
        if record.call_id is not None:
            self.uncommitted[record.call_id] = record
        self.hook_state = effect.hook_state  # last: a reader that sees the new state must also see the new record
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
        """Renew the session. Return its new expiry, or None if the stored expiry is late enough."""
        ttl = self.session.ttl_seconds
        if now + ttl <= self.expires_at:
            return None
        self.expires_at = expiry(ttl, now)
        return self.expires_at

    def size(self) -> int:
        """Return the estimated memory of this state in bytes."""
        live = sum(map(len, map(self.blobs.get, self.live, repeat(b""))))
        return STATE_BYTES + self._session_bytes + sum(map(len, self.blobs.values())) + LIVE_FACTOR * live


def _size(session: StoredSession) -> int:
    """Return the estimated memory of a session's creation data in bytes."""
    labels = sum(len(name) + len(value) for name, value in session.labels.items())
    return labels + len(session.recipe) + len(session.details)


def added_bytes(record: Record, blobs: Mapping[str, bytes]) -> int:
    return len(record.body) + sum(map(len, blobs.values()))
