"""Installed libraries in a sandbox: each works or fails as docs/operate/isolation.md says."""

import importlib.util

import pytest
import server_process

from toolpack_server.base.errors import SettingsError
from toolpack_server.features.executors.sandbox import check_sandbox

pytestmark = pytest.mark.heavy
PACK = '''
"""Functions that use libraries."""

from toolpack_server import Toolpack

toolpack = Toolpack("libraries")


@toolpack.function
def polars() -> int:
    """Sum in polars."""
    import polars

    return polars.DataFrame({"x": [1, 2, 3]}).select(polars.col("x").sum()).item()


@toolpack.function
def duckdb() -> int:
    """Sum in DuckDB, in memory and in a file."""
    import tempfile

    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        duckdb.connect(f"{folder}/x.db").execute("create table t as select x from range(4) t(x)")
        found = duckdb.connect(f"{folder}/x.db").execute("select sum(x) from t").fetchall()
    return int(found[0][0]) + duckdb.connect().execute("select 0").fetchall()[0][0]


@toolpack.function
def numpy() -> int:
    """Multiply matrices in numpy, which OpenBLAS does in threads."""
    import numpy

    return int((numpy.ones((500, 500)) @ numpy.ones((500, 500)))[0, 0]) - 494


@toolpack.function
def pandas() -> int:
    """Sum in pandas."""
    import pandas

    return int(pandas.DataFrame({"x": [1, 2, 3]})["x"].sum())


@toolpack.function
def pyarrow() -> int:
    """Sum in pyarrow, whose readers have threads."""
    import io

    import pyarrow.compute
    import pyarrow.csv

    return pyarrow.compute.sum(pyarrow.csv.read_csv(io.BytesIO(b"x\\n1\\n2\\n3\\n"))["x"]).as_py()


@toolpack.function
def torch() -> int:
    """Multiply matrices in PyTorch."""
    import torch

    return int((torch.ones(500, 500) @ torch.ones(500, 500))[0, 0]) - 494


@toolpack.function
def grpc() -> str:
    """Connect to a port without a listener."""
    import grpc

    with grpc.insecure_channel("127.0.0.1:1") as channel:
        try:
            return str(channel.unary_unary("/a/b")(b"", timeout=2))
        except grpc.RpcError:
            return "refused"


@toolpack.function
def requests() -> str:
    """Connect to a port without a listener."""
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
    with server_process.served(
        tmp_path, *flags, TOOLPACK_ISOLATION="process", TOOLPACK_EXECUTORS_SANDBOX=sandbox
    ) as server:
        session = server.rpc("create_session")["session_id"]
        for name in ("polars", "duckdb", "numpy", "pandas", "pyarrow", "torch", "grpc", "requests"):
            if importlib.util.find_spec(name) is not None:
                result = "refused" if name in ("grpc", "requests") else 6
                assert (name, server.call(session, name)) == (name, {"result": result, "error": None})
