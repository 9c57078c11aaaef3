"""Files as a field of an environment: in calls, forks, views and bundles, with and without executors."""

import base64
import errno
import io
import os
import tarfile

import jsonpatch
import pytest
import serving

from toolpack_server.features.volumes.files.files_directory import Directory
from toolpack_server.packs.loading import load_catalog
from toolpack_server.testing import Session
from toolpack_server.volumes.scratch import FULL_TEXT

pytestmark = serving.IN_BOTH

CATALOG = load_catalog((serving.PACKS,), ("papers",))
START = {"logo.png": {"$base64": "/w=="}, "orders/17.txt": "2 of 1\n"}
PROMISED = "PermissionError: [Errno 13] attempt to write readonly files: the function is registered with read_only=True"


@pytest.fixture
def bench():
    with serving.Bench(CATALOG, pack_dir=(serving.PACKS,), packs=("papers",)) as bench:
        yield bench


def files_of(bench, session, **where):
    return bench.rpc("get_environment", session_id=session, **where)["papers"]["files"]


def test_authors_test_can_read_the_files():
    with Session(CATALOG.toolpacks["papers"]) as session:
        session.run("write", path="orders/18.txt", text="3")
        mine = session.environment.files
        assert (mine.read_text("orders/18.txt"), mine.read_bytes("logo.png")) == ("3", b"\xff")
        mine.unlink("orders/18.txt")
        assert session.run("read", path="orders/18.txt") == "3"


def test_every_version_of_a_long_session_is_read_from_its_pieces(bench):
    session = bench.create("papers")
    for number in range(20):
        bench.result(session, "write", path=f"file {number}", text=f"{number}" * 100 * (1 + number % 3))
    bundle = bench.rpc("export_bundle", session_id=session)["bundle"]
    copy = bench.rpc("import_bundle", bundle=bundle)["session_id"]  # This session has no working copy.
    for version in range(21):
        expected = {f"file {number}": f"{number}" * 100 * (1 + number % 3) for number in range(version)}
        assert files_of(bench, copy, version=version) == {**START, **expected}


def test_files_and_other_fields_change_together(bench):
    session = bench.create("papers")
    assert bench.result(session, "write", path="orders/18.txt", text="3") == 1
    bench.result(session, "write_and_note", path="noted", fail=False)
    assert bench.call(session, "write_and_note", path="failed", fail=True)["error"] == "ValueError: on purpose"
    assert bench.rpc("get_environment", session_id=session)["papers"] == {
        "files": {**START, "orders/18.txt": "3", "noted": ""},
        "notes": ["noted"],
    }
    assert [record.get("changed") for record in bench.rpc("get_trace", session_id=session)] == [
        {"papers/files": 1},
        {"papers/files": 1},
        None,
    ]


def test_read_only_function_can_read_but_not_write(bench):
    session = bench.create("papers")
    assert bench.result(session, "read", path="orders/17.txt") == "2 of 1\n"
    assert bench.call(session, "write_secretly")["error"] == f"{PROMISED}: 'secret'"
    assert bench.call(session, "look", words=["new=1"])["error"] == f"{PROMISED}: 'new'"
    assert bench.result(session, "look", words=[]) == "['./logo.png', './orders/17.txt']\n"
    assert bench.version(session) == 0
    assert files_of(bench, session) == START


def test_programs_run_in_a_real_directory_and_changes_are_stored(bench):
    session = bench.create("papers")
    bench.result(session, "run", words=["new/one=1", "rm=logo.png", "link=orders/17.txt"])
    assert files_of(bench, session) == {
        "a link": {"$link": "orders/17.txt"},
        "new/one": "1",
        "orders/17.txt": "2 of 1\n",
    }
    assert bench.result(session, "read", path="a link") == "2 of 1\n"
    for words, sentence in (
        (["x=1", "fifo=p"], "OSError: [Errno 22] only files, folders and symbolic links can be stored: 'p'"),
        (
            ["rm=a link", "link=/etc"],
            "OSError: [Errno 22] a symbolic link that leads out of the session's files can't be stored: 'a link'",
        ),
    ):
        assert bench.call(session, "run", words=words)["error"] == sentence
    bench.result(session, "write", path="new/one", text="2")
    assert (
        bench.result(session, "run", words=["new/two=2"])
        == "['./a link', './new/one', './new/two', './orders/17.txt']\n"
    )
    assert bench.rpc("get_environment", session_id=session, pointer="/papers/files/new~1one") == "2"


