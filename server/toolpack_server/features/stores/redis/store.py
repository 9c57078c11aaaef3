"""A store in Redis, or a compatible server, for several machines.

Every change is one script (`script.lua`) or one command, so it is atomic.

It needs a connection to one primary, 6.2 or newer; Redis Cluster isn't supported, as a script touches keys of several
sessions. What survives a crash of Redis depends on its persistence (appendonly, appendfsync) and its replicas.
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
    divided,
    encode_commit,
    encode_facts,
    encode_history,
    has_labels,
    pairs,
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

PREFIX = "toolpack:"  # of all keys
PAGE = 100  # sessions that `list` reads at a time, at least, if it looks for labels, which most may lack
RECORDS_AT_ONCE = 16  # that `records` reads if their bytes are limited
DELETED_AT_ONCE = 100  # sessions in one script, during which Redis serves nobody else


class RedisStore:
    """Keeps sessions in Redis; `SharedStore` documents the methods."""

    shared = True

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection
        self._recipes = BoundedCache[str, bytes](RECIPE_CACHE_BYTES, len)  # by their digests

    @classmethod
    def from_url(cls, url: str, *, exclusive: bool = False) -> "RedisStore":
        """Open the store of a URL like `redis://user:password@host:port/0`, or `rediss://…` for TLS."""
        del exclusive
        if "," in url:
            raise SettingsError(
                "--store names one Redis, so its URL has no comma (one in a password is %2C): for a fleet beyond one "
                "Redis use postgresql://…"
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
        """Check that it can be used; raises as `RedisConnection.open`."""
        self._redis.open()

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        names = {session.recipe: "recipe:" + digest(session.recipe).hex() for session in sessions}
        rows: list[str | bytes | float] = []
        for session in sessions:
            recipe = names[session.recipe]
            rows += (session.id, session.agent_key, session.owner, recipe, encode_facts(session, recipe))
            rows += (session.expires_at, session.created_at)
        recipes = {name: recipe for recipe, name in names.items()}
        owner = sessions[0].owner if sessions else ""
        point = sessions[0].parent if sessions else None
        given = chain(pairs(parts), encode_history(history), pairs({**blobs, **recipes}))
        common = (owner, point.session_id if point else "", point.last if point else -1)
        added = self._redis.run("create", *given, *common, len(sessions), *rows)
        if added < 0:
            raise SessionNotFoundError
        if not added:
            raise MissingBlobError

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        return self._session(session_id, self._redis.run("get", session_id))

    def ancestor(self, session_id: str) -> StoredSession | None:
        for name in ("sessions", "kept"):
            facts = self._redis.command("HGET", self._redis.key(name), session_id)
            if found := self._session(session_id, (facts, 0, 0, ())):
                return found[0]
        return None

    def find_agent(self, agent_key: str) -> str | None:
        found = self._redis.command("HGET", self._redis.key("agents"), agent_key)
        return found.decode() if found else None

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        arguments = chain.from_iterable(map(encode_commit, commits))
        return [bool(committed) for committed in self._redis.run("commit", len(commits), *arguments)]

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        if not ids:
            return {}
        bodies = self._redis.command("MGET", *(self._redis.key(f"blob:{blob}") for blob in ids))
        found = {blob: body for blob, body in zip(ids, bodies, strict=True) if body is not None}
        if len(found) < len({*ids}):
            raise MissingBlobError(*(blob for blob in ids if blob not in found))
        return found

    @decoder
    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        found = self._history(session_id)
        if found is None:
            raise SessionNotFoundError
        kept, rows = found
        if version != 0 and version not in kept:
            raise VersionNotRetainedError(version, kept.start, kept.stop - 1)
        return parts_at((Change(*row[:3]) for row in map(orjson.loads, rows)), version)

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        found = self._redis.run("record_of_call", session_id, orjson.dumps(call_id))
        return found and decode_record(int(found[0]), found[1])

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        found: list[Record] = []
        at_once = limit if max_bytes is None else RECORDS_AT_ONCE
        while (more := min(at_once, limit - len(found))) > 0:
            first = max(after + 1, 0) + len(found)
            texts = self._redis.command("LRANGE", self._redis.key(f"records:{session_id}"), first, first + more - 1)
            found += map(decode_record, count(first), texts)
            fit = fitting(found, lambda record: len(record.body), max_bytes)
            if len(texts) < more or len(fit) < len(found):
                return fit
        return found

    def records_at(self, wanted: Sequence[tuple[str, range]]) -> list[list[Record]]:
        words = [word for session_id, indices in wanted for word in (session_id, indices.start, indices.stop - 1)]
        answers = self._redis.run("records_at", len(wanted), *words)
        return [[*map(decode_record, indices, texts)] for (_, indices), texts in zip(wanted, answers, strict=True)]

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        found = self._history(session_id)
        if found is None:
            return
        kept, texts = found
        rows = [orjson.loads(text) for text in texts]
        by_change = {Change(*row[:3]): text for row, text in zip(rows, texts, strict=True)}
        sizes = {blob: size for _, _, blob, size in rows}
        # Outside of the script, as a session can only get newer versions meanwhile.
        oldest, unneeded = trim(list(by_change), kept, sizes, keep_versions, keep_bytes)
        if oldest > kept.start:
            self._redis.run("trim", session_id, oldest, *pairs({by_change[change]: change.blob for change in unneeded}))

    def renew(self, session_id: str, expires_at: float) -> None:
        self._redis.command("ZADD", self._redis.key("expires"), "XX", expires_at, session_id)

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        listing = RedisListing(self._redis, query)
        labels, after, limit = query.labels, query.after, query.limit
        page = max(limit, PAGE) if labels else limit
        found: list[tuple[StoredSession, int]] = []
        while len(found) < limit:
            ids = listing.page(after, page)
            facts = self._redis.command("HMGET", self._redis.key("sessions"), *ids) if ids else []
            matching = [id_ for id_, text in zip(ids, facts, strict=True) if text and has_labels(text, labels)]
            answers = self._redis.run("list", len(matching), *matching)
            sessions = undamaged(lambda row: self._session(*row), zip(matching, answers, strict=True))
            found.extend(
                (session, head.version)
                for session, head in filter(None, sessions)
                if query.owner is None or session.owner == query.owner
            )
            if len(ids) < page:
                break
            after = ids[-1]
        return found[:limit]

    def count(self, owner: str | None = None) -> int:
        if owner is None:
            return int(self._redis.command("HLEN", self._redis.key("sessions")))
        return int(self._redis.command("ZCARD", self._redis.key(f"owner:{owner}")))

    def stored_bytes(self, owner: str) -> int:
        return int(self._redis.command("HGET", self._redis.key("bytes"), owner) or 0)

    def count_time(self, clock: float | None = None) -> StoreClock:
        found = self._redis.run("count_time", GAP_SECONDS, NOTE_SECONDS, "" if clock is None else clock)
        return StoreClock(*map(float, found))

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        kept = pairs(dict.fromkeys(busy, ""))
        most = min(limit, DELETED_AT_ONCE)
        deleted = self._redis.run("delete_expired", now, now - HELD_SECONDS, most, *kept)
        return [session_id.decode() for session_id in deleted]

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        deleted: list[str] = []
        for start in range(0, len(session_ids), DELETED_AT_ONCE):
            some = session_ids[start : start + DELETED_AT_ONCE]
            deleted += (session_id.decode() for session_id in self._redis.run("delete", len(some), *some))
        return deleted

    def clean_up(self) -> None:
        """Nothing is left of deleted sessions."""

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
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
        name = self._redis.key("outside")
        found = self._redis.command("GET", name)
        if new and not found:  # a full Redis refuses to set what is set
            self._redis.command("SET", name, new, "NX")
            found = self._redis.command("GET", name)
        return (found or b"").decode()

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        return self._redis.command("LPOP", self._redis.key("dropped"), limit) or []

    def ping(self) -> None:
        self._redis.check()

    def close(self) -> None:
        self._redis.close()

    @decoder
    def _history(self, session_id: str) -> tuple[range, Sequence[bytes]] | None:
        """Get the stored versions, except version 0, and the rows of the history."""
        exists, version, oldest, rows = self._redis.run("history", session_id)
        return (range(int(oldest), int(version) + 1), rows) if exists else None

    @decoder
    def _session(self, session_id: str, answer: Sequence[Any]) -> tuple[StoredSession, Head] | None:
        facts, expires_at, *head = answer
        if facts is None:
            return None
        first, second, details = divided(facts)
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
