"""Changes of a failed call to databases and files are never kept, at whatever step its end fails.

The tests break each step at the end of a call. Then they check the session, its forks, the server's answers, SQLite's
own check, another worker, and a restarted server. Executors take several times as long as threads, so there only every
fourth step is broken, and all steps only in the long test.
"""

import asyncio
import contextlib
import sqlite3
import sys

import pytest
import serving
from serving import PACKS, Bench, RpcError

from toolpack_server.features.volumes.databases import database_connection
from toolpack_server.features.volumes.databases.database_connection import open_connection
from toolpack_server.features.volumes.databases.database_file import DatabaseFile
from toolpack_server.packs.loading import load_catalog
from toolpack_server.volumes.scratch import MAX_RECENT, Scratch
from toolpack_server.volumes.working_copy import WorkingCopy

# An exception in each step leaves files and connections to the garbage collector, which warns about them.
WARNING = "ignore::pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings(WARNING)]

CATALOG = load_catalog((PACKS,), ("breaking",))


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request):
    if request.param == "process" and sys.platform != "linux":
        pytest.skip("there are no executors")
    return request.param


def make(isolation, store, **settings):
    if isolation == "process":
        settings = {"isolation": "process", "packs": ("breaking",), "pack_dir": (PACKS,), "executors": 1, **settings}
    return Bench(CATALOG, store, **settings)


class World:
    """The expected state of a session."""

    def __init__(self, bench, session):
        self.bench, self.session = bench, session
        self.entries, self.files, self.notes, self.number = [], {"first": "0"}, [], 0
        self.why = None  # the error of the last call

    def change(self, way, where="finish", step=0):
        """Change the session, with an injected failure. Return whether the call succeeded nevertheless."""
        self.number += 1
        number = self.number
        kwargs = {"number": number, "way": way, "where": where, "step": step}
        if not self.succeeds("change", **kwargs):
            return False
        self.entries += [number, number]
        self.notes.append(number)
        self.files |= {f"file {number % 3}": str(number), "last": str(number)}
        return True

    def succeeds(self, function, **kwargs):
        try:
            error = self.bench.call(self.session, function, **kwargs)["error"]
        except RpcError as refusal:
            error = refusal
        self.why = error
        return error is None

    def expected(self):
        return {"entries": self.entries, "files": self.files, "notes": self.notes, "check": "ok"}

    def is_seen(self, bench, session):
        assert bench.result(session, "look") == self.expected()

    def is_shown(self, bench, session):
        view = bench.rpc("get_environment", session_id=session)["breaking"]
        assert [row["number"] for row in view["db"]["entry"].values()] == self.entries
        assert view["notes"] == self.notes
        assert view["files"] == self.files

    def check(self):
        self.is_seen(self.bench, self.session)
        self.is_shown(self.bench, self.session)
        (fork,) = self.bench.rpc("fork_session", session_id=self.session)
        self.is_seen(self.bench, fork["session_id"])
        self.bench.rpc("close_session", session_id=fork["session_id"])


# `stride` is the distance from one broken step to the next.
STRIDES = [("thread", 1), ("process", 4), pytest.param("process", 1, marks=pytest.mark.long)]
WAYS = {"connect": 1, "closed": 3, "path": 3}
in_strides = pytest.mark.parametrize(("isolation", "stride"), STRIDES, indirect=["isolation"])


@in_strides
@pytest.mark.parametrize(("way", "times"), WAYS.items())
def test_any_failure_at_a_calls_end_keeps_all_or_nothing(isolation, stride, tmp_path, way, times):
    stride *= times
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    with contextlib.ExitStack() as closing:
        stores = [serving.open_store(url, exclusive=False) for _ in range(2)]
        for store in stores:
            closing.callback(store.close)
        bench, other = (closing.enter_context(make(isolation, store)) for store in stores)
        world = World(bench, bench.create("breaking"))
        assert world.change(way), world.why
        steps = bench.result(world.session, "counted")
        assert steps > 100
        failed = 0
        for step in range(1, steps + 1, stride):
            failed += not world.change(way, step=step)
            world.check()
            if step % 20 < stride:
                assert world.change(way), world.why
                world.check()
        assert failed > steps / stride / 2
        world.is_seen(other, world.session)
        world.bench = other
        assert world.change(way), world.why
        world.bench = bench
        world.check()
        new = World(other, other.create("breaking"))
        new.check()
    with make(isolation, url) as again:
        world.is_seen(again, world.session)
        world.is_shown(again, world.session)


