"""Databases as fields of an environment, with and without executors.

They change atomically with other fields, and can be forked, reset, shown and evaluated.
"""

import base64
import contextlib
import errno
import gc
import os
import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from command_line import run
from serving import ISOLATIONS, PACKS, PATIENCE, Bench, refused, wait_until

from toolpack_server import Database, Depends, Task, TaskEnvironment, Toolpack
from toolpack_server.base.errors import InvalidParamsError, RegistrationError
from toolpack_server.features.executors import runner
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.features.replay.writers import has_kind
from toolpack_server.features.volumes.databases import database as databases
from toolpack_server.features.volumes.databases.database import PAGE_SIZE
from toolpack_server.features.volumes.databases.database_file import DatabaseFile
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.checks import initial_problem
from toolpack_server.packs.loading import load_catalog
from toolpack_server.testing import Session
from toolpack_server.testing.store_contract.model import SharedMemory
from toolpack_server.volumes.scratch import PREFIX, Scratch, remove_leftovers
from toolpack_server.volumes.volume import Limits
from tools import database_histories

CATALOG = load_catalog((PACKS,), ("stall",))
ALONE = "ATTACH, DETACH and VACUUM INTO aren't allowed in a session's database"


CLOSED = (
    "Cannot operate on a closed database: declare the parameter as a Database, whose connect() opens a new connection"
)


def make(isolation, **settings):
    if isolation == "process":
        settings = {"isolation": "process", "packs": ("stall",), "pack_dir": (PACKS,), **settings}
    return Bench(CATALOG, **settings)


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request):
    return request.param


@pytest.fixture(scope="module")
def bench(isolation):
    with make(isolation) as server:
        yield server


@pytest.fixture
def session(bench):
    return bench.create("stall")


def error(bench, session, function, **kwargs):
    return bench.call(session, function, **kwargs)["error"]


def rows(bench, session, sql):
    return bench.result(session, "query", sql=sql)


def detail(code, call, /, *args, **params):
    error = refused(code, call, *args, **params)
    return (error.data or {}).get("detail") or error.message


def pieces(bench, session):
    return {part: blob for part, blob in bench.store.get(session)[1].parts.items() if ":" in part}


def test_changes_are_stored_with_and_without_a_commit(bench, session):
    assert bench.result(session, "place_order", product=1, quantity=3) == 1
    assert bench.result(session, "run_sql", sql="BEGIN; UPDATE product SET stock = 5", script=True) == []
    assert bench.result(session, "run_sql", sql="SAVEPOINT a; DELETE FROM orders; ROLLBACK TO a", script=True) == []
    assert rows(bench, session, "SELECT stock FROM product") == [["5"], ["5"]]
    assert bench.result(session, "count_orders") == 1
    changed = [record.get("changed") for record in bench.rpc("get_trace", session_id=session)]
    assert changed[:2] == [{"stall/db": 4}, {"stall/db": 1}]
    assert changed[3:] == [None, None]
    assert bench.version(session) == 3


@pytest.mark.parametrize("how", ["fail", "sleep", "spin"])
def test_failed_call_undoes_its_commits_too(bench, session, how):
    bench.result(session, "place_order", product=1, quantity=3)
    call = {"timeout_seconds": 0.3} if how != "fail" else {}
    failed = bench.call(session, "commit_and", call, sql="DELETE FROM orders", how=how)["error"]
    assert failed.split(":")[0] == ("ValueError" if how == "fail" else "TimeoutError")
    assert bench.result(session, "count_orders") == 1
    assert bench.version(session) == 1


def test_crashed_process_changes_nothing(bench, session, isolation):
    if isolation == "thread":
        pytest.skip("it would end the tests")
    bench.result(session, "place_order", product=1, quantity=3)
    failed = error(bench, session, "commit_and", sql="DELETE FROM orders", how="exit")
    assert failed == "CrashedError: `commit_and` ended its process (exit status 3); nothing has changed."
    assert bench.result(session, "count_orders") == 1


def test_database_and_other_fields_change_together(bench, session):
    assert error(bench, session, "add_note", text="a", fails=True) == "ValueError: on purpose"
    assert (bench.result(session, "get_notes"), bench.result(session, "count_orders")) == ([], 0)
    assert bench.result(session, "add_note", text="a") == 1
    assert (bench.result(session, "get_notes"), bench.result(session, "count_orders")) == (["a"], 1)


def test_call_that_only_uses_the_database_stores_only_its_pieces(bench, session):
    before = bench.store.get(session)[1].parts
    bench.result(session, "place_order", product=1, quantity=1)
    after = bench.store.get(session)[1].parts
    assert {part for part in after if before.get(part) != after[part]} == {"stall/db:database:1", "stall/db:database:2"}


DENIED = {
    "ATTACH ':memory:' AS x": f"DatabaseError: not authorized: {ALONE}",
    "ATTACH '' AS x": f"DatabaseError: not authorized: {ALONE}",
    "DETACH main": f"DatabaseError: not authorized: {ALONE}",
    "VACUUM INTO 'x.db'": f"DatabaseError: not authorized: {ALONE}",
    **{
        f"SELECT {call}": f"OperationalError: not authorized to use function: {name}: {name}() isn't allowed in a "
        "session's database"
        for name, call in (("load_extension", "load_extension('x')"), ("fts3_tokenizer", "fts3_tokenizer('simple')"))
    },
    **{
        f"PRAGMA {name} = {value}": f"DatabaseError: not authorized: PRAGMA {name} can't be set: the server sets it"
        for name, value in {
            "writable_schema": 1,
            "max_page_count": 9,
            "trusted_schema": "ON",
            "cell_size_check": 0,
            "page_size": 1024,
            "auto_vacuum": 1,
            "query_only": 1,
            "temp_store_directory": "'/'",
            "data_store_directory": "'/'",
            "hard_heap_limit": 1,
        }.items()
    },
}


