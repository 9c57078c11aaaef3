"""The SQLite store beyond the contract: its file, write-ahead log, locks and errors."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path

import pytest
import serving
from patience import PATIENCE
from serving import open_store

from toolpack_server.base.errors import (
    OverloadedError,
    SettingsError,
    StateDamagedError,
)
from toolpack_server.features.stores.sqlite import checkpoints, deletion
from toolpack_server.features.stores.sqlite.file import SqliteFile
from toolpack_server.stores.base import Head
from toolpack_server.testing.store_contract.samples import (
    change,
    claim,
    commit,
    delete,
    existing,
    session,
    use_and_delete,
)


def test_deleted_sessions_leave_no_rows_in_sqlite(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/left.db")
    use_and_delete(store)
    for table in ("sessions", "kept", "recipes", "records", "changes", "blobs", "deleted"):
        assert store._file.read(f"SELECT count(*) FROM {table}") == [(0,)], table
    store.close()


@pytest.mark.heavy
def test_sqlite_returns_disk_space_and_its_log_stays_small(tmp_path):
    path = tmp_path / "large.db"
    store = open_store(f"sqlite:///{path}")
    many = [session() for _ in range(10)]
    store.create(many, {}, {})
    for each in many:
        blobs = {f"{each.id}-{n}": os.urandom(8 * 2**20) for n in range(2)}
        store.commit([commit(each, 0, body=os.urandom(2**20), parts={b[-1]: b for b in blobs}, blobs=blobs)])
    log = path.with_name("large.db-wal")
    serving.wait_until(lambda: log.stat().st_size <= 40 * 2**20, "a checkpoint of the commits")
    sizes = []
    sweep = deletion._delete_rows

    def watched(file):
        sizes.append(log.stat().st_size)
        return sweep(file)

    deletion._delete_rows = watched
    try:
        delete(store, [each.id for each in many])
    finally:
        deletion._delete_rows = sweep
    assert len(sizes) > 20  # in steps of bytes, not of rows
    assert max(sizes) <= 40 * 2**20  # after the commits
    serving.wait_until(lambda: log.stat().st_size <= 21 * 2**20, "a checkpoint of what was deleted")
    assert path.stat().st_size <= 40 * 2**20  # of 170 MB
    store.close()


def test_sqlite_resets_its_log_while_commits_continue(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 200_000)  # SQLite's own checkpoint would come much later.
    monkeypatch.setattr(checkpoints, "LONG_BYTES", 200_000)
    path = tmp_path / "busy.db"
    store = open_store(f"sqlite:///{path}")
    stored, indices, sizes = session(), count(), [0]
    store.create([stored], {}, {})

    def log_is_shorter():
        index = next(indices)
        blobs = {f"b{index}": bytes(20_000)}
        assert store.commit([commit(stored, index, parts={"bank": f"b{index}"}, blobs=blobs)]) == [True]
        sizes.append(store._file._log.stat().st_size)
        return sizes[-1] < sizes[-2]

    for _ in range(3):
        serving.wait_until(log_is_shorter, "a checkpoint")
    assert len(store.records(stored.id, -1, 10**6)) == next(indices)
    # The locks of this process still exclude others.
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    with store._file.write():
        ended = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert "database is locked" in ended.stderr
    store.close()


def test_sqlite_reuses_its_log_from_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 200_000)
    store = open_store(f"sqlite:///{tmp_path}/again.db")
    stored, indices = session(), count()
    store.create([stored], {}, {})
    thread, log = store._file._checkpoints, store._file._log
    ends = [0]
    for _ in range(4):
        before = log.stat().st_size
        while not thread._is_filled(log.stat().st_size):
            index = next(indices)
            blobs = {f"b{index}": bytes(2_000)}
            assert store.commit([commit(stored, index, parts={"bank": f"b{index}"}, blobs=blobs)]) == [True]
        serving.wait_until(lambda: not thread._is_filled(log.stat().st_size), "the checkpoint")
        assert log.stat().st_size >= before  # The log wasn't truncated.
        ends.append(index)
    rounds = [end - start for start, end in pairwise(ends)]
    assert min(rounds) == rounds[0] > 2  # Each round fits as many commits as the first one.
    assert len(store.records(stored.id, -1, 10**6)) == next(indices)
    store.close()


def test_sqlite_close_waits_for_a_running_checkpoint(tmp_path, monkeypatch):
    running, go_on = threading.Event(), threading.Event()
    real = checkpoints.checkpoint

    def slow(*arguments):
        running.set()
        assert go_on.wait(serving.PATIENCE)
        return real(*arguments)

    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 10_000)
    monkeypatch.setattr(checkpoints, "checkpoint", slow)
    store = open_store(f"sqlite:///{tmp_path}/closing.db")
    stored = session()
    store.create([stored], {}, {})
    assert store.commit([commit(stored, 0, parts={"bank": "b"}, blobs={"b": bytes(50_000)})]) == [True]
    assert running.wait(serving.PATIENCE)
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    serving.wait_until(lambda: store._file._checkpoints._closed, "the beginning of the end")
    go_on.set()
    closing.join(serving.PATIENCE)
    assert not closing.is_alive()


COMMIT_UNTIL_KILLED = """
import sys
from toolpack_server.stores.base import Commit, Record, StoredSession
from toolpack_server.wiring.stores import open_store
store = open_store(sys.argv[1])
kept = StoredSession("s", "k", "", b"", {}, 1.0, 0.0, 0.0)
store.create([kept], {"bank": "b"}, {"b": b"x"})
for index in range(10**6):
    blob = f"b{index}"
    record = Record(index, index + 1, None, b"{}", str(index))
    parts, blobs = {"bank": blob}, {blob: b"x" * 2500}
    assert store.commit([Commit("s", 0, record, parts, blobs, after=str(index - 1) if index else "")]) == [True]
    print(index, flush=True)
