"""The guarantees of docs/reference/protocol.md, tested over HTTP: in both isolations, and with several workers.

The checks are those of `toolpack-server conform`, so other servers of the protocol can run the same tests.
`packages/toolpack-conformance/tests` tests that each check finds a server without its guarantee.
"""

import sys

import pytest
from http_server import running
from patience import PATIENCE
from server_process import served
from test_docs import ROOT

from toolpack_server.packs.loading import load_catalog

PACKAGE = ROOT / "packages" / "toolpack-conformance"
sys.path.append(str(PACKAGE))  # so that the import works even if the package isn't installed

from toolpack_conformance import report  # noqa: E402

PACKS = PACKAGE / "toolpack_conformance" / "packs"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Remove the time limits of the checks, because a machine that also runs other tests may be slow."""
    monkeypatch.setattr(report, "SECONDS_A_REQUEST", PATIENCE)


def broken(url):
    answers = report.conform(url)
    assert len(answers) > 80
    return [(answer.sentence, answer.failure) for answer in answers if answer.failure]


IN_PROCESSES = pytest.param("process", marks=pytest.mark.long)  # a real server runs the same checks below


@pytest.mark.heavy
@pytest.mark.parametrize("isolation", ["thread", IN_PROCESSES] if sys.platform == "linux" else ["thread"])
def test_a_server_in_this_process_keeps_the_guarantees(isolation, monkeypatch):
    # As many executors as parallel checks, because checks of deadlines block an executor for more than a second.
    settings = {"isolation": isolation, "pack_dir": (PACKS,), "packs": ("conform",)}
    settings["queue_timeout_seconds"] = PATIENCE
    monkeypatch.setenv("TOOLPACK_EXECUTORS_MAX", "6")
    with running(load_catalog((PACKS,), ("conform",)), store="memory:", log_calls="off", **settings) as url:
        assert broken(url) == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("store", "isolation"),
    [("sqlite", "thread"), ("redis", "process")],
)
def test_a_real_server_with_two_workers_keeps_the_guarantees(tmp_path, store, isolation, request):
    flags = ["--workers", "2", "--pack-dir", str(PACKS), "--packs", "conform"]
    if store == "redis":
        flags += ["--store", request.getfixturevalue("redis_url")]
    with served(tmp_path, *flags, TOOLPACK_ISOLATION=isolation, TOOLPACK_SECRET_KEY="k" * 32) as server:
        assert broken(server.url) == []