@pytest.mark.parametrize(("sql", "text"), DENIED.items(), ids=DENIED)
def test_forbidden_sql_is_rejected(bench, session, sql, text):
    assert error(bench, session, "run_sql", sql=sql) == text
    assert error(bench, session, "run_sql", sql=f"CREATE TABLE x (y); {sql}", script=True) == text
    assert rows(bench, session, "SELECT name FROM sqlite_schema WHERE name = 'x'") == []
    if sql.startswith("PRAGMA"):
        name = sql.split()[1]
        assert error(bench, session, "query", sql=sql) == text
        assert error(bench, session, "query", sql=f"PRAGMA {name}") is None
    elif sql.startswith("SELECT"):
        view = f"CREATE VIEW v AS {sql}; SELECT * FROM v"
        assert error(bench, session, "run_sql", sql=view, script=True).endswith(text.rpartition(": ")[2])


def test_long_sql_is_checked_in_time(bench, session):
    text = f"DatabaseError: not authorized: {ALONE}"
    for before in ("/* */" * 20_000, "--\n" * 20_000, ";" * 20_000, "/* " * 20_000 + "*/"):
        assert error(bench, session, "run_sql", sql=f"{before}ATTACH '' AS x", script=True) == text
        assert error(bench, session, "run_sql", sql=f"{before}VACUUM", script=True) is None


def test_server_controls_durability_settings(bench, session):
    for name in ("journal_mode", "synchronous", "locking_mode", "wal_checkpoint", "mmap_size", "temp_store"):
        assert bench.result(session, "run_sql", sql=f"PRAGMA {name}") == []
        assert bench.result(session, "run_sql", sql=f"PRAGMA {name} = 1") == []
    bench.result(session, "run_sql", sql="VACUUM")
    bench.result(session, "run_sql", sql="DELETE FROM orders; VACUUM; -- attached", script=True)
    refusal_text = "SQL with the word ATTACH can't run VACUUM: run VACUUM by itself"
    for word in ("attach", "/**/ATTACH''AS x;"):
        message = error(bench, session, "run_sql", sql=f"VACUUM; -- {word}", script=True)
        assert message == f"DatabaseError: not authorized: {refusal_text}"
    assert rows(bench, session, "PRAGMA integrity_check") == [["'ok'"]]


def test_database_has_a_size_limit(isolation):
    with make(isolation, max_volume_bytes=2**17) as bench:
        session = bench.create("stall")
        full = "OperationalError: database or disk is full: the database may have at most 131072 bytes "
        full += "(TOOLPACK_MAX_VOLUME_BYTES)"
        large = "CREATE TABLE large AS SELECT zeroblob(200000)"
        assert error(bench, session, "run_sql", sql=large) == full
        assert error(bench, session, "run_sql", sql="CREATE TABLE small AS SELECT zeroblob(20000)") is None
        assert error(bench, session, "by_path", sql=large) == full
        assert full in detail(-32602, bench.create, "stall", options={"stall": {"rows": 2000}})


def test_read_only_function_gets_a_read_only_connection(bench, session):
    text = "OperationalError: attempt to write a readonly database: the function is registered with read_only=True"
    assert error(bench, session, "query", sql="DELETE FROM product") == text
    assert error(bench, session, "query", sql="CREATE TABLE x (y)") == text
    assert error(bench, session, "query", sql="CREATE TEMP TABLE x (y)") is None
    assert bench.version(session) == 0


def test_connection_is_closed_at_the_end_of_its_call(bench, session):
    assert bench.result(session, "keep") == "kept"
    closed = error(bench, session, "keep")
    assert closed in (f"ProgrammingError: {CLOSED}", None)  # None means that another process ran the call.


def test_function_may_open_the_file_of_a_database(bench, session):
    assert bench.result(
        session, "by_path", sql="INSERT INTO orders (product, quantity) VALUES (2, 7) RETURNING id"
    ) == [[1]]
    assert error(bench, session, "by_path", sql="DELETE FROM orders", fails=True) == "ValueError: on purpose"
    assert bench.result(session, "count_orders") == 1
    assert bench.result(session, "by_path", sql="SELECT 5") == [[5]]
    changed = [record.get("changed") for record in bench.rpc("get_trace", session_id=session)]
    assert [bool(each) for each in changed] == [True, False, False, False]


def test_worker_with_executors_opens_no_database(monkeypatch, tmp_path):
    def opened(*_arguments, **_more):
        raise AssertionError("the worker has opened a database")

    monkeypatch.setattr(databases, "open_connection", opened)
    with make("process", scratch_dir=tmp_path) as bench:
        session = bench.create("stall")
        bench.result(session, "place_order", product=1, quantity=1)
        assert list(tmp_path.rglob("copy-*"))  # this is the working copy of an executor
        assert bench.rpc("get_environment", session_id=session)["stall"]["db"]["orders"]
        assert bench.rpc("diff_environment", session_id=session)
        assert bench.rpc("get_environment", format="snapshot", session_id=session)["contents"]


def test_executors_share_the_scratch_folder_equally(monkeypatch):
    configurations = []
    begin = runner.Zygote
    monkeypatch.setattr(
        runner,
        "Zygote",
        lambda configuration, *options: (configurations.append(configuration), begin(configuration, *options))[1],
    )
    with make("process", scratch_bytes=64 * 2**20, of_features=[ExecutorsSettings(max=4)]):
        assert [configuration.scratch_bytes for configuration in configurations] == [16 * 2**20]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_workers_that_take_turns_see_each_others_changes(isolation, count):
    store = SharedMemory()
    with make(isolation, store=store) as first, make(isolation, store=store) as second:
        session = first.create("stall")
        for turn in range(4):
            worker = (first, second)[turn % 2]
            order_numbers = [worker.result(session, "place_order", product=1, quantity=1) for _ in range(count)]
            assert order_numbers == [*range(turn * count + 1, (turn + 1) * count + 1)]
            assert worker.result(session, "count_orders") == (turn + 1) * count


