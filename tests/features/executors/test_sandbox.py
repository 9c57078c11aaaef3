"""The sandbox: a toolpack's code reaches no file, process or network of the server."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
import zoneinfo
from pathlib import Path

import pytest
import server_process
import serving
from ci import IN_CI
from serving import KEY, PACKS

from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.base.settings import Settings
from toolpack_server.features.executors import requirements, sandbox, system
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.packs.loading import load_catalog
from toolpack_server.wiring.installed import load_features

CATALOG = load_catalog((PACKS,), ("rough",))
DENIED = "PermissionError: "


def problem_here():
    try:
        sandbox.check_sandbox()
    except SettingsError as error:
        return str(error)
    return ""


needs_kernel = pytest.mark.skipif(bool(problem_here()) and not IN_CI, reason=problem_here())


@contextlib.contextmanager
def confined(folder, *kinds, memory_bytes=0, calls=0, pack_dir=(PACKS,)):
    """Yield a server. Beside its data directory is a file that no toolpack may read."""
    (folder / "data").mkdir()
    (folder / "data" / "secret.key").write_bytes(KEY)
    settings = {"data_dir": folder / "data", "pack_dir": pack_dir, "packs": ("rough",)}
    own = ExecutorsSettings(sandbox=kinds, memory_bytes=memory_bytes, calls=calls)
    store = f"sqlite:///{folder / 'data' / 'sessions.db'}"
    bench = serving.Bench(CATALOG, store, isolation="process", of_features=[own], **settings)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture(scope="module")
def thief(tmp_path_factory):
    """Yield a function that lets toolpack code try an action in the sandbox, and returns the result or the error."""
    folder = tmp_path_factory.mktemp("thief")
    with confined(folder, "files", "network", memory_bytes=2**30) as bench:
        session_id = bench.create("rough")

        def try_to(action, path="", number=0):
            envelope = bench.call(session_id, "try_to", what=action, path=str(path), number=number)
            return envelope["error"] or envelope["result"]

        try_to.folder, try_to.bench, try_to.session_id = folder, bench, session_id
        yield try_to


@needs_kernel
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is missing")
def test_sandbox_needs_no_rights_and_hides_the_working_folder(tmp_path, monkeypatch):
    command = server_process.command
    without_rights = [shutil.which("setpriv"), "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    monkeypatch.setattr(server_process, "command", lambda *arguments: [*without_rights, *command(*arguments)])
    for name in ("data", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path / "work")
    variables = {"TOOLPACK_ISOLATION": "process", "TOOLPACK_EXECUTORS_SANDBOX": "files,network"}
    with server_process.served(tmp_path / "data", "--packs", "rough", **variables) as server:
        status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
        assert "CapEff:\t0000000000000000\n" in status
        session_id = server.rpc("create_session", toolpacks=["rough"])["session_id"]
        attempt = {"what": "read", "path": str(tmp_path / "work" / "notes.txt"), "number": 0}
        assert server.call(session_id, "try_to", **attempt)["error"].startswith(DENIED)
        assert server.call(session_id, "mark", text="after")["result"] == ["after"]


@needs_kernel
@pytest.mark.parametrize("name", ["secret.key", "sessions.db", "sessions.db-wal"])
def test_files_of_the_server_cannot_be_read_or_written(thief, name):
    path = thief.folder / "data" / name
    assert path.exists()
    assert thief("read", path).startswith(DENIED)
    assert thief("write", path).startswith(DENIED)


@needs_kernel
def test_other_files_cannot_be_read_or_written(thief, tmp_path):
    (tmp_path / "note").write_text("of somebody")
    for action, path in [
        ("read", tmp_path / "note"),
        ("list", tmp_path),
        ("list", "/"),
        ("list", "/proc"),
        ("write", tmp_path / "new"),
        ("write", PACKS / "rough.py"),
        ("write", Path(tempfile.gettempdir()) / uuid.uuid4().hex),
        ("read", "/etc/passwd"),
        ("read", f"/proc/{os.getpid()}/environ"),
        ("read", "/proc/self/environ"),
    ]:
        assert thief(action, path).startswith(DENIED), (action, path)


@needs_kernel
def test_files_that_python_and_toolpacks_need_can_be_read(thief):
    assert thief("read", PACKS / "rough.py").startswith('"""Functions that harm')
    assert thief("read", Path(os.__file__))
    assert thief("read", Path(pytest.__file__))
    assert thief("list", Path(os.__file__).parent)
    assert thief("read", "/etc/hosts")
    assert thief("write", "/dev/null") == "8"
    assert zoneinfo.TZPATH