"""


def test_sqlite_keeps_acknowledged_commits_after_a_kill(tmp_path):
    url = f"sqlite:///{tmp_path}/killed.db"
    child = subprocess.Popen([sys.executable, "-c", COMMIT_UNTIL_KILLED, url], stdout=subprocess.PIPE)
    with child.stdout as lines:
        for _ in range(300):
            acknowledged = int(lines.readline())
        child.send_signal(signal.SIGKILL)
        for line in lines:
            acknowledged = int(line)
    child.wait()
    store = open_store(url)
    try:
        head = store.get("s")[1]
        assert acknowledged <= head.index <= acknowledged + 1
        assert store.blobs([head.parts["bank"]])
        assert len(store.records("s", -1, 10**6)) == head.index + 1
    finally:
        store.close()


def test_sqlite_is_locked_against_other_processes(tmp_path):
    url = f"sqlite:///{tmp_path}/locked.db"
    store = open_store(url)
    for exclusive in (True, False):
        with pytest.raises(SettingsError, match="in use by another toolpack-server"):
            open_store(url, exclusive=exclusive)
    store.close()
    first, second = open_store(url, exclusive=False), open_store(url, exclusive=False)
    with pytest.raises(SettingsError, match="in use"):
        open_store(url)
    stored = session()
    first.create([stored], {}, {})
    assert second.get(stored.id) == (stored, Head(-1, 0, {}, 0))
    first.close()
    second.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system shows no open files")
@pytest.mark.parametrize("inherited", [False, True])
def test_process_that_locked_a_file_is_named(tmp_path, inherited):
    path = tmp_path / "locked.db"
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 66), 2); pid = int(sys.argv[2]) and os.fork()"
    code += "; print(pid or os.getpid(), flush=True) if pid or not int(sys.argv[2]) else None; pid or sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, f"{path}.lock", str(int(inherited))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        pid = int(holder.stdout.readline())
        if inherited:  # The process that locked it has ended.
            holder.wait()
        with pytest.raises(SettingsError, match=rf"toolpack-server, process {pid} \(.*python.* -c import.*\): "):
            open_store(f"sqlite:///{path}")
        holder.stdin.close()


def test_exclusive_sqlite_resets_epochs(tmp_path):
    url = f"sqlite:///{tmp_path}/alone.db"
    stored = session()
    store = open_store(url, exclusive=False)
    store.create([stored], {}, {})
    claim(store, stored, "w1")
    store.close()
    store = open_store(url)
    assert store.commit([commit(stored, 0)]) == [True]
    store.close()


OPEN_AND_COMMIT = """
import sys
from toolpack_server.stores.base import StoredSession
from toolpack_server.wiring.stores import open_store
store = open_store(sys.argv[1], exclusive=False)
for n in range(20):
    store.create([StoredSession(sys.argv[2] + str(n), sys.argv[2] + str(n), "", b"", {}, 1.0, 0.0, 0.0)], {}, {})