def test_forks_and_resets_have_their_own_databases(bench, session):
    for quantity in (1, 2, 3):
        bench.result(session, "place_order", product=1, quantity=quantity)
    one, two = bench.rpc("fork_session", session_id=session, version=1, count=2)
    assert bench.result(one["session_id"], "count_orders") == 1
    bench.result(one["session_id"], "run_sql", sql="DELETE FROM orders")
    assert [bench.result(each["session_id"], "count_orders") for each in (one, two)] == [0, 1]
    assert bench.rpc("reset_session", session_id=session, version=2)["version"] == 4
    assert bench.result(session, "count_orders") == 2
    assert bench.result(session, "place_order", product=1, quantity=9) == 3
    bench.rpc("reset_session", session_id=session)
    assert bench.result(session, "count_orders") == 0
    assert bench.rpc("diff_environment", session_id=session, from_version=0) == []


def test_database_has_at_most_eight_pieces(bench, session):
    for _ in range(40):
        bench.result(session, "place_order", product=1, quantity=1)
        assert len(pieces(bench, session)) <= 8
    fork = bench.rpc("fork_session", session_id=session)[0]["session_id"]
    for each in (session, fork):
        assert bench.result(each, "count_orders") == 40
        assert rows(bench, each, "PRAGMA integrity_check") == [["'ok'"]]


@pytest.mark.parametrize("seed", range(3))
def test_random_history_equals_plain_sqlite(bench, seed):
    bench.service.settings.__dict__["max_result_bytes"] = 2**26
    database_histories.history(bench, seed, steps=15)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_random_history_is_equal_in_each_store(store, store_url):
    with Bench(CATALOG, store_url(store), max_result_bytes=2**26, keep_versions=1000) as bench:
        database_histories.history(bench, 7, steps=40)


def test_database_is_shown_as_json(bench):
    sql = """
        CREATE TABLE one (name TEXT PRIMARY KEY, value); CREATE TABLE two (a, b, PRIMARY KEY (a, b)) WITHOUT ROWID;
        CREATE TABLE "o/~'""r" (x); CREATE INDEX i ON one (value); CREATE VIEW v AS SELECT 1;
        INSERT INTO one VALUES ('a/b', 1.5), ('~', NULL), ('17', x'00'), (NULL, 'lost'), (NULL, 'lost, too');
        INSERT INTO two VALUES (1, 'x'), ('1', 'x'), (x'01', 2.0);
        INSERT INTO "o/~'""r" VALUES (9007199254740993);
    """
    session = bench.create("stall", environment={"stall": {"db": sql, "notes": []}})
    db = bench.rpc("get_environment", session_id=session)["stall"]["db"]
    assert db == {
        "one": {
            '{"$rowid":4}': {"name": None, "value": "lost"},
            '{"$rowid":5}': {"name": None, "value": "lost, too"},
            "17": {"name": "17", "value": {"$base64": "AA=="}},
            "a/b": {"name": "a/b", "value": 1.5},
            "~": {"name": "~", "value": None},
        },
        "two": {
            '[1,"x"]': {"a": 1, "b": "x"},
            '["1","x"]': {"a": "1", "b": "x"},
            '[{"$base64":"AQ=="},2.0]': {"a": {"$base64": "AQ=="}, "b": 2.0},
        },
        "o/~'\"r": {"1": {"x": 9007199254740993}},
    }
    get = partial(bench.rpc, "get_environment", session_id=session)
    assert get(pointer="/stall/db/one/a~1b/value") == 1.5
    assert get(pointer="/stall/db/o~1~0'\"r/1") == {"x": 9007199254740993}
    assert get(pointer='/stall/db/two/["1","x"]/a') == "1"
    assert [*get(pointer="/stall/db/one", limit=2, after='{"$rowid":5}')] == ["17", "a/b"]
    assert [*get(pointer="/stall/db/one", limit=1)] == ['{"$rowid":4}']
    assert get(pointer="/stall/db/two", after='["1","x"]') == {
        '[{"$base64":"AQ=="},2.0]': db["two"]['[{"$base64":"AQ=="},2.0]']
    }
    text = "This environment has no value at the pointer '/stall/db/one/b'."
    assert text in detail(-32602, get, pointer="/stall/db/one/b")
    for pointer in ("", "/stall", "/stall/notes", "/stall/db", "/stall/db/one/~0"):
        assert "only with a pointer to a table of a database" in detail(-32602, get, pointer=pointer, limit=5)
    exported = bench.rpc("get_environment", format="snapshot", session_id=session)["contents"]
    assert base64.b64decode(exported["stall/db"]).startswith(b"SQLite format 3\0\x08\0\1\1")


def test_large_table_is_shown_as_a_count(isolation):
    with make(isolation, max_view_rows=10) as bench:
        session = bench.create("stall", options={"stall": {"rows": 11}})
        assert bench.rpc("get_environment", session_id=session, pointer="/stall/db/filler") == {"$rows": 11}
        page = bench.rpc("get_environment", session_id=session, pointer="/stall/db/filler", after="9")
        assert [*page] == ["10", "11"]
        bench.result(session, "run_sql", sql="DELETE FROM filler WHERE id = 3")
        assert bench.rpc("diff_environment", session_id=session) == [{"op": "remove", "path": "/stall/db/filler/3"}]


WRONG = {
    "SELEC 1": 'The database can\'t be built: OperationalError: near "SELEC": syntax error',
    "ATTACH 'x' AS y": f"The database can't be built: DatabaseError: not authorized: {ALONE}",
}


@pytest.mark.parametrize(("sql", "text"), WRONG.items(), ids=WRONG)
def test_wrong_sql_of_a_client_is_rejected(bench, sql, text):
    assert text in detail(-32602, bench.create, "stall", environment={"stall": {"db": sql}})


def test_database_of_a_client_must_be_sql(bench):
    text = "db: Value error, a database must be a string with SQL that creates it."
    assert text in detail(-32602, bench.create, "stall", environment={"stall": {"db": {"$base64": ""}}})
    endless = "CREATE TABLE x AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    before = call_threads()
    with make("thread", timeout_seconds=0.5) as quick:
        refused(-32010, quick.create, "stall", environment={"stall": {"db": endless}})
        quick.create("stall")
    wait_until(lambda: call_threads() <= before, "the end of a client's SQL")


