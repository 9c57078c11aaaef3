"""Tables and statements of the SQLite store.

A read is one statement, so it sees one consistent state. Keys of sessions and recipes are never reused (AUTOINCREMENT).
So the rows of a deleted session can be deleted later, and a recipe can be cached by its key. The key of a blob can be
reused when no row refers to the blob. Large rows are appended and found through small indices, which writes fewer pages
than keeping the rows in order.

The column `place` is the index of a record. The table `kept` contains the rows of deleted sessions that are kept for
their forks. The table `deleted` lists sessions with rows that must still be deleted: records from a `place` on, and
changes from a version on. It also contains the session's parent, because a kept parent might have to be deleted
together with these rows.

Statements write or read many rows in few steps, because Python releases its interpreter lock in each step of SQLite.
While other threads compute, a thread gets the lock back only milliseconds later. The number of rows that one statement
inserts is a power of two, so that only few statements must be prepared.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from toolpack_server.stores.blob_stubs import DIGITS, MARK, MAX_STUB_BYTES

SIZES = (64, 32, 16, 8, 4, 2, 1)  # possible numbers of rows in one statement


class Insertion:
    """A statement that inserts several rows.

    Args:
        statement: The statement, in which `{rows}` stands for the rows.
        values: Number of values in a row.
    """

    def __init__(self, statement: str, values: int) -> None:
        row = f"({', '.join('?' * values)})"
        self._by_size = {size: statement.format(rows="VALUES " + ", ".join([row] * size)) for size in SIZES}

    def insert(self, writer: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert rows in order. Return the number of rows that were new."""
        inserted = start = 0
        for size, statement in self._by_size.items():
            while len(rows) - start >= size:
                chunk = rows[start : start + size]
                inserted += writer.execute(statement, tuple(chain.from_iterable(chunk))).rowcount
                start += size
        return inserted


SCHEMA = """
CREATE TABLE recipes (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    text BLOB NOT NULL
);
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    oldest INTEGER NOT NULL DEFAULT 1,
    expires_at REAL NOT NULL,
    agent_key TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    labels BLOB NOT NULL,
    ttl_seconds REAL NOT NULL,
    created_at REAL NOT NULL,
    parent TEXT,
    parent_version INTEGER,
    parent_last INTEGER,
    parent_record TEXT,
    recipe INTEGER NOT NULL,
    details BLOB NOT NULL
);
CREATE INDEX sessions_by_owner ON sessions (owner, id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);
CREATE INDEX sessions_by_recipe ON sessions (recipe);
CREATE INDEX sessions_by_creation ON sessions (owner, created_at, id);
CREATE INDEX sessions_by_parent ON sessions (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_parent_and_creation ON sessions (parent, created_at, id) WHERE parent IS NOT NULL;
CREATE TABLE records (
    session INTEGER NOT NULL,
    place INTEGER NOT NULL,
    version INTEGER NOT NULL,
    call_id TEXT,
    id TEXT NOT NULL,
    total INTEGER NOT NULL, -- bytes of this record and all before it
    body BLOB NOT NULL,
    UNIQUE (session, place)
);
CREATE UNIQUE INDEX records_by_call ON records (session, call_id) WHERE call_id IS NOT NULL;
CREATE TABLE blobs (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    body BLOB NOT NULL
);
CREATE TABLE changes (
    session INTEGER NOT NULL,
    version INTEGER NOT NULL,
    part TEXT NOT NULL,
    blob INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (session, version, part)
) WITHOUT ROWID;
CREATE INDEX changes_by_blob ON changes (blob);
CREATE TABLE workers (holder TEXT PRIMARY KEY, beat INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE kept (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    recipe, agent_key, owner, labels, ttl_seconds, created_at, expires_at,
    parent, parent_version, parent_last, parent_record, details
);
CREATE INDEX kept_by_owner ON kept (owner);
CREATE INDEX kept_by_recipe ON kept (recipe);
CREATE INDEX kept_by_parent ON kept (parent) WHERE parent IS NOT NULL;
CREATE TABLE deleted (
    session INTEGER PRIMARY KEY,
    place INTEGER NOT NULL,
    version INTEGER NOT NULL,
    parent TEXT
);
CREATE TABLE asked (holder TEXT NOT NULL, session TEXT NOT NULL, PRIMARY KEY (holder, session)) WITHOUT ROWID;
CREATE TABLE clock (noted REAL NOT NULL);
"""

