"""Processes that functions fork or start: they release the server's files, can import the toolpack, and end."""

import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import server_process
from redis_server import free_port
from serving import wait_until

from toolpack_server.base.errors import SettingsError
from toolpack_server.features.executors.sandbox import check_sandbox

PACK = '''
"""Functions that fork processes, and start others."""

import asyncio
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from toolpack_server import Toolpack

toolpack = Toolpack("forking")


def double(number: int) -> int:
    return 2 * number


class Doubles(multiprocessing.get_context("spawn").Process):
    def run(self) -> None:
        os._exit(double(3))


@toolpack.function(timeout_seconds=300)
def pool(method: str) -> list[int]:
    """Let a pool of processes work.

    :param method: How they are started.
    """
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(double, [1, 2])


@toolpack.function(timeout_seconds=300)
def executor(method: str) -> list[int]:
    """Let an executor work.

    :param method: How its processes are started.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as executor:
        return [*executor.map(double, [1, 2])]


@toolpack.function(timeout_seconds=300)
def own_class(method: str) -> int:
    """Start a process whose class is this module's.

    :param method: How.
    """
    process = Doubles()
    process.start()
    process.join()
    return process.exitcode


@toolpack.function(timeout_seconds=300)
def program(out: str) -> list[str]:
    """Start a program from C, and get which descriptors it has.

    :param out: A file for what it says.
    """
    os.system(f"ls /proc/self/fd > {out}")
    return Path(out).read_text().split()


@toolpack.function(timeout_seconds=300)
def fork(path: str) -> int:
    """Fork a process that lives until a file is there, and get its id.

    :param path: The file.
    """
    pid = os.fork()
    while pid == 0:
        time.sleep(0.01)
        if Path(path).exists():
            os._exit(0)
    return pid


@toolpack.function(timeout_seconds=300, read_only=True)
async def mark(path: str, until: str, fork: bool = False) -> int:
    """Wait for a file, then write a line into another one.

    :param path: The other one.
    :param until: The file.
    :param fork: Fork instead, and return in both processes; get the id of the other one.
    """
    await asyncio.sleep(0.01)
    if fork:
        return os.fork()
    try:
        while not Path(until).exists():
            await asyncio.sleep(0.3)
    finally:
        with Path(path).open("a") as file:
            file.write("marked\\n")
    return 0
'''

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system shows no open files"),
]


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs")
    (folder / "forking.py").write_text(PACK)
    return folder


def served(folder, packs, *arguments, **variables):
    return server_process.served(folder, "--pack-dir", str(packs), "--packs", "forking", *arguments, **variables)


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request, packs, tmp_path_factory):
    with served(tmp_path_factory.mktemp("served"), packs, TOOLPACK_ISOLATION=request.param) as running:
        yield running


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(("function", "result"), [("pool", [2, 4]), ("executor", [2, 4]), ("own_class", 6)])
def test_multiprocessing_finds_the_module_of_the_toolpack(server, function, method, result):
    session = server.rpc("create_session")["session_id"]
    assert server.call(session, function, method=method) == {"result": result, "error": None}


def test_sandbox_rejects_pools_at_once_but_allows_processes(packs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # The working folder is hidden in a sandbox.
    try:
        check_sandbox()
    except SettingsError as error:
        pytest.skip(str(error))
    with served(tmp_path, packs, TOOLPACK_ISOLATION="process", TOOLPACK_EXECUTORS_SANDBOX="files") as confined:
        session = confined.rpc("create_session")["session_id"]
        for function in ("pool", "executor"):
            for method in ("fork", "spawn", "forkserver"):
                assert confined.call(session, function, method=method)["error"].startswith("PermissionError: ")
        assert confined.call(session, "own_class", method="spawn")["result"] == 6


def test_program_started_by_c_code_inherits_no_descriptors(server, tmp_path):
    session = server.rpc("create_session")["session_id"]
    own = server.call(session, "program", out=str(tmp_path / "out"))["result"]
    assert own == ["0", "1", "2", "3"]  # `ls` itself opens 3.


OF_STORE = ("sessions.db", "sessions.db-wal", "sessions.db-shm", "sessions.db.lock")


def descriptors(process):
    """Yield the name or the kind of each open file of a process, except for its standard streams."""
    for link in Path(f"/proc/{process}/fd").iterdir():
        if int(link.name) > 2:
            mode = link.stat().st_mode
            yield "socket" if stat.S_ISSOCK(mode) else link.readlink().name


def test_forked_process_releases_the_port_and_the_store(packs, tmp_path):
    end = tmp_path / "end"
    port = str(free_port())
    with served(tmp_path, packs, "--port", port) as running:
        session = running.rpc("create_session")["session_id"]
        child = running.call(session, "fork", path=str(end))["result"]
        try:
            # The process may not have had its first turn yet.
            wait_until(lambda: not {"socket", *OF_STORE} & {*descriptors(child)}, "what the process lets go")
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
            # The worker ends with its supervisor. The forked process lives on.
            wait_until(lambda: not in_use(tmp_path / "sessions.db.lock"), "the worker's end")
            with served(tmp_path, packs, "--port", port) as restarted:
                assert urlsplit(restarted.url).port == int(port)
                assert restarted.rpc("get_session", session_id=session)["version"] == 1
                assert Path(f"/proc/{child}").exists()
        finally:
            end.touch()


def in_use(path):
    """Return whether any process has a file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.samefile(path):
                return True
        except OSError:
            continue
    return False


def test_process_forked_by_an_async_function_runs_no_other_calls(packs, tmp_path):
    with served(tmp_path, packs, "--store", "memory:") as running:
        session, other = (running.rpc("create_session")["session_id"] for _ in range(2))
        marks, until = tmp_path / "marks", tmp_path / "until"
        files = {"path": str(marks), "until": str(until)}
        for _ in range(20):  # The server now knows that the function waits, so its calls share an event loop.
            running.call(session, "mark", path=str(tmp_path / "others"), until=str(tmp_path))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(running.call, other, "mark", **files)
            children = [running.call(session, "mark", **files, fork=True)["result"] for _ in range(3)]
            assert all(children)
            wait_until(lambda: not any(map(runs, children)), "the end of what was forked")
            until.touch()
            assert waiting.result()["error"] is None
        assert marks.read_text() == "marked\n"


def runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
