"""The call log: one line per call, with arguments and results only if a setting enables them."""

import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import re
import time

import httpx
import orjson
import pytest
import server_process
import serving

from toolpack_server.functions import tracebacks
from toolpack_server.functions.coroutines import run_coroutine
from toolpack_server.observability.log import CallLog, EndedCall
from toolpack_server.observability.request_ids import accept_request_id, request_id
from toolpack_server.web import refusals

FIELDS = ["time", "request_id", "session", "owner", "function", "outcome", "duration_ms"]
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
SECRET = "what-was-said"


class Log:
    """The part of a running server's log that was written during the test."""

    def __init__(self, server, folder):
        self.server = server
        self._path = folder / "server.log"
        self._from = self._path.stat().st_size

    def text(self):
        self.server.http.get("/healthz")  # when this request is answered, the log has all calls that ended before it
        return self._path.read_bytes()[self._from :].decode()

    def all(self):
        """Return all lines, each parsed as one JSON object."""
        return [json.loads(line) for line in self.text().split("\n")[:-1]]

    def lines(self):
        return [line for line in self.all() if "event" not in line]

    def events(self, name):
        return [line for line in self.all() if line.get("event") == name]


@contextlib.contextmanager
def serve_with(folder, **variables):
    with server_process.served(folder, "--store", "memory:", **variables) as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    with serve_with(folder) as server:
        yield server, folder


@pytest.fixture
def log(running):
    return Log(*running)


