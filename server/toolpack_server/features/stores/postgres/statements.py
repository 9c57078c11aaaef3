"""Tables and statements of the Postgres store.

All transactions take locks in the same order (sessions, heads, blobs, each by key), so deadlocks are rare. After a
deadlock, Postgres cancels one of the transactions, which is then retried.

Columns that change with every commit are in the table `heads`, which has only one index besides its key. So most
commits don't write the indices of `sessions`. The column `place` is the index of a record. The column `refs` of a blob
is the number of rows in `changes` that refer to the blob. A recipe is also stored as a blob, and its `refs` is the
number of its sessions. A blob is deleted with the last reference.

A deleted session that is kept for its forks stays in the table `sessions` with `kept` set, and with an epoch that no
commit contains.
"""

from toolpack_server.stores.blob_stubs import DIGITS, MARK

MIGRATIONS = (
    """
CREATE SCHEMA IF NOT EXISTS toolpack;
CREATE TABLE toolpack.format (number integer NOT NULL);
INSERT INTO toolpack.format VALUES (1);
CREATE TABLE toolpack.sessions (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id bytea NOT NULL UNIQUE,
    agent_key bytea NOT NULL UNIQUE,
    owner bytea NOT NULL,
    recipe bytea NOT NULL,
    labels bytea NOT NULL,
    label_hashes bigint[] NOT NULL,
    ttl_seconds double precision NOT NULL,
    created_at double precision NOT NULL,
    parent bytea,
    parent_version bigint,
    parent_last bigint,
    parent_record bytea,
    details bytea NOT NULL,
    kept boolean NOT NULL DEFAULT false
);
CREATE INDEX sessions_by_owner ON toolpack.sessions (owner, id);
CREATE INDEX sessions_by_owner_and_creation ON toolpack.sessions (owner, created_at, id) WHERE NOT kept;
CREATE INDEX sessions_by_creation ON toolpack.sessions (created_at, id) WHERE NOT kept;
CREATE INDEX sessions_by_parent ON toolpack.sessions (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_parent_and_creation ON toolpack.sessions (parent, created_at, id) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_labels ON toolpack.sessions USING gin (label_hashes) WHERE NOT kept;
CREATE TABLE toolpack.heads (
    key bigint PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 0,
    holder bytea,
    place bigint NOT NULL DEFAULT -1,
    version bigint NOT NULL DEFAULT 0,
    oldest bigint NOT NULL DEFAULT 1,
    last bytea NOT NULL DEFAULT '',
    total bigint NOT NULL DEFAULT 0,
    added bigint NOT NULL DEFAULT 0,
    expires_at double precision NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX heads_by_expiry ON toolpack.heads (expires_at);
CREATE TABLE toolpack.records (
    session bigint NOT NULL,
    place bigint NOT NULL,
    version bigint NOT NULL,
    call_id bytea,
    id bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (session, place)
);
CREATE UNIQUE INDEX records_by_call ON toolpack.records (session, call_id) WHERE call_id IS NOT NULL;
CREATE TABLE toolpack.changes (
    session bigint NOT NULL,
    version bigint NOT NULL,
    part bytea NOT NULL,
    blob bytea NOT NULL,
    size bigint NOT NULL,
    PRIMARY KEY (session, version, part)
);
CREATE TABLE toolpack.parts (
    session bigint NOT NULL,
    part bytea NOT NULL,
    blob bytea NOT NULL,
    PRIMARY KEY (session, part)
) WITH (fillfactor = 70);
CREATE TABLE toolpack.blobs (
    id bytea PRIMARY KEY,
    refs bigint NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE toolpack.blobs ALTER body SET STORAGE EXTERNAL;
CREATE TABLE toolpack.outside (name bytea NOT NULL);
CREATE TABLE toolpack.dropped (stub bytea NOT NULL);
CREATE TABLE toolpack.workers (
    holder bytea PRIMARY KEY,
    beat bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE toolpack.asked (holder bytea NOT NULL, session bytea NOT NULL, PRIMARY KEY (holder, session));
CREATE TABLE toolpack.clock (noted double precision, uncounted double precision NOT NULL);
INSERT INTO toolpack.clock VALUES (NULL, 0);
""",
)
"""Migration steps. Step 1 creates the tables, and each further step leads to the next schema number.

A statement ends with `;` at the end of a line.
"""

