"""Rejections: if an executor rejects a request, or the host lacks resources, the function hasn't failed."""

import contextlib
import errno
import os
import resource
import subprocess
import sys

import pytest
import serving
from serving import PACKS, refused

from toolpack_server import Depends, TaskEnvironment, Toolpack  # noqa: F401 - as authors do
from toolpack_server.base.errors import (
    CallError,
    EvaluationError,
    OverloadedError,
    RequestError,
    SnapshotError,
    VersionNotRetainedError,
)
from toolpack_server.execution import host_errors
from toolpack_server.execution.host_errors import host_error
from toolpack_server.features.executors.refusals import read_refusal, refusals, write_refusal
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpack_server.rpc.codes import CODES, describe

NAMES = ("rough", "stall")

needs_executors = pytest.mark.skipif(sys.platform != "linux", reason="executors need Linux")


@pytest.fixture(scope="module")
def confined():
    catalog = load_catalog((PACKS,), NAMES)
    with serving.Bench(catalog, isolation="process", pack_dir=(PACKS,), packs=NAMES) as server:
        yield server


def subclasses(kind):
    return {*kind.__subclasses__()}.union(*map(subclasses, kind.__subclasses__()))


def is_unrecorded(bench, session_id):
    return bench.rpc("get_trace", session_id=session_id) == [] and bench.version(session_id) == 0


# Rejections by an executor


def test_every_rejection_keeps_its_type_between_processes():
    assert {*refusals().values()} == subclasses(CallError) | subclasses(RequestError)
    for kind in refusals().values():
        error = kind.__new__(kind)
        error.args = ("It can't be done.",)
        restored = read_refusal(write_refusal(error))
        assert (type(restored), str(restored)) == (kind, "It can't be done.")
        code = describe(restored)[0]
        assert code in CODES.values()
        assert code != -32603
    assert read_refusal(write_refusal(OverloadedError("Full."))).retry_after_seconds == 1.0
    assert read_refusal(write_refusal(SnapshotError("No.", undeclared=True))).undeclared is False
    failed = read_refusal(write_refusal(EvaluationError("No.", "KeyError", not_finite=True)))
    assert (failed.kind, failed.not_finite) == ("KeyError", True)
    assert read_refusal(write_refusal(VersionNotRetainedError(3, 5, 9))).oldest == 5
    with pytest.raises(KeyError):
        read_refusal({"refused": "KeyError", "text": ""})


@needs_executors
def test_rejection_by_an_executor_is_not_recorded(confined):
    for kind, kind_of_error in sorted(refusals().items()):
        if not issubclass(kind_of_error, RequestError):
            continue
        session_id = confined.create("rough")
        with pytest.raises(serving.RpcError) as error:
            confined.call(session_id, "refuse", {"call_id": "x"}, name=kind)
        assert "It can't be done." in str(error.value)
        assert is_unrecorded(confined, session_id)


# Lack of host resources


@needs_executors
@pytest.mark.parametrize("resource", ["files", "cause", "database", "memory"])
def test_lack_of_resources_rejects_a_call_in_an_executor(confined, resource):
    session_id = confined.create("rough")
    error = refused(-32006, confined.call, session_id, "use_up", {"call_id": "x"}, what=resource)
    assert error.message == (host_errors.MEMORY if resource == "memory" else host_errors.FILES)
    assert is_unrecorded(confined, session_id)
    assert confined.result(session_id, "mark", text="after") == ["after"]  # The executor was replaced.
    assert confined.call(session_id, "mark", {"call_id": "x"}, text="later")["result"] == ["after", "later"]


@pytest.fixture
def small_scratch(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@serving.in_both
def test_full_scratch_folder_rejects_a_call(small_scratch, isolation):
    settings = {"isolation": "process", "pack_dir": (PACKS,), "packs": ("stall",)} if isolation == "process" else {}
    with serving.Bench(load_catalog((PACKS,), ("stall",)), scratch_dir=small_scratch, **settings) as bench:
        session_id = bench.create("stall")
        fills = "CREATE TABLE large AS SELECT zeroblob(4000000)"
        refused(-32006, bench.call, session_id, "run_sql", {"call_id": "x"}, sql=fills)
        assert is_unrecorded(bench, session_id)
        assert bench.call(session_id, "run_sql", {"call_id": "x"}, sql="SELECT 1")["result"] == [["1"]]


@needs_executors
def test_replay_without_resources_is_rejected_and_not_diverged(confined, monkeypatch):
    session_id = confined.create("rough")
    assert confined.result(session_id, "mark", text="once") == ["once"]
    others = confined.rpc("list_sessions")
    answers = [OverloadedError(host_errors.FILES)]
    steps = confined.service.runner.run

    def lack(operation):
        if operation.name == "call" and answers:
            raise answers.pop()
        return steps(operation)

    monkeypatch.setattr(confined.service.runner, "run", lack)
    refused(-32006, confined.rpc, "replay_session", session_id=session_id)
    assert confined.rpc("list_sessions") == others
    assert confined.rpc("replay_session", session_id=session_id)["complete"] is True


pack = Toolpack("opens", TaskEnvironment)


@pack.function
def open_all() -> None:
    """Open files until there are no more."""
    with contextlib.ExitStack() as opened:
        while True:
            opened.enter_context(open("/dev/null"))  # noqa: PTH123 - the shortest way


def test_lack_of_resources_rejects_a_call_in_a_thread():
    with serving.Bench(Catalog({"opens": pack})) as bench:
        session_id = bench.create("opens")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        try:
            error = refused(-32006, bench.call, session_id, "open_all", {"call_id": "x"})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert error.message == host_errors.FILES
        assert is_unrecorded(bench, session_id)


def test_excessive_demand_of_a_function_is_its_own_failure(monkeypatch):
    assert host_error(MemoryError()) is None
    assert host_error(OSError(errno.ENOMEM, "")) is None
    assert host_error(OSError(errno.ENOENT, "")) is None
    assert host_error(ValueError("Too many open files")) is None
    monkeypatch.setattr(host_errors, "_MEMORY_BYTES", 2**62)
    assert host_error(MemoryError()) == host_errors.MEMORY
    looped = ValueError()
    looped.__cause__ = looped
    assert host_error(looped) is None