@needs_kernel
@pytest.mark.parametrize("action", ["signal", "memory", "environ", "thread", "limits", "priority", "processors"])
@pytest.mark.parametrize("whose", ["server", "zygote", "executor"])
def test_other_processes_cannot_be_signalled_or_inspected(thief, action, whose):
    process = {
        "server": os.getpid(),
        "zygote": thief.bench.service.runner._pool._zygote.process,
        "executor": next(
            child
            for child in children_of(thief.bench.service.runner._pool._zygote.process)
            if child != thief.bench.result(thief.session_id, "process")
        ),
    }[whose]
    assert thief(action, number=process).startswith(DENIED)


def children_of(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@needs_kernel
def test_function_may_still_manage_its_own_process(thief):
    assert "Error" not in thief("own limits")
    assert thief("pair") == "b'here'"
    assert thief("loop") == "slept"


@needs_kernel
def test_root_has_no_more_rights_than_others(thief):
    assert thief("root").startswith(DENIED)


@needs_kernel
def test_only_python_with_the_same_limits_can_be_started(thief):
    for program in ["/bin/true", Path(sys.prefix) / "bin" / "pytest"]:
        assert thief("program", program).startswith(DENIED)
    assert thief("python", "print(6 * 7)") == "b'42\\n'"
    for code in ["open('/etc/passwd')", "import os; os.chroot('/')", "import socket; socket.socket()"]:
        assert "PermissionError" in thief("python", code)


@needs_kernel
@pytest.mark.parametrize("action", ["namespace", "join", "clone"])
def test_namespaces_give_no_root_rights(thief, action):
    assert thief(action).startswith(DENIED)


@needs_kernel
@pytest.mark.parametrize(
    "action", ["shared memory", "semaphores", "messages", "named messages", "add key", "keyring", "kernel log", "ring"]
)
def test_kernel_objects_shared_between_processes_are_unreachable(thief, action):
    assert thief(action, "note", 0x7001).startswith(DENIED)


@needs_kernel
@pytest.mark.parametrize("action", ["mode", "owner", "time", "attribute", "flags"])
def test_attributes_of_files_cannot_be_changed(thief, action):
    for path in [PACKS / "rough.py", thief.folder / "data" / "secret.key"]:
        assert thief(action, path, 0o600).startswith(DENIED)


@needs_kernel
def test_sockets_reach_nothing_outside(thief, tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    local, messages = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with listener, local, messages:
        local.bind(str(tmp_path / "local"))
        local.listen()
        messages.bind(str(tmp_path / "messages"))
        assert thief("connect", number=listener.getsockname()[1]).startswith(DENIED)
        for action in ("datagram", "raw", "raw pair"):
            assert thief(action).startswith(DENIED)
        assert thief("name", "\0of an executor").startswith(DENIED)
        assert thief("local", tmp_path / "local").startswith(DENIED)
        assert thief("message", tmp_path / "messages").startswith(DENIED)


@needs_kernel
def test_other_protections_hold_in_the_sandbox_too(thief):
    bench = thief.bench
    session_id = bench.create("rough")
    assert bench.result(session_id, "mark", text="a") == ["a"]
    assert bench.call(session_id, "ends", how="crash")["error"].startswith("CrashedError: ")
    assert bench.call(session_id, "hang", how="interpreter")["error"].startswith("TimeoutError: ")
    assert bench.call(session_id, "eat", size=2**31)["error"] == "MemoryError: "
    assert bench.result(session_id, "leave", what="thread")
    assert bench.result(session_id, "mark", text="b") == ["a", "thread", "b"]


@needs_kernel
def test_output_of_an_executor_is_its_own_pipe(thief):
    assert thief.bench.result(thief.session_id, "say", text="hello") == "pp"
    assert thief("mode of output", number=0o777).startswith(DENIED)


@needs_kernel
def test_executor_for_one_call_sees_no_other_session(tmp_path):
    with confined(tmp_path, "files", "network", calls=1) as bench:
        mine, other = bench.create("rough"), bench.create("rough")
        bench.result(mine, "mark", text="mine")
        bench.result(other, "mark", text="the other's")
        leftover_pid = bench.result(mine, "leave", what="fork")
        serving.wait_until(lambda: not Path(f"/proc/{leftover_pid}").exists(), "the end of what a call has left")
        # not even its own world, because this function doesn't request it
        assert bench.result(mine, "try_to", what="worlds") == "[]"


@needs_kernel
def test_files_and_network_sandboxes_are_independent(tmp_path):
    (tmp_path / "note").write_text("of somebody")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for kind, reads, connects in [("files", False, True), ("network", True, False)]:
            folder = tmp_path / kind
            folder.mkdir()
            with confined(folder, kind) as bench:
                session_id = bench.create("rough")
                read_envelope = bench.call(session_id, "try_to", what="read", path=str(tmp_path / "note"))
                signalled = bench.call(session_id, "try_to", what="signal", number=os.getpid())
                connected = bench.call(session_id, "try_to", what="connect", number=port)
            allowed = [envelope["error"] is None for envelope in (read_envelope, signalled, connected)]
            assert allowed == [reads, reads, connects]


@needs_kernel
def test_data_directory_in_a_readable_folder_stays_hidden(tmp_path):
    packs = tmp_path / "packs"
    packs.mkdir()
    (packs / "rough.py").write_text((PACKS / "rough.py").read_text())
    (packs / "notes.txt").write_text("for the toolpack")
    own = tmp_path / "packs" / "deeper"
    own.mkdir()
    with confined(own, "files", pack_dir=(packs,)) as bench:
        session_id = bench.create("rough")

        def read_file(path):
            return bench.call(session_id, "try_to", what="read", path=str(path))

        assert read_file(packs / "notes.txt")["result"] == "for the toolpack"
        for name in ("secret.key", "sessions.db", "sessions.db-wal"):
            assert read_file(own / "data" / name)["error"].startswith(DENIED)


def test_sandbox_requires_executors():
    with pytest.raises(SettingsError, match="TOOLPACK_EXECUTORS_SANDBOX needs TOOLPACK_ISOLATION=process"):
        requirements.check_isolation(Settings().give(ExecutorsSettings(sandbox=("files",))))


def test_process_isolation_requires_the_executors_feature(make_bench):
    others = [feature for feature in load_features() if feature.name != "executors"]
    with pytest.raises(SettingsError, match=r"TOOLPACK_ISOLATION=process isn't available in this server: use thread.$"):
        make_bench(isolation="process", features=others)
    make_bench(features=others)


def test_executors_require_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SettingsError, match="TOOLPACK_ISOLATION=process needs Linux"):
        requirements.check_isolation(Settings(isolation="process"))


@pytest.mark.parametrize(("version", "says"), [(-1, "none"), (5, "version 5")])
def test_kernel_without_the_needed_version_is_rejected(monkeypatch, version, says):
    monkeypatch.setattr(system.LIBC, "syscall", lambda *_: version)
    with pytest.raises(SettingsError) as refused:
        requirements.check_isolation(Settings(isolation="process").give(ExecutorsSettings(sandbox=("network",))))
    assert f"this system offers {says}: omit the setting" in str(refused.value)


def test_unknown_processor_is_rejected(monkeypatch):
    monkeypatch.setattr(system.LIBC, "syscall", lambda *_: 7)
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    with pytest.raises(SettingsError, match="but not riscv64"):
        requirements.check_isolation(Settings(isolation="process").give(ExecutorsSettings(sandbox=("network",))))


def test_failed_setup_of_an_executor_stops_the_start(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(tmp_path))
    # Only the zygote runs this program, so the setup fails there and not in the worker.
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes, sys\n"
        "if sys.argv[-2:-1] == ['executors']:\n"
        "    import resource\n"
        "    def refuse(*_): raise OSError(1, 'Operation not permitted')\n"
        "    resource.setrlimit = refuse\n"
    )
    with pytest.raises(StartError, match="no process for toolpacks' code can be started"):
        serving.Bench(CATALOG, isolation="process", pack_dir=(PACKS,), packs=("rough",))
    assert "An executor can't be set up: Operation not permitted." in caplog.messages


def test_memory_of_zygotes_and_executors_is_hidden():
    with serving.Bench(CATALOG, isolation="process", pack_dir=(PACKS,), packs=("rough",)) as bench:
        assert bench.result(bench.create("rough"), "try_to", what="dumpable") == "0"


def test_memory_of_the_server_is_hidden():
    hidden = "from toolpack_server.features.executors.system import LIBC, hide_memory; hide_memory()"
    printed = subprocess.run(
        [sys.executable, "-c", f"{hidden}; print(LIBC.prctl(3, 0, 0, 0, 0))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == "0\n"