def call_threads():
    return {thread for thread in threading.enumerate() if thread.name == "calls"}


def test_list_toolpacks_shows_the_tables_of_a_database(bench):
    (stall,) = bench.rpc("list_toolpacks")
    schema = stall["environment"]["properties"]["db"] if stall["environment"].get("properties") else {}
    assert (schema["type"], schema["x-toolpack"]) == ("object", "database")
    assert [sql.split()[2] for sql in schema["sql"]] == ["product", "orders", "by_product"]


# Databases in a store


@pytest.fixture
def stored(tmp_path):
    """Return a function that changes the store of a stopped server, and starts the server again."""
    path, benches = tmp_path / "sessions.db", []

    def start(*statements):
        while benches:
            benches.pop().close()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            for statement, *parameters in statements:
                assert database.execute(statement, parameters).rowcount > 0, "nothing was changed"
        benches.append(Bench(CATALOG, f"sqlite:///{path}"))
        return benches[-1]

    yield start
    while benches:
        benches.pop().close()


def test_restart_changes_nothing(stored):
    bench = stored()
    session = bench.create("stall")
    for _ in range(11):
        last = bench.result(session, "place_order", product=1, quantity=1)
    bench = stored()
    assert (last, bench.result(session, "count_orders")) == (11, 11)
    assert rows(bench, session, "SELECT seq FROM sqlite_sequence") == [["11"]]


CHANGED = "UPDATE changes SET blob = (SELECT blob FROM changes WHERE {}) WHERE {}"
TAMPERED = {
    "exchanged": CHANGED.format("session = 1 AND version = 2", "session = 1 AND version = 1"),
    "of another session": CHANGED.format("session = 2 AND version = 1", "session = 1 AND version = 1"),
    "of another version": CHANGED.format(
        "session = 1 AND version = 1", "session = 1 AND version = 5 AND part = 'stall/db:database:1'"
    ),
    "cut": "UPDATE blobs SET body = substr(body, 1, length(body) / 2) WHERE key = "
    "(SELECT blob FROM changes WHERE session = 1 AND version = 6)",
    "omitted": "DELETE FROM changes WHERE session = 1 AND part = 'stall/db:database:1'",
    "the last one, omitted": "DELETE FROM changes WHERE session = 1 AND version = 6 AND part = 'stall/db:database:2'",
    "made text": "UPDATE blobs SET body = 'SQLite format 3' WHERE key = "
    "(SELECT blob FROM changes WHERE session = 1 AND version = 6)",
}


@pytest.mark.parametrize("how", TAMPERED)
def test_inconsistent_pieces_are_rejected(stored, how):
    bench = stored()
    session, other = bench.create("stall"), bench.create("stall", options={"stall": {"rows": 5}})
    for _ in range(3):
        bench.result(session, "place_order", product=1, quantity=1)
        bench.result(other, "place_order", product=1, quantity=1)
    bench.rpc("reset_session", session_id=session)
    for _ in range(2):
        bench.result(session, "place_order", product=2, quantity=1)
    bench = stored((TAMPERED[how],))
    if how in ("exchanged", "of another session"):  # This piece belongs to an older version.
        refused(-32012, bench.rpc, "get_environment", session_id=session, version=3)
        return
    refused(-32012, bench.call, session, "count_orders")
    refused(-32012, bench.call, session, "place_order", product=1, quantity=1)
    refused(-32012, bench.rpc, "get_environment", session_id=session)


# Working copies


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    dead, alive = Scratch(tmp_path, 10), Scratch(tmp_path, 10)
    for scratch in (dead, alive):
        (scratch.folder / "copy").write_text("x")
    dead_folder = dead.folder
    os.close(dead._finalize.peek()[2][1])  # the end of a process also releases its lock
    (tmp_path / f"{PREFIX}nobody's").mkdir()
    remove_leftovers(tmp_path)
    assert not dead_folder.exists()
    assert (alive.folder / "copy").exists()
    dead._finalize.detach()
    alive.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}nobody's"]


def test_too_small_memory_file_system_is_not_used(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scratch = Scratch(None, 2**60)
    assert scratch.folder.parent == tmp_path
    assert "bytes free, less than" in caplog.text
    assert len(caplog.records) == 1
    scratch.close()


def test_missing_scratch_folder_stops_the_start(tmp_path):
    words = ("serve", "--port", 0, "--data-dir", tmp_path, "--packs", "bank")
    ended = run(*words, TOOLPACK_SCRATCH_DIR=str(tmp_path / "none"))
    message = f"TOOLPACK_SCRATCH_DIR: {tmp_path}/none isn't a folder that the server can write to: create it."
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"toolpack-server: {message}\n")


def test_unusable_scratch_folder_rejects_calls(tmp_path):
    (tmp_path / "file").write_text("")
    with Bench(CATALOG, scratch_dir=tmp_path / "file" / "folder") as bench:
        session = bench.create("stall")
        text = detail(-32006, bench.call, session, "count_orders")
        assert "The scratch folder can't be created" in text
        assert "set TOOLPACK_SCRATCH_DIR" in text


def test_thousand_forks_that_only_read_share_one_copy(tmp_path):
    with Bench(CATALOG, scratch_dir=tmp_path) as bench:
        session = bench.create("stall", options={"stall": {"rows": 1000}})
        assert bench.result(session, "count_orders") == 0
        (working_copy,) = copies(tmp_path)
        size = working_copy.stat().st_size
        forks = [fork["session_id"] for fork in bench.rpc("fork_session", session_id=session, count=1000)]
        answers = [bench.later_call(fork, "count_orders") for fork in forks]
        assert {answer.result(PATIENCE)["result"] for answer in answers} == {0}
        assert [path.stat().st_size for path in copies(tmp_path)] == [size]
        for fork in forks[:5]:
            bench.result(fork, "place_order", product=1, quantity=1)
        assert len(copies(tmp_path)) == 6


