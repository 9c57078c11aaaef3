"""Limits of databases: an agent's data and SQL are bounded, and don't block other owners."""

import threading

import pytest
from serving import ISOLATIONS, PACKS, Bench, RpcError, wait_until

from toolpack_server.packs.loading import load_catalog

CATALOG = load_catalog((PACKS,), ("schemas",))
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT 1 AS id, count(*) AS x FROM c"


def make(isolation, **settings):
    if isolation == "process":
        settings |= {"isolation": "process", "packs": ("schemas",), "pack_dir": (PACKS,)}
    return Bench(CATALOG, **settings)


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request):
    return request.param


@pytest.fixture(scope="module")
def bench(isolation):
    with make(isolation) as server:
        yield server


def run(bench, session, *statements):
    return bench.call(session, "run", statements=[*statements])["error"]


TOO_BIG = "DataError: string or blob too big: a value or a row may have at most 4194304 bytes"
NO_MEMORY = "MemoryError: SQLite may hold at most 268435456 bytes in a process: use smaller statements"
HELD = NO_MEMORY.replace("MemoryError", "OperationalError: interrupted")
BLOBS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 999) SELECT randomblob(1000000) AS b FROM c"
)
TOO_MUCH = {
    "SELECT hex(zeroblob(3000000))": TOO_BIG,
    "SELECT hex(zeroblob(500000000))": TOO_BIG,
    "SELECT randomblob(500000000)": TOO_BIG,
    "SELECT 'a' LIKE hex(zeroblob(600))": "OperationalError: LIKE or GLOB pattern too complex: "
    "a pattern may have at most 1000 bytes",
    f"SELECT {'hex(zeroblob(2000000)),' * 200} 1": NO_MEMORY,
    f"SELECT count(*) FROM ({BLOBS} ORDER BY b)": NO_MEMORY,
    f"CREATE TEMP TABLE t AS {BLOBS}": NO_MEMORY,
    # This holds more than three quarters of SQLite's memory until the deadline. Other calls would get none.
    f"WITH m AS MATERIALIZED ({BLOBS} LIMIT 200) SELECT count(*) FROM m a, m b, m c, m d WHERE a.b = 1": HELD,
}


@pytest.mark.parametrize(("sql", "seeded"), [*((sql, False) for sql in TOO_MUCH), (max(TOO_MUCH, key=len), True)])
def test_memory_and_sizes_of_sql_are_limited(bench, isolation, sql, seeded):
    if seeded and isolation == "thread":
        pytest.skip("a seeded session needs a process")
    session = bench.create("schemas", **({"seed": "x"} if seeded else {}))
    assert run(bench, session, "CREATE TABLE t (x)") is None
    assert run(bench, session, sql) == TOO_MUCH[sql]
    assert run(bench, session, "INSERT INTO t VALUES (1)") is None
    assert bench.rpc("get_environment", session_id=session)["schemas"]["db"] == {"t": {"1": {"x": 1}}}


