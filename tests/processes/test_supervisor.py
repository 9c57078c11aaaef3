"""The supervisor survives workers that die at once, failed forks, full disks, and a pause of the server."""

import contextlib
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import pytest
import server_process
import serving
from serving import wait_until

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.secret_key import secret_key
from toolpack_server.base.settings import Settings
from toolpack_server.processes.supervisor import HANG_SECONDS
from toolpack_server.web.auth import new_token

pytestmark = pytest.mark.heavy  # these tests start, stop and kill servers


def workers(server):
    pid = server.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def serves(server):
    with contextlib.suppress(OSError):
        return server.http.get("/readyz", headers={"Connection": "close"}).status_code == 200
    return False


def test_a_dying_worker_is_replaced_and_others_live_on(tmp_path):
    with server_process.served(tmp_path, "--workers", "2") as server:
        healthy, *_ = workers(server)
        for _ in range(4):
            wait_until(lambda: len(workers(server)) == 2, "two workers")
            (victim,) = workers(server) - {healthy}
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda victim=victim: victim not in workers(server), "its end")
        wait_until(lambda: len(workers(server)) == 2, "two workers")
        assert healthy in workers(server)
        assert serves(server)


@pytest.mark.parametrize("call_id", [None, "sent-again"])
def test_a_call_that_ended_three_workers_is_not_run_again(tmp_path, call_id):
    with server_process.served(tmp_path, "--packs", "rough") as server:
        rough, other, third = [server.rpc("create_session", toolpacks=["rough"])["session_id"] for _ in range(3)]
        for ended in range(1, 4):
            with pytest.raises(httpx.TransportError):
                server.call(rough, "ends", {"call_id": call_id}, how="kill")
            assert server.call(other, "mark", text="on")["result"] == ["on"] * ended
        for _ in range(2):
            error = server.call(rough, "ends", {"call_id": call_id}, how="kill")["error"]
            assert error == (
                "CrashedError: `ends` has ended its process 3 times, and isn't run again until the server runs "
                "other code; nothing has changed."
            )
        assert server.rpc("get_trace", session_id=rough) == []
        assert server.call(rough, "mark", {"call_id": "another"}, text="here")["result"] == ["here"]
        with pytest.raises(httpx.TransportError):
            server.call(third, "ends", {"call_id": call_id}, how="kill")
        text = "exited with status -9 while running rough.ends; starting a replacement."
        wait_until(lambda: (tmp_path / "server.log").read_text().count(text) == 4, "four lines in the log")


