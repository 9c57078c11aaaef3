"""Comparison of two databases by their pages: it finds the same differences as a comparison of all rows."""

import copy
import random

import pytest

from toolpack_server.features.volumes.databases import database as module
from toolpack_server.features.volumes.databases.database import Database
from toolpack_server.features.volumes.databases.database_views import Reading, patch

SCHEMA = """
CREATE TABLE plain (id INTEGER PRIMARY KEY, text, number);
CREATE TABLE wide (name TEXT PRIMARY KEY, body);
CREATE TABLE keyed (a, b, c, PRIMARY KEY (b, a)) WITHOUT ROWID;
CREATE TABLE far (id INTEGER PRIMARY KEY, text);
CREATE INDEX by_text ON plain (text);
WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000)
    INSERT INTO plain SELECT x, 'row ' || x, x / 7.0 FROM n;
INSERT INTO wide SELECT 'name ' || id, hex(zeroblob(id % 50 * 200)) FROM plain WHERE id <= 300;
INSERT INTO keyed SELECT id, number, text FROM plain;
INSERT INTO far VALUES (-9223372036854775808, 'first'), (9223372036854775807, 'last');
INSERT INTO far SELECT (id - 1500) * 6148914691236, text FROM plain;
"""
CHANGES = [
    "UPDATE {table} SET {column} = 'changed' WHERE {key} % 977 = {number} % 977",
    "DELETE FROM {table} WHERE {key} % 1013 = {number} % 1013",
    "DELETE FROM {table} WHERE {key} BETWEEN {number} AND {number} + 700",
    "INSERT OR REPLACE INTO plain SELECT id + {number}, text, NULL FROM plain WHERE id % 400 = 3",
    "INSERT INTO far (text) SELECT text FROM plain WHERE {number} = 1",
    "INSERT INTO keyed SELECT a + 0.5, b, c FROM keyed WHERE a % 500 = {number} % 500",
    "UPDATE wide SET body = replace(body, '0', '1') WHERE rowid = {number} % 300",  # replaced within their pages
    "UPDATE wide SET body = hex(randomblob({number})) WHERE rowid % 100 = {number} % 100",
    "INSERT INTO wide SELECT name || {number}, body FROM wide WHERE rowid % 50 = 1",
    "UPDATE plain SET id = id + 10000 WHERE id = {number}",
    "UPDATE plain SET number = CAST(number AS INTEGER) WHERE id % 700 = {number} % 700",
    "DROP INDEX IF EXISTS by_text",
    "CREATE TABLE IF NOT EXISTS more AS SELECT * FROM plain",
    "DROP TABLE IF EXISTS more",
    "ALTER TABLE far ADD COLUMN c{number} DEFAULT {number}",
    "VACUUM",
]
TABLES = {"plain": ("id", "text"), "wide": ("rowid", "body"), "keyed": ("a", "c"), "far": ("id", "text")}


def compare_rows(before, after):
    """Compare all rows."""
    return patch(Reading(before.connect(), 2**30), Reading(after.connect(), 2**30), "", lambda *_: {})


def file_copy(database):
    """Return a copy whose changes are all in its file, as the comparison requires."""
    return copy.deepcopy(database)


@pytest.mark.parametrize("seed", range(3))
def test_comparing_pages_finds_the_same_changes_as_rows(seed):
    rng = random.Random(seed)
    before = file_copy(Database(SCHEMA))
    for _ in range(6):
        after = file_copy(before)
        connection = after.connect()
        for _ in range(rng.choice([1, 1, 2, 5])):
            table = rng.choice([*TABLES])
            key, column = TABLES[table]
            sql = rng.choice(CHANGES).format(table=table, key=key, column=column, number=rng.randrange(1, 3000))
            connection.execute(sql).fetchall()
            connection.commit()
        after = file_copy(after)
        assert before.patch(after, "", text_diffs=False) == compare_rows(before, after), sql
        before = after


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM plain WHERE id BETWEEN 500 AND 2500",
        "DELETE FROM plain",
        "DELETE FROM far WHERE id < 0",
        # This changes only an overflow page of the value. The page of the row stays unchanged.
        "UPDATE wide SET body = substr(body, 1, 9000) || 'x' || substr(body, 9002) WHERE rowid = 49",
    ],
)
def test_single_change_is_detected(sql):
    before = file_copy(Database(SCHEMA))
    after = file_copy(before)
    after.connect().execute(sql)
    after = file_copy(after)
    operations = before.patch(after, "", text_diffs=False)
    assert operations
    assert operations == compare_rows(before, after)


def test_rows_in_inner_pages_without_rowids_are_compared():
    before = file_copy(
        Database(
            "CREATE TABLE t (id PRIMARY KEY, text) WITHOUT ROWID; WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL "
            "SELECT x + 1 FROM n WHERE x < 30) INSERT INTO t SELECT x, hex(zeroblob(300)) FROM n"
        )
    )
    for number in range(1, 31):
        after = file_copy(before)
        after.connect().execute("UPDATE t SET text = replace(text, '0', '1') WHERE id = ?", (number,))
        ((op),) = before.patch(file_copy(after), "", text_diffs=False)
        assert op["path"] == f"/t/{number}/text"


def test_changed_default_changes_values_in_unchanged_pages():
    base = Database("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
    one, other = file_copy(base), file_copy(base)
    one.connect().execute("ALTER TABLE t ADD COLUMN c DEFAULT 5")
    other.connect().execute("ALTER TABLE t ADD COLUMN c DEFAULT 6")
    operations = file_copy(one).patch(file_copy(other), "", text_diffs=False)
    assert operations == [{"op": "replace", "path": "/t/1/c", "value": 6}]


def test_unchanged_rows_are_not_read(monkeypatch):
    ranges_per_table = []
    ranges = module.changed_ranges
    monkeypatch.setattr(
        module, "changed_ranges", lambda *arguments: ranges_per_table.append(ranges(*arguments)) or ranges_per_table[-1]
    )
    before = file_copy(Database(SCHEMA))
    after = file_copy(before)
    after.connect().execute("UPDATE plain SET number = 0 WHERE id = 1500")
    patched = before.patch(file_copy(after), "", text_diffs=False)
    assert patched == [{"op": "replace", "path": "/plain/1500/number", "value": 0}]
    by_name = {name: spans for (kind, name, _), spans in ranges_per_table[0].items() if kind == "table"}
    ((first, last),) = by_name.pop("plain")
    assert first <= 1500 <= last < first + 300
    assert not any(by_name.values())