BROKEN = {
    "computed": (
        [
            "CREATE TABLE t (j)",
            "INSERT INTO t VALUES ('no JSON')",
            "ALTER TABLE t ADD COLUMN a AS (json_extract(j, '$.a'))",
        ],
        "table 't' can't be shown: OperationalError: malformed JSON",
    ),
    "without its content": (
        ["CREATE VIRTUAL TABLE t USING fts5(x, content='nothing')"],
        "table 't' can't be shown: OperationalError: no such table: main.nothing",
    ),
    "without its shadow": (
        ["CREATE VIRTUAL TABLE t USING fts5(x)", "INSERT INTO t VALUES ('a')", "DROP TABLE t_config"],
        "table 't' can't be shown: OperationalError: vtable constructor failed: t",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_unreadable_table_is_an_error_with_its_reason(bench, case):
    statements, text = BROKEN[case]
    session = bench.create("schemas")
    assert run(bench, session, "CREATE TABLE good (x)", "INSERT INTO good VALUES (1)") is None
    assert run(bench, session, *statements) is None
    for method, params in {
        "get_environment": [{}, *({"pointer": f"/schemas/db{suffix}"} for suffix in ("", "/t", "/t/1"))],
        "diff_environment": [{}, {"from_version": 1}],
    }.items():
        for more_params in params:
            with pytest.raises(RpcError) as raised:
                bench.rpc(method, session_id=session, **more_params)
            assert (raised.value.code, raised.value.data["type"]) == (-32002, "ResultError")
            assert raised.value.message.startswith("The database 'schemas/db'")
            assert text in raised.value.message
    good = {"1": {"x": 1}}
    assert bench.rpc("get_environment", session_id=session, pointer="/schemas/db/good") == good
    assert bench.rpc("get_environment", format="snapshot", session_id=session)["contents"]["schemas/db"]
    assert run(bench, session, "DROP TABLE IF EXISTS t") is None or "shadow" in case


def test_computed_columns_have_a_size_limit_for_readers(isolation):
    with make(isolation, max_volume_bytes=2**20) as bench:
        session = bench.create("schemas")
        rows = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100) SELECT x FROM c"
        assert run(bench, session, "CREATE TABLE t (x, y AS (hex(zeroblob(100000))))") is None
        assert run(bench, session, f"INSERT INTO t {rows}") is None
        text = "The database 'schemas/db', table 't' can't be shown: its computed columns have more than"
        for method, params in (("get_environment", {}), ("diff_environment", {"from_version": 0})):
            with pytest.raises(RpcError) as raised:
                bench.rpc(method, session_id=session, **params)
            assert raised.value.message == f"{text} 1048576 bytes."
        page = bench.rpc("get_environment", session_id=session, pointer="/schemas/db/t", limit=2)
        assert [len(row["y"]) for row in page.values()] == [200_000] * 2


@pytest.mark.parametrize("table", ["t", "new"])
def test_diff_of_too_many_rows_is_rejected(monkeypatch, table):
    monkeypatch.setattr("toolpack_server.features.volumes.databases.database_views.MAX_CHANGES", 100)
    with make("thread") as bench:
        session = bench.create("schemas")
        assert run(bench, session, "CREATE TABLE t (x)") is None
        before = bench.version(session)
        for rows, refused in ((100, False), (1, True)):
            select = f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT {rows}) SELECT x FROM c"
            assert (
                run(bench, session, f"CREATE TABLE IF NOT EXISTS {table} (x)", f"INSERT INTO {table} {select}") is None
            )
            ask = {"session_id": session, "from_version": before}
            if not refused:
                assert len(bench.rpc("diff_environment", **ask)) in (1, 100)
                continue
            with pytest.raises(RpcError) as raised:
                bench.rpc("diff_environment", **ask)
            assert raised.value.message.startswith(
                f"The database 'schemas/db', table '{table}' can't be shown: more than"
            )


def test_database_of_the_maximum_size_is_shown(isolation):
    with make(isolation, max_volume_bytes=2**22) as bench:
        session = bench.create("schemas")
        assert run(bench, session, "CREATE TABLE t (x)", *["INSERT INTO t VALUES (zeroblob(1000000))"] * 4) is None
        table_json = bench.rpc("get_environment", session_id=session)["schemas"]["db"]["t"]
        assert len(table_json) == 4
        assert len(bench.rpc("diff_environment", session_id=session)[0]["value"]) == 4


def test_endless_read_is_stopped_and_blocks_no_other_owner(isolation):
    with make(isolation, timeout_seconds=1) as bench:
        sessions = {owner: bench.create("schemas", owner=owner) for owner in ("ann", "bob", "eve")}
        for owner in ("ann", "bob"):
            endless = [
                f"CREATE VIEW v AS {ENDLESS}",
                "CREATE VIRTUAL TABLE t USING fts5(x, content=v, content_rowid=id)",
            ]
            call = {"session_id": sessions[owner], "function": "run", "kwargs": {"statements": endless}}
            assert bench.rpc("run_function", owner=owner, **call)["error"] is None
        requests = [
            bench.later(method, owner=owner, session_id=sessions[owner])
            for owner in ("ann", "bob")
            for method in ("get_environment", "diff_environment")
        ]
        for each in requests:
            with pytest.raises(RpcError) as raised:
                each.result(60)
            assert raised.value.code in (-32002, -32006, -32010)
        assert bench.rpc("get_environment", owner="eve", session_id=sessions["eve"]) == {"schemas": {"db": {}}}
        wait_until(lambda: not bench.sessions.queues.threads._stuck, "the end of the readers")
        assert bench.rpc("get_environment", owner="ann", session_id=sessions["ann"], version=0)["schemas"] == {"db": {}}


def test_stuck_reader_threads_block_no_other_owner():
    gate = threading.Event()
    with make("thread", timeout_seconds=0.2) as bench:
        threads = bench.sessions.queues.threads
        for number, owner in enumerate(("ann", "bob", "cid"), 1):
            reading = bench._run(_error_of(bench.sessions.compute(lambda: gate.wait(60), owner, "read")))
            assert "took longer than" in str(reading)
            assert threads.stuck_threads() == number
        assert bench._run(bench.sessions.compute(lambda: "read", "eve", "read")) == "read"
        gate.set()
        wait_until(lambda: not threads._stuck, "their end")
        assert bench._run(bench.sessions.compute(lambda: "read", "ann", "read")) == "read"
        lane = threads._lanes._by_name["reads"]
        assert (lane.taken, dict(lane._running), lane._left_behind) == (0, {}, set())


async def _error_of(work):
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the test inspects it
        return error