# `to_regclass` isn't used, because it can miss a table that was created while this transaction waited for a lock.
HAS_FORMAT = """
    SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'toolpack' AND c.relname = 'format')
"""
FORMAT = "SELECT number FROM toolpack.format"
LOCK_FORMAT = "SELECT pg_advisory_xact_lock(8390878)::text"

_FACTS = """
    s.recipe, s.id, s.agent_key, s.owner, s.labels, s.ttl_seconds, s.created_at, h.expires_at, s.parent,
    s.parent_version, s.parent_last, s.parent_record, s.details
"""
FACTS = 13  # number of columns in `_FACTS`
_HEAD = "h.place, h.version, h.epoch, h.last, h.total + h.added, newest.parts, newest.blobs"
_PARTS = """
    LEFT JOIN LATERAL (
        SELECT array_agg(part) AS parts, array_agg(blob) AS blobs FROM toolpack.parts p WHERE p.session = h.key
    ) newest ON true
"""
_BOTH = "FROM toolpack.sessions s JOIN toolpack.heads h ON h.key = s.key"
GET = f"SELECT {_FACTS}, {_HEAD} {_BOTH} {_PARTS} WHERE s.id = $1 AND NOT s.kept"
ANCESTOR = f"SELECT {_FACTS} {_BOTH} WHERE s.id = $1"
LIST = f"SELECT {_FACTS}, h.version {_BOTH} WHERE NOT s.kept AND {{conditions}} ORDER BY {{order}} LIMIT {{limit}}"
CREATED_AT = "SELECT created_at FROM toolpack.sessions WHERE id = $1 AND NOT kept"
FIND_AGENT = "SELECT id FROM toolpack.sessions WHERE agent_key = $1 AND NOT kept"
COUNT = "SELECT count(*) FROM toolpack.sessions WHERE NOT kept"
COUNT_OF = "SELECT count(*) FROM toolpack.sessions WHERE NOT kept AND owner = $1"
BLOBS = "SELECT id, body FROM toolpack.blobs WHERE id = ANY($1::bytea[])"
STORED_BYTES = """
    WITH mine AS MATERIALIZED (
        SELECT s.key, s.recipe, octet_length(s.labels) + octet_length(s.details) + h.total AS own
        FROM toolpack.sessions s JOIN toolpack.heads h ON h.key = s.key WHERE s.owner = $1
    )
    SELECT (
        (SELECT coalesce(sum(own), 0) FROM mine)
        + (SELECT coalesce(sum(octet_length(body)), 0)
            FROM (SELECT DISTINCT recipe FROM mine) r JOIN toolpack.blobs b ON b.id = r.recipe)
        + (SELECT coalesce(sum(size), 0)
            FROM (SELECT DISTINCT c.blob, c.size FROM mine m JOIN toolpack.changes c ON c.session = m.key) d)
    )::bigint
"""

