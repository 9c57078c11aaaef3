"""List of sessions in the SQLite store.

A page of the list is one statement with one index, so its time doesn't grow with the number of sessions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.features.stores.rows import labels_match
from toolpack_server.features.stores.sqlite import statements as sql
from toolpack_server.features.stores.sqlite.file import SqliteFile
from toolpack_server.stores.base import SessionQuery


class SqliteListing:
    """The rows of all sessions that match a query. The query's limit has no effect here."""

    def __init__(self, file: SqliteFile, query: SessionQuery) -> None:
        self._file = file
        self._query = query
        owner, parent, newest_first = query.owner, query.parent, query.newest_first
        conditions, self._parameters = ["TRUE"], [value for value in (parent, owner) if value is not None]
        if parent is not None:
            conditions.append("parent = ?")
        if owner is not None:
            # The plus sign prevents SQLite from using the index on owners. The index on parents is better, because a
            # session has fewer forks than an owner has sessions.
            conditions.append("owner = ?" if parent is None else "+owner = ?")
        conditions.append("(created_at, id) < (?, ?)" if newest_first else "id > ?")
        order = "created_at DESC, id DESC" if newest_first else "id"
        self._statement = sql.LIST.format(conditions=" AND ".join(conditions), order=order)

    def rows(self, page_size: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows, which are read in pages of `page_size` rows."""
        labels, after = self._query.labels, self._query.after
        while True:
            page = self._page(after, page_size)
            yield from (row for row in page if labels_match(row[4], labels))
            if len(page) < page_size:
                return
            after = page[-1][1]

    def _page(self, after: str, limit: int) -> Sequence[tuple[Any, ...]]:
        """Return up to `limit` rows after the session `after`, without comparing labels."""
        start: list[object] = [after]
        if self._query.newest_first:
            start = [self._created_at(after) if after else float("inf"), after]
        return self._file.read(self._statement, *self._parameters, *start, limit)

    def _created_at(self, session_id: str) -> float:
        """Return the creation time of a session, or raise `SessionNotFoundError`."""
        for (created_at,) in self._file.read(sql.CREATED_AT, session_id):
            return float(created_at)
        raise SessionNotFoundError