store.close()
"""


@pytest.mark.heavy
def test_several_processes_may_open_sqlite_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/new/together.db"
    command = [sys.executable, "-c", OPEN_AND_COMMIT, url]
    children = [subprocess.Popen([*command, f"c{n}-"], stderr=subprocess.PIPE, text=True) for n in range(4)]
    assert [child.communicate()[1] for child in children] == [""] * 4
    store = open_store(url)
    assert store.count() == 80
    store.close()


def test_sqlite_waits_for_another_process_that_opens_a_new_file(tmp_path, monkeypatch):
    switch = SqliteFile._write_ahead
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)

    def switch_while_the_other_writes(file):
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.05, other.execute, ["COMMIT"]).start()
        switch(file)

    monkeypatch.setattr(SqliteFile, "_write_ahead", switch_while_the_other_writes)
    open_store(f"sqlite:///{tmp_path}/new.db", exclusive=False).close()
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_sqlite_closes_connections_of_reads_that_end_late(tmp_path, monkeypatch):
    connect, connections, started, closed = SqliteFile._connect, [], threading.Event(), threading.Event()

    def connect_with_a_pause(file):
        connections.append(connect(file))
        connections[-1].create_function("pause", 0, lambda: started.set() or closed.wait(PATIENCE))
        return connections[-1]

    monkeypatch.setattr(SqliteFile, "_connect", connect_with_a_pause)
    file = SqliteFile(tmp_path / "read.db", exclusive=True)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(file.read, "SELECT pause()")
        assert started.wait(PATIENCE)
        file.close()
        closed.set()
        assert reading.result(PATIENCE) == [(1,)]
    assert len(connections) == 2
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_sqlite_creates_its_folder_and_private_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///a/b/relative.db")
    store.create([session()], {}, {})
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a/b").iterdir()}
    assert modes == {f"relative.db{end}": 0o600 for end in ("", "-wal", "-shm", ".lock", ".reserve")}
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    store.close()


def test_sqlite_file_is_independent_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///relative.db")
    monkeypatch.chdir(tmp_path / "other")
    stored = session()
    store.create([stored], {}, {})
    assert store.get(stored.id)[0] == stored
    store.ping()
    store.close()
    assert list((tmp_path / "other").iterdir()) == []


def make_foreign(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def make_newer(path):
    open_store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(make_foreign, "belongs to another program", id="foreign"),
        pytest.param(make_newer, "has schema 99, but this toolpack-server needs schema 1", id="newer"),
        pytest.param(lambda path: path.write_bytes(b"no database " * 1000), "not a database", id="no database"),
        pytest.param(lambda path: path.mkdir(), "can't be opened", id="folder"),
    ],
)
def test_unusable_sqlite_files_are_rejected(tmp_path, make, reason):
    path = tmp_path / "file.db"
    make(path)
    with pytest.raises(SettingsError, match=reason):
        open_store(f"sqlite:///{path}")


def test_locked_sqlite_database_is_an_overloaded_error(tmp_path):
    url = f"sqlite:///{tmp_path}/busy.db"
    store = open_store(url)
    store._file._writer.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(tmp_path / "busy.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    stored = session()
    with pytest.raises(OverloadedError, match="locked"):
        store.create([stored], {}, {})
    other.execute("ROLLBACK")
    other.close()
    store.create([stored], {}, {})
    store._file._writer.execute("PRAGMA max_page_count = 1")
    with pytest.raises(OverloadedError, match="full"):
        store.commit([commit(stored, 0, parts={"bank": "b"}, blobs={"b": b"x" * 10**6})])
    store._file._writer.execute("PRAGMA max_page_count = 1000000")
    assert store.commit([commit(stored, 0)]) == [True]
    store.close()


class LosesCommits:
    """An SQLite connection that fails at its next COMMITs, as on a full disk."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, *parameters):
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *parameters)


