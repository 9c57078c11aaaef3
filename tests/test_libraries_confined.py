"""What isolation.md says of libraries in a sandbox, tried with those that are installed."""

import importlib.util

import pytest
import server_process

from server.base.errors import SettingsError
from server.features.executors.sandbox import check_sandbox

PACK = '''
"""Functions that use libraries."""

from server import Toolpack

toolpack = Toolpack("libraries")


@toolpack.function
def polars() -> int:
    """Sum in polars."""
    import polars

    return polars.DataFrame({"x": [1, 2, 3]}).select(polars.col("x").sum()).item()


@toolpack.function
def duckdb() -> int:
    """Sum in DuckDB."""
    import duckdb

    return int(duckdb.connect().execute("select sum(x) from range(4) t(x)").fetchall()[0][0])


@toolpack.function
def requests() -> str:
    """Ask a port on which nobody listens."""
    import requests

    try:
        return str(requests.get("http://127.0.0.1:1/"))
    except requests.ConnectionError:
        return "refused"
'''


@pytest.mark.parametrize("sandbox", ["files", "network", "files,network"])
def test_libraries_work_or_fail_as_the_page_says(tmp_path, sandbox):
    try:
        check_sandbox()
    except SettingsError as error:
        pytest.skip(str(error))
    (tmp_path / "libraries.py").write_text(PACK)
    flags = ["--pack-dir", str(tmp_path), "--packs", "libraries"]
    with server_process.served(tmp_path, *flags, TOOLPACK_ISOLATION="process", TOOLPACK_SANDBOX=sandbox) as server:
        session = server.rpc("create_session")["session_id"]
        for name, result in (("polars", 6), ("duckdb", 6), ("requests", "refused")):
            if importlib.util.find_spec(name) is None:
                continue
            envelope = server.call(session, name)
            if name == "duckdb" and "files" in sandbox:
                assert "`duckdb` ended its process (signal 6)" in envelope["error"]
            else:
                assert envelope == {"result": result, "error": None}
