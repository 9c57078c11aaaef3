"""`toolpack-server conform` beside a hostile server: it ends, within bounds, with a sentence, and asks nobody else."""

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from broken_servers import MANY
from click.testing import CliRunner
from hostile_server import REPLIES, bomb, endless, server_that, trickle, trickled_head
from hypothesis import given
from hypothesis import strategies as some
from test_conformance import serving

from toolpack_conformance import report, target
from toolpack_conformance.probes.probe import PROBES
from toolpack_conformance.target import Failed, NotTried, Session, Target
from toolpack_server.cli import cli

TOOLPACKS = {"jsonrpc": "2.0", "id": 7, "result": [{"name": "conform"}]}


@contextlib.contextmanager
def answering(answer):
    """Serve what `answer` makes of a request; yields the URL and the paths that were asked for."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            paths.append(self.path)
            status, headers, content = answer(body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_DELETE = do_POST  # noqa: N815 - as the base class calls them

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", paths
    finally:
        server.shutdown()
        server.server_close()


def conform(url, *more):
    result = CliRunner().invoke(cli, ["conform", "--url", url, *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (endless, "longer than 1 MiB"),
        (bomb, "compressed"),
        (trickle, "ReadTimeout"),
        (trickled_head, "ReadTimeout"),
    ],
)
def test_an_answer_has_an_end(answers, why, monkeypatch):
    monkeypatch.setattr(target, "MAX_BYTES", 2**20)
    if answers in (trickle, trickled_head):
        monkeypatch.setattr(report, "SECONDS_A_REQUEST", 0.5)
    with server_that(answers) as url:
        result = conform(url)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert why in result.output


def test_there_is_an_end_however_slow_a_server_is(monkeypatch):
    """Each answer comes in time, and all of them together don't."""
    monkeypatch.setattr(report, "SECONDS", 1.0)
    monkeypatch.setattr(report, "SECONDS_A_REQUEST", 0.6)
    ends = threading.Event()

    def answer(body):
        if b"list_toolpacks" not in body:
            ends.wait(0.4)
        return 200, {}, json.dumps({**TOOLPACKS, "result": []} if b"close" in body else TOOLPACKS).encode()

    with answering(answer) as (url, paths):
        result = conform(url)
    ends.set()
    assert "no time for" in result.output
    assert len(paths) < 100


def test_what_there_was_no_time_for_has_not_failed(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "SECONDS", 0.0)
    monkeypatch.setattr(Target, "result", lambda *_, **__: [{"name": "conform"}])
    monkeypatch.setattr(Target, "create", lambda self, **_: self.post(b""))
    with serving() as url:
        result = conform(url, "--guarantee", "reset", "--json", str(tmp_path / "report.json"))
    assert result.exit_code == 2
    assert "reset                       4       0  not all tried" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("no time for 4.")
    checks = json.loads((tmp_path / "report.json").read_text())["guarantees"]["reset"]
    assert [check["passed"] for check in checks] == [None] * 4


def test_nobody_else_is_asked():
    """Neither where a path nor where a redirect leads to."""
    with answering(lambda _: (200, {}, json.dumps(TOOLPACKS).encode())) as (other, others_paths):

        def answer(body):
            asked = json.loads(body or b"{}")
            if not isinstance(asked, dict) or asked.get("method") == "list_toolpacks":
                return 200, {}, json.dumps(TOOLPACKS).encode()
            session = {
                "session_id": "s" * 32,
                "agent_path": f"{other}/agents/x",
                "mcp_path": f"@{other[7:]}/",
                "version": 0,
                "parent": None,
                "labels": {},
            }
            return (307, {"Location": other}, b"") if "id" not in asked else (
                200, {}, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": session}).encode()
            )  # fmt: skip

        with answering(answer) as (url, _):
            result = conform(url, "--guarantee", "secrecy", "--guarantee", "MCP", "--guarantee", "JSON-RPC 2.0")
    assert (result.exit_code, others_paths) == (1, [])
    assert "is a path on this server, not" in result.output


@pytest.mark.parametrize("path", ["http://other/x", "//other/x", "@other", ":1/x", "", 5, None])
def test_a_sessions_paths_are_of_its_server(path):
    described = {"session_id": "s", "agent_path": path, "mcp_path": "/", "version": 0, "parent": None, "labels": {}}
    with pytest.raises(Failed, match="path on this server"):
        Session(None, described)


@given(some.sampled_from(PROBES), some.lists(REPLIES, min_size=1, max_size=4))
def test_whatever_is_answered_a_check_ends_with_a_sentence(probe, replies):
    class Answers(Target):
        count = 0

        def post(self, content, *_, **__):
            self.count += 1
            if self.count > 200:
                raise NotTried("enough")
            reply = replies[self.count % len(replies)]
            if isinstance(reply, dict):
                with contextlib.suppress(ValueError, TypeError):
                    asked = json.loads(content)
                    reply = {"jsonrpc": "2.0", **reply, "id": asked["id"]}
            return target.httpx.Response(200, content=json.dumps(reply).encode())

    found, _ = report.failure(probe.run, Answers("http://there", None, None, 1.0))
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("flags", [["--url", "http://x\n"], ["--url", "nothing"], ["--url", "ftp://there"]])
@pytest.mark.parametrize("protocol", ["toolpack", "mcp"])
def test_an_address_that_is_none_is_said(flags, protocol):
    result = conform(*flags[1:], "--protocol", protocol)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert re.search("isn't (a valid URL|the URL of a server)", result.output) or flags[1].startswith("http:")


def test_a_path_at_which_there_is_no_server_is_said():
    nothing = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "There is nothing at this path."}}
    with answering(lambda _body: (404, {}, json.dumps(nothing).encode())) as (url, _):
        result = conform(url)
    assert result.exit_code == 1
    assert "list_toolpacks was refused (HTTP 404)" in result.output
    assert "There is nothing at this path." in result.output


def test_a_report_that_cant_be_written_is_said(tmp_path):
    with serving(max_result_bytes=MANY) as url:
        result = conform(url, "--guarantee", "reset", "--json", str(tmp_path / "none" / "report.json"))
    assert result.exit_code == 1
    assert "The report can't be written to" in result.output
