"""Database schemas that use SQLite functions: the database works in calls, as a file, in views and for evaluators."""

import contextlib
import sqlite3
import sys

import pytest
from serving import ISOLATIONS, PACKS, Bench

from toolpack_server.packs.loading import load_catalog

CATALOG = load_catalog((PACKS,), ("schemas",))
PLACES, FILL = sys.modules["toolpacks.schemas"].PLACES, sys.modules["toolpacks.schemas"].FILL

with contextlib.closing(sqlite3.connect(":memory:")) as any_database:
    OPTIONS = {each for (each,) in any_database.execute("PRAGMA compile_options")}
pytestmark = pytest.mark.skipif(
    not {"ENABLE_FTS5", "ENABLE_RTREE"} <= OPTIONS,
    reason="this SQLite was built without full text or R-tree",
)

USES = {
    "view": ("SELECT * FROM v", [["1"]]),
    "trigger": ("SELECT * FROM log", [["1"]]),
    "index": ("SELECT id FROM t WHERE json_extract(j, '$.a') = 1", [["1"]]),
    "full text": ("SELECT rowid FROM f WHERE f MATCH 'a'", [["1"]]),
    "R-tree": ("SELECT id FROM f WHERE low <= 1 AND high >= 1", [["1"]]),
}


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request):
    return request.param


@pytest.fixture(scope="module")
def bench(isolation):
    settings = {"isolation": "process", "packs": ("schemas",), "pack_dir": (PACKS,)} if isolation == "process" else {}
    with Bench(CATALOG, **settings) as server:
        yield server


@pytest.mark.parametrize("seeded", [False, True], ids=["plain", "seeded"])
@pytest.mark.parametrize("how", ["run", "by_path"])
@pytest.mark.parametrize("location", PLACES)
def test_sqlite_functions_work_everywhere_in_a_schema(bench, isolation, location, how, seeded):
    if seeded and isolation == "thread":
        pytest.skip("a seeded session needs a process")
    pins = {"seed": "x", "clock": "2026-03-02T09:30:00Z"} if seeded else {}
    task = f"schemas/{location.replace(' ', '-')}"
    session = bench.rpc("create_session", task=task, **pins)["session_id"]
    bench.result(session, how, statements=[*PLACES[location], FILL])
    sql, expected = USES.get(location, ("SELECT id FROM t", [["1"]]))
    assert bench.result(session, "run", statements=[sql])[0] == expected
    database_json = bench.rpc("get_environment", session_id=session)["schemas"]["db"]
    assert database_json["t"]["1"]["j"] == '{"a": 1}'
    assert bench.rpc("get_environment", session_id=session, pointer="/schemas/db/t") == database_json["t"]
    paths = {each["path"] for each in bench.rpc("diff_environment", session_id=session)}
    assert paths == {f"/schemas/db/{table}" for table in database_json}
    assert bench.rpc("evaluate_session", session_id=session)["passed"]
    bench.result(session, "run", statements=["DELETE FROM t"])
    assert {"op": "remove", "path": "/schemas/db/t/1"} in bench.rpc(
        "diff_environment", session_id=session, from_version=1
    )
    assert bench.result(session, "run", statements=["PRAGMA integrity_check"]) == [[["'ok'"]]]
    by_rows = bench.rpc("create_session", task=f"{task}-by-rows", **pins)["session_id"]
    bench.result(by_rows, how, statements=[*PLACES[location], FILL])
    assert bench.rpc("evaluate_session", session_id=by_rows)["passed"]


REFUSALS = ("unsafe use of", "not authorized", "user-defined function raised exception")


@pytest.mark.parametrize("call", ["load_extension('x')", "fts3_tokenizer('simple')", "fts3_tokenizer('a', x'00')"])
@pytest.mark.parametrize("how", ["run", "by_path"])
def test_schema_cannot_call_forbidden_functions(bench, how, call):
    schemas = [
        [f"CREATE VIEW v AS SELECT {call}", "SELECT * FROM v"],
        [f"CREATE TABLE t (a, b DEFAULT ({call}))", "INSERT INTO t (a) VALUES (1)"],
        [f"CREATE TABLE t (a CHECK ({call} IS NULL))", "INSERT INTO t (a) VALUES (1)"],
        [f"CREATE TABLE t (a, b AS ({call}))", "SELECT b FROM t"],
        [
            "CREATE TABLE t (a)",
            f"CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT {call}; END",
            "INSERT INTO t VALUES (1)",
        ],
    ]
    for *setup, used in schemas:
        session = bench.create("schemas")
        if not bench.call(session, how, statements=setup)["error"]:
            error = bench.call(session, "run", statements=[used])["error"] or ""
            assert any(refusal in error for refusal in REFUSALS), (setup, error)
