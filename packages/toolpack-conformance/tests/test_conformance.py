"""`toolpack-server conform`, which this project's server passes, and each server that breaks a guarantee fails."""

import contextlib
import json
import socket
import types
import uuid
from pathlib import Path

import pytest
import server_process
from broken_servers import BROKEN, Proxy
from click.testing import CliRunner
from http_server import running
from starlette.responses import JSONResponse

from toolpack_conformance.bounds import _BoundedStream
from toolpack_conformance.others import OpenEnvSession
from toolpack_conformance.probes.probe import GUARANTEES
from toolpack_conformance.report import conform, conform_other
from toolpack_conformance.report import failure as ask
from toolpack_conformance.target import Target
from toolpack_server.cli import cli
from toolpack_server.packs.loading import load_catalog
from toolpack_trainers.ors.endpoints import OrsEndpoint
from toolpack_trainers.ors.episodes import OrsEpisodes

DOORS = [("ors", ""), ("openenv", "/openenv/conform")]
FOLDER = Path(__file__).parents[1] / "toolpack_conformance" / "packs"


def serving(**settings):
    return running(load_catalog((FOLDER,), ("conform",)), store="memory:", log_calls="off", **settings)


@pytest.fixture(scope="module")
def url():
    with serving() as url:
        yield url


def test_report_lists_the_selected_guarantees(url, tmp_path):
    report = tmp_path / "report.json"
    result = CliRunner().invoke(cli, ["conform", "--url", url, "--guarantee", "reset", "--json", str(report)])
    assert result.exit_code == 0, result.output
    written = json.loads(report.read_text())
    assert (written["format"], written["url"], list(written["guarantees"])) == ("conform-1", url, ["reset"])
    assert [check["passed"] for check in written["guarantees"]["reset"]] == [True] * 4


