"""`toolpack-server conform` with a hostile server: the command must end in bounded time, and contact no other host."""

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
def serve_replies(answer):
    """Serve the reply that `answer` returns for a request. Yield the URL and the requested paths."""
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

        do_GET = do_DELETE = do_POST  # noqa: N815 - the base class calls these names

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
def test_reply_that_never_ends_is_rejected(answers, why, monkeypatch):
    monkeypatch.setattr(target, "MAX_BYTES", 2**20)
    if answers in (trickle, trickled_head):
        monkeypatch.setattr(report, "SECONDS_A_REQUEST", 0.5)
    with server_that(answers) as url:
        result = conform(url)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert why in result.output


def test_slow_server_cannot_delay_the_end(monkeypatch):
    """Each answer comes in time, but all answers together take too long."""
    monkeypatch.setattr(report, "SECONDS", 1.0)
    monkeypatch.setattr(report, "SECONDS_A_REQUEST", 0.6)
    ends = threading.Event()

    def answer(body):
        if b"list_toolpacks" not in body:
            ends.wait(0.4)
        return 200, {}, json.dumps({**TOOLPACKS, "result": []} if b"close" in body else TOOLPACKS).encode()

    with serve_replies(answer) as (url, paths):
        result = conform(url)
    ends.set()
    assert "no time for" in result.output
    assert len(paths) < 100


def test_probes_without_time_left_are_not_failures(monkeypatch, tmp_path):
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


def test_paths_and_redirects_to_other_hosts_are_not_followed():
    with serve_replies(lambda _: (200, {}, json.dumps(TOOLPACKS).encode())) as (other, others_paths):

        def answer(body):
            request = json.loads(body or b"{}")
            if not isinstance(request, dict) or request.get("method") == "list_toolpacks":
                return 200, {}, json.dumps(TOOLPACKS).encode()
            session = {
                "session_id": "s" * 32,
                "agent_path": f"{other}/agents/x",
                "mcp_path": f"@{other[7:]}/",
                "version": 0,
                "parent": None,
                "labels": {},
            }
            return (307, {"Location": other}, b"") if "id" not in request else (
                200, {}, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": session}).encode()
            )  # fmt: skip

        with serve_replies(answer) as (url, _):
            result = conform(url, "--guarantee", "secrecy", "--guarantee", "MCP", "--guarantee", "JSON-RPC 2.0")
    assert (result.exit_code, others_paths) == (1, [])
    assert "is a path on this server, not" in result.output


@pytest.mark.parametrize("path", ["http://other/x", "//other/x", "@other", ":1/x", "", 5, None])
def test_path_of_a_session_must_be_on_its_server(path):
    described = {"session_id": "s", "agent_path": path, "mcp_path": "/", "version": 0, "parent": None, "labels": {}}
    with pytest.raises(Failed, match="path on this server"):
        Session(None, described)


@given(some.sampled_from(PROBES), some.lists(REPLIES, min_size=1, max_size=4))
def test_any_reply_ends_a_probe_with_a_sentence(probe, replies):
    class Answers(Target):
        count = 0

        def post(self, content, *_, **__):
            self.count += 1
            if self.count > 200:
                raise NotTried("enough")
            reply = replies[self.count % len(replies)]
            if isinstance(reply, dict):
                with contextlib.suppress(ValueError, TypeError):
                    request = json.loads(content)
                    reply = {"jsonrpc": "2.0", **reply, "id": request["id"]}
            return target.httpx.Response(200, content=json.dumps(reply).encode())

    reason, _ = report.failure(probe.run, Answers("http://there", None, None, 1.0))
    assert reason is None or isinstance(reason, str)


@pytest.mark.parametrize("flags", [["--url", "http://x\n"], ["--url", "nothing"], ["--url", "ftp://there"]])
@pytest.mark.parametrize("protocol", ["toolpack", "mcp"])
def test_invalid_url_is_a_one_line_error(flags, protocol):
    result = conform(*flags[1:], "--protocol", protocol)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert re.search("isn't (a valid URL|the URL of a server)", result.output) or flags[1].startswith("http:")


def test_path_without_a_server_is_an_error():
    nothing = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "There is nothing at this path."}}
    with serve_replies(lambda _body: (404, {}, json.dumps(nothing).encode())) as (url, _):
        result = conform(url)
    assert result.exit_code == 1
    assert "list_toolpacks was refused (HTTP 404)" in result.output
    assert "There is nothing at this path." in result.output


def test_report_that_cannot_be_written_is_an_error(tmp_path):
    with serving(max_result_bytes=MANY) as url:
        result = conform(url, "--guarantee", "reset", "--json", str(tmp_path / "none" / "report.json"))
    assert result.exit_code == 1
    assert "The report can't be written to" in result.output