@in_strides
@pytest.mark.parametrize("function", ["change", "write_nothing"])
def test_any_failure_at_a_failed_calls_end_keeps_nothing(isolation, stride, function):
    with make(isolation, "memory:") as bench:
        world = World(bench, bench.create("breaking"))
        assert world.change("connect"), world.why
        step = steps = 0
        while step <= steps:
            if function == "change":
                assert not world.change("connect", "abandon", step)
            else:
                assert not world.succeeds(function, step=step)
            if not step:
                steps = bench.result(world.session, "counted")
                assert steps > 20
            world.check()
            step += stride
        assert world.change("connect"), world.why
        world.check()


FAILING = {
    "leave_orphan": "IntegrityError: FOREIGN KEY constraint failed",
    "leave_open": "OperationalError: the database is still in use: end its threads and close their cursors",
    "swallow": "OperationalError: the committed changes aren't known, because the connection could not be closed",
}


@pytest.mark.parametrize("function", FAILING)
def test_a_call_with_an_invalid_end_leaves_nothing(isolation, tmp_path, function):
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    with make(isolation, url) as bench:
        world = World(bench, bench.create("breaking"))
        for number in range(10, 13):
            failed = bench.call(world.session, function, number=number)["error"]
            assert failed == FAILING[function]
            world.check()
            assert bench.version(world.session) == world.number
            assert world.change("connect"), world.why
        others = World(bench, bench.create("breaking"))
        others.check()
    with make(isolation, url) as bench:
        world.bench = bench
        world.check()


@pytest.mark.parametrize(
    ("function", "after"), {"use_up_open_files": "close_files", "use_up_room": "make_room"}.items()
)
def test_a_process_without_room_or_files_leaves_nothing(function, after):
    if sys.platform != "linux":
        pytest.skip("there are no executors")
    with make("process", "memory:") as bench:
        world = World(bench, bench.create("breaking"))
        assert world.change("connect"), world.why
        for number in (7, 8):
            assert not world.succeeds(function, number=number)
            bench.result(world.session, after)
            world.check()
        assert world.change("connect"), world.why
        world.check()


def test_changes_on_a_refused_commit_are_gone_with_it(isolation, monkeypatch):
    with make(isolation, "memory:") as bench:
        world = World(bench, bench.create("breaking"))
        assert world.change("connect"), world.why
        with monkeypatch.context() as refusing:
            refusing.setattr(bench.store, "commit", lambda commits: [False] * len(commits))
            with bench.paused():
                answers = [
                    bench.later_call(world.session, "change", number=number, way="connect") for number in (7, 8, 9)
                ]
            for answer in answers:
                with pytest.raises(RpcError, match="-32006"):
                    answer.result(serving.PATIENCE)
        world.check()
        assert world.change("connect"), world.why
        world.check()


def test_a_call_sees_uncommitted_changes_of_the_last_one(isolation):
    with make(isolation, "memory:", scratch_bytes=0) as bench:
        sessions = [bench.create("breaking") for _ in range(3)]
        with bench.paused():
            answers = [
                bench.later_call(session, "change", number=number, way="connect")
                for number in range(5)
                for session in sessions
            ]
        assert [answer.result(serving.PATIENCE)["error"] for answer in answers] == [None] * 15
        assert {*map(len, (bench.result(session, "look")["entries"] for session in sessions))} == {10}


def test_objects_kept_from_an_ended_call_raise_when_used(isolation):
    with make(isolation, "memory:") as bench:
        session = bench.create("breaking")
        ended = "ValueError: 'breaking/{}' belongs to a call that has ended, and can't be used any more"
        bench.result(session, "keep")
        for read in (False, True):
            assert bench.result(session, "use_kept", read=read) == [ended.format("files"), ended.format("db")]
        assert bench.result(session, "look")["files"] == {"first": "0", "kept": "1"}


def test_an_open_database_file_cannot_change_a_stored_one(isolation):
    with make(isolation, "memory:") as bench:
        session = bench.create("breaking")
        bench.result(session, "leave_path_open", number=1)
        assert bench.result(session, "write_there") == "done"
        content = bench.result(session, "look")
        assert (content["entries"], content["check"]) == ([1, 1], "ok")