# Creation of sessions. A lock on the parent prevents its deletion meanwhile.
LOCK_PARENT = "SELECT 1 FROM toolpack.sessions WHERE id = $1 AND NOT kept FOR SHARE"
ADD_SESSION = """
    INSERT INTO toolpack.sessions (
        id, agent_key, owner, labels, ttl_seconds, created_at, parent, parent_version, parent_last, parent_record,
        details, recipe, label_hashes
    )
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT (id) DO NOTHING RETURNING key
"""
ADD_HEADS = """
    INSERT INTO toolpack.heads (key, expires_at, place, version, oldest, last, total, added)
    SELECT key, expires_at, $3, $4, $5, $6, $7, $8
    FROM unnest($1::bigint[], $2::double precision[]) AS n (key, expires_at)
"""
ADD_CHANGES = """
    INSERT INTO toolpack.changes
    SELECT n.key, c.version, c.part, c.blob, c.size FROM unnest($1::bigint[]) AS n (key),
        unnest($2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[]) AS c (version, part, blob, size)
"""
ADD_PARTS = """
    INSERT INTO toolpack.parts
    SELECT n.key, p.* FROM unnest($1::bigint[]) AS n (key), unnest($2::bytea[], $3::bytea[]) AS p
"""
ADD_RECORDS = """
    INSERT INTO toolpack.records
    SELECT n.key, r.* FROM unnest($1::bigint[]) AS n (key),
        unnest($2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bytea[]) AS r
"""
_IS_STUB = f"substr(body, 1, {len(MARK)}) = '\\x{MARK.hex()}'::bytea"  # reads only the beginning of a long body
SIZES = f"""
    SELECT id, CASE WHEN {_IS_STUB} THEN convert_from(substr(body, {len(MARK) + 1}, {DIGITS}), 'UTF8')::bigint
        ELSE octet_length(body) END
    FROM toolpack.blobs WHERE id = ANY($1::bytea[]) ORDER BY id FOR UPDATE
"""  # noqa: S608
ADD_BLOBS = """
    INSERT INTO toolpack.blobs AS b (id, refs, body)
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS n (id, refs, body) ORDER BY id
    ON CONFLICT (id) DO UPDATE SET refs = b.refs + excluded.refs
"""
ADD_REFERENCES = """
    UPDATE toolpack.blobs b SET refs = b.refs + n.more
    FROM unnest($1::bytea[], $2::bigint[]) AS n (id, more) WHERE b.id = n.id
"""

# Commits. The commits in one statement must belong to different sessions. The statement that updates a head also
# compares the head with the commit. If a concurrent commit has updated the row meanwhile, Postgres compares the new
# row.
LOCK_HEADS = """
    SELECT h.key FROM toolpack.sessions s JOIN toolpack.heads h ON h.key = s.key WHERE s.id = ANY($1::bytea[])
    ORDER BY h.key FOR UPDATE OF h
"""
COMMIT = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(
            $1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bytea[], $8::bytea[],
            $9::bytea[], $10::double precision[], $11::boolean[], $12::bigint[]
        ) WITH ORDINALITY AS g (
            session, epoch, holder, place, after, version, call_id, id, body, expires_at, release, added, number
        )
    ), moved AS (
        UPDATE toolpack.heads h SET
            place = g.place, version = g.version, last = g.id, total = h.total + octet_length(g.body),
            added = h.added + g.added,
            expires_at = coalesce(g.expires_at, h.expires_at),
            holder = CASE WHEN g.release THEN NULL ELSE h.holder END
        FROM given g JOIN toolpack.sessions s ON s.id = g.session
        WHERE h.key = s.key AND h.epoch = g.epoch AND (g.holder IS NULL OR h.holder = g.holder)
            AND h.place = g.place - 1 AND h.last = g.after AND (g.call_id IS NULL OR NOT EXISTS (
                SELECT FROM toolpack.records r WHERE r.session = s.key AND r.call_id = g.call_id
            ))
        RETURNING h.key, g.number
    ), recorded AS (
        INSERT INTO toolpack.records
        SELECT m.key, g.place, g.version, g.call_id, g.id, g.body FROM moved m JOIN given g ON g.number = m.number
    ), changed AS (
        INSERT INTO toolpack.changes
        SELECT m.key, g.version, c.part, c.blob, c.size
        FROM unnest($13::bigint[], $14::bytea[], $15::bytea[], $16::bigint[]) AS c (number, part, blob, size)
        JOIN moved m ON m.number = c.number JOIN given g ON g.number = c.number
    ), current AS (
        INSERT INTO toolpack.parts
        SELECT m.key, c.part, c.blob FROM unnest($13::bigint[], $14::bytea[], $15::bytea[]) AS c (number, part, blob)
        JOIN moved m ON m.number = c.number
        ON CONFLICT (session, part) DO UPDATE SET blob = excluded.blob
    ), added AS (
        INSERT INTO toolpack.blobs AS b (id, refs, body)
        SELECT n.id, r.refs, n.body FROM (
            SELECT c.blob, count(*) AS refs FROM unnest($13::bigint[], $15::bytea[]) AS c (number, blob)
            JOIN moved m ON m.number = c.number GROUP BY c.blob
        ) r JOIN unnest($17::bytea[], $18::bytea[]) AS n (id, body) ON n.id = r.blob ORDER BY n.id
        ON CONFLICT (id) DO UPDATE SET refs = b.refs + excluded.refs
    )
    SELECT number FROM moved
