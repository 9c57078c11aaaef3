"""Random histories of sessions' databases, compared with plain `sqlite3`: results, errors and tables must be equal.

    python -m tools.database_histories --histories 2000 --store sqlite --isolation process
    python -m tools.database_histories --histories 500 --store redis --isolation thread --kills 2

A history is a random sequence of calls, resets and forks. Exit status 1 means that a history differed; the output has
the seed that reproduces it.
"""

import contextlib
import random
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import redis_server
import serving

from toolpack_server.packs.loading import load_catalog
from tools import killed_server

VALUES = ["NULL", "1", "-7", "9007199254740993", "1.5", "1e300", "'a'", "'x/y~z'", "'it''s'", "''", "'né€'", "x'00ff'"]
TYPES = ["INTEGER", "TEXT", "REAL", "BLOB", "", "NUMERIC"]
KEYS = ["", "PRIMARY KEY", "UNIQUE", "NOT NULL", "DEFAULT 3", "CHECK (a IS NOT 9)"]


class Statements:
    """Generates random SQL statements. They use few names, so that many of them are valid after one another."""

    def __init__(self, rng):
        self.rng = rng

    def table(self):
        return self.rng.choice(["t", "u", "v", '"we ird"'])

    def value(self):
        if self.rng.random() < 0.1:
            return f"zeroblob({self.rng.randrange(20_000)})"
        if self.rng.random() < 0.1:
            return f"'{self.rng.choice('abc') * self.rng.randrange(9000)}'"
        return self.rng.choice(VALUES)

    def create(self):
        rng = self.rng
        kind = rng.randrange(6)
        first = f"a {rng.choice(TYPES)} {rng.choice(KEYS)}"
        columns = f"{first}, b {rng.choice(TYPES)}, c"
        if kind == 0:
            return f"CREATE TABLE {self.table()} (a {rng.choice(TYPES)} PRIMARY KEY, b, c) WITHOUT ROWID"
        if kind == 1:
            return f"CREATE TABLE {self.table()} (a INTEGER PRIMARY KEY AUTOINCREMENT, b, c)"
        if kind == 2:
            return f"CREATE TABLE {self.table()} (a INTEGER, b TEXT, c ANY, PRIMARY KEY (a, b)) STRICT"
        if kind == 3:
            return f"CREATE TABLE {self.table()} ({columns}, d AS (typeof(a) || typeof(b)) STORED)"
        if kind == 4:
            return f"CREATE TABLE {self.table()} ({first}, b REFERENCES t (a) ON DELETE CASCADE, c)"
        return f"CREATE TABLE IF NOT EXISTS {self.table()} ({columns})"

    def insert(self):
        rows = ", ".join(f"({self.value()}, {self.value()}, {self.value()})" for _ in range(self.rng.choice([1, 1, 3])))
        verb = self.rng.choice(["INSERT", "INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE", "REPLACE"])
        ending = self.rng.choice(["", "", " RETURNING a, typeof(b)", " ON CONFLICT DO UPDATE SET b = excluded.b"])
        return f"{verb} INTO {self.table()} (a, b, c) VALUES {rows}{ending}"

    def many(self):
        return (
            f"WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {self.rng.randrange(400)}) "
            f"INSERT OR IGNORE INTO {self.table()} (a, b, c) SELECT x, 'row ' || x, {self.value()} FROM n"
        )

    def change(self):
        where = self.rng.choice(["", "WHERE a = 1", "WHERE a % 3 = 0", "WHERE b LIKE 'row%'", "WHERE c IS NULL"])
        if self.rng.random() < 0.5:
            return f"DELETE FROM {self.table()} {where}"
        return f"UPDATE {self.table()} SET {self.rng.choice('abc')} = {self.value()} {where}"

    def schema(self):
        table = self.table()
        return self.rng.choice(
            [
                f"DROP TABLE {table}",
                f"ALTER TABLE {table} ADD COLUMN e DEFAULT 5",
                f"ALTER TABLE {table} RENAME COLUMN c TO f",
                f"ALTER TABLE {table} RENAME TO w",
                f"CREATE INDEX IF NOT EXISTS i ON {table} (b, c)",
                "DROP INDEX i",
                f"CREATE TRIGGER g AFTER INSERT ON {table} BEGIN UPDATE u SET c = 'by trigger'; END",
                "DROP TRIGGER g",
                f"CREATE VIEW s AS SELECT count(*) AS n FROM {table}",
                "SELECT n FROM s",
                "CREATE VIRTUAL TABLE fts USING fts5(body)",
                "INSERT INTO fts VALUES ('some words here')",
                "SELECT rowid, body FROM fts WHERE fts MATCH 'words'",
                "ANALYZE",
                "REINDEX",
                "PRAGMA user_version = 7",
                "PRAGMA integrity_check",
                "SELECT nothing",
                "VACUUM",
            ]
        )

    def statement(self):
        return self.rng.choices([self.create, self.insert, self.many, self.change, self.schema], [2, 6, 2, 4, 3])[0]()

    def script(self):
        inside = "; ".join(self.statement() for _ in range(self.rng.randrange(1, 4)))
        return self.rng.choice(
            [
                inside,
                f"BEGIN; {inside}; COMMIT",
                f"BEGIN; {inside}; ROLLBACK",
                f"SAVEPOINT p; {inside}; ROLLBACK TO p; {self.insert()}; RELEASE p",
                f"BEGIN; {inside}",  # a transaction that the script doesn't end
                f"SAVEPOINT q; {inside}",
            ]
        )


