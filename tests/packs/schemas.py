"""A database that begins empty, and tasks to put something into its schema, for the tests."""

import sqlite3
from typing import Annotated, Any

from server import Database, Depends, Task, TaskEnvironment, Toolpack

PLACES = {
    "CHECK": ["CREATE TABLE t (id INTEGER PRIMARY KEY, j CHECK (json_valid(j) AND json_extract(j, '$.a') > 0))"],
    "generated column": ["CREATE TABLE t (id INTEGER PRIMARY KEY, j, a AS (json_extract(j, '$.a')), b AS (j->>'$.a'))"],
    "stored column": ["CREATE TABLE t (id INTEGER PRIMARY KEY, j, a AS (json_extract(j, '$.a')) STORED)"],
    "index": ["CREATE TABLE t (id INTEGER PRIMARY KEY, j)", "CREATE INDEX i ON t (json_extract(j, '$.a'))"],
    "partial index": ["CREATE TABLE t (id INTEGER PRIMARY KEY, j)", "CREATE INDEX i ON t (j) WHERE json_valid(j)"],
    "default": ["CREATE TABLE t (id INTEGER PRIMARY KEY, j DEFAULT (json_object('a', 1)))"],
    "view": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, j)",
        "CREATE VIEW v AS SELECT value FROM t, json_each(t.j) WHERE json_valid(t.j)",
    ],
    "trigger": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, j)",
        "CREATE TABLE log (a)",
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO log SELECT value FROM json_each(new.j); END",
    ],
    "full text": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, j)",
        "CREATE VIRTUAL TABLE f USING fts5(j, content='t', content_rowid='id')",
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO f (rowid, j) VALUES (new.id, new.j); END",
        "CREATE TRIGGER d AFTER DELETE ON t BEGIN INSERT INTO f (f, rowid, j) VALUES ('delete', old.id, old.j); END",
    ],
    "R-tree": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, j)",
        "CREATE VIRTUAL TABLE f USING rtree(id, low, high)",
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO f SELECT new.id, value, value FROM json_each(new.j); END",
    ],
}
FILL = "INSERT INTO t (j) VALUES ('{\"a\": 1}')"


class OneDatabase(TaskEnvironment):
    db: Database = Database()


toolpack = Toolpack("schemas", OneDatabase)


@toolpack.function
def run(db: Annotated[sqlite3.Connection, Depends("db")], statements: list[str]) -> list[Any]:
    """Run SQL.

    :param statements: The statements.
    """
    return [[[repr(value) for value in row] for row in db.execute(each)] for each in statements]


@toolpack.function
def by_path(db: Annotated[Database, Depends("db")], statements: list[str]) -> None:
    """Run SQL on the file.

    :param statements: The statements.
    """
    with db.path() as path:
        connection = sqlite3.connect(path)
        for each in statements:
            connection.execute(each)
        connection.commit()
        connection.close()


def evaluate(rollout):
    for world in (rollout.initial, rollout.environment):
        for (name,) in world.db.connect().execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"):
            world.db.connect().execute(f'SELECT * FROM "{name}"').fetchall()
    (found,) = rollout.environment.db.connect().execute("SELECT count(*) FROM t").fetchone()
    rollout.check("rows", found == 1, str(found))


for place, statements in PLACES.items():
    solution = [("run", {"statements": [*statements, FILL]})]
    toolpack.add_task(Task(place.replace(" ", "-"), "Do it.", solution=solution, evaluate=evaluate))
    toolpack.add_task(Task(place.replace(" ", "-") + "-by-rows", "Do it.", solution=solution))
