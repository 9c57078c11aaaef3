"""List of session ids in the Redis store.

Reading a page of one owner's sessions takes the same time for any number of sessions. Two other lists are slower,
because each page reads the whole list: the forks of a session by id, and the sessions of all owners by creation time.
"""

from bisect import bisect_right
from collections.abc import Sequence

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.features.stores.redis.connection import RedisConnection
from toolpack_server.stores.base import SessionQuery


class RedisListing:
    """The ids of the sessions that match a query, except for its labels, which the caller must compare."""

    def __init__(self, redis: RedisConnection, query: SessionQuery) -> None:
        self._redis = redis
        self._owner = query.owner
        self._parent = query.parent
        self._newest_first = query.newest_first

    def page(self, after: str, limit: int) -> Sequence[str]:
        """Return up to `limit` ids that follow the id `after`.

        Raises:
            SessionNotFoundError: The query lists the newest sessions first, and the session `after` doesn't exist.
        """
        if self._parent is not None:
            forks = f"forks:{self._parent}"
            return self._newest(forks, after, limit) if self._newest_first else _after(self._all(forks), after, limit)
        if not self._newest_first:
            return self._by_id(after, limit)
        if self._owner is not None:
            return self._newest(f"created:{self._owner}", after, limit)
        created = [pair for owner in self._owners() for pair in self._scored(f"created:{owner}")]
        created.sort(reverse=True)
        ids = [id_ for _, id_ in created]
        start = 0
        if after in ids:
            start = ids.index(after) + 1
        elif after:
            raise SessionNotFoundError
        return ids[start : start + limit]

    def _owners(self) -> Sequence[str]:
        return [owner.decode() for owner in self._redis.command("SMEMBERS", self._redis.key("owners"))]

    def _by_id(self, after: str, limit: int) -> Sequence[str]:
        """Return a page of ids in their order, merged from the sorted ids of each owner."""
        start = f"({after}" if after else "-"
        ids: set[bytes] = set()
        for owner in self._owners() if self._owner is None else [self._owner]:
            key = self._redis.key(f"owner:{owner}")
            ids.update(self._redis.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, limit))
        return [id_.decode() for id_ in sorted(ids)[:limit]]

    def _newest(self, name: str, after: str, limit: int) -> Sequence[str]:
        """Return a page of ids from a sorted set, with the newest first."""
        key, start = self._redis.key(name), 0
        if after:
            rank = self._redis.command("ZREVRANK", key, after)
            if rank is None:
                raise SessionNotFoundError
            start = int(rank) + 1
        return [id_.decode() for id_ in self._redis.command("ZREVRANGE", key, start, start + limit - 1)]

    def _all(self, name: str) -> Sequence[str]:
        """Return all ids in a sorted set, in the order of the ids."""
        return sorted(id_.decode() for id_ in self._redis.command("ZRANGE", self._redis.key(name), 0, -1))

    def _scored(self, name: str) -> Sequence[tuple[float, str]]:
        """Return all ids in a sorted set, each as a pair of its score and the id."""
        key = self._redis.key(name)
        ids = self._redis.command("ZRANGE", key, 0, -1)
        scores = self._redis.command("ZMSCORE", key, *ids) if ids else []
        pairs = zip(scores, ids, strict=True)
        # A score of None means that the session was deleted meanwhile.
        return [(float(score), id_.decode()) for score, id_ in pairs if score is not None]


def _after(ids: Sequence[str], after: str, limit: int) -> Sequence[str]:
    start = bisect_right(ids, after)
    return ids[start : start + limit]
