"""Files in seeded sessions, in bundles, and in the sandbox."""

import sys

import pytest
import serving

from toolpack_server.base.errors import SettingsError
from toolpack_server.features.executors import sandbox
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.packs.loading import load_catalog

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="executors need Linux")

CATALOG = load_catalog((serving.PACKS,), ("papers",))
PINNED = {"seed": "a seed", "clock": "2026-03-02T09:30:00Z"}
CLOCK = 1_772_443_800


def bench(**settings):
    return serving.Bench(CATALOG, isolation="process", pack_dir=(serving.PACKS,), packs=("papers",), **settings)


@pytest.fixture(scope="module")
def confined():
    try:
        sandbox.check_sandbox()
    except SettingsError as error:
        pytest.skip(str(error))
    with bench(of_features=[ExecutorsSettings(sandbox=("files", "network"))]) as confined:
        yield confined


def test_sandboxed_function_can_use_only_its_own_directory(confined):
    session = confined.create("papers")
    assert confined.result(session, "run", words=["new/one=1", "rm=logo.png", "link=new"])
    assert confined.result(session, "run", words=["new/two=2"]) == "['./new/one', './new/two', './orders/17.txt']\n"
    assert confined.result(session, "read", path="a link/one") == "1"
    assert confined.call(session, "reach")["error"].startswith("PermissionError: [Errno 13] Permission denied: ")
    assert confined.call(session, "run", words=["/dev/shm/x=1"])["error"].startswith("CalledProcessError: ")


@pytest.mark.heavy
def test_times_of_files_follow_the_clock_of_a_seeded_session(monkeypatch):
    monkeypatch.setenv("TOOLPACK_REPLAY_BUNDLE_KEY", "shared by both of us")
    with bench() as first, bench() as second:
        session = first.create("papers", **PINNED)
        assert first.result(session, "times") == [CLOCK + 1]
        first.result(session, "run", words=["new=1"])
        assert first.result(session, "times") == [CLOCK + 3]
        bundle = first.rpc("export_bundle", session_id=session)["bundle"]
        states = [record.get("state") for record in first.rpc("get_trace", session_id=session)]
        assert all(states)
        new = second.rpc("import_bundle", bundle=bundle)["session_id"]
        assert second.rpc("get_environment", session_id=new) == first.rpc("get_environment", session_id=session)
        assert second.rpc("replay_session", session_id=new)["complete"] is True
        other = second.create("papers", **PINNED)
        assert second.result(other, "times") == [CLOCK + 1]
        second.result(other, "run", words=["new=1"])
        assert [record.get("state") for record in second.rpc("get_trace", session_id=other)] == states[:2]