class PlainDatabase:
    """One version of a database in plain `sqlite3`, in memory. Running SQL returns the next version."""

    def __init__(self, content=None):
        if content is None:
            database = sqlite3.connect(":memory:")
            database.execute("PRAGMA user_version = 1")  # a database without a page can't be serialized
            database.execute("PRAGMA user_version = 0")
            content = database.serialize()
            database.close()
        self.content = content

    def open(self):
        connection = sqlite3.connect(":memory:")
        connection.deserialize(self.content)
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    def run(self, sql, *, script, fails):
        """Run SQL as a call does. Return the result, the error, and the database after the call.

        Args:
            sql: The SQL.
            script: Whether the SQL may have several statements.
            fails: Whether the call raises an error at its end, so that its changes are lost.
        """
        connection = self.open()
        try:
            rows = connection.executescript(sql).fetchall() if script else connection.execute(sql).fetchall()
            if fails:
                raise ValueError("on purpose")
            connection.commit()
            return [[repr(value) for value in row] for row in rows], None, PlainDatabase(connection.serialize())
        except Exception as error:  # noqa: BLE001 - the call must fail with the same error
            return "", f"{type(error).__name__}: {error}", self
        finally:
            connection.close()

    def read_content(self):
        """Return the content of the database, as `content_of` returns it."""
        connection = self.open()
        try:
            return content_of(lambda sql: [[repr(value) for value in row] for row in connection.execute(sql)])
        finally:
            connection.close()