@pytest.mark.parametrize("store", [[], ["--store", "memory:"], ["--reload"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_a_killed_server_still_logs_its_end(tmp_path, store, number):
    with server_process.served(tmp_path, *store) as server:
        os.kill(server.process.pid, number)
        log = wait_until(lambda: words_of(tmp_path), "the last words")
        assert log[-1] == (
            f"The server, process {server.process.pid}, ended without a message, by signal {number.value} "
            f"({signal.strsignal(number)})."
        )


def test_an_exit_in_a_lone_server_names_the_function(tmp_path):
    with server_process.served(tmp_path, "--packs", "rough", "--store", "memory:") as server:
        rough = server.rpc("create_session", toolpacks=["rough"])["session_id"]
        with pytest.raises(httpx.TransportError):
            server.call(rough, "ends", how="exit")
        assert wait_until(lambda: words_of(tmp_path), "the last words")[-1].endswith(
            "without a message, with status 3."
        )


@pytest.mark.usefixtures("cold")  # `witnesses` finds the exit logger by its command line
@pytest.mark.parametrize("store", [[], ["--store", "memory:"]])
def test_a_stopping_server_logs_why_and_nothing_else(tmp_path, store):
    with server_process.served(tmp_path, *store) as server:
        (witness,) = witnesses(server.process.pid)
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0
        wait_until(lambda: not Path(f"/proc/{witness}").exists(), "the end of the witness")
    assert words_of(tmp_path) == ["The server stops: it was sent SIGTERM."]


def witnesses(pid):
    """Return the exit loggers: processes with a server's command line, but neither the server nor its children."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes() == command and pid not in {parent, int(folder.name)}:
                pids.append(int(folder.name))
    return pids


def words_of(folder):
    lines = [line for line in (folder / "server.log").read_text().splitlines() if line.startswith("{")]
    return [each["message"] for each in map(json.loads, lines) if "message" in each]


def test_a_later_failed_start_is_retried_until_it_works(tmp_path):
    with server_process.served(tmp_path, "--workers", "2") as server:
        healthy, first = workers(server)
        wait_until(lambda: serves(server), "an answer")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(workers(server) - {first}) == 2, "its replacement, which takes longer than a heartbeat")
        (victim,) = workers(server) - {healthy}
        lock = tmp_path / "sessions.db.lock"
        lock.rename(tmp_path / "kept")
        lock.mkdir()  # the server can't open a folder as a file
        os.kill(victim, signal.SIGKILL)
        log = tmp_path / "server.log"
        wait_until(lambda: log.read_text().count("exited with status 3") == 3, "three attempts")
        assert serves(server)
        lock.rmdir()
        (tmp_path / "kept").rename(lock)
        worker_ids = wait_until(lambda: len(workers(server)) == 2 and workers(server), "two workers")
        wait_until(lambda: workers(server) == worker_ids or worker_ids.update(workers(server)), "the last attempt")
        assert healthy in workers(server)
        assert server.process.poll() is None


def test_new_workers_use_the_tokens_of_the_servers_start(tmp_path):
    """An operator may change the file before the server is restarted. New workers must not use the changed file."""
    (token, line), tokens = new_token("ann"), tmp_path / "tokens"
    tokens.write_text(line)
    body = {"jsonrpc": "2.0", "id": 1, "method": "list_sessions"}
    headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
    with server_process.served(tmp_path, "--workers", "2", TOOLPACK_TOKENS_FILE=str(tokens)) as server:
        before = workers(server)
        tokens.write_text(line[:20])
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(workers(server) - before) == 2, "their replacements")
        wait_until(lambda: serves(server), "an answer")
        assert server.http.post("/rpc", json=body, headers=headers).status_code == 200
        assert "exited with status 3" not in (tmp_path / "server.log").read_text()


# A system that allows no more processes for some time: os.fork fails while a file exists.
FAILING_FORK = """
import errno, os, sys
from pathlib import Path
real = os.fork
def fork():
    if Path({gate!r}).exists():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return real()
os.fork = fork
sys.argv = ["toolpack-server", *sys.argv[1:]]
from toolpack_server.cli import main
main()
"""


def test_a_failed_fork_is_retried_and_others_live_on(tmp_path, monkeypatch):
    gate = tmp_path / "no more processes"
    script = tmp_path / "failing_fork.py"
    script.write_text(textwrap.dedent(FAILING_FORK.format(gate=str(gate))))
    monkeypatch.setattr(server_process, "command", lambda *arguments: [sys.executable, str(script), *arguments])
    with server_process.served(tmp_path, "--workers", "2", PYTHONPATH=str(Path(__file__).parents[2])) as server:
        healthy, victim = workers(server)
        gate.touch()
        os.kill(victim, signal.SIGKILL)
        log = tmp_path / "server.log"
        wait_until(lambda: log.read_text().count("can't be started: Resource temporarily") == 3, "three attempts")
        assert workers(server) == {healthy}
        assert serves(server)
        files = count_files(server)
        wait_until(lambda: log.read_text().count("can't be started") == 4, "another attempt")
        assert count_files(server) == files
        gate.unlink()
        wait_until(lambda: len(workers(server)) == 2, "two workers")
        assert healthy in workers(server)


def count_files(server):
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


def test_a_server_that_cannot_start_says_why_and_ends(tmp_path):
    (tmp_path / "sessions.db").write_text("This is no database, and longer than the head of one: " + "x" * 100)
    command = server_process.command("serve", "--port", "0", "--data-dir", str(tmp_path), "--workers", "2")
    ended = subprocess.run(
        command, env=server_process.environment(), capture_output=True, text=True, timeout=serving.PATIENCE, check=False
    )
    assert ended.returncode == 1
    assert "toolpack-server: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_pause_of_the_whole_server_blames_no_worker(tmp_path):
    with server_process.served(tmp_path, "--workers", "2") as server:
        before = workers(server)
        wait_until(lambda: serves(server), "readiness")
        everybody = [server.process.pid, *before]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        wait_until(lambda: time.monotonic() > start + HANG_SECONDS + 1.5, "the end of the pause")
        os.kill(server.process.pid, signal.SIGCONT)
        wait_until(lambda: is_asleep(server.process.pid), "the supervisor's look at its workers")
        for pid in before:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: serves(server), "an answer")
        assert workers(server) == before
        assert "hung" not in (tmp_path / "server.log").read_text()


def is_asleep(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_the_key_is_read_where_it_exists_and_nothing_is_written(tmp_path):
    folder = tmp_path / "data"
    settings = Settings(data_dir=folder)
    key = secret_key(settings)
    assert [path.name for path in folder.iterdir()] == ["secret.key"]
    assert stat.S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    before = folder.stat().st_mtime_ns
    assert secret_key(settings) == key
    assert folder.stat().st_mtime_ns == before


def test_a_full_disk_leaves_no_half_written_key_behind(tmp_path, monkeypatch):
    def is_full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("toolpack_server.base.secret_key.secrets.token_hex", lambda size: "k" * size)
    monkeypatch.setattr("toolpack_server.base.secret_key.Path.hardlink_to", is_full)
    with pytest.raises(SettingsError, match=r"No space left on device\. Make room") as refused:
        secret_key(Settings(data_dir=tmp_path))
    assert "TOOLPACK_SECRET_KEY" not in str(refused.value)  # another key couldn't read the stored data
    assert not [*tmp_path.iterdir()]


def test_a_key_that_cannot_be_read_is_not_replaced(tmp_path):
    (tmp_path / "secret.key").mkdir()
    with pytest.raises(SettingsError, match="can't be read: Is a directory") as refused:
        secret_key(Settings(data_dir=tmp_path))
    assert "TOOLPACK_SECRET_KEY" not in str(refused.value)


ARENA_BYTES = 64 * 2**20


def arenas(pid):
    """Return the number of glibc's arenas of single threads, which are reserved ranges of 64 MB, partly in use."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    ranges = [(*(int(end, 16) for end in row[0].split("-")), row[1], len(row)) for row in maps]
    return sum(
        used == "rw-p" and words == 5 and start % ARENA_BYTES == 0 and (rest_start, of) == (end, "---p")
        for (start, end, used, words), (rest_start, _, of, _) in itertools.pairwise(ranges)
    )


@pytest.mark.parametrize("store", [[], ["--store", "memory:"]])
def test_the_threads_of_a_worker_share_their_memory(tmp_path, store):
    with server_process.served(tmp_path, *store) as server:
        session = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        server.call(session, "add", amount=1)
        pids = [server.process.pid] if store else workers(server)
        assert [arenas(pid) for pid in pids] == [0]


def test_metrics_need_no_files(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    with server_process.served(tmp_path, "--workers", "2", TMPDIR=str(folder)) as server:
        session = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        server.call(session, "add", amount=1)
        assert 'toolpack_calls_total{function="add"' in server.http.get("/metrics").text
        assert not [*folder.iterdir()]
        server.kill()
    assert not [*folder.iterdir()]