def post(server, path, method, headers=None, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return server.http.post(path, json=body, headers=headers)


def test_call_log_has_a_line_per_call_with_these_fields(log):
    session = log.server.rpc("create_session", toolpacks=["ledger"])
    session_id = session["session_id"]
    log.server.call(session_id, "add", amount=1)
    post(log.server, session["agent_path"], "run_function", function="add", kwargs={"amount": "x"})
    log.server.call(session_id, "none")
    log.server.call(session_id, "add_then", how="raise")
    post(log.server, "/rpc", "run_function", session_id=session_id, function="add", expected_version=99)
    log.server.rpc("get_trace", session_id=session_id)
    lines = log.lines()
    raised = [*FIELDS, "raised_at"]
    assert [list(line) for line in lines] == [FIELDS, FIELDS, FIELDS, raised, FIELDS]
    assert [(line["owner"], line["function"], line["outcome"]) for line in lines] == [
        ("", "add", "ok"),
        ("agent", "add", "arguments"),
        ("", "none", "not_found"),
        ("", "add_then", "raised"),
        ("", "add", "refused"),
    ]
    assert {line["session"] for line in lines} == {session_id[:8]}
    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    assert all(0 < line["duration_ms"] < 20_000 for line in lines)
    assert len({line["request_id"] for line in lines}) == 5


def test_batch_has_one_request_id_and_a_line_per_call(log):
    session_id = log.server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    params = {"session_id": session_id, "function": "total"}
    batch = [{"jsonrpc": "2.0", "id": number, "method": "run_function", "params": params} for number in range(3)]
    log.server.http.post("/rpc", json=batch, headers={"X-Request-ID": "batch-1"})
    assert [line["request_id"] for line in log.lines()] == ["batch-1"] * 3


@pytest.mark.parametrize("request_id", ["abc-123", "x", "a" * 128, '{"a":1}', "../../etc", "%s%n"])
def test_valid_request_id_is_accepted_and_returned(log, request_id):
    reply = post(log.server, "/rpc", "run_function", {"X-Request-ID": request_id}, session_id="0" * 32, function="add")
    assert reply.headers["x-request-id"] == request_id
    assert [line["request_id"] for line in log.lines()] == [request_id]


@pytest.mark.parametrize("request_id", ["", "a" * 129, "a b", "a\tb", b"\xff", "é".encode(), None])
def test_request_id_that_is_unsafe_to_log_is_replaced(log, request_id):
    headers = {} if request_id is None else {"X-Request-ID": request_id}
    reply = post(log.server, "/rpc", "run_function", headers, session_id="0" * 32, function="add")
    assert re.fullmatch(r"[0-9a-f]{16}", reply.headers["x-request-id"])
    assert [line["request_id"] for line in log.lines()] == [reply.headers["x-request-id"]]


def test_forked_process_generates_its_own_request_ids():
    ours, theirs = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        theirs.send(accept_request_id(None))
        os._exit(0)
    os.waitpid(pid, 0)
    assert abs(int(ours.recv(), 16) - int(accept_request_id(None), 16)) > 9
    ours.close()
    theirs.close()


def test_rejected_requests_return_the_request_id(log):
    reply = log.server.http.post("/rpc", content=b"{}", headers={"Content-Type": "x", "X-Request-ID": "mine"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (415, "mine")


@pytest.mark.parametrize("name", ['a\n{"time": 1}', "\r\n", "\x1b[2J", "\u2028", "\x00", "x" * 10_000, "😀", '"}'])
def test_function_name_is_logged_as_one_string_on_one_line(log, name):
    session_id = log.server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    log.server.call(session_id, name)
    (line,) = log.lines()
    assert line["function"] == name[:256]


def test_arguments_and_results_are_not_logged(log):
    session_id = log.server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    log.server.call(session_id, "echo", value=SECRET)
    log.server.call(session_id, "add", amount=SECRET)
    log.server.call(session_id, "add", **{SECRET: 1})
    log.server.call(session_id, "add_then", {"call_id": SECRET}, how=SECRET)
    assert len(log.lines()) == 4
    assert SECRET not in log.text()


def test_log_calls_full_adds_arguments_and_results(tmp_path):
    with serve_with(tmp_path, TOOLPACK_LOG_CALLS="full") as server:
        log = Log(server, tmp_path)
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        server.call(session_id, "echo", value=[SECRET, 10**30, None])
        server.call(session_id, "add", amount="x")
        succeeded, failed = log.lines()
        assert list(succeeded) == [*FIELDS, "kwargs", "result"]
        assert (succeeded["kwargs"], succeeded["result"]) == ({"value": [SECRET, 10**30, None]}, [SECRET, 10**30, None])
        assert failed["kwargs"] == {"amount": "x"}
        assert failed["result"].startswith("ValidationError: ")


def test_log_calls_off_disables_the_call_log(tmp_path):
    with serve_with(tmp_path, TOOLPACK_LOG_CALLS="off") as server:
        log = Log(server, tmp_path)
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        server.call(session_id, "total")
        assert [line["event"] for line in log.all()] == ["create_session"]


def test_log_level_filters_lines(tmp_path):
    with serve_with(tmp_path, TOOLPACK_LOG_LEVEL="warning") as server:
        log = Log(server, tmp_path)
        server.call(server.rpc("create_session", toolpacks=["ledger"])["session_id"], "total")
        assert server.http.post("/rpc", content=b"{}", headers={"Content-Type": "x"}).status_code == 415
        assert [line["status"] for line in log.all()] == [415]


# Session events and refused requests


def test_session_events_are_logged(log):
    session_id = log.server.rpc("create_session", toolpacks=["ledger"], labels={"who": SECRET})["session_id"]
    forks = log.server.rpc("fork_session", session_id=session_id, count=2)
    log.server.rpc("reset_session", session_id=session_id)
    log.server.rpc("close_session", session_id=session_id)
    with pytest.raises(serving.RpcError):
        log.server.rpc("create_session", toolpacks=["none"])
    created, refused = log.events("create_session")
    assert list(created) == [
        *("time", "level", "event", "request_id", "owner", "outcome", "session", "toolpacks", "duration_ms")
    ]
    assert (created["session"], created["toolpacks"], created["outcome"]) == (session_id[:8], "ledger", "ok")
    assert (refused["outcome"], refused["error"]) == ("refused", "InvalidParamsError")
    (forked,) = log.events("fork_session")
    assert (forked["session"], forked["version"], forked["count"]) == (session_id[:8], 0, 2)
    assert forked["forks"] == ",".join(fork["session_id"][:8] for fork in forks)
    (reset,) = log.events("reset_session")
    assert (reset["session"], reset["to_version"], reset["version"]) == (session_id[:8], 0, 1)
    assert [line["session"] for line in log.events("close_session")] == [session_id[:8]]
    assert session_id not in log.text()
    assert SECRET not in log.text()


def test_refused_requests_are_logged_without_secret_paths(log):
    session = log.server.rpc("create_session", toolpacks=["ledger"])
    key = session["agent_path"].removeprefix("/agents/")
    http = log.server.http
    assert http.post("/rpc", content=b"{}", headers={"Content-Type": "text/html"}).status_code == 415
    assert http.post("/rpc", json={}, headers={"Host": "elsewhere.example"}).status_code == 403
    assert http.get(session["agent_path"]).status_code == 405
    assert http.get(f"/.well-known/oauth-protected-resource/{key}").status_code == 404
    assert http.post(session["agent_path"], content=b" " * (2**20 + 1)).status_code in {413, 415}
    log.server.rpc("close_session", session_id=session["session_id"])
    http.post(session["agent_path"], json={})
    lines = log.events("refused")
    assert [(line["status"], line["path"]) for line in lines[:4]] == [
        *((415, "/rpc"), (403, "/rpc"), (405, "/agents/…"), (404, "…"))
    ]
    assert (lines[4]["path"], lines[5]["status"], lines[5]["path"]) == ("/agents/…", 200, "/agents/…")
    assert all(line["client"] == "127.0.0.1" and line["level"] == "warning" and line["reason"] for line in lines)
    assert key not in log.text()


def test_floods_of_refused_requests_are_only_counted(monkeypatch, caplog):
    clock = serving.Clock(monkeypatch, refusals)
    clock.move(1 - clock.monotonic() % 1)
    log = refusals.RefusalLog()
    with caplog.at_level("WARNING", "toolpack_server"):
        for _ in range(refusals.MAX_LINES + 7):
            log.write(408, "too slow")
        assert len(caplog.records) == refusals.MAX_LINES
        clock.move(1)
        log.write(408, "too slow")
    assert [record.event.get("count") for record in caplog.records[-2:]] == [7, None]


# Log level debug: tracebacks of functions


def test_debug_log_has_tracebacks_that_replies_do_not_have(tmp_path):
    with serve_with(tmp_path, TOOLPACK_LOG_LEVEL="debug") as server:
        log = Log(server, tmp_path)
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        params = {"session_id": session_id, "function": "add_then", "kwargs": {"how": "raise"}}
        replies = [post(server, "/rpc", "run_function", raise_on_error=how, **params).text for how in (False, True)]
        server.call(session_id, "add", amount="x")
        server.call(session_id, "add", amount=1)
        raised, repeated, *others = log.lines()
        assert re.search(r'File ".*/packs/ledger\.py", line \d+, in add_then\n', raised["traceback"])
        assert raised["traceback"].endswith("LookupError: half of it is done")
        assert "/toolpack_server/" not in raised["traceback"]
        assert repeated["traceback"] == raised["traceback"]
        assert [list(line) for line in others] == [FIELDS] * 2
        assert not [reply for reply in replies if "ledger.py" in reply or "Traceback" in reply]
        assert all(isinstance(line, dict) for line in log.all())


@pytest.mark.parametrize("level", ["info", "warning"])
def test_other_log_levels_have_no_tracebacks(tmp_path, level):
    with serve_with(tmp_path, TOOLPACK_LOG_LEVEL=level) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        server.call(session_id, "add_then", how="raise")
        assert "Traceback" not in (text := Log(server, tmp_path).text())
        assert "LookupError" not in text


def traceback_of(function):
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - the function may raise anything
        return tracebacks.traceback_text(error)
    return None


def test_traceback_shows_causes_without_the_servers_own_frames():
    def cause():
        raise KeyError("missing")

    def fail():
        try:
            cause()
        except KeyError as error:
            raise LookupError("no account") from error

    async def wait():
        await asyncio.sleep(0)
        fail()

    text = traceback_of(lambda: run_coroutine(wait()))
    lines = [line.rpartition(", in ")[2] for line in text.splitlines() if ", in " in line]
    assert [name for name in lines if not name.startswith(("raised_by", "<lambda>"))][-2:] == ["wait", "fail"]
    assert "KeyError: 'missing'" in text
    assert "direct cause" in text
    assert text.endswith("LookupError: no account")
    assert "server/toolpack_server/functions" not in text


def test_traceback_length_is_limited():
    def deep(depth):
        if depth:
            return other(depth - 1)
        raise ValueError("x" * 100_000)

    def other(depth):
        return deep(depth)

    text = traceback_of(lambda: deep(400))
    assert len(text) < tracebacks.MAX_CHARACTERS + 100
    assert text.startswith("Traceback")


# Output on a terminal


class Terminal(io.TextIOWrapper):
    """Standard error that is a terminal, or a pipe."""

    def __init__(self, *, interactive=True):
        super().__init__(io.BytesIO(), write_through=True)
        self._interactive = interactive

    def isatty(self):
        return self._interactive

    def lines(self):
        return self.buffer.getvalue().splitlines()


def log_call(terminal, style, function="add", owner="ann", kwargs=None):
    """Log a call."""
    accept_request_id(b"req-1")
    with contextlib.redirect_stderr(terminal):
        log = CallLog(style)
        body = orjson.dumps(kwargs or {})
        ended = time.time(), request_id.get(), "0123456789abcdef", owner, function, body, "ok", b"3", 0.0123
        log.write([EndedCall(*ended)])
    return log


def test_terminal_output_is_plain_text():
    terminal = Terminal()
    log_call(terminal, "auto")
    log_call(terminal, "auto", owner=None)
    log_call(terminal, "full", owner="", kwargs={"amount": 1})
    first, second, third = (line.decode() for line in terminal.lines())
    assert re.fullmatch(rf"{TIME} req-1 01234567 ann add ok 12\.3 ms", first)
    assert re.fullmatch(rf"{TIME} req-1 01234567 agent add ok 12\.3 ms", second)
    assert re.fullmatch(rf'{TIME} req-1 01234567 - add ok 12\.3 ms {{"amount":1}}', third)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\r", "\x00", "\u202e", "\u2028", "\x9b1m", "é 😀"])
def test_control_characters_are_escaped_on_a_terminal(name):
    terminal = Terminal()
    log_call(terminal, "text", function=name, owner=name, kwargs={"a": name})
    (line,) = terminal.lines()
    assert re.fullmatch(rb"[ -~]+", line)


def test_pipe_output_is_json():
    pipe = Terminal(interactive=False)
    log_call(pipe, "auto")
    assert list(json.loads(pipe.lines()[0])) == FIELDS


def test_ids_in_a_function_name_are_shortened():
    pipe = Terminal()
    log_call(pipe, "json", function=f"get {'0123456789abcdef' * 2}")
    assert json.loads(pipe.lines()[0])["function"] == "get 01234567…"


def test_closed_log_does_not_stop_the_server():
    pipe = Terminal()
    pipe.close()
    log_call(pipe, "json")


def test_each_request_gets_its_own_id():
    assert accept_request_id(b"mine") == request_id.get() == "mine"
    generated = accept_request_id(None)
    assert generated == request_id.get()
    assert re.fullmatch(r"[0-9a-f]{16}", generated)


def test_unknown_path_is_not_logged(log):
    assert log.server.http.get("/agents/" + "a" * 32).status_code == 405
    assert log.server.http.get("/" + "a" * 32).status_code == 404
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{log.server.url}/agents/{'b' * 32}", timeout=serving.PATIENCE)
    assert "aaaa" not in log.text()
    assert "bbbb" not in log.text()