def test_failed_commit_is_not_the_base_of_others(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/lost.db")
    stored = session()
    store.create([stored], {}, {})
    assert store.commit([commit(stored, 0)]) == [True]
    writer = store._file._writer
    store._file._writer = LosesCommits(writer)
    with pytest.raises(OverloadedError):
        store.commit([change(stored, 1, "b1"), commit(stored, 2)])
    store._file._writer = writer
    assert store.commit([commit(stored, 3)]) == [False]
    assert store.commit([commit(stored, 2)]) == [False]
    assert store.commit([commit(stored, 1)]) == [True]
    assert [record.index for record in store.records(stored.id, -1, 9)] == [0, 1]
    assert existing(store, "b1") == []
    store.close()


def test_sqlite_rejects_commits_to_deleted_or_taken_sessions(tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    store, other = open_store(url, exclusive=False), open_store(url, exclusive=False)
    deleted, taken_over = session(), session()
    store.create([deleted, taken_over], {}, {})
    assert store.commit([commit(deleted, 0), commit(taken_over, 0)]) == [True, True]
    other.delete([deleted.id])
    assert claim(other, taken_over, "other").epoch == 1
    assert store.commit([commit(deleted, 1)]) == [False]
    assert store.commit([commit(taken_over, 1)]) == [False]
    store.close()
    other.close()


def test_damaged_sqlite_file_is_reported_clearly(tmp_path):
    url = f"sqlite:///{tmp_path}/damaged.db"
    stored = session()
    store = open_store(url)
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    store.close()
    with (tmp_path / "damaged.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.fstat(file.fileno()).st_size - 4096))
    with pytest.raises(SettingsError, match="malformed"):
        open_store(url)
    store = open_store(url, exclusive=False)
    with pytest.raises(StateDamagedError, match="damaged"):
        store.get(stored.id)
    with pytest.raises(StateDamagedError, match="damaged"):
        store.renew(stored.id, 1.0)
    store.close()


def test_sqlite_deletes_leftovers_of_a_killed_process(tmp_path):
    url = f"sqlite:///{tmp_path}/left.db"
    stored = session()
    store = open_store(url)
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    store.delete([stored.id])
    assert store.blobs(["b"]) == {"b": b"x"}
    store.close()
    store = open_store(url)
    assert store.get(stored.id) is None
    assert existing(store, "b") == ["b"]
    store.clean_up()
    assert existing(store, "b") == []
    store.close()


def test_restored_file_that_cannot_shrink_is_used(tmp_path, monkeypatch):
    path = tmp_path / "restored.db"
    monkeypatch.setattr("toolpack_server.features.stores.sqlite.file.MAX_FREE_PAGES", 10)
    store = open_store(f"sqlite:///{path}")
    stored = session()
    store.create([stored], {"bank": "b"}, {"b": bytes(4_000_000)})
    store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum = NONE")
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("VACUUM")
        assert database.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    store = open_store(f"sqlite:///{path}")
    assert delete(store, [stored.id]) == [stored.id]
    assert store.count() == 0
    store.close()
