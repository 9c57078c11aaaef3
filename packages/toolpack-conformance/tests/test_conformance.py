"""`toolpack-server conform` passes our server, and none that breaks a guarantee."""

import contextlib
import json
from pathlib import Path

import pytest
from broken_servers import BROKEN, Proxy
from click.testing import CliRunner
from http_server import running

from server.cli import cli
from server.packs.loading import load_catalog
from toolpack_conformance.report import conform
from toolpack_conformance.report import failure as ask
from toolpack_conformance.target import Target

FOLDER = Path(__file__).parents[1] / "toolpack_conformance" / "packs"


def serving(**settings):
    return running(load_catalog((FOLDER,), ("conform",)), store="memory:", log_calls="off", **settings)


@pytest.fixture(scope="module")
def url():
    with serving() as url:
        yield url


def test_the_report_says_what_was_asked(url, tmp_path):
    report = tmp_path / "report.json"
    result = CliRunner().invoke(cli, ["conform", "--url", url, "--guarantee", "reset", "--json", str(report)])
    assert result.exit_code == 0, result.output
    written = json.loads(report.read_text())
    assert (written["format"], written["url"], list(written["guarantees"])) == ("conform-1", url, ["reset"])
    assert [check["passed"] for check in written["guarantees"]["reset"]] == [True] * 4


@pytest.mark.parametrize(("run", "breakage"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_server_does_not_conform(url, run, breakage, monkeypatch):
    assert failure(url, run, breakage, monkeypatch)


def failure(url, run, breakage, monkeypatch):
    with contextlib.ExitStack() as stack:
        transport = None
        if isinstance(breakage, dict):
            url = stack.enter_context(serving(**breakage))
        elif isinstance(breakage, type):
            transport = breakage()
        else:
            breakage(monkeypatch)
        target = stack.enter_context(Target(url, None, transport, 10.0))
        why, tried = ask(run, target)
        assert tried
        return why


def test_the_proxy_itself_breaks_nothing(url):
    answers = conform(url, transport=Proxy(), guarantees=["atomic", "fork", "JSON-RPC 2.0", "MCP"])
    assert [answer for answer in answers if answer.failure] == []


def test_a_server_of_mcp_is_asked_what_mcp_has_words_for(url):
    """Our mcp_path is one session, whatever a client opens, so only rows that need no other session can pass."""
    with Target(url, None, None, 10.0) as target:
        address = url + target.create().mcp_path
        asked = ["--guarantee", "JSON-RPC 2.0", "--guarantee", "MCP", "--guarantee", "fork"]
        result = CliRunner().invoke(cli, ["conform", "--protocol", "mcp", "--url", address, *asked])
    rows = [line.split()[-2:] for line in result.stdout.splitlines()[1:4]]
    assert (result.exit_code, rows) == (0, [["—", "—"], ["2", "2"], ["1", "1"]]), result.output


def test_a_server_without_the_toolpack_is_told_how_to_get_it():
    with running(load_catalog((), ("bank",)), store="memory:", log_calls="off") as url:
        result = CliRunner().invoke(cli, ["conform", "--url", url])
    assert result.exit_code == 1
    assert result.output.endswith(  # what others have configured may log before it
        "Error: The server has no toolpack `conform`: write it to a folder of toolpacks with "
        "`toolpack-server conform --toolpack`, and start the server with it.\n"
    )


def test_no_server_at_all():
    result = CliRunner().invoke(cli, ["conform", "--url", "http://127.0.0.1:1"])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)


def test_the_toolpack_is_printed():
    result = CliRunner().invoke(cli, ["conform", "--toolpack"])
    assert result.output == (FOLDER / "conform.py").read_text(encoding="utf-8")
