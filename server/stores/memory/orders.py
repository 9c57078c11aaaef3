"""The orders in which the store in memory lists its sessions.

The rule: ids only; the caller holds the lock, and looks up the sessions.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from server.base.errors import SessionNotFoundError
from server.stores.base import SessionQuery, StoredSession


class Orders:
    """Ids of sessions, sorted by id and by time of creation, and those of each session's forks."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._created: list[tuple[float, str]] = []
        self._times: dict[str, float] = {}
        self._forks: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, sessions: Sequence[StoredSession]) -> None:
        for session in sessions:
            self._times[session.id] = session.created_at
            if session.parent is not None:
                self._forks[session.parent.session_id].add(session.id)
        self._ids.extend(session.id for session in sessions)
        self._ids.sort()
        self._created.extend((session.created_at, session.id) for session in sessions)
        self._created.sort()

    def remove(self, sessions: Collection[StoredSession]) -> None:
        for session in sessions:
            del self._times[session.id]
            if session.parent is not None:
                forks = self._forks[session.parent.session_id]
                forks.remove(session.id)
                if not forks:
                    del self._forks[session.parent.session_id]
        if sessions:
            self._ids = [id_ for id_ in self._ids if id_ in self._times]
            self._created = [each for each in self._created if each[1] in self._times]

    def following(self, query: SessionQuery) -> Iterator[str]:
        """Get the ids after one in an order, of all sessions or of the forks of one, whoever owns them."""
        after, parent = query.after, query.parent
        if not query.newest_first:
            ids = self._ids if parent is None else sorted(self._forks.get(parent, ()))
            return (ids[place] for place in range(bisect_right(ids, after), len(ids)))
        if after and after not in self._times:
            raise SessionNotFoundError
        created = self._created
        if parent is not None:
            created = sorted((self._times[id_], id_) for id_ in self._forks.get(parent, ()))
        end = bisect_left(created, (self._times[after], after)) if after else len(created)
        return (created[place][1] for place in range(end - 1, -1, -1))