"""
# Finds commits whose records are already stored. The UPDATE changes no value, but makes Postgres confirm a write: with
# synchronous replication it responds only when a standby has the records.
SAME = """
    WITH same AS MATERIALIZED (
        SELECT s.key, g.number
        FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bytea[])
            WITH ORDINALITY AS g (session, place, version, call_id, id, body, number)
        JOIN toolpack.sessions s ON s.id = g.session AND NOT s.kept
        JOIN toolpack.records r ON r.session = s.key AND r.place = g.place
        WHERE r.version = g.version AND r.call_id IS NOT DISTINCT FROM g.call_id AND r.id = g.id AND r.body = g.body
    ), written AS (
        UPDATE toolpack.heads SET total = total WHERE key IN (SELECT key FROM same)
    )
    SELECT number FROM same
"""

# Data of a session.
_ONE = "(SELECT key FROM toolpack.sessions WHERE id = $1)"
RECORD_OF_CALL = """
    SELECT place, version, call_id, body, id FROM toolpack.records
    WHERE session = (SELECT key FROM toolpack.sessions WHERE id = $1 AND NOT kept) AND call_id = $2
"""
RECORDS = f"""
    SELECT place, version, call_id, body, id FROM toolpack.records
    WHERE session = {_ONE} AND place > $2 AND place <= $3 ORDER BY place
"""  # noqa: S608
RECORD_SIZES = f"""
    SELECT octet_length(body) FROM toolpack.records
    WHERE session = {_ONE} AND place > $2 AND place <= $3 ORDER BY place
"""  # noqa: S608
RECORDS_AT = """
    SELECT w.number, r.place, r.version, r.call_id, r.body, r.id
    FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w (session, start, stop, number)
    JOIN toolpack.sessions s ON s.id = w.session
    JOIN toolpack.records r ON r.session = s.key AND r.place >= w.start AND r.place < w.stop
    ORDER BY w.number, r.place
"""
HISTORY = f"""
    SELECT h.key, h.oldest, h.version, s.kept, s.parent IS NOT NULL, c.versions, c.parts, c.blobs, c.sizes
    {_BOTH} LEFT JOIN LATERAL (
        SELECT array_agg(version ORDER BY version) AS versions, array_agg(part ORDER BY version) AS parts,
            array_agg(blob ORDER BY version) AS blobs, array_agg(size ORDER BY version) AS sizes
        FROM toolpack.changes WHERE session = h.key
    ) c ON true
    WHERE s.id = $1
"""  # noqa: S608

RENEW = """
    UPDATE toolpack.heads h SET expires_at = $2 FROM toolpack.sessions s
    WHERE s.id = $1 AND NOT s.kept AND h.key = s.key AND h.epoch >= 0
"""
TRIM = """
    UPDATE toolpack.heads SET oldest = greatest(oldest, $2), added = greatest(0, added - $3)
    WHERE key = $1 AND epoch >= 0
"""
# Removal of references to blobs. The statements return the new reference counts. `remove_references` then deletes the
# blobs without references.
_REMOVE_CHANGES = """
    WITH gone AS (DELETE FROM toolpack.changes c {which} RETURNING c.blob), counted AS (
        SELECT blob, count(*) AS fewer FROM gone GROUP BY blob
    ), locked AS MATERIALIZED (
        SELECT b.id FROM toolpack.blobs b JOIN counted n ON n.blob = b.id ORDER BY b.id FOR UPDATE OF b
    )
    UPDATE toolpack.blobs b SET refs = b.refs - n.fewer FROM counted n JOIN locked l ON l.id = n.blob
    WHERE b.id = l.id RETURNING b.id, b.refs
