"""Toolpacks with libraries that start threads at import or on use: the server never forks a process with threads."""

import subprocess
import sys

import pytest
from ci import without
from server_process import command, environment, served
from serving import PATIENCE

from toolpack_server.base.errors import SettingsError
from toolpack_server.features.executors.sandbox import check_sandbox

pytestmark = pytest.mark.heavy

POOL = '''"""Counts on a thread that lives as long as the process, as native libraries have them."""
from concurrent.futures import ThreadPoolExecutor

from toolpack_server import TaskEnvironment, Toolpack

POOL = ThreadPoolExecutor(1)

class Lengths(TaskEnvironment):
    first: int

def build() -> Lengths:
    """Count once."""
    return Lengths(first=POOL.submit(len, "first").result())

toolpack = Toolpack("pool", build)

@toolpack.function(read_only=True)
def count(text: str) -> int:
    """Count letters.

    :param text: A text.
    """
    return POOL.submit(len, text).result()
'''
POLARS = '''"""A data frame."""
import polars

from toolpack_server import TaskEnvironment, Toolpack

def total(numbers: list[int]) -> int:
    frame = polars.DataFrame({"key": [number % 7 for number in numbers], "number": numbers})
    sums = frame.lazy().group_by("key").agg(polars.col("number").sum()).sort("key").collect()
    return sums["number"].sum()

assert total([1, 2]) == 3

class Totals(TaskEnvironment):
    first: int

def build() -> Totals:
    """Make the first total."""
    return Totals(first=total([*range(10_000)]))

toolpack = Toolpack("frame", build)

@toolpack.function(read_only=True)
def count_in_frame(text: str) -> int:
    """Count letters.

    :param text: A text.
    """
    return total([1] * len(text))
'''
DUCKDB = '''"""A database in memory."""
import duckdb

from toolpack_server import TaskEnvironment, Toolpack

DATABASE = duckdb.connect()
DATABASE.execute("create table numbers as select range number from range(100000)")

def total(limit: int) -> int:
    return DATABASE.cursor().execute("select sum(1) from numbers where number < ?", [limit]).fetchone()[0]

class Totals(TaskEnvironment):
    first: int

def build() -> Totals:
    """Make the first total."""
    return Totals(first=total(10))

toolpack = Toolpack("table", build)

@toolpack.function(read_only=True)
def count_in_table(text: str) -> int:
    """Count letters.

    :param text: A text.
    """
    return total(len(text))
'''
EACH = pytest.mark.parametrize("isolation", ["thread", "process"] if sys.platform == "linux" else ["thread"])


def answers(folder, isolation, packs, **settings):
    """Start a server, call a function of each toolpack in one session, and return the results."""
    (folder / "packs").mkdir()
    for name, source in packs.items():
        (folder / "packs" / f"{name}.py").write_text(source)
    flags = ["--pack-dir", str(folder / "packs"), "--packs", ",".join(packs)]
    with served(folder, *flags, TOOLPACK_ISOLATION=isolation, **settings) as server:
        session = server.rpc("create_session")
        functions = server.rpc("list_functions", session_id=session["session_id"])["result"]
        return [server.call(session["session_id"], function["name"], text="abcd") for function in functions]


@EACH
def test_factory_may_start_threads(tmp_path, isolation):
    assert answers(tmp_path, isolation, {"pool": POOL}) == [{"result": 4, "error": None}]


@EACH
def test_import_may_start_threads(tmp_path, isolation):
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    pool = POOL.replace("ThreadPoolExecutor(1)\n", "ThreadPoolExecutor(1)\nPOOL.submit(len, '').result()\n", 1)
    results = answers(tmp_path, isolation, {"pool": pool, "frame": POLARS, "table": DUCKDB})
    assert results == [{"result": 4, "error": None}] * 3


def test_import_may_start_threads_in_the_sandbox(tmp_path):
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    try:
        check_sandbox()
    except SettingsError as error:
        without(str(error))
    results = answers(
        tmp_path, "process", {"frame": POLARS, "table": DUCKDB}, TOOLPACK_EXECUTORS_SANDBOX="files,network"
    )
    assert results == [{"result": 4, "error": None}] * 2


def test_import_killed_in_the_sandbox_is_reported(tmp_path):
    try:
        check_sandbox()
    except SettingsError as error:
        without(str(error))
    ends = "POOL.submit(len, '').result()\ntry:\n    open('/etc/passwd')\nexcept OSError:\n    os.abort()\n"
    source = POOL.replace("ThreadPoolExecutor(1)\n", f"ThreadPoolExecutor(1)\n{ends}", 1)
    (tmp_path / "pool.py").write_text(source.replace("from concurrent", "import os\nfrom concurrent", 1))
    ended = subprocess.run(
        command("serve", "--port", "0", "--pack-dir", str(tmp_path), "--data-dir", str(tmp_path / "data")),
        check=False,
        env=environment(TOOLPACK_ISOLATION="process", TOOLPACK_EXECUTORS_SANDBOX="files"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 1
    assert "An executor exited while it set up the sandbox" in ended.stderr
    assert "no process for toolpacks' code can be started; see the log for the cause." in ended.stderr


def test_check_works_with_toolpacks_that_start_threads(tmp_path):
    pytest.importorskip("polars")
    for name, source in {"pool": POOL, "frame": POLARS}.items():
        (tmp_path / f"{name}.py").write_text(source)
    command = [sys.executable, "-m", "toolpack_server", "check", "--pack-dir", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (checked.stdout, checked.stderr) == ("2 toolpacks with 2 functions: no problems.\n", "")
