"""Store in Redis, or a compatible server, which several machines can share.

Every change is one script (`script.lua`) or one command, so it is atomic.

The store needs one primary, version 6.2 or newer. Redis Cluster isn't supported, because a script uses keys of several
sessions. The persistence settings of Redis (appendonly, appendfsync) and its replicas decide which data survives a
crash.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count
from typing import Any

import orjson

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import (
    MissingBlobError,
    OverloadedError,
    SessionNotFoundError,
    SettingsError,
    VersionNotRetainedError,
)
from toolpack_server.features.stores.redis.connection import RedisConnection, unusable
from toolpack_server.features.stores.redis.encoding import (
    decode_claim,
    decode_head,
    decode_record,
    encode_commit,
    encode_facts,
    encode_history,
    has_labels,
    pairs,
    split_facts,
)
from toolpack_server.features.stores.redis.listing import RedisListing
from toolpack_server.features.stores.rows import RECIPE_CACHE_BYTES, decoder, digest, load, undamaged
from toolpack_server.stores.base import (
    HELD_SECONDS,
    NO_HISTORY,
    Commit,
    ForkPoint,
    Head,
    History,
    Lease,
    Record,
    SessionQuery,
    StoreClock,
    StoredSession,
)
from toolpack_server.stores.history import GAP_SECONDS, NOTE_SECONDS, Change, fitting, parts_at, trim

PREFIX = "toolpack:"  # prefix of all keys
MIN_PAGE_SIZE = 100  # minimum number of sessions that `list` reads at a time if few of them might have the labels
RECORD_PAGE_SIZE = 16  # number of records that `records` reads at a time if their bytes are limited
# Number of sessions that one script deletes; limited, because meanwhile Redis serves no other client.
DELETION_BATCH_SIZE = 100


class RedisStore:
    """Session store in Redis; `SharedStore` documents the methods."""

    shared = True

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection
        self._recipes = BoundedCache[str, bytes](RECIPE_CACHE_BYTES, len)  # recipes, by digest

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool = False) -> "RedisStore":
        """Open the store of a URL like `redis://user:password@host:port/0`, or `rediss://…` for TLS."""
        del exclusive
        if "," in url:
            raise SettingsError(
                "--store takes the URL of one Redis, so it has no comma (write a comma in a password as %2C). For more "
                "load than one Redis can carry, use postgresql://…"
            )
        store = cls(RedisConnection(url, PREFIX))
        try:
            store.open()
        except BaseException as error:
            store.close()
            if isinstance(error, OverloadedError):
                raise unusable(error) from None
            raise
        return store

    def open(self) -> None:
        """Check that Redis can be used; see `RedisConnection.open`."""
        self._redis.open()

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        """Add sessions with one script. The arguments are in the order that the script reads them."""
        names = {session.recipe: "recipe:" + digest(session.recipe).hex() for session in sessions}
        rows: list[str | bytes | float] = []
        for session in sessions:
            recipe = names[session.recipe]
            rows += (session.id, session.agent_key, session.owner, recipe, encode_facts(session, recipe))
            rows += (session.expires_at, session.created_at)
        recipes = {name: recipe for recipe, name in names.items()}
        owner = sessions[0].owner if sessions else ""
        point = sessions[0].parent if sessions else None
        content = chain(pairs(parts), encode_history(history), pairs({**blobs, **recipes}))
        common = (owner, point.session_id if point else "", point.last if point else -1)
        result = self._redis.run("create", *content, *common, len(sessions), *rows)
        if result < 0:
            raise SessionNotFoundError
        if not result:
            raise MissingBlobError

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        return self._session(session_id, self._redis.run("get", session_id))

    def ancestor(self, session_id: str) -> StoredSession | None:
        """Return a session that exists or is kept for its forks, or None."""
        for name in ("sessions", "kept"):
            facts = self._redis.command("HGET", self._redis.key(name), session_id)
            if session_and_head := self._session(session_id, (facts, 0, 0, ())):
                return session_and_head[0]
        return None

    def find_agent(self, agent_key: str) -> str | None:
        session_id = self._redis.command("HGET", self._redis.key("agents"), agent_key)
        return session_id.decode() if session_id else None

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        arguments = chain.from_iterable(map(encode_commit, commits))
        return [bool(committed) for committed in self._redis.run("commit", len(commits), *arguments)]

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return blobs by id."""
        if not ids:
            return {}
        answers = self._redis.command("MGET", *(self._redis.key(f"blob:{blob}") for blob in ids))
        bodies = {blob: body for blob, body in zip(ids, answers, strict=True) if body is not None}
        if len(bodies) < len({*ids}):
            raise MissingBlobError(*(blob for blob in ids if blob not in bodies))
        return bodies

    @decoder
    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        """Return the blob ids of a version, computed from the history of the session."""
        history = self._history(session_id)
        if history is None:
            raise SessionNotFoundError
        kept, rows = history
        if version != 0 and version not in kept:
            raise VersionNotRetainedError(version, kept.start, kept.stop - 1)
        return parts_at((Change(*row[:3]) for row in map(orjson.loads, rows)), version)

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        answer = self._redis.run("record_of_call", session_id, orjson.dumps(call_id))
        return answer and decode_record(int(answer[0]), answer[1])

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        """Return records after an index. With `max_bytes`, read small pages until the limit is reached."""
        records: list[Record] = []
        page_size = limit if max_bytes is None else RECORD_PAGE_SIZE
        while (size := min(page_size, limit - len(records))) > 0:
            first = max(after + 1, 0) + len(records)
            texts = self._redis.command("LRANGE", self._redis.key(f"records:{session_id}"), first, first + size - 1)
            records += map(decode_record, count(first), texts)
            fit = fitting(records, lambda record: len(record.body), max_bytes)
            if len(texts) < size or len(fit) < len(records):
                return fit
        return records

    def records_at(self, ranges: Sequence[tuple[str, range]]) -> list[list[Record]]:
        words = [word for session_id, indices in ranges for word in (session_id, indices.start, indices.stop - 1)]
        answers = self._redis.run("records_at", len(ranges), *words)
        return [[*map(decode_record, indices, texts)] for (_, indices), texts in zip(ranges, answers, strict=True)]

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        """Delete old versions by the rules of `history.trim`."""
        history = self._history(session_id)
        if history is None:
            return
        kept, texts = history
        rows = [orjson.loads(text) for text in texts]
        by_change = {Change(*row[:3]): text for row, text in zip(rows, texts, strict=True)}
        sizes = {blob: size for _, _, blob, size in rows}
        # Computed outside the script, because a session can only get newer versions meanwhile.
        oldest, unneeded = trim(list(by_change), kept, sizes, keep_versions, keep_bytes)
        if oldest > kept.start:
            self._redis.run("trim", session_id, oldest, *pairs({by_change[change]: change.blob for change in unneeded}))

    def renew(self, session_id: str, expires_at: float) -> None:
        self._redis.command("ZADD", self._redis.key("expires"), "XX", expires_at, session_id)

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        """Return the sessions that match a query. Pages of ids are read until enough sessions match."""
        listing = RedisListing(self._redis, query)
        labels, after, limit = query.labels, query.after, query.limit
        page_size = max(limit, MIN_PAGE_SIZE) if labels else limit
        result: list[tuple[StoredSession, int]] = []
        while len(result) < limit:
            ids = listing.page(after, page_size)
            facts = self._redis.command("HMGET", self._redis.key("sessions"), *ids) if ids else []
            matching = [id_ for id_, text in zip(ids, facts, strict=True) if text and has_labels(text, labels)]
            answers = self._redis.run("list", len(matching), *matching)
            sessions = undamaged(lambda row: self._session(*row), zip(matching, answers, strict=True))
            result.extend(
                (session, head.version)
                for session, head in filter(None, sessions)
                if query.owner is None or session.owner == query.owner
            )
            if len(ids) < page_size:
                break
            after = ids[-1]
        return result[:limit]

    def count(self, owner: str | None = None) -> int:
        if owner is None:
            return int(self._redis.command("HLEN", self._redis.key("sessions")))
        return int(self._redis.command("ZCARD", self._redis.key(f"owner:{owner}")))

    def stored_bytes(self, owner: str) -> int:
        return int(self._redis.command("HGET", self._redis.key("bytes"), owner) or 0)

    def count_time(self, clock: float | None = None) -> StoreClock:
        times = self._redis.run("count_time", GAP_SECONDS, NOTE_SECONDS, "" if clock is None else clock)
        return StoreClock(*map(float, times))

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        """Delete expired sessions that aren't in use, with one script. Return their ids."""
        busy_pairs = pairs(dict.fromkeys(busy, ""))
        batch_size = min(limit, DELETION_BATCH_SIZE)
        deleted = self._redis.run("delete_expired", now, now - HELD_SECONDS, batch_size, *busy_pairs)
        return [session_id.decode() for session_id in deleted]

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        """Delete sessions in batches, each with one script. Return the ids of the sessions that existed."""
        deleted: list[str] = []
        for start in range(0, len(session_ids), DELETION_BATCH_SIZE):
            batch = session_ids[start : start + DELETION_BATCH_SIZE]
            deleted += (session_id.decode() for session_id in self._redis.run("delete", len(batch), *batch))
        return deleted

    def clean_up(self) -> None:
        """Do nothing: `delete` removes all data at once."""

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        """Acquire leases with one script."""
        watched = pairs({lease.holder: str(lease.heartbeat) for lease in dead})
        return [decode_claim(answer) for answer in self._redis.run("claim", holder, *watched, *session_ids)]

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        self._redis.run("release", session_id, holder, epoch)

    def ask(self, session_id: str, holder: str) -> None:
        self._redis.run("ask", session_id, holder)

    def heartbeat(self, holder: str) -> Collection[str]:
        return {session_id.decode() for session_id in self._redis.run("heartbeat", holder)}

    def holder_ended(self, holder: str) -> None:
        self._redis.run("holder_ended", holder)

    def outside_name(self, new: str) -> str:
        """Return the name of this store in its bucket. If the store has no name, set it to `new`."""
        key = self._redis.key("outside")
        name = self._redis.command("GET", key)
        if new and not name:  # Read the name first, because a full Redis refuses SET NX even if the key exists
            self._redis.command("SET", key, new, "NX")
            name = self._redis.command("GET", key)
        return (name or b"").decode()

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        return self._redis.command("LPOP", self._redis.key("dropped"), limit) or []

    def ping(self) -> None:
        self._redis.check()

    def close(self) -> None:
        self._redis.close()

    @decoder
    def _history(self, session_id: str) -> tuple[range, Sequence[bytes]] | None:
        """Return the stored versions above 0, and the changes as JSON, or None if the session doesn't exist."""
        exists, version, oldest, rows = self._redis.run("history", session_id)
        return (range(int(oldest), int(version) + 1), rows) if exists else None

    @decoder
    def _session(self, session_id: str, answer: Sequence[Any]) -> tuple[StoredSession, Head] | None:
        """Decode a session and its head, or return None if the session was deleted meanwhile."""
        facts, expires_at, *head = answer
        if facts is None:
            return None
        first, second, details = split_facts(facts)
        labels, ttl_seconds, created_at, parent = load(second)
        agent_key, owner, recipe, _ = load(first)
        try:
            text = self._recipes.get(recipe) or self._recipes.setdefault(recipe, self.blobs([recipe])[recipe])
        except MissingBlobError:  # deleted meanwhile
            return None
        session = StoredSession(
            session_id,
            agent_key,
            owner,
            text,
            labels,
            ttl_seconds,
            created_at,
            float(expires_at),
            parent and ForkPoint(*parent),
            details,
        )
        return session, decode_head(*head)