def test_call_without_changes_leaves_its_copy_to_the_next_call(tmp_path, monkeypatch):
    clones = []
    clone = DatabaseFile.clone
    monkeypatch.setattr(DatabaseFile, "clone", lambda self: (clones.append(self), clone(self))[1])
    with Bench(CATALOG, scratch_dir=tmp_path) as bench:
        session = bench.create("stall")
        for _ in range(3):
            assert bench.result(session, "run_sql", sql="SELECT 1") == [["1"]]
            assert error(bench, session, "run_sql", sql="SELECT nothing").startswith("OperationalError")
    assert len(clones) == 1


def copies(folder):
    return [path for path in folder.glob("*/*") if path.name.startswith("copy-")]


def test_least_recently_used_copies_are_removed_and_rebuilt(tmp_path):
    with Bench(CATALOG, scratch_dir=tmp_path, scratch_bytes=3 * 6 * PAGE_SIZE) as bench:
        sessions = [bench.create("stall") for _ in range(6)]
        for _ in range(3):
            for session in sessions:
                bench.result(session, "place_order", product=1, quantity=1)
        assert len(copies(tmp_path)) <= 4
        assert [bench.result(session, "count_orders") for session in sessions] == [3] * 6
    assert [*tmp_path.iterdir()] == []


def test_leaked_connection_keeps_no_copy_alive(tmp_path):
    connections = []
    toolpack = Toolpack("keeper", ShopOfOne)

    @toolpack.function
    def keep(db: Annotated[sqlite3.Connection, Depends("db")], fails: bool = False) -> None:
        """Keep it.

        :param fails: Fail afterwards.
        """
        connections.append(db)
        connections.append(db.execute("SELECT 1"))
        db.execute("INSERT INTO one VALUES (1)")
        db.commit()
        if fails:
            raise ValueError("on purpose")

    with Bench(Catalog({"keeper": toolpack}), scratch_dir=tmp_path, scratch_bytes=5 * PAGE_SIZE) as bench:
        session = bench.create("keeper")
        for number in range(10):
            assert (error(bench, session, "keep", fails=number % 2 == 0) is None) == (number % 2 == 1)
        gc.collect()
        assert len(copies(tmp_path)) <= 2
        used = [each for each in gc.get_objects() if isinstance(each, Database) and each.mount is not None]
        assert len(used) <= 1  # The thread of the last call may still refer to one.
    for each in connections:
        with pytest.raises(sqlite3.ProgrammingError):
            each.execute("SELECT 1")
    assert [*tmp_path.iterdir()] == []


class ShopOfOne(TaskEnvironment):
    db: Database = Database("CREATE TABLE one (x)")


# For authors of toolpacks


def test_database_works_without_a_server():
    database = Database("CREATE TABLE t (x)", fill=lambda connection: connection.execute("INSERT INTO t VALUES (1)"))
    connection = database.connect()
    assert connection is database.connect()
    assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    with database.path() as path, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO t VALUES (2)")
        other.commit()
    assert database.connect().execute("SELECT x FROM t").fetchall() == [(1,), (2,)]


@pytest.mark.parametrize("name", ["backup", "serialize", "deserialize", "set_authorizer", "enable_load_extension"])
def test_forbidden_methods_of_a_connection_are_rejected(name):
    with pytest.raises(sqlite3.NotSupportedError, match=f"{name} isn't allowed in a session's database"):
        getattr(Database().connect(), name)(None)


@pytest.mark.parametrize("wal", [False, True])
def test_database_file_is_copied_exactly(tmp_path, wal):
    path = tmp_path / "given.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
    connection.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1), (2); DELETE FROM t WHERE x = 1")
    table_rows = Database(path).connect().execute("SELECT rowid, x FROM t").fetchall()
    connection.close()
    assert table_rows == [(2, 2)]


def test_function_may_close_its_connection_and_reconnect():
    pack = Toolpack("closing", ShopOfOne)

    @pack.function
    def reopen(db: Annotated[Database, Depends("db")]) -> int:
        """Close the connection, and go on with another one."""
        db.connect().close()
        return db.connect().execute("SELECT 1").fetchone()[0]

    @pack.function
    def go_on(db: Annotated[sqlite3.Connection, Depends("db")]) -> None:
        """Close the connection, and go on with it."""
        db.close()
        db.execute("SELECT 1")

    with Bench(Catalog({"closing": pack})) as bench:
        session = bench.create("closing")
        assert bench.result(session, "reopen") == 1
        assert error(bench, session, "go_on") == f"ProgrammingError: {CLOSED}"


def test_full_scratch_folder_is_not_a_failure_of_the_function(monkeypatch):
    pack = Toolpack("closing", ShopOfOne)

    @pack.function
    def fail(db: Annotated[sqlite3.Connection, Depends("db")], text: str) -> None:
        """Fail as SQLite does.

        :param text: Its error.
        """
        db.execute("SELECT 1")
        raise sqlite3.OperationalError(text)

    with Bench(Catalog({"closing": pack})) as bench:
        session = bench.create("closing")
        for text in ("database or disk is full", "disk I/O error", "unable to open database file"):
            assert error(bench, session, "fail", text=text).startswith(f"OperationalError: {text}")
            with monkeypatch.context() as full:
                full.setattr("toolpack_server.features.volumes.databases.database_connection.is_full", lambda _: True)
                refused(-32006, bench.call, session, "fail", text=text)


@pytest.mark.parametrize("trouble", [MemoryError(), OSError(errno.EMFILE, os.strerror(errno.EMFILE))])
def test_read_without_host_resources_is_rejected(monkeypatch, trouble):
    def fail(*_):
        raise trouble

    with Bench(Catalog({"closing": Toolpack("closing", ShopOfOne)})) as bench:
        session = bench.create("closing")
        monkeypatch.setattr("toolpack_server.features.volumes.databases.database_views.view", fail)
        monkeypatch.setattr("toolpack_server.execution.host_errors._can_get_memory", lambda: False)
        refused(-32006, bench.rpc, "get_environment", session_id=session)


