"""`serve --reload`: the server has the newest code, keeps all sessions, and continues to serve if a file is broken."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import httpx
import pytest
import server_process
import serving
from patience import PATIENCE
from serving import RpcError, wait_until

from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.processes import file_watch
from toolpack_server.processes.file_watch import FileWatch

SHOP = '''"""A shop."""
from typing import Annotated
from pydantic import BaseModel
from toolpack_server import Depends, TaskEnvironment, Toolpack

class Till(BaseModel):
    coins: int = 0

class Shop(TaskEnvironment):
    till: Till = Till()

toolpack = Toolpack("shop", Shop)

@toolpack.function
def pay(till: Annotated[Till, Depends("till")], coins: int) -> int:
    """Pay.

    :param coins: How many.
    """
    till.coins += coins * 1
    return till.coins
'''
DOUBLE = SHOP.replace("coins * 1", "coins * 2")
BROKEN = SHOP.replace("def pay(", "def pay((")


class Reloading:
    """A running `serve --reload`."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder
        self.packs, self.log = folder / "packs", folder / "output"
        self.url = wait_until(self._url, "the server")
        self.http = serving.http_client(self.url)

    def _url(self):
        assert self.process.poll() is None, self.said()
        match = re.search(r"http://127\.0\.0\.1:\d+", self.said())
        return match and match[0]

    def said(self):
        return self.log.read_text()

    def wait_for(self, text, times=1):
        wait_until(lambda: self.said().count(text) >= times, f"{text!r} in {self.said()}")

    def write(self, source, name="shop.py"):
        """Write a file as an editor does, and wait until the server has noticed the change."""
        change_count = self.said().count("reload: Changed: ")
        (self.packs / name).write_text(source)
        self.wait_for("reload: Changed: ", change_count + 1)

    def rpc(self, method, /, **params):
        """Send a request, and retry if its connection or its server ended."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        deadline = time.monotonic() + serving.PATIENCE
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.post("/rpc", json=body)
                if answer.status_code != 503:
                    return serving.result_of(answer.content)
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def pay(self, session_id, coins):
        return self.rpc("run_function", session_id=session_id, function="pay", kwargs={"coins": coins})["result"]


@contextlib.contextmanager
def reloading(folder, *arguments, source=SHOP, **variables):
    (folder / "packs").mkdir(exist_ok=True)
    if source is not None:
        (folder / "packs" / "shop.py").write_text(source)
    flags = ["--port", "0", "--data-dir", str(folder / "data"), "--pack-dir", str(folder / "packs")]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            server_process.command("serve", "--reload", *flags, *arguments),
            env=server_process.environment(TOOLPACK_LOG_CALLS="off", **variables),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(serving.PATIENCE)


@contextlib.contextmanager
def served(folder, *arguments, **options):
    with reloading(folder, *arguments, **options) as process:
        server = Reloading(process, folder)
        with contextlib.closing(server.http):
            yield server


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.heavy)])
def test_a_change_is_served_and_sessions_stay(tmp_path, workers):
    with served(tmp_path, "--workers", workers) as server:
        session_id = server.rpc("create_session")["session_id"]
        assert server.pay(session_id, 1) == 1
        server.write(DOUBLE)
        server.wait_for("reload: Serving shop.")
        assert server.pay(session_id, 1) == 3
        assert len(server.rpc("get_trace", session_id=session_id)) == 2
        assert "reload: Changed: " in server.said()
        assert "packs/shop.py.\n" in server.said()
        assert server.said().count("Toolpack Server listens on") == 1
        assert "Traceback" not in server.said()


@pytest.mark.heavy
def test_a_broken_file_is_reported_once_and_stops_nothing(tmp_path):
    with served(tmp_path) as server:
        session_id = server.rpc("create_session")["session_id"]
        server.write(BROKEN)
        server.wait_for("reload: The server continues with the previous code; correct the file.")
        assert f"{tmp_path}/packs/shop.py:15: SyntaxError" in server.said()
        assert server.pay(session_id, 1) == 1
        server.write(BROKEN + "\n")
        server.wait_for("correct the file.", 2)
        server.write(DOUBLE)
        server.wait_for("reload: Serving shop.")
        assert server.pay(session_id, 1) == 3
        assert server.said().count("SyntaxError") == server.said().count("correct the file.") == 2
        assert server.said().count("reload: Changed: ") == 3
        assert "Traceback" not in server.said()


@pytest.mark.heavy
def test_a_pack_broken_at_start_is_served_once_fixed(tmp_path):
    with reloading(tmp_path, source=BROKEN) as process:
        log = tmp_path / "output"
        wait_until(lambda: "reload: Nothing is served yet; correct the file." in log.read_text(), "the mistake")
        assert process.poll() is None
        (tmp_path / "packs" / "shop.py").write_text(SHOP)
        wait_until(lambda: "Toolpack Server listens on" in log.read_text(), "the server")
        server = Reloading(process, tmp_path)
        with contextlib.closing(server.http):
            assert server.pay(server.rpc("create_session")["session_id"], 1) == 1


@pytest.mark.heavy
def test_sessions_with_changed_classes_are_named_and_resettable(tmp_path):
    with served(tmp_path) as server:
        session_id = server.rpc("create_session")["session_id"]
        server.pay(session_id, 1)
        server.write(SHOP.replace("coins: int = 0", "coins: int = 0\n    notes: int = 0"))
        server.wait_for("reload: Sessions of shop need reset_session to version 0: its classes have changed.")
        with pytest.raises(RpcError, match="-32008"):
            server.pay(session_id, 1)
        server.rpc("reset_session", session_id=session_id)
        assert server.pay(session_id, 1) == 1


@pytest.mark.heavy
def test_modules_that_toolpacks_import_and_new_files_are_watched(tmp_path):
    helper = SHOP.replace("from typing", "from toolpacks.prices.table import FACTOR\nfrom typing").replace(
        "coins * 1", "coins * FACTOR"
    )
    (tmp_path / "packs" / "prices").mkdir(parents=True)
    (tmp_path / "packs" / "prices" / "__init__.py").touch()
    (tmp_path / "packs" / "prices" / "table.py").write_text("FACTOR = 1\n")
    with served(tmp_path, source=helper) as server:
        session_id = server.rpc("create_session")["session_id"]
        assert server.pay(session_id, 1) == 1
        server.write("FACTOR = 2\n", "prices/table.py")
        server.wait_for("reload: Serving shop.")
        assert server.pay(session_id, 1) == 3
        server.write(SHOP.replace('"shop"', '"kiosk"').replace("def pay", "def pay_later"), "kiosk.py")
        server.wait_for("reload: Serving kiosk, shop.")
        assert {each["name"] for each in server.rpc("list_toolpacks")} == {"kiosk", "shop"}


def descendants(pid):
    """Return the ids of a process's descendants."""
    output = subprocess.run(["ps", "-eo", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    children = {}
    for line in output.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    pids, todo = [], [pid]
    while todo:
        child_ids = children.get(todo.pop(), [])
        pids += child_ids
        todo += child_ids
    return pids


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.heavy
def test_installed_packages_are_watched_too(tmp_path):
    about, package = tmp_path / "site" / "kiosk-1.0.dist-info", tmp_path / "site" / "kiosk"
    for folder in (about, package):
        folder.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kiosk\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[toolpack_server.toolpacks]\nkiosk = kiosk\n")
    (package / "__init__.py").write_text(SHOP.replace('"shop"', '"kiosk"'))
    path = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with served(tmp_path, "--packs", "kiosk", PYTHONPATH=path) as server:
        session_id = server.rpc("create_session")["session_id"]
        assert server.pay(session_id, 1) == 1
        server.write(DOUBLE.replace('"shop"', '"kiosk"'), package / "__init__.py")
        server.wait_for("reload: Serving kiosk.")
        assert server.pay(session_id, 1) == 3


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_reloading_server_ends_with_all_its_processes(tmp_path, number):
    with served(tmp_path) as server:
        others = descendants(server.process.pid)
        assert len(others) >= 2
        server.process.send_signal(number)
        assert server.process.wait(serving.PATIENCE) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        wait_until(lambda: not any(map(is_running, others)), "the end of all processes")
        address = httpx.URL(server.url)
        with pytest.raises(OSError, match="refused"), socket.create_connection((address.host, address.port)):
            pass


@pytest.mark.heavy
def test_a_failed_start_is_reported_in_one_sentence(tmp_path):
    def output_of(*arguments):
        result = subprocess.run(
            server_process.command("serve", "--reload", "--port", "0", *arguments),
            env=server_process.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        return line

    watched = "toolpack-server: --reload watches the folders of --pack-dir, and installed packages: give a folder."
    assert output_of() == watched
    with served(tmp_path) as server:
        packs = ["--pack-dir", str(server.packs), "--data-dir", str(tmp_path / "data")]
        assert "is in use by another toolpack-server" in output_of(*packs)


@pytest.mark.heavy
def test_in_memory_the_loss_of_sessions_is_reported(tmp_path):
    with served(tmp_path, "--store", "memory:") as server:
        assert "reload: A memory: store loses its sessions when a file changes." in server.said()
        session_id = server.rpc("create_session")["session_id"]
        server.write(DOUBLE)
        server.wait_for("reload: Serving shop.")
        with pytest.raises(RpcError, match="-32001"):
            server.pay(session_id, 1)


# Watched folders and files


@pytest.fixture
def watch(tmp_path):
    """Watch a folder inside a virtual environment, where installed packages are, and a folder that doesn't exist."""
    folder = tmp_path / ".venv" / "packs"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "old.py").touch()
    watch = FileWatch([folder, tmp_path / "later"])
    yield watch, folder
    watch.end()


def wait_for_changes(watch, *paths):
    expected, reported = {*map(str, paths)}, set()
    wait_until(lambda: reported.update(watch.changed()) or reported >= expected, f"{expected}, not only {reported}")
    return reported


def test_only_python_files_outside_caches_and_venvs_are_watched(watch):
    watch, folder = watch
    for name in (".git/c.py", "__pycache__/d.py", "env/pyvenv.cfg", "env/lib/e.py", "data.json", "data", "a.py"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).touch()
    (folder / "last.py").touch()
    expected = {f"{folder}/a.py", f"{folder}/last.py"}
    assert wait_for_changes(watch, *expected) == expected


def test_files_that_are_replaced_or_removed_are_reported(watch):
    watch, folder = watch
    (folder / "a.py").touch()
    wait_for_changes(watch, folder / "a.py")
    (folder / "a.tmp").touch()
    (folder / "a.tmp").replace(folder / "a.py")
    wait_for_changes(watch, folder / "a.py")
    (folder / "a.py").unlink()
    wait_for_changes(watch, folder / "a.py")


def test_folders_that_are_moved_in_or_out_are_reported(watch, tmp_path):
    watch, folder = watch
    (tmp_path / "new" / "deep").mkdir(parents=True)
    (tmp_path / "new" / "deep" / "a.py").touch()
    (tmp_path / "new").rename(folder / "new")
    wait_for_changes(watch, folder / "new" / "deep" / "a.py")
    (folder / "inner").rename(tmp_path / "inner")
    wait_for_changes(watch, folder / "inner" / "old.py")


def test_a_watched_folder_may_be_removed_created_and_replaced(watch, tmp_path):
    watch, folder = watch
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.py").touch()
    wait_for_changes(watch, tmp_path / "later" / "a.py")
    shutil.rmtree(folder)
    folder.mkdir()  # the new folder often has the same inode
    (folder / "new.py").touch()
    wait_for_changes(watch, folder / "inner" / "old.py", folder / "new.py")
    folder.rename(tmp_path / "old")
    wait_for_changes(watch, folder / "new.py")
    (tmp_path / "old").rename(folder)
    wait_for_changes(watch, folder / "new.py")
    (folder / "more.py").touch()
    wait_for_changes(watch, folder / "more.py")


def test_an_ended_watch_is_reported_in_one_sentence(watch):
    watch, _ = watch
    os.kill(watch.pid, signal.SIGKILL)
    with pytest.raises(StartError, match="can't watch the files: the process that watches them has ended"):
        wait_until(watch.changed, "the end")


def test_without_watchfiles_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(file_watch, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"needs watchfiles: pip install 'toolpack-server\[reload\]'\.$"):
        FileWatch([tmp_path])