_IN_JSON = "IN (SELECT value FROM json_each(CAST(? AS TEXT)))"
_LAST = "FROM records WHERE session = sessions.key ORDER BY place DESC LIMIT 1"
_VERSION = f"coalesce((SELECT version {_LAST}), 0)"
_FACTS = """
    recipe, id, agent_key, owner, labels, ttl_seconds, created_at, expires_at, parent, parent_version, parent_last,
    parent_record, details
"""
_SESSION = f"SELECT {_FACTS}, {_VERSION}"
LEASES = f"""
    SELECT id, sessions.holder, coalesce(beat, 0) FROM sessions LEFT JOIN workers ON workers.holder = sessions.holder
    WHERE id {_IN_JSON}
"""  # noqa: S608 - built from constants, here and below
# In a query with max(version), SQLite takes `blob` from the row that contains the maximum.
GET = f"""{_SESSION},
    (SELECT max(place) FROM records WHERE session = sessions.key), epoch,
    coalesce((SELECT id {_LAST}), ''),
    coalesce((SELECT total {_LAST}), 0) + coalesce((SELECT sum(size)
        FROM (SELECT DISTINCT blob, size FROM changes WHERE session = sessions.key AND version > 0)), 0),
    (SELECT json_group_object(part, (SELECT id FROM blobs WHERE key = blob))
        FROM (SELECT part, blob, max(version) FROM changes WHERE session = sessions.key GROUP BY part))
    FROM sessions WHERE id = ?
"""  # noqa: S608
ANCESTOR = f"SELECT {_FACTS} FROM sessions WHERE id = ? UNION ALL SELECT {_FACTS} FROM kept WHERE id = ?"  # noqa: S608
LIST = f"{_SESSION} FROM sessions WHERE {{conditions}} ORDER BY {{order}} LIMIT ?"
# Returns all changes in one row, because the time depends on the number of rows, not on their content.
HISTORY = f"""
    SELECT key, oldest, {_VERSION}, (SELECT json_group_array(json_array(version, part, CAST(blob AS TEXT), size))
        FROM changes WHERE session = sessions.key)
    FROM sessions WHERE id = ?
"""  # noqa: S608
PARTS_AT = f"""
    SELECT oldest, {_VERSION}, part, blobs.id, max(changes.version)
    FROM sessions LEFT JOIN changes ON session = sessions.key AND changes.version <= ?
    LEFT JOIN blobs ON blobs.key = blob
    WHERE sessions.id = ? GROUP BY part
"""  # noqa: S608
FIRST_PARTS_KEPT = """
    SELECT 1, 0, part, blobs.id, 0
    FROM kept LEFT JOIN changes ON session = kept.key AND version = 0 LEFT JOIN blobs ON blobs.key = blob
    WHERE kept.id = ? AND parent IS NULL
"""
LAST_SESSION = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'sessions'"
KEY_OF = "SELECT key FROM sessions WHERE id = ?"
FIND_AGENT = "SELECT id FROM sessions WHERE agent_key = ?"
CREATED_AT = "SELECT created_at FROM sessions WHERE id = ?"
COUNT = "SELECT count(*) FROM sessions"
COUNT_OF = "SELECT count(*) FROM sessions WHERE owner = ?"
RECIPE = "SELECT text FROM recipes WHERE key = ?"
ADD_RECIPE = "INSERT INTO recipes (digest, text) VALUES (?, ?) ON CONFLICT DO NOTHING"
BLOB = "SELECT body FROM blobs WHERE id = ?"
_IS_STUB = f"length({{body}}) < {MAX_STUB_BYTES} AND substr({{body}}, 1, {len(MARK)}) = X'{MARK.hex()}'"
FIND_BLOB = f"""
    SELECT key, CASE WHEN {_IS_STUB.format(body="body")}
        THEN CAST(CAST(substr(body, {len(MARK) + 1}, {DIGITS}) AS TEXT) AS INTEGER) ELSE length(body) END
    FROM blobs WHERE id = ?
"""  # noqa: S608
# For a file whose large blobs are in a bucket. A trigger also works in processes that don't support blobs in a bucket.
CREATE_OUTSIDE = (
    "CREATE TABLE IF NOT EXISTS outside (name TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS dropped (stub BLOB NOT NULL)",
    f"""
    CREATE TRIGGER IF NOT EXISTS blobs_dropped AFTER DELETE ON blobs WHEN {_IS_STUB.format(body="OLD.body")}
    BEGIN INSERT INTO dropped VALUES (OLD.body); END
    """,  # noqa: S608
)
HAS_OUTSIDE = "SELECT 1 FROM sqlite_master WHERE name = 'outside'"
OUTSIDE_NAME = "SELECT name FROM outside"
SET_OUTSIDE_NAME = "INSERT INTO outside VALUES (?)"
ANY_DROPPED = "SELECT 1 FROM dropped LIMIT 1"
DROPPED = "SELECT rowid, stub FROM dropped LIMIT ?"
DELETE_DROPPED = f"DELETE FROM dropped WHERE rowid {_IN_JSON}"  # noqa: S608
# For new sessions, which have greater keys than all older sessions.
ADD_CHANGE_OF_NEW = "INSERT INTO changes SELECT key, ?, ?, ?, ? FROM sessions WHERE key > ?"
ADD_RECORD_OF_NEW = """
    INSERT INTO records (session, place, version, call_id, id, total, body)
    SELECT key, ?, ?, ?, ?, ?, ? FROM sessions WHERE key > ?
"""
OLDEST_OF_NEW = "UPDATE sessions SET oldest = ? WHERE key > ?"
# A row contains the session's columns of `_FACTS` from `id` on, followed by the digest of its recipe.
ADD_SESSIONS = Insertion(
    f"""
    WITH new AS ({{rows}})
    INSERT INTO sessions ({_FACTS})
    SELECT key, {", ".join(f"column{number}" for number in range(1, 13))}
    FROM new CROSS JOIN recipes ON digest = column13
    WHERE NOT EXISTS (SELECT 1 FROM kept WHERE id = column1)
    ON CONFLICT (id) DO NOTHING
    """,  # noqa: S608
    13,
)
IS_STORED = "SELECT 1 FROM sessions WHERE id = ? UNION ALL SELECT 1 FROM kept WHERE id = ?"
INSERT_RECORDS = Insertion(
    "INSERT INTO records (session, place, version, call_id, id, body, total) {rows} ON CONFLICT DO NOTHING", 7
)
LAST_BLOB = "SELECT coalesce(max(key), 0) FROM blobs"
INSERT_BLOB = "INSERT INTO blobs (key, id, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
INSERT_BLOBS = Insertion("INSERT INTO blobs (key, id, body) {rows} ON CONFLICT DO NOTHING", 3)
INSERT_CHANGES = Insertion("INSERT INTO changes (session, version, part, blob, size) {rows}", 5)
SAME_RECORD = """
    SELECT 1 FROM records WHERE (session, place, version, call_id, id, body) IS (?, ?, ?, ?, ?, ?)
"""
HEADS = f"""
    SELECT json_group_array(json_array(
        sessions.id, epoch, holder, coalesce(place, -1), coalesce(records.id, ''), key, coalesce(total, 0)
    )) FROM sessions LEFT JOIN records ON session = key
        AND place = (SELECT max(place) FROM records WHERE session = sessions.key)
    WHERE sessions.id {_IN_JSON}
"""  # noqa: S608
DATA_VERSION = "PRAGMA data_version"
RENEW_KEY = "UPDATE sessions SET expires_at = ? WHERE key = ?"
RENEW = "UPDATE sessions SET expires_at = ? WHERE id = ?"
STORED_BYTES = """
    WITH mine AS MATERIALIZED (
        SELECT key, recipe, length(labels) + length(details) AS own FROM sessions WHERE owner = ?
        UNION ALL SELECT key, recipe, length(labels) + length(details) FROM kept WHERE owner = ?
    )
    SELECT (SELECT coalesce(sum(own), 0) FROM mine)
        + (SELECT coalesce(sum(length(text)), 0) FROM recipes WHERE key IN (SELECT recipe FROM mine))
        + (SELECT coalesce(sum((SELECT total FROM records WHERE session = mine.key ORDER BY place DESC LIMIT 1)), 0)
            FROM mine)
        + (SELECT coalesce(sum(size), 0)
            FROM (SELECT DISTINCT blob, size FROM changes WHERE session IN (SELECT key FROM mine)))
"""
_KEY = "coalesce((SELECT key FROM sessions WHERE id = ?), (SELECT key FROM kept WHERE id = ?))"
RECORDS = f"""
    SELECT place, version, call_id, body, id FROM records
    WHERE session = {_KEY} AND place > ? ORDER BY place LIMIT ?
"""  # noqa: S608
RECORD_OF_CALL = """
    SELECT place, version, call_id, body, id FROM records
    WHERE session = (SELECT key FROM sessions WHERE sessions.id = ?) AND call_id = ?
"""
RECORD_SIZES = f"SELECT length(body) FROM records WHERE session = {_KEY} AND place > ? ORDER BY place LIMIT ?"  # noqa: S608
RECORDS_AT = """
    SELECT wanted.key, place, version, call_id, body, records.id
    FROM json_each(CAST(? AS TEXT)) AS wanted CROSS JOIN records
    ON session = coalesce(
        (SELECT key FROM sessions WHERE id = wanted.value ->> 0),
        (SELECT key FROM kept WHERE id = wanted.value ->> 0)
    ) AND place BETWEEN wanted.value ->> 1 AND wanted.value ->> 2
"""
# The first row of `clock` is the last reading. The second row is the number of uncounted seconds. It can be missing,
# which means 0.
CLOCK = """
    SELECT (SELECT noted FROM clock ORDER BY rowid LIMIT 1),
        coalesce((SELECT noted FROM clock ORDER BY rowid LIMIT 1 OFFSET 1), 0.0)
"""
ADD_TO_CLOCK = "INSERT INTO clock VALUES (?)"
CLEAR_CLOCK = "DELETE FROM clock"
CLAIM = "UPDATE sessions SET holder = ?, epoch = epoch + 1 WHERE id = ?"
ASK = "INSERT OR IGNORE INTO asked VALUES (?, ?)"
TAKE_ASKED = "DELETE FROM asked WHERE holder = ? RETURNING session"
HEARTBEAT = "INSERT INTO workers VALUES (?, 1) ON CONFLICT (holder) DO UPDATE SET beat = beat + 1"
RELEASE_ALL = "UPDATE sessions SET holder = NULL WHERE holder = ?"
DELETE_WORKER = "DELETE FROM workers WHERE holder = ?"
DELETE_ASKED = "DELETE FROM asked WHERE holder = ?"
RESET_LEASES = "UPDATE sessions SET epoch = 0, holder = NULL WHERE epoch <> 0"
DELETE_WORKERS = "DELETE FROM workers"
DELETE_ALL_ASKED = "DELETE FROM asked"
RELEASE_ONE = "UPDATE sessions SET holder = NULL WHERE id = ? AND holder = ? AND epoch = ?"
RELEASE = f"UPDATE sessions SET holder = NULL WHERE key {_IN_JSON}"  # noqa: S608
ANY_EXPIRED = "SELECT 1 FROM sessions WHERE expires_at <= ? LIMIT 1"
EXPIRED = f"""
    SELECT json_group_array(id) FROM (
        SELECT id FROM sessions WHERE expires_at <= ? AND (
            expires_at <= ?
            OR (NOT id {_IN_JSON} AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.holder = sessions.holder))
        ) ORDER BY expires_at LIMIT ?
    )
"""  # noqa: S608
_FORKS = """
    SELECT parent_last FROM sessions WHERE parent = ? UNION ALL SELECT parent_last FROM kept WHERE parent = ?
"""
NEEDED = f"SELECT max(parent_last) FROM ({_FORKS})"  # noqa: S608
KEEP = f"INSERT INTO kept (key, {_FACTS}) SELECT key, {_FACTS} FROM sessions WHERE id = ?"  # noqa: S608
ALONE = f"""
    SELECT json_group_array(json_array(key, recipe, id)) FROM sessions
    WHERE id {_IN_JSON} AND parent IS NULL
        AND NOT EXISTS (SELECT 1 FROM sessions AS forks WHERE forks.parent = sessions.id)
        AND NOT EXISTS (SELECT 1 FROM kept WHERE kept.parent = sessions.id)
"""  # noqa: S608
DELETE_SESSIONS = f"DELETE FROM sessions WHERE key {_IN_JSON}"  # noqa: S608
DELETE_ALL_LATER = "REPLACE INTO deleted (session, place, version) SELECT value, 0, 0 FROM json_each(CAST(? AS TEXT))"
# Returns sessions for which only few rows and bytes must be deleted, among the first rows of `deleted`.
SMALL_DELETED = """
    SELECT json_group_array(session) FROM (SELECT * FROM deleted ORDER BY session LIMIT ?) AS first
    WHERE place = 0 AND version = 0 AND parent IS NULL
        AND coalesce((SELECT max(place) FROM records WHERE session = first.session), 0) < ?
        AND (SELECT count(*) FROM (SELECT 1 FROM changes WHERE session = first.session LIMIT ?)) < ?
        AND coalesce((SELECT total FROM records WHERE session = first.session ORDER BY place DESC LIMIT 1), 0)
            + coalesce((SELECT sum(size) FROM changes WHERE session = first.session), 0) < ?
"""
BLOBS_OF = f"SELECT json_group_array(DISTINCT blob) FROM changes WHERE session {_IN_JSON}"  # noqa: S608
DELETE_RECORDS_OF = f"DELETE FROM records WHERE session {_IN_JSON}"  # noqa: S608
DELETE_CHANGES_OF = f"DELETE FROM changes WHERE session {_IN_JSON}"  # noqa: S608
DELETIONS_DONE = f"DELETE FROM deleted WHERE session {_IN_JSON}"  # noqa: S608
FREE_BLOBS = f"""
    DELETE FROM blobs WHERE key {_IN_JSON} AND NOT EXISTS (SELECT 1 FROM changes WHERE blob = blobs.key)
"""  # noqa: S608
DELETE_SESSION = "DELETE FROM sessions WHERE id = ? RETURNING key, recipe, id, parent"
DELETE_KEPT = f"DELETE FROM kept WHERE id = ? AND NOT EXISTS ({_FORKS}) RETURNING key, recipe, parent"  # noqa: S608
DELETE_LATER = "REPLACE INTO deleted (session, place, version, parent) VALUES (?, ?, ?, ?)"
NEXT_DELETED = "SELECT session, place, version, parent FROM deleted ORDER BY session LIMIT 1"
RECORDS_TO_DELETE = "SELECT rowid, length(body) FROM records WHERE session = ? AND place >= ? ORDER BY place LIMIT ?"
CHANGES_TO_DELETE = "SELECT version, part, blob, size FROM changes WHERE session = ? AND version >= ? LIMIT ?"
ANY_DELETED = "SELECT 1 FROM deleted LIMIT 1"
DELETION_DONE = "DELETE FROM deleted WHERE session = ?"
DELETE_RECORD = "DELETE FROM records WHERE rowid = ?"
TRIM = "UPDATE sessions SET oldest = max(oldest, ?) WHERE key = ?"
DELETE_CHANGE = "DELETE FROM changes WHERE session = ? AND version = ? AND part = ?"
FREE_BLOB = "DELETE FROM blobs WHERE key = ? AND NOT EXISTS (SELECT 1 FROM changes WHERE blob = blobs.key)"
FREE_RECIPE = """
    DELETE FROM recipes WHERE key = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE recipe = recipes.key)
        AND NOT EXISTS (SELECT 1 FROM kept WHERE recipe = recipes.key)
"""