def test_commits_on_a_closed_connection_are_stored():
    pack = Toolpack("closing", ShopOfOne)

    @pack.function
    def enter(db: Annotated[Database, Depends("db")], fails: bool = False) -> int:
        """Commit, write more without committing, and close.

        :param fails: Fail then.
        """
        with contextlib.closing(db.connect()) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS entry (x)")
            connection.execute("INSERT INTO entry VALUES (1)")
            connection.commit()
            connection.execute("INSERT INTO entry VALUES (2)")
        if fails:
            raise ValueError("on purpose")
        return len(db.connect().execute("SELECT x FROM entry").fetchall())

    with Bench(Catalog({"closing": pack})) as bench:
        session = bench.create("closing")
        assert error(bench, session, "enter", fails=True) == "ValueError: on purpose"
        assert [bench.result(session, "enter") for _ in range(2)] == [1, 2]
        (fork,) = bench.rpc("fork_session", session_id=session, version=1)
        assert bench.result(fork["session_id"], "enter") == 2


def test_misuse_of_path_is_an_error_with_its_reason():
    database = Database("CREATE TABLE t (x)")

    def use(action):
        with database.path() as path, contextlib.closing(sqlite3.connect(path)) as connection:
            action(path, connection)

    def connect_again(*_):
        use(lambda *_: None)

    def empty(path, _):
        path.write_bytes(b"")

    for action, message in (
        (connect_again, r"^a block of path\(\) is still open"),
        (empty, r"^the file of path\(\) isn't a SQLite database at the end of the block$"),
    ):
        with pytest.raises(sqlite3.DatabaseError, match=message):
            use(action)
    use(lambda _, connection: connection.executescript("INSERT INTO t VALUES (1)"))
    assert database.connect().execute("SELECT x FROM t").fetchall() == [(1,)]


def test_open_connection_to_the_path_is_an_error():
    database, connections = Database("CREATE TABLE t (x)"), []

    def use():
        with database.path() as path:
            connections.append(sqlite3.connect(path))
            connections[0].execute("BEGIN EXCLUSIVE")

    with pytest.raises(sqlite3.OperationalError, match="locked: close every connection to the file of path"):
        use()
    connections[0].close()


def test_uncommitted_changes_in_a_file_are_not_copied(tmp_path):
    connection = sqlite3.connect(tmp_path / "given.db")
    connection.execute("CREATE TABLE t (x)")
    connection.executemany("INSERT INTO t VALUES (?)", [("a" * 500,)] * 1000)
    connection.commit()
    connection.execute("PRAGMA cache_size=2")
    connection.execute("UPDATE t SET x = replace(x, 'a', 'b')")  # This writes most changes to the file, with a journal.
    for name in ("given.db", "given.db-journal"):
        (tmp_path / f"left-{name}").write_bytes((tmp_path / name).read_bytes())
    connection.close()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("left-*")}
    initials = (
        Database(tmp_path / "left-given.db").connect().execute("SELECT DISTINCT substr(x, 1, 1) FROM t").fetchall()
    )
    assert initials == [("a",)]
    assert {path.name: path.read_bytes() for path in tmp_path.glob("left-*")} == before


def test_relative_path_starts_at_the_module_or_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.sql").write_text("CREATE TABLE here (x)")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "given.sql").write_text("CREATE TABLE beside (x)")
    code = (
        "from functools import partial\n"
        "from pydantic import Field\n"
        "from toolpack_server import Database, TaskEnvironment\n"
        "class Shop(TaskEnvironment):\n"
        "    db: Database = Field(default_factory=partial(Database, 'given.sql'))\n"
        "made = Database('given.sql'), Shop().db"
    )
    for table, module in (("here", {}), ("beside", {"__file__": str(tmp_path / "sub" / "shop.py")})):
        names = {"__name__": "shop", **module}
        exec(code, names)
        for database in names["made"]:
            assert database.connect().execute("SELECT name FROM sqlite_schema").fetchall() == [(table,)]


MISTAKES = {
    "The database's file '{}/none.db' doesn't exist: correct the path.": "none.db",
    "The file '{}/none.sql' can't be read (No such file or directory): correct the path.": "none.sql",
    "The file '{}/test_databases.db' can't be used as a database: file is not a database.": "test_databases.db",
    'The database can\'t be built: OperationalError: near "SELEC": syntax error': "SELEC 1",
}


@pytest.mark.parametrize(("text", "schema"), MISTAKES.items(), ids=MISTAKES.values())
def test_invalid_schema_of_a_database_is_rejected(text, schema, tmp_path):
    if schema == "test_databases.db":
        (tmp_path / schema).write_bytes(b"no database" * 100)
        schema = tmp_path / schema
    with pytest.raises(InvalidParamsError) as raised:
        Database(schema).build(Limits())
    folder = tmp_path if isinstance(schema, Path) else Path(__file__).parent
    assert str(raised.value) == text.format(folder)


class Elsewhere(TaskEnvironment):
    branches: list[Any] = []  # noqa: RUF012 - pydantic copies it


def test_database_must_be_a_field_of_the_environment():
    class Hidden(TaskEnvironment):
        branches: list[Database] = []  # noqa: RUF012 - pydantic copies it

    with pytest.raises(RegistrationError, match=r"`Hidden.branches` holds a Database: make it a field of the"):
        Toolpack("hidden", Hidden)

    def build() -> Elsewhere:
        return Elsewhere(branches=[Database()])

    pack = Toolpack("elsewhere", build)
    problem = initial_problem(pack, Catalog({"elsewhere": pack}))
    assert "`branches[0]` can't be stored" in str(problem)
    assert "make it a field of the environment itself, so that calls, views and diffs can name it" in str(problem)


def test_authors_test_can_read_the_database():
    with Session(CATALOG.toolpacks["stall"]) as session:
        assert session.run("place_order", product=1, quantity=2) == 1
        with pytest.raises(sqlite3.IntegrityError):
            session.run("place_order", product=1, quantity=1000)
        assert session.run("count_orders") == 1
        mine = session.environment
        orders = mine.db.connect().execute("SELECT quantity FROM orders").fetchall()
        assert (orders, mine.notes) == ([(2,)], [])
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            mine.db.connect().execute("INSERT INTO orders (product, quantity) VALUES (99, 1)")
        mine.db.connect().execute("DELETE FROM orders")
        assert session.run("count_orders") == 1


