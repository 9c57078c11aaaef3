-- A store as version 0.1.0 wrote it (schema 1). Never write it again to make a test pass.
BEGIN TRANSACTION;
CREATE TABLE blobs (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    body BLOB NOT NULL
);
INSERT INTO "blobs" VALUES(1,'b0',X'626F6479206F66206F6C64');
INSERT INTO "blobs" VALUES(2,'b1',X'626F6479206F6620203031');
INSERT INTO "blobs" VALUES(3,'b2',X'626F6479206F6620203032');
CREATE TABLE changes (
    session INTEGER NOT NULL,
    version INTEGER NOT NULL,
    part TEXT NOT NULL,
    blob INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (session, version, part)
) WITHOUT ROWID;
INSERT INTO "changes" VALUES(1,0,'bank',1,11);
INSERT INTO "changes" VALUES(1,1,'bank',2,11);
INSERT INTO "changes" VALUES(1,2,'bank',3,11);
CREATE TABLE deleted (session INTEGER PRIMARY KEY);
CREATE TABLE recipes (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    text BLOB NOT NULL
);
INSERT INTO "recipes" VALUES(1,X'15687E290251DA0784B495AC02E00264',X'5B5B2262616E6B225D2C7B7D2C7B7D5D');
CREATE TABLE records (
    session INTEGER NOT NULL,
    place INTEGER NOT NULL,
    version INTEGER NOT NULL,
    call_id TEXT,
    body BLOB NOT NULL,
    UNIQUE (session, place)
);
INSERT INTO "records" VALUES(1,0,1,'c1',X'7B226E756D626572223A20317D0A');
INSERT INTO "records" VALUES(1,1,2,'c2',X'7B226E756D626572223A20327D0A');
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
INSERT INTO "sessions" VALUES(1,'old',0,NULL,1,2000.0,'key','ann',X'7B2272756E223A2231227D',60.0,1000.0,NULL,NULL,1);
CREATE TABLE workers (holder TEXT PRIMARY KEY, beat INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX sessions_by_owner ON sessions (owner, id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);
CREATE INDEX sessions_by_recipe ON sessions (recipe);
CREATE UNIQUE INDEX records_by_call ON records (session, call_id) WHERE call_id IS NOT NULL;
CREATE INDEX changes_by_blob ON changes (blob);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('recipes',1);
INSERT INTO "sqlite_sequence" VALUES('sessions',1);
COMMIT;
PRAGMA application_id = 1953460076;
PRAGMA user_version = 1;