"""
REMOVE_CHANGES = _REMOVE_CHANGES.format(
    which="""USING unnest($2::bigint[], $3::bytea[]) AS g (version, part)
        WHERE c.session = $1 AND c.version = g.version AND c.part = g.part"""
)
REMOVE_CHANGES_FROM = _REMOVE_CHANGES.format(which="WHERE c.session = $1 AND c.version >= $2")
REMOVE_ALL_CHANGES = _REMOVE_CHANGES.format(which="WHERE c.session = ANY($1::bigint[])")
REMOVE_REFERENCES = """
    UPDATE toolpack.blobs b SET refs = b.refs - n.fewer
    FROM unnest($1::bytea[], $2::bigint[]) AS n (id, fewer) WHERE b.id = n.id RETURNING b.id, b.refs
"""
FREE = f"""
    WITH gone AS (
        DELETE FROM toolpack.blobs WHERE id = ANY($1::bytea[]) AND refs <= 0
        RETURNING CASE WHEN {_IS_STUB} THEN body END AS stub
    )
    INSERT INTO toolpack.dropped SELECT stub FROM gone WHERE stub IS NOT NULL
"""  # noqa: S608

# Blobs that are kept outside Postgres.
OUTSIDE_NAME = "SELECT name FROM toolpack.outside"
SET_OUTSIDE_NAME = "INSERT INTO toolpack.outside VALUES ($1)"
TAKE_DROPPED = """
    DELETE FROM toolpack.dropped WHERE ctid IN (
        SELECT ctid FROM toolpack.dropped LIMIT $1 FOR UPDATE SKIP LOCKED
    ) RETURNING stub
"""

# Deletion.
LOCK_SESSIONS = """
    SELECT key, id, recipe, parent FROM toolpack.sessions WHERE id = ANY($1::bytea[]) AND NOT kept
    ORDER BY key FOR UPDATE
"""
LOCK_EXPIRED = """
    SELECT s.key, s.id, s.recipe, s.parent FROM toolpack.heads h JOIN toolpack.sessions s ON s.key = h.key
    WHERE h.expires_at <= $1 AND NOT s.kept AND (h.expires_at <= $2 OR (
        s.id <> ALL ($3::bytea[])
        AND NOT EXISTS (SELECT FROM toolpack.workers w WHERE w.holder = h.holder AND w.beat >= 0)
    )) ORDER BY h.expires_at LIMIT $4 FOR UPDATE OF s, h SKIP LOCKED
"""
FORKS = """
    SELECT parent, max(parent_last) FROM toolpack.sessions WHERE parent = ANY($1::bytea[]) GROUP BY parent
"""
LOCK_FAMILIES = "SELECT pg_advisory_xact_lock(8390879)::text"
KEEP = "UPDATE toolpack.sessions SET kept = true WHERE key = ANY($1::bigint[])"
KEEP_HEADS = """
    UPDATE toolpack.heads SET epoch = -1, holder = NULL, expires_at = 'infinity', version = 0, oldest = 1,
        added = 0
    WHERE key = ANY($1::bigint[])
"""
REMOVE_KEPT = """
    DELETE FROM toolpack.sessions s WHERE s.id = ANY($1::bytea[]) AND s.kept
        AND NOT EXISTS (SELECT FROM toolpack.sessions f WHERE f.parent = s.id)
    RETURNING s.key, s.recipe, s.parent
