"""The tables of the SQLite store, and its longer statements.

The rule: a read is one statement, so it sees one consistent state. Keys of sessions and recipes are never reused
(AUTOINCREMENT), so the rows of a deleted session can be deleted later and a recipe can be cached by its key; the key of
a blob may be reused once no row refers to it. Large rows are appended and found through small indices, which writes
fewer pages than keeping them in order.
"""

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
    recipe INTEGER NOT NULL
);
CREATE INDEX sessions_by_owner ON sessions (owner, id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);
CREATE INDEX sessions_by_recipe ON sessions (recipe);
CREATE TABLE records (
    session INTEGER NOT NULL,
    place INTEGER NOT NULL,
    version INTEGER NOT NULL,
    call_id TEXT,
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
CREATE TABLE deleted (session INTEGER PRIMARY KEY);
"""

_VERSION = "coalesce((SELECT version FROM records WHERE session = sessions.key ORDER BY place DESC LIMIT 1), 0)"
_SESSION = f"""
    SELECT recipe, id, agent_key, owner, labels, ttl_seconds, created_at, expires_at, parent, parent_version, {_VERSION}
"""
LEASES = """
    SELECT id, sessions.holder, coalesce(beat, 0) FROM sessions LEFT JOIN workers ON workers.holder = sessions.holder
    WHERE id IN (SELECT value FROM json_each(CAST(? AS TEXT)))
"""
# max() makes SQLite take `blob` from the row that has the maximum.
GET = f"""{_SESSION},
    (SELECT max(place) FROM records WHERE session = sessions.key), epoch,
    (SELECT json_group_object(part, (SELECT id FROM blobs WHERE key = blob))
        FROM (SELECT part, blob, max(version) FROM changes WHERE session = sessions.key GROUP BY part))
    FROM sessions WHERE id = ?
"""  # noqa: S608 - built from constants, here and below
LIST = f"{_SESSION} FROM sessions WHERE id > ? ORDER BY id LIMIT ?"
LIST_OWNER = f"{_SESSION} FROM sessions WHERE owner = ? AND id > ? ORDER BY id LIMIT ?"
HISTORY = f"""
    SELECT sessions.key, oldest, {_VERSION}, changes.version, part, CAST(blob AS TEXT), size
    FROM sessions LEFT JOIN changes ON session = sessions.key WHERE id = ? ORDER BY changes.version
"""  # noqa: S608
PARTS_AT = f"""
    SELECT oldest, {_VERSION}, part, blobs.id, max(changes.version)
    FROM sessions LEFT JOIN changes ON session = sessions.key AND changes.version <= ?
    LEFT JOIN blobs ON blobs.key = blob
    WHERE sessions.id = ? GROUP BY part
"""  # noqa: S608
ADD_SESSION = """
    INSERT INTO sessions (recipe, id, agent_key, owner, labels, ttl_seconds, created_at, expires_at, parent,
        parent_version)
    SELECT key, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM recipes WHERE digest = ?
    ON CONFLICT (id) DO NOTHING
"""
ADD_RECORD = """
    INSERT INTO records (session, place, version, call_id, body)
    SELECT key, :place, :version, :call_id, :body FROM sessions WHERE id = :session AND epoch = :epoch
        AND (:place = 0 OR EXISTS (SELECT 1 FROM records WHERE session = key AND place = :place - 1))
    ON CONFLICT DO NOTHING
    RETURNING session
"""
SAME_RECORD = """
    SELECT 1 FROM records WHERE session = (SELECT key FROM sessions WHERE id = :session)
        AND place = :place AND version = :version AND call_id IS :call_id AND body = :body
"""
HEADS = """
    SELECT id, key, epoch, (SELECT coalesce(max(place), -1) FROM records WHERE session = sessions.key)
    FROM sessions WHERE id IN (SELECT value FROM json_each(CAST(? AS TEXT)))
"""
RELEASE = "UPDATE sessions SET holder = NULL WHERE key IN (SELECT value FROM json_each(CAST(? AS TEXT)))"
FORGET_CHANGES = """
    DELETE FROM changes WHERE (session, version, part)
        IN (SELECT ?, value ->> 0, value ->> 1 FROM json_each(CAST(? AS TEXT)))
"""
ADD_CHANGE = "INSERT INTO changes (session, version, part, blob, size) VALUES (?, ?, ?, ?, ?)"
FREE_BLOB = "DELETE FROM blobs WHERE key = ? AND NOT EXISTS (SELECT 1 FROM changes WHERE blob = blobs.key)"
FREE_BLOBS = """
    DELETE FROM blobs WHERE key IN (SELECT value FROM json_each(CAST(? AS TEXT)))
        AND NOT EXISTS (SELECT 1 FROM changes WHERE blob = blobs.key)
"""
FREE_RECIPE = "DELETE FROM recipes WHERE key = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE recipe = recipes.key)"