@pytest.mark.parametrize(("run", "breakage"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_server_that_breaks_a_guarantee_fails(url, run, breakage, monkeypatch):
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


def test_plain_proxy_breaks_no_guarantee(url):
    answers = conform(url, transport=Proxy(), guarantees=["atomic", "fork", "JSON-RPC 2.0", "MCP"])
    assert [answer for answer in answers if answer.failure] == []


def test_mcp_server_is_tested_for_what_mcp_can_express(url):
    """An mcp_path of this server always leads to the same session, so only guarantees for one session can pass."""
    with Target(url, None, None, 10.0) as target:
        address = url + target.create().mcp_path
        guarantees = ["--guarantee", "JSON-RPC 2.0", "--guarantee", "MCP", "--guarantee", "fork"]
        result = CliRunner().invoke(cli, ["conform", "--protocol", "mcp", "--url", address, *guarantees])
    rows = [line.split()[-2:] for line in result.stdout.splitlines()[1:4]]
    assert (result.exit_code, rows) == (0, [["—", "—"], ["2", "2"], ["1", "1"]]), result.output


def test_our_mcp_endpoint_keeps_guarantees_mcp_can_express(url):
    """Two answers differ from those of other servers, and must still be accepted: an unknown function is a protocol
    error, and the error for a request that is too large has no id.
    """
    answers = conform_other(url + "/mcp", "mcp", [each for each in GUARANTEES if each != "deadline"])
    assert [(answer.sentence, answer.failure) for answer in answers if answer.failure] == []
    assert {each.guarantee for each in answers} >= {"isolation", "atomic", "exact", "limits", "MCP"}


def process(folder, **variables):
    """Serve in a separate process, which supports WebSockets."""
    pytest.importorskip("websockets", reason="--protocol openenv needs it")
    return server_process.served(folder, "--pack-dir", str(FOLDER), "--packs", "conform", **variables)


def sentences(url, protocol, *guarantees):
    """Return the sentences of the guarantees that a server of another protocol breaks."""
    return [answer.sentence for answer in conform_other(url, protocol, guarantees) if answer.failure]


def test_trainer_servers_are_tested_as_far_as_protocols_allow(tmp_path, monkeypatch):
    guarantees = [each for each in GUARANTEES if each not in {"deadline", "limits"}]  # left out, because they take long
    common = {"isolation", "atomic", "ordered", "exact", "faults are no rewards"}
    with process(tmp_path) as server:
        for protocol, path, own in [(*DOORS[0], {"exactly once", "ORS"}), (*DOORS[1], {"reset", "OpenEnv"})]:
            answers = conform_other(server.url + path, protocol, guarantees)
            assert [answer for answer in answers if answer.failure] == []
            assert {each.guarantee for each in answers} == common | own
        monkeypatch.setattr(OpenEnvSession, "refusal", lambda *_: "NOT_KNOWN: no")
        (sentence,) = sentences(server.url + DOORS[1][1], "openenv", "OpenEnv")
        assert sentence.startswith("An invalid message is refused")


def test_reward_with_each_call_is_detected(tmp_path):
    with process(tmp_path, TOOLPACK_ORS_REWARDS="each", TOOLPACK_OPENENV_REWARDS="each") as server:
        for protocol, path in DOORS:
            (sentence,) = sentences(server.url + path, protocol, "faults are no rewards")
            assert sentence.startswith("The reward comes with the first answer")


def test_token_is_sent_to_servers_of_other_protocols(tmp_path):
    with process(tmp_path, TOOLPACK_TOKENS="ann:token-of-ann") as server:
        for protocol, path in DOORS:
            arguments = ["conform", "--protocol", protocol, "--url", server.url + path, "--guarantee", "atomic"]
            result = CliRunner().invoke(cli, [*arguments, "--token", "token-of-ann"])
            assert result.exit_code == 0, result.output
            refused = CliRunner().invoke(cli, arguments)
            assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
            assert "No session can be opened" in refused.output


def test_ors_server_that_repeats_calls_is_detected(url, monkeypatch):
    output = OrsEpisodes.output
    monkeypatch.setattr(OrsEpisodes, "output", lambda *given: output(*given[:-1], uuid.uuid4().hex))
    assert len(sentences(url, "ors", "exactly once")) == 2


def test_ors_server_with_its_own_error_format_is_detected(url, monkeypatch):
    monkeypatch.setattr(OrsEndpoint, "refusal", lambda *_: JSONResponse({"detail": "no"}, 500))
    (sentence,) = sentences(url, "ors", "ORS")
    assert sentence.startswith("Wrong requests are refused")


def test_ors_server_with_a_single_episode_is_detected(url, monkeypatch):
    only = {}

    async def find(*given, find=OrsEpisodes.find):
        return only.get("episode") or only.setdefault("episode", await find(*given))

    monkeypatch.setattr(OrsEpisodes, "find", find)
    assert len(sentences(url, "ors", "isolation")) == 2


def test_missing_toolpack_is_an_error_that_says_how_to_get_it():
    with running(load_catalog((), ("bank",)), store="memory:", log_calls="off") as url:
        result = CliRunner().invoke(cli, ["conform", "--url", url])
    assert result.exit_code == 1
    assert result.output.endswith(  # other libraries may log before this
        "Error: The server doesn't have the toolpack `conform`: write it to a folder of toolpacks with "
        "`toolpack-server conform --toolpack`, and start the server with this folder.\n"
    )


def test_unreachable_server_is_a_one_line_error():
    result = CliRunner().invoke(cli, ["conform", "--url", "http://127.0.0.1:1"])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)


def test_toolpack_option_prints_the_toolpack():
    result = CliRunner().invoke(cli, ["conform", "--toolpack"])
    assert result.output == (FOLDER / "conform.py").read_text(encoding="utf-8")


def test_idle_connection_is_readable_after_its_server_closed():
    ours, its = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(its):
        stream = _BoundedStream(types.SimpleNamespace(get_extra_info=lambda _: ours))
        assert not stream.get_extra_info("is_readable")
        its.sendall(b"HTTP/1.1 200 OK")
        assert not stream.get_extra_info("is_readable")
        its.close()
        assert stream.get_extra_info("is_readable")
        ours.close()
        assert stream.get_extra_info("is_readable")