"""
REMOVE_SESSIONS = "DELETE FROM toolpack.sessions WHERE key = ANY($1::bigint[])"
REMOVE_HEADS = "DELETE FROM toolpack.heads WHERE key = ANY($1::bigint[])"
REMOVE_PARTS = "DELETE FROM toolpack.parts WHERE session = ANY($1::bigint[])"
REMOVE_RECORDS = "DELETE FROM toolpack.records WHERE session = ANY($1::bigint[])"
REMOVE_LATER_RECORDS = "DELETE FROM toolpack.records WHERE session = $1 AND place > $2"
COUNT_RECORDS = """
    UPDATE toolpack.heads SET place = $2,
        total = (SELECT coalesce(sum(octet_length(body)), 0) FROM toolpack.records WHERE session = $1)
    WHERE key = $1
"""

# Leases. These statements don't wait until a lease is on disk or on a standby. If the database loses a lease, the
# session has its former epoch and holder again, so commits with the lost lease are refused.
_ASYNC = "set_config('synchronous_commit', 'off', true)"
CLAIM = f"""
    UPDATE toolpack.heads h SET holder = $2, epoch = h.epoch + 1 FROM toolpack.sessions s
    WHERE s.id = ANY($1::bytea[]) AND NOT s.kept AND h.key = s.key AND h.epoch >= 0 AND (
        h.holder IS NULL OR h.holder = $2 OR EXISTS (
            SELECT FROM (SELECT coalesce((SELECT beat FROM toolpack.workers w WHERE w.holder = h.holder), 0)) w (beat)
            WHERE w.beat < 0 OR EXISTS (
                SELECT FROM unnest($3::bytea[], $4::bigint[]) AS d (holder, beat)
                WHERE d.holder = h.holder AND d.beat = w.beat
            )
        )
    ) RETURNING s.id, {_ASYNC}
"""  # noqa: S608
CLAIMED = f"""
    SELECT s.id, h.holder, coalesce(w.beat, 0), {_HEAD} {_BOTH} {_PARTS}
    LEFT JOIN toolpack.workers w ON w.holder = h.holder WHERE s.id = ANY($1::bytea[]) AND NOT s.kept
"""
RELEASE = f"""
    UPDATE toolpack.heads h SET holder = NULL FROM toolpack.sessions s
    WHERE s.id = $1 AND h.key = s.key AND h.holder = $2 AND h.epoch = $3 RETURNING {_ASYNC}
"""  # noqa: S608
ASK = """
    INSERT INTO toolpack.asked SELECT $2::bytea, $1::bytea
    WHERE NOT EXISTS (SELECT FROM toolpack.workers WHERE holder = $2 AND beat < 0) ON CONFLICT DO NOTHING
"""
TAKE_ASKED = "DELETE FROM toolpack.asked WHERE holder = $1 RETURNING session"
REMOVE_ASKED = "DELETE FROM toolpack.asked WHERE holder = $1"
HEARTBEAT = """
    INSERT INTO toolpack.workers (holder, beat) VALUES ($1, 1)
    ON CONFLICT (holder) DO UPDATE SET beat = greatest(toolpack.workers.beat, 0) + 1, at = now()
"""
ENDED = """
    INSERT INTO toolpack.workers (holder, beat) VALUES ($1, -1) ON CONFLICT (holder) DO UPDATE SET beat = -1, at = now()
"""
REMOVE_OLD_WORKERS = "DELETE FROM toolpack.workers WHERE at < now() - interval '1 day'"
REMOVE_OLD_ASKED = """
    DELETE FROM toolpack.asked a WHERE NOT EXISTS (SELECT FROM toolpack.workers w WHERE w.holder = a.holder)
"""
# Makes a write asynchronous. It can be lost, which is acceptable for writes that are repeated every second.
SET_ASYNC = f"SELECT {_ASYNC}"

CLOCK = "SELECT noted, uncounted, extract(epoch FROM clock_timestamp())::double precision FROM toolpack.clock"
LOCK_CLOCK = f"{CLOCK} FOR UPDATE"
UPDATE_CLOCK = "UPDATE toolpack.clock SET noted = $1, uncounted = $2"
CAN_WRITE = "UPDATE toolpack.clock SET uncounted = uncounted WHERE false"
