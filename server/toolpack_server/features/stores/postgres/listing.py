"""List of sessions in the Postgres store.

A page of the list is one statement with an index, so its time doesn't grow with the number of sessions. Labels are
found through an index of their hashes. Different labels can have the same hash, so `rows` also compares the labels
themselves.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from toolpack_server.base.errors import SessionNotFoundError
from toolpack_server.features.stores.postgres import statements as sql
from toolpack_server.features.stores.postgres.connection import PostgresConnections
from toolpack_server.features.stores.rows import labels_match
from toolpack_server.stores.base import SessionQuery

MIN_PAGE_SIZE = 100  # minimum number of sessions that are read at a time if labels are compared
_ID, _LABELS = 1, 4  # indices of columns


def hashes(labels: Mapping[str, str]) -> list[int]:
    """Return a hash for each label."""
    return [
        int.from_bytes(blake2b(orjson.dumps(label), digest_size=8).digest(), signed=True) for label in labels.items()
    ]


def rows(connections: PostgresConnections, query: SessionQuery) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of all sessions that match a query. The query's limit determines only the size of a page."""
    after, page_size = query.after, max(query.limit, MIN_PAGE_SIZE if query.labels else 1)
    while True:
        page = _page(connections, query, after, page_size)
        yield from (row for row in page if labels_match(row[_LABELS], query.labels))
        if len(page) < page_size:
            return
        after = page[-1][_ID].decode()


def _page(connections: PostgresConnections, query: SessionQuery, after: str, limit: int) -> list[tuple[Any, ...]]:
    """Return up to `limit` rows after the session `after`. Labels are compared only by their hashes."""
    conditions: list[str] = []
    parameters: list[Any] = []

    def add(condition: str, *values: Any) -> None:
        """Add a condition. Each `{}` in the condition is replaced by the number of a parameter."""
        conditions.append(condition.format(*(f"${len(parameters) + index + 1}" for index in range(len(values)))))
        parameters.extend(values)

    if query.parent is not None:
        add("s.parent = {}", query.parent)
    if query.owner is not None:
        add("s.owner = {}", query.owner)
    if query.labels:
        add("s.label_hashes @> {}::bigint[]", hashes(query.labels))
    if query.newest_first:
        created_at = _created_at(connections, after) if after else float("inf")
        add("(s.created_at, s.id) < ({}::double precision, {}::bytea)", created_at, after)
    else:
        add("s.id > {}", after)
    order = "s.created_at DESC, s.id DESC" if query.newest_first else "s.id"
    parameters.append(limit)
    statement = sql.LIST.format(conditions=" AND ".join(conditions), order=order, limit=f"${len(parameters)}")
    (page,) = connections.run((statement, parameters))
    return page


def _created_at(connections: PostgresConnections, session_id: str) -> float:
    """Return the creation time of a session, or raise `SessionNotFoundError`."""
    (rows_,) = connections.run((sql.CREATED_AT, (session_id,)))
    for (created_at,) in rows_:
        return float(created_at)
    raise SessionNotFoundError