# Owners of working copies


def copies(folder):
    return [path for path in folder.glob("*/*") if path.name.startswith("copy-")]


def test_working_copies_go_with_their_session(tmp_path):
    with Bench(CATALOG, scratch_dir=tmp_path) as bench:
        tidying = asyncio.run_coroutine_threadsafe(bench.service._tidy(), bench._loop)
        worlds = [World(bench, bench.create("breaking")) for _ in range(40)]
        for world in worlds:
            assert world.change("connect"), world.why
        assert len(copies(tmp_path)) > 40
        for world in worlds:
            bench.rpc("close_session", session_id=world.session)
        serving.wait_until(lambda: len(copies(tmp_path)) <= MAX_RECENT, "the end of the copies")
        tidying.cancel()


def test_unused_copies_are_deleted(tmp_path):
    copies = []

    class Copy(WorkingCopy):
        size, gone = 1, False

        def clone(self):
            return Copy()

        def discard(self):
            assert not self.gone
            self.gone = True

    def load():
        copies.append(Copy())
        return copies[-1]

    scratch = Scratch(tmp_path, 100)
    reading = scratch.share("a", None, load)
    changed, origin = scratch.take("a", None, load)
    path = scratch.put("b", changed, origin)
    scratch.release(reading)
    scratch.release(scratch.share("b", path, load))
    assert scratch.take("b", path, load)[0] is changed, "it is the session's own"
    path = scratch.put("c", changed, origin)
    del reading, origin
    for number in range(MAX_RECENT):
        scratch.release(scratch.share(number, None, load))
    assert not copies[0].gone, "a session has a clone of it, and others may need one"
    again = scratch.share("c", None, load)
    del path
    scratch.release(again)
    scratch.tidy()
    assert not changed.gone, "somebody has its place"
    del again
    for number in range(MAX_RECENT, 2 * MAX_RECENT):
        scratch.release(scratch.share(number, None, load))
    scratch.tidy()
    assert changed.gone
    scratch.tidy()
    assert copies[0].gone
    assert [each.gone for each in copies].count(False) == MAX_RECENT


def test_a_writer_gets_a_clone_of_a_copy_in_use(tmp_path):
    class Copy(WorkingCopy):
        size = 1

        def clone(self):
            return Copy()

        def discard(self):
            pass

    scratch = Scratch(tmp_path, 100)
    mine = Copy()
    path = scratch.put("a", mine, None)
    reading = scratch.share("a", path, Copy)
    assert scratch.take("a", path, Copy)[0] is not mine, "somebody reads it"
    scratch.release(reading)
    assert scratch.take("a", path, Copy)[0] is mine
    path = scratch.put("b", mine, None)
    scratch.release(scratch.share("b", None, Copy))
    assert scratch.take("b", path, Copy)[0] is not mine, "a fork has found it, and others may"


def test_a_connection_that_fails_to_open_locks_nothing(tmp_path, monkeypatch):
    with contextlib.closing(sqlite3.connect(tmp_path / "database")) as database:
        database.execute("CREATE TABLE one (x)")
        database.commit()
    file = DatabaseFile(Scratch(tmp_path, 10), tmp_path / "database", foreign_keys=False)
    with monkeypatch.context() as breaking:
        breaking.setattr(database_connection, "pin_functions", lambda connection, _: connection.execute("nonsense"))
        with pytest.raises(sqlite3.OperationalError) as caught:  # the exception keeps the connection alive
            open_connection(file, 10**6, read_only=False, pinned=True)
    with contextlib.closing(sqlite3.connect(file.path, timeout=0)) as other:
        other.execute("INSERT INTO one VALUES (1)")
        other.commit()
    assert "nonsense" in str(caught.value)


def test_a_file_replaced_by_a_rename_frees_its_room():
    with Bench(load_catalog((PACKS,), ("papers",)), max_volume_bytes=2**16) as bench:
        session = bench.create("papers")
        for _ in range(5):
            bench.result(session, "write", path="old", text="x" * 25_000)
            bench.result(session, "write", path="new", text="x" * 25_000)
            assert bench.result(session, "do", steps=[["rename", "new", "old"]]) == [None]