def content_of(query):
    """Return the content of a database, as far as SQL shows it. `query` runs SQL and returns the rows."""
    schema = query("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
    content = {"schema": schema, "check": query("PRAGMA integrity_check"), "version": query("PRAGMA user_version")}
    for kind, name, _, _ in schema:
        if kind == "'table'" and not name.startswith("'fts"):
            quoted = '"' + name[1:-1] + '"'
            content[name] = sorted(query(f"SELECT * FROM {quoted}"))
    return content


def history(bench, seed, steps=25):
    """Run random operations on a session and its forks, and the same SQL on plain databases. Return the sessions."""
    rng = random.Random(seed)
    statements = Statements(rng)
    first = bench.create("stall", environment={"stall": {"db": "", "notes": []}})
    empty = PlainDatabase()
    sessions = {first: [empty]}  # for each session, the databases of all versions
    for step in range(steps):
        where = f"seed {seed}, step {step}"
        session = rng.choice([*sessions])
        versions = sessions[session]
        draw = rng.random()
        if draw < 0.08 and len(sessions) < 4:
            version = rng.randrange(len(versions))
            (fork,) = bench.rpc("fork_session", session_id=session, version=version)
            sessions[fork["session_id"]] = [versions[version]]
            continue
        if draw < 0.16:
            version = rng.randrange(len(versions))
            bench.rpc("reset_session", session_id=session, version=version)
            versions.append(versions[version])
            continue
        script, fails = rng.random() < 0.3, rng.random() < 0.15
        sql = statements.script() if script else statements.statement()
        result, error, after = versions[-1].run(sql, script=script, fails=fails)
        envelope = bench.call(session, "run_sql", sql=sql, script=script, fails=fails)
        assert envelope == {"result": result, "error": error}, (where, sql, envelope, result, error)
        if error is None:
            versions.append(after)
    for session, versions in sessions.items():
        content = content_of(lambda sql, session=session: bench.result(session, "query", sql=sql))
        assert content == versions[-1].read_content(), (f"seed {seed}", session)
        check_diff(bench, session, rng.randrange(len(versions)))
    return sessions


def check_diff(bench, session, version):
    """Check the diff from a version to the current one.

    The patch must turn the JSON of the version into the current JSON. Each table and row must be readable by its
    pointer.
    """
    import jsonpatch  # noqa: PLC0415 - a dependency of the server

    before = bench.rpc("get_environment", session_id=session, version=version)
    after = bench.rpc("get_environment", session_id=session)
    if "$rows" not in str(before) + str(after):
        patch = bench.rpc("diff_environment", session_id=session, from_version=version)
        assert jsonpatch.apply_patch(before, patch) == after, (session, version, patch)
    for name, rows in after["stall"]["db"].items():
        where = f"/stall/db/{name.replace('~', '~0').replace('/', '~1')}"
        assert bench.rpc("get_environment", session_id=session, pointer=where) == rows
        rows_read = {}
        while page := bench.rpc(
            "get_environment", session_id=session, pointer=where, after=next(reversed(rows_read), None), limit=50
        ):
            assert not page.keys() & rows_read.keys()
            rows_read |= page
        if "$rows" not in rows:
            assert [*rows_read.items()] == [*rows.items()], (session, name)
        for key in [*rows_read][:3]:
            row = f"{where}/{key.replace('~', '~0').replace('/', '~1')}"
            assert bench.rpc("get_environment", session_id=session, pointer=row) == rows_read[key]


def options(command):
    """Add the options that all programs with histories have."""
    for option in (
        click.option("--histories", default=2000, show_default=True, help="Number of histories."),
        click.option("--seed", default=0, show_default=True, help="Seed of the first history; each next one adds 1."),
        click.option("--store", default="memory", type=click.Choice(["memory", "sqlite", "redis"]), show_default=True),
        click.option("--isolation", default="thread", type=click.Choice(["thread", "process"]), show_default=True),
        click.option(
            "--kills", default=0.0, help="Seconds between two kills of a worker or an executor.  [default: no kills]"
        ),
    ):
        command = option(command)
    return command


def run(history, pack, histories, seed, store, isolation, kills):
    """Run histories, each with a seed of its own.

    With kills, eight run at once, so that histories go on while one waits for a killed worker.
    """
    bench = killed_server.KilledServer(store, isolation, pack, kills, seed) if kills else None
    with contextlib.ExitStack() as stack:
        if bench is None:
            bench = stack.enter_context(in_process_bench(pack, store, isolation))
        else:
            stack.callback(bench.close)

        def play(number):
            for session in history(bench, number):
                bench.rpc("close_session", session_id=session)

        with ThreadPoolExecutor(8 if kills else 1) as pool:
            for done, _ in enumerate(pool.map(play, range(seed, seed + histories)), 1):
                if done % 100 == 0:
                    click.echo(f"{done} histories")
    killed = f", {bench.kills} kills" if kills else ""
    click.echo(f"{histories} histories on {store}, isolation {isolation}{killed}: no difference")


@contextlib.contextmanager
def in_process_bench(pack, store, isolation):
    """Yield a bench whose server runs in this process and isn't killed."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = {"memory": "memory:", "sqlite": f"sqlite:///{folder}/sessions.db"}.get(store)
        if url is None:
            url, _ = stack.enter_context(redis_server.start(Path(folder)))
        settings = {"keep_versions": 1000, "max_result_bytes": 2**26}
        if isolation == "process":
            settings |= {"isolation": "process", "packs": (pack,), "pack_dir": (serving.PACKS,)}
        yield stack.enter_context(serving.Bench(load_catalog((serving.PACKS,), (pack,)), url, **settings))


@click.command()
@options
def main(**choices):
    """Compare random histories with plain sqlite3."""
    run(history, "stall", **choices)


if __name__ == "__main__":
    main()
