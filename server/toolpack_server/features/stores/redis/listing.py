"""Which sessions a list of the Redis store has, and in what order.

The rule: ids only. A page of an owner's sessions takes the same time however many there are; the forks of a session by
id, and the sessions of all owners newest first, are read whole.
"""

from bisect import bisect_right
from collections.abc import Sequence

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.features.stores.redis.connection import RedisConnection
from toolpack_server.stores.base import SessionQuery


class RedisListing:
    """Ids of the sessions of a query, whatever their labels; `created_at` is that of a session `after` elsewhere."""

    def __init__(self, redis: RedisConnection, query: SessionQuery, created_at: float | None = None) -> None:
        self._redis = redis
        self._owner = query.owner
        self._parent = query.parent
        self._newest_first = query.newest_first
        self._elsewhere = None if created_at is None else (created_at, query.after)

    def page(self, after: str, limit: int) -> Sequence[str]:
        """Get the ids after a session."""
        if self._parent is not None:
            forks = f"forks:{self._parent}"
            return self._newest(forks, after, limit) if self._newest_first else _after(self._all(forks), after, limit)
        if not self._newest_first:
            return self._by_id(after, limit)
        if self._owner is not None:
            return self._newest(f"created:{self._owner}", after, limit)
        created = [each for owner in self._owners() for each in self._scored(f"created:{owner}")]
        created.sort(reverse=True)
        ids = [id_ for _, id_ in created]
        start = 0
        if after in ids:
            start = ids.index(after) + 1
        elif after:
            newer = self._bound(after)
            start = sum(each > newer for each in created)
        return ids[start : start + limit]

    def _bound(self, after: str) -> tuple[float, str]:
        """Get when a session that isn't here was created, and its id."""
        if self._elsewhere is None or after != self._elsewhere[1]:
            raise SessionNotFoundError
        return self._elsewhere

    def _owners(self) -> Sequence[str]:
        return [owner.decode() for owner in self._redis.command("SMEMBERS", self._redis.key("owners"))]

    def _by_id(self, after: str, limit: int) -> Sequence[str]:
        """Get ids in order, merged from those of each owner, which Redis keeps in order."""
        start = f"({after}" if after else "-"
        ids: set[bytes] = set()
        for owner in self._owners() if self._owner is None else [self._owner]:
            key = self._redis.key(f"owner:{owner}")
            ids.update(self._redis.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, limit))
        return [id_.decode() for id_ in sorted(ids)[:limit]]

    def _newest(self, name: str, after: str, limit: int) -> Sequence[str]:
        key, start = self._redis.key(name), 0
        if after:
            place = self._redis.command("ZREVRANK", key, after)
            start = self._newer(key, after) if place is None else int(place) + 1
        return [id_.decode() for id_ in self._redis.command("ZREVRANGE", key, start, start + limit - 1)]

    def _newer(self, key: str, after: str) -> int:
        created_at, _ = self._bound(after)
        same = self._redis.command("ZRANGEBYSCORE", key, created_at, created_at)
        newer = self._redis.command("ZCOUNT", key, f"({created_at!r}", "+inf")
        return sum((int(newer), *(id_.decode() > after for id_ in same)))

    def _all(self, name: str) -> Sequence[str]:
        return sorted(id_.decode() for id_ in self._redis.command("ZRANGE", self._redis.key(name), 0, -1))

    def _scored(self, name: str) -> Sequence[tuple[float, str]]:
        key = self._redis.key(name)
        ids = self._redis.command("ZRANGE", key, 0, -1)
        scores = self._redis.command("ZMSCORE", key, *ids) if ids else []
        both = zip(scores, ids, strict=True)
        return [(float(score), id_.decode()) for score, id_ in both if score is not None]  # None: deleted meanwhile


def _after(ids: Sequence[str], after: str, limit: int) -> Sequence[str]:
    start = bisect_right(ids, after)
    return ids[start : start + limit]