class Register:
    """A plain class that uses nothing of the server except a database."""

    def __init__(self) -> None:
        self.db = Database("CREATE TABLE entry (text TEXT)")
        self.looks = 0

    def enter(self, text: str) -> int:
        """Enter a text, and return the number of entries.

        Args:
            text: The text.
        """
        self.looks += 1
        self.db.connect().execute("INSERT INTO entry VALUES (?)", (text,))
        if text == "wrong":
            raise ValueError("on purpose")
        return self.count()

    def count(self) -> int:
        """Count the entries."""
        return self.db.connect().execute("SELECT count(*) FROM entry").fetchone()[0]


def test_instance_of_a_plain_class_may_have_a_database():
    single = Toolpack.from_class("register", Register, read_only=["count"])
    pair = Toolpack.from_classes("two", {"a": Register, "b": Register})
    with Bench(Catalog({"register": single, "two": pair})) as bench:
        session = bench.create("register", "two")
        assert bench.result(session, "enter", text="x") == 1
        assert error(bench, session, "enter", text="wrong") == "ValueError: on purpose"
        assert (bench.result(session, "count"), bench.result(session, "a_enter", text="y")) == (1, 1)
        assert bench.result(session, "b_count") == 0
        world = bench.rpc("get_environment", session_id=session)
        assert world["register"] == {"looks": 1, "db": {"entry": {"1": {"text": "x"}}}}
        assert world["two"]["a"]["db"] == {"entry": {"1": {"text": "y"}}}
        pointer = "/two/a/db/entry/1/text"
        assert bench.rpc("get_environment", session_id=session, pointer=pointer) == "y"
        assert {each["path"] for each in bench.rpc("diff_environment", session_id=session)} >= {"/two/a/db/entry/1"}


def test_database_cannot_be_replaced_by_another():
    pack = Toolpack("replacing", ShopOfOne)

    @pack.function
    def replace(environment: Annotated[Any, Depends(lambda environment: environment)]) -> None:
        """Replace it."""
        environment.db = Database()

    with Bench(Catalog({"replacing": pack})) as bench:
        text = "SnapshotError: `db` holds another Database than before: change what it holds instead of replacing it."
        assert error(bench, bench.create("replacing"), "replace") == text


# Evaluators, seeds, bundles


def catalog_with_task(evaluate=None):
    pack = Toolpack("judged", ShopOfOne)
    solution = [("put", {"x": 1}), ("put", {"x": 2})]
    pack.add_task(Task("one", "Put 1 and 2.", solution=solution, evaluate=evaluate))

    @pack.function
    def put(db: Annotated[sqlite3.Connection, Depends("db")], x: int) -> None:
        """Put a number.

        :param x: The number.
        """
        db.execute("INSERT INTO one VALUES (?)", (x,))

    return Catalog({"judged": pack})


def test_evaluators_can_read_databases():
    leaked = []

    def evaluate(rollout):
        before, after = (world.db.connect() for world in (rollout.initial, rollout.environment))
        leaked.append(after)
        counts = [
            db.execute("SELECT count(*) FROM one").fetchone()[0] for db in (before, after, rollout.at(1).db.connect())
        ]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            after.execute("DELETE FROM one")
        rollout.check("counts", counts == [0, 2, 1], str(counts))

    with Bench(catalog_with_task(evaluate)) as bench:
        session = bench.rpc("create_session", task="judged/one")["session_id"]
        for x in (1, 2):
            bench.result(session, "put", x=x)
        verdict = bench.rpc("evaluate_session", session_id=session)
        assert verdict["passed"], verdict
        with pytest.raises(sqlite3.ProgrammingError):
            leaked[0].execute("SELECT 1")


def test_solution_is_compared_by_rows():
    with Bench(catalog_with_task(), max_view_rows=1) as bench:
        session = bench.rpc("create_session", task="judged/one")["session_id"]
        bench.result(session, "put", x=1)
        verdict = bench.rpc("evaluate_session", session_id=session)
        assert [check["detail"] for check in verdict["checks"]] == ["/judged/db/one/2 is missing"]
        bench.result(session, "put", x=2)
        assert bench.rpc("evaluate_session", session_id=session)["passed"]
        bench.result(session, "put", x=3)
        (check,) = bench.rpc("evaluate_session", session_id=session)["checks"]
        assert check["detail"] == "/judged/db/one/3 should not be there"


def test_bundle_contains_the_pieces_of_a_database():
    with Bench(CATALOG) as bench:
        session = bench.create("stall")
        for _ in range(12):
            bench.result(session, "place_order", product=1, quantity=1)
        bundle = bench.rpc("export_bundle", session_id=session)["bundle"]
        imported = bench.rpc("import_bundle", bundle=bundle)["session_id"]
        assert bench.result(imported, "count_orders") == 12
        assert bench.rpc("diff_environment", session_id=session, to_session_id=imported) == []
        bench.rpc("reset_session", session_id=imported, version=5)
        assert bench.result(imported, "count_orders") == 5
        replayed = bench.rpc("replay_session", session_id=session)
        assert (replayed["complete"], replayed.get("diverged")) == (True, None)


def test_progress_handler_does_not_disable_the_deadline():
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    pack = Toolpack("watching", ShopOfOne)

    @pack.function(timeout_seconds=0.3)
    def watch(db: Annotated[sqlite3.Connection, Depends("db")], steps: int, handler: bool) -> None:
        """Set a progress handler, and run an endless statement.

        :param steps: The number of SQLite's steps between two calls of the handler.
        :param handler: Whether the handler is a function, or None.
        """
        db.set_progress_handler((lambda: 0) if handler else None, steps)
        db.execute(endless).fetchone()

    with Bench(Catalog({"watching": pack})) as bench:
        for steps, handler in ((1, False), (10**9, True), (0, True), (-1, True)):
            session = bench.create("watching")
            assert error(bench, session, "watch", steps=steps, handler=handler).startswith("TimeoutError")
            threads = bench.sessions.queues.threads
            wait_until(lambda: not threads._stuck, "the end of the statement")  # noqa: B023 - called at once