def test_forks_and_resets_have_their_own_files(bench):
    session = bench.create("papers")
    for number in range(12):  # more than the maximum number of pieces
        bench.result(session, "write", path=f"{number % 5}", text=str(number))
        bench.result(session, "run", words=[f"p{number % 3}={number}"])
    [fork] = bench.rpc("fork_session", session_id=session, count=1, version=7)
    fork = fork["session_id"]
    assert files_of(bench, fork) == files_of(bench, session, version=7)
    bench.result(fork, "write", path="in fork", text="")
    assert "in fork" not in files_of(bench, session)
    bench.rpc("reset_session", session_id=session, version=0)
    assert files_of(bench, session) == START
    assert bench.result(session, "list_papers") == ["logo.png", "orders", "orders/17.txt"]
    bench.rpc("reset_session", session_id=session, version=24)
    assert files_of(bench, session)["p2"] == "11"


def test_files_are_read_by_pointer_and_in_pages(bench):
    session = bench.create("papers", options={"papers": {"count": 30}})
    get = lambda **where: bench.rpc("get_environment", session_id=session, **where)  # noqa: E731
    assert get(pointer="/papers/files/many~13.txt") == "3\n" * 20
    assert [*get(pointer="/papers/files", after="many/3.txt", limit=2)] == ["many/4.txt", "many/5.txt"]
    serving.refused(-32602, get, pointer="/papers/files/many")


def test_diff_names_the_changed_files(bench):
    session = bench.create("papers")
    bench.result(session, "run", words=["new=1", "rm=logo.png", "orders/17.txt=3 of 1\n"])
    diff = bench.rpc("diff_environment", session_id=session)
    first = bench.rpc("get_environment", session_id=session, version=0)
    assert jsonpatch.apply_patch(first, diff) == bench.rpc("get_environment", session_id=session)
    assert bench.rpc("diff_environment", session_id=session, text_diffs=True)[2]["value"] == {
        "$diff": "@@ -1 +1 @@\n-2 of 1\n+3 of 1\n"
    }


def test_client_may_set_files_in_the_shown_form(bench):
    files = {"a/b.txt": "text", "l": {"$link": "a"}, "e": {"$dir": True}, "x": {"$base64": "/w=="}}
    session = bench.create("papers", environment={"papers": {"files": files, "notes": ["n"]}})
    assert files_of(bench, session) == files
    for wrong in ({"../a": ""}, {"a": {"$link": "/etc"}}, {"a": 3}, [], {"a": {"$size": 4}}):
        error = serving.refused(-32602, bench.create, "papers", environment={"papers": {"files": wrong}})
        assert "papers" in error.data["detail"]


def test_files_are_exported_as_a_tar_file(bench):
    session = bench.create("papers")
    exported = bench.rpc("get_environment", format="snapshot", session_id=session)["contents"]["papers/files"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(exported))) as tar:
        assert tar.getnames() == ["logo.png", "orders", "orders/17.txt"]


def test_schema_marks_the_field_as_files(bench):
    [toolpack] = bench.rpc("list_toolpacks")
    schema = toolpack["environment"]["properties"]["files"]
    assert (schema["type"], schema["x-toolpack"]) == ("object", "files")


def test_full_scratch_folder_rejects_the_call_and_leaves_nothing(tmp_path, monkeypatch):
    def no_room(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with serving.Bench(CATALOG, scratch_dir=tmp_path) as bench:
        session = bench.create("papers")
        with monkeypatch.context() as full:
            full.setattr(Directory, "_create", no_room)
            error = serving.refused(-32006, bench.call, session, "run", words=["new=1"])
            assert error.message == FULL_TEXT
            assert [path for path in tmp_path.glob("*/*/*") if path.name != "lock"] == []
        with monkeypatch.context() as full:
            full.setattr("toolpack_server.features.volumes.files.files.is_full", lambda _: True)
            full.setattr("subprocess.run", no_room)  # as if a program had filled the folder
            assert serving.refused(-32006, bench.call, session, "run", words=[]).message == FULL_TEXT
        assert bench.result(session, "run", words=["new=1"]) == "['./logo.png', './new', './orders/17.txt']\n"
