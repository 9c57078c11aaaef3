"""`toolpack-server conform` passes our server, and none that breaks a guarantee."""

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


def test_our_sessions_for_clients_of_mcp_keep_all_that_mcp_has_words_for(url):
    """As other servers may: an unknown function is an error of the protocol, and one for a large request has no id."""
    answers = conform_other(url + "/mcp", "mcp", [each for each in GUARANTEES if each != "deadline"])
    assert [(answer.sentence, answer.failure) for answer in answers if answer.failure] == []
    assert {each.guarantee for each in answers} >= {"isolation", "atomic", "exact", "limits", "MCP"}


def process(folder, **variables):
    """Serve in a process of its own, which has WebSockets."""
    pytest.importorskip("websockets", reason="--protocol openenv needs it")
    return server_process.served(folder, "--pack-dir", str(FOLDER), "--packs", "conform", **variables)


def sentences(url, protocol, *guarantees):
    """Get the sentences that a server of another protocol doesn't keep."""
    return [answer.sentence for answer in conform_other(url, protocol, guarantees) if answer.failure]


def test_a_server_for_trainers_is_asked_what_their_protocols_have_words_for(tmp_path, monkeypatch):
    asked = [each for each in GUARANTEES if each not in {"deadline", "limits"}]  # which take long
    common = {"isolation", "atomic", "ordered", "exact", "faults are no rewards"}
    with process(tmp_path) as server:
        for protocol, path, own in [(*DOORS[0], {"exactly once", "ORS"}), (*DOORS[1], {"reset", "OpenEnv"})]:
            answers = conform_other(server.url + path, protocol, asked)
            assert [answer for answer in answers if answer.failure] == []
            assert {each.guarantee for each in answers} == common | own
        monkeypatch.setattr(OpenEnvSession, "refusal", lambda *_: "NOT_KNOWN: no")
        (sentence,) = sentences(server.url + DOORS[1][1], "openenv", "OpenEnv")
        assert sentence.startswith("An invalid message is refused")


def test_rewards_that_come_with_each_call_are_noticed(tmp_path):
    with process(tmp_path, TOOLPACK_ORS_REWARDS="each", TOOLPACK_OPENENV_REWARDS="each") as server:
        for protocol, path in DOORS:
            (sentence,) = sentences(server.url + path, protocol, "faults are no rewards")
            assert sentence.startswith("The reward comes with the first answer")


def test_a_token_is_sent_to_servers_of_other_protocols(tmp_path):
    with process(tmp_path, TOOLPACK_TOKENS="ann:token-of-ann") as server:
        for protocol, path in DOORS:
            asked = ["conform", "--protocol", protocol, "--url", server.url + path, "--guarantee", "atomic"]
            result = CliRunner().invoke(cli, [*asked, "--token", "token-of-ann"])
            assert result.exit_code == 0, result.output
            refused = CliRunner().invoke(cli, asked)
            assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
            assert "No session can be opened" in refused.output


def test_an_ors_server_that_makes_calls_again_is_noticed(url, monkeypatch):
    output = OrsEpisodes.output
    monkeypatch.setattr(OrsEpisodes, "output", lambda *given: output(*given[:-1], uuid.uuid4().hex))
    assert len(sentences(url, "ors", "exactly once")) == 2


def test_an_ors_server_that_has_errors_of_its_own_is_noticed(url, monkeypatch):
    monkeypatch.setattr(OrsEndpoint, "refusal", lambda *_: JSONResponse({"detail": "no"}, 500))
    (sentence,) = sentences(url, "ors", "ORS")
    assert sentence.startswith("Wrong requests are refused")


def test_an_ors_server_with_one_episode_is_noticed(url, monkeypatch):
    only = {}

    async def find(*given, find=OrsEpisodes.find):
        return only.get("episode") or only.setdefault("episode", await find(*given))

    monkeypatch.setattr(OrsEpisodes, "find", find)
    assert len(sentences(url, "ors", "isolation")) == 2


def test_a_server_without_the_toolpack_is_told_how_to_get_it():
    with running(load_catalog((), ("bank",)), store="memory:", log_calls="off") as url:
        result = CliRunner().invoke(cli, ["conform", "--url", url])
    assert result.exit_code == 1
    assert result.output.endswith(  # what others have configured may log before it
        "Error: The server doesn't have the toolpack `conform`: write it to a folder of toolpacks with "
        "`toolpack-server conform --toolpack`, and start the server with this folder.\n"
    )


def test_no_server_at_all():
    result = CliRunner().invoke(cli, ["conform", "--url", "http://127.0.0.1:1"])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)


def test_the_toolpack_is_printed():
    result = CliRunner().invoke(cli, ["conform", "--toolpack"])
    assert result.output == (FOLDER / "conform.py").read_text(encoding="utf-8")


def test_an_idle_connection_has_ended_if_its_server_has_and_not_if_an_answer_is_there():
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
