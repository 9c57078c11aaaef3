"""What a worker remembers of sessions: a bounded cache of where they stand, with bytes and live environments.

The rule: forgetting any of this changes nothing but speed. An entry belongs to one job at a time; only the cache
around the entries is shared, and it is changed under the lock of the threads.
"""

from collections import OrderedDict

from pydantic import BaseModel

from server.stores import Head, Record, Session

LIVE_FACTOR = 8  # a live environment takes about this many times the bytes of its snapshot
ENTRY_BYTES = 8192

CLOSED = "The session was closed meanwhile."


class CachedSession:
    """What is known of one session.

    Attributes:
        session: The session as created.
        expires_at: Its time of expiry as stored last.
        index: The index of its last record.
        version: Its version.
        parts: The blob id of each part.
        epoch: The epoch of its lease.
        leased: This worker holds the lease.
        blobs: The bytes of those parts that were needed so far.
        live: The environments that equal those bytes; a job takes them out while it runs.
        uncommitted: The records that wait for their commit, by call_id.
        broken: Why what builds upon this is void, a commit was refused for example; "" as long as it isn't.
    """

    __slots__ = (
        *("session", "expires_at", "index", "version", "parts", "epoch"),
        *("leased", "blobs", "live", "uncommitted", "broken"),
    )

    def __init__(self, session: Session, head: Head) -> None:
        self.session = session
        self.expires_at = session.expires_at
        self.blobs: dict[str, bytes] = {}
        self.live: dict[str, BaseModel] = {}
        self.parts: dict[str, str] = {}
        self.uncommitted: dict[str, Record] = {}
        self.leased = False
        self.broken = ""
        self.follow(head)

    def follow(self, head: Head) -> None:
        """Take over where the session stands, and keep the bytes and objects that still belong to it."""
        for part, blob_id in self.parts.items():
            if head.parts.get(part) != blob_id:
                self.forget(part)
        self.index, self.version, self.epoch = head.index, head.version, head.epoch
        self.parts = dict(head.parts)

    def forget(self, part: str) -> None:
        """Drop the bytes and the live object of a part."""
        self.blobs.pop(part, None)
        self.live.pop(part, None)

    def size(self) -> int:
        """Estimate the memory that this takes, in bytes."""
        live = sum(len(self.blobs.get(part, b"")) for part in self.live)
        return ENTRY_BYTES + sum(map(len, self.blobs.values())) + LIVE_FACTOR * live


class SessionCache:
    """The sessions that were used last, as many as fit.

    Args:
        max_bytes: How much memory they may take, as estimated.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[CachedSession, int]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, session_id: str) -> CachedSession | None:
        """Get a session, if it is here."""
        found = self._entries.get(session_id)
        return found[0] if found else None

    def put(self, entry: CachedSession) -> None:
        """Keep a session as the one used last, and drop those used longest ago that no longer fit."""
        self.drop(entry.session.id)
        size = entry.size()
        self._entries[entry.session.id] = entry, size
        self.size += size
        while self.size > self._max_bytes and self._entries:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.size -= dropped

    def drop(self, session_id: str) -> None:
        """Forget a session."""
        found = self._entries.pop(session_id, None)
        if found:
            self.size -= found[1]