SEEDED = """
    CREATE TABLE drawn (a DEFAULT (random()), b DEFAULT (hex(randomblob(8))), c DEFAULT CURRENT_TIMESTAMP,
        d DEFAULT (datetime('now', '+1 day')), e DEFAULT (strftime('%s', 'now')), f, g AS (date(f)));
    INSERT INTO drawn (f) VALUES ('2020-02-02 10:00'), ('now');
    SELECT 1;
"""


def test_seeded_session_repeats_sql_functions():
    with make("process") as bench:
        seeded = [bench.create("stall", seed="x", clock="2026-03-02T09:30:00Z") for _ in range(2)]
        for session in seeded:
            bench.result(session, "run_sql", sql=SEEDED, script=True)
            for _ in range(9):
                bench.result(session, "place_order", product=1, quantity=1)
        tables = [rows(bench, session, "SELECT * FROM drawn") for session in seeded]
        assert tables[0] == tables[1]
        assert [value[:14] for value in tables[0][0][2:5]] == ["'2026-03-02 09", "'2026-03-03 09", "'1772443801'"]
        traces = [bench.rpc("get_trace", session_id=session) for session in seeded]
        assert len({record.get("state") for record in traces[0]}) == 10
        assert [record.get("state") for record in traces[0]] == [record.get("state") for record in traces[1]]
        replayed = bench.rpc("replay_session", session_id=seeded[0])
        assert (replayed["complete"], replayed.get("diverged")) == (True, None)


NOWS = {
    **{f"{name}({word})": None for name in ("date", "time", "datetime") for word in ("", "'now'", "'NOW', '+1 day'")},
    **{f"strftime('%s %f'{word})": None for word in ("", ", 'now'", ", x'6e6f77'", ", 'now' || char(0)")},
    "datetime('now', 'localtime')": "2026-03-02 09:30:01",
    "datetime('now', 'utc')": "2026-03-02 09:30:01",
    "datetime('2026-03-02 09:30', 'localtime')": "2026-03-02 09:30:00",
    "strftime()": "None",
    "datetime('2026-03-02 09:30', 'now')": "None",
    "datetime('subsec')": "2026-03-02 09:30:01.000" if sqlite3.sqlite_version_info >= (3, 42) else "None",
    "unixepoch('SubSecond')": "1772443801.0" if sqlite3.sqlite_version_info >= (3, 42) else "None",
    "strftime('%s', 'subsec', '+1 day')": "1772530201.000" if sqlite3.sqlite_version_info >= (3, 42) else "None",
    "timediff('now', '2026-03-02')": "+0000-00-00 09:30:01.000",
    "timediff('2026-03-02', 'subsec')": "-0000-00-00 09:30:01.000",
}


@pytest.mark.parametrize("sql", NOWS)
def test_all_spellings_of_the_current_time_are_pinned(seeding, sql):
    if "timediff" in sql and sqlite3.sqlite_version_info < (3, 43):
        pytest.skip("this SQLite has no timediff()")
    sessions = [seeding.create("stall", seed="x", clock="2026-03-02T09:30:00Z") for _ in range(2)]
    values = [rows(seeding, session, f"SELECT CAST({sql} AS TEXT)")[0][0].strip("'") for session in sessions]
    assert values[0] == values[1]
    if NOWS[sql]:
        assert values[0] == NOWS[sql]
    else:
        assert any(part in values[0] for part in ("2026-03-0", "09:30:01", "1772443801")), values


@pytest.fixture(scope="module")
def seeding():
    with make("process", of_features=[ExecutorsSettings(max=1)]) as server:
        yield server


def test_states_are_compared_only_under_one_sqlite_version(monkeypatch):
    def replays(bench, session):
        bundle = bench.rpc("export_bundle", session_id=session)["bundle"]
        imported = bench.rpc("import_bundle", bundle=bundle)["session_id"]
        report = [bench.rpc("replay_session", session_id=each) for each in (session, imported)]
        report.append(bench.rpc("import_bundle", bundle=bundle, mode="replay"))
        return [
            each.get("diverged") and (each.get("diverged")["index"], each.get("diverged")["what"]) for each in report
        ]

    changing = "INSERT INTO orders (product, quantity, at) VALUES (1, 1, strftime('%f', 'now'))"
    with make("process", of_features=[ExecutorsSettings(max=1)]) as bench:
        session = bench.create("stall", seed="x")  # Without a clock each call writes another time.
        assert bench.result(session, "run_sql", sql=changing) == []
        assert replays(bench, session) == [(0, "state")] * 3
        monkeypatch.setattr(Database, "written_by", "SQLite 2.8.17")
        assert replays(bench, session) == [None] * 3
        another = bench.create("stall", seed="x")
        bench.result(another, "run_sql", sql=changing)
        assert replays(bench, another) == [(0, "state")] * 3
        (fork,) = bench.rpc("fork_session", session_id=session)
        bench.result(fork["session_id"], "run_sql", sql=changing)
        report = bench.rpc("replay_session", session_id=fork["session_id"])
        assert report.get("diverged")["what"] == "state"


def test_states_of_files_do_not_depend_on_the_sqlite_version():
    assert not has_kind(["printer", "printer/papers:files:0"], {"database"})
    assert has_kind(["stall/notes", "stall/db:database:0"], {"database"})


def test_sandboxed_function_reaches_only_its_own_folder():
    from test_sandbox import problem_here  # noqa: PLC0415 - it imports modules that only Linux has

    if problem_here():
        pytest.skip(problem_here())
    with make("process", of_features=[ExecutorsSettings(sandbox=("files", "network"))]) as bench:
        session = bench.create("stall")
        assert bench.result(session, "place_order", product=1, quantity=1) == 1
        assert bench.result(session, "by_path", sql="DELETE FROM orders RETURNING id") == [[1]]
        assert bench.result(session, "look_around") == ["mine"]
