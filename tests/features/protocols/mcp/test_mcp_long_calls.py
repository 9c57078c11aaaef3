"""Long MCP calls: the answer is an event stream with keep-alive comments, and a client may disconnect."""

import contextlib
import json
import socket
import sys
import threading
from types import SimpleNamespace

import mcp_endpoint
import pytest
from mcp_endpoint import META, MODERN, STREAM, events
from serving import PATIENCE, wait_until

from toolpack_server.web import event_stream

conformance = sys.modules["toolpacks.conformance"]


@pytest.fixture(scope="module")
def server():
    with mcp_endpoint.served(sign_seconds=0.05) as served, pytest.MonkeyPatch.context() as patch:
        patch.setattr(conformance, "time", SimpleNamespace(sleep=served.endpoint.pass_time))
        yield served


ERAS = ("2025-06-18", MODERN)


def call(mcp, era, headers=(), meta=(), name="test_tool_with_progress", **arguments):
    """Call a tool, and return the whole HTTP response."""
    if era == MODERN:
        return mcp.modern("tools/call", headers, meta, name=name, arguments=arguments)
    return mcp.legacy("tools/call", headers, name=name, arguments=arguments, _meta=dict(meta))


@pytest.mark.parametrize("era", ERAS)
def test_slow_answer_becomes_an_event_stream(mcp, era):
    reply = call(mcp, era, STREAM, seconds=0.3)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.text.startswith(": ")
    *signs, answer = events(reply.text)
    assert signs
    assert set(signs) == {None}
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "waited 0.3 s")
    assert mcp.counts() == [1]


@pytest.mark.parametrize("era", ERAS)
def test_only_line_feeds_end_a_line_of_an_event_stream(mcp, era):
    token = "\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029é"
    reply = call(mcp, era, STREAM, {"progressToken": token}, seconds=0.2)
    assert reply.text.splitlines() == [*reply.text.rstrip("\n").split("\n"), ""]
    assert {sign["params"]["progressToken"] for sign in events(reply.text)[:-1]} == {token}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("token", ["a token", 0])
def test_progress_token_gets_progress_notifications(mcp, era, token):
    *signs, answer = events(call(mcp, era, STREAM, {"progressToken": token}, seconds=0.4).text)
    assert answer["result"]["isError"] is False
    assert len(signs) > 1
    for sign in signs:
        assert (sign["jsonrpc"], sign["method"], set(sign)) == (
            "2.0",
            "notifications/progress",
            {"jsonrpc", "method", "params"},
        )
        assert sign["params"]["progressToken"] == token
        assert sign["params"]["message"].startswith("test_tool_with_progress: no result after ")
    progress = [sign["params"]["progress"] for sign in signs]
    assert progress == sorted(set(progress))


@pytest.mark.parametrize("token", [True, 1.5, {}, None])
def test_invalid_progress_token_is_ignored(mcp, token):
    *signs, _ = events(call(mcp, MODERN, STREAM, {"progressToken": token}, seconds=0.2).text)
    assert set(signs) == {None}


@pytest.mark.parametrize("accept", [None, "application/json", "*/*"])
def test_client_that_does_not_accept_streams_gets_json(mcp, accept):
    headers = {} if accept is None else {"Accept": accept}
    reply = call(mcp, MODERN, headers, {"progressToken": 1}, seconds=0.2)
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["result"]["content"][0]["text"] == "waited 0.2 s"


def test_fast_answer_is_not_a_stream_and_keeps_its_status(mcp, monkeypatch):
    monkeypatch.setattr(event_stream, "SIGN_SECONDS", PATIENCE)
    reply = mcp.legacy("tools/list", STREAM)
    assert reply.headers["content-type"] == "application/json"
    assert mcp.modern("resources/list", STREAM).status_code == 404


def test_slow_error_is_an_event_too(mcp):
    meta = {"toolpack-server/call_id": "c"}
    mcp.call("2025-06-18", "count", _meta=meta, number=1)
    params = {"name": "count", "arguments": {"number": 2}, "_meta": meta}
    with hold_call(mcp, "error"), client(mcp, "tools/call", **params) as late:
        assert b"text/event-stream" in late.recv(65536)
        conformance.gates["error"].set()
        text = read_to_end(late)
    *_, answer = [line for line in text.split(b"\n") if line.startswith(b"data: ")]
    assert json.loads(answer[6:])["error"]["code"] == -33009


@pytest.mark.parametrize("origin", ["http://localhost:6274"])
def test_page_of_this_machine_may_read_the_stream(mcp, origin):
    reply = call(mcp, MODERN, {**STREAM, "Origin": origin}, seconds=0.2)
    assert reply.headers["access-control-allow-origin"] == origin
    assert reply.headers["content-type"] == "text/event-stream"


# Clients that disconnect


@contextlib.contextmanager
def client(mcp, method, /, era="2025-06-18", **params):
    """Send a request, and yield the connection to read the answer from."""
    headers = {"Content-Type": "application/json", **STREAM}
    if era == MODERN:
        headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": params["name"]}
        params["_meta"] = META | params.get("_meta", {})
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    lines = [f"POST {mcp.path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode()
    connection = socket.create_connection(("127.0.0.1", mcp.endpoint.port), timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.sendall(head + body)
        yield connection


def read_to_end(connection):
    text = b""
    while piece := connection.recv(65536):
        text += piece
    return text


@contextlib.contextmanager
def hold_call(mcp, gate, era="2025-06-18", number=1, **meta):
    """Yield the connection of a client whose call runs until the gate is opened."""
    conformance.gates[gate] = threading.Event()
    arguments = {"number": number, "gate": gate}
    with client(mcp, "tools/call", era, name="count_and_wait", arguments=arguments, _meta=meta) as connection:
        wait_until(lambda: gate in conformance.started, "the function")
        try:
            yield connection
        finally:
            conformance.gates[gate].set()


def sessions(mcp):
    return mcp.endpoint.app.state.gateway.service.sessions


def test_modern_client_that_disconnects_cancels_its_call(mcp):
    meta = {"toolpack-server/call_id": "mine"}
    with hold_call(mcp, "left", MODERN, **meta) as connection:
        assert b"text/event-stream" in connection.recv(65536)
        connection.close()
        wait_until(lambda: mcp.endpoint.app.state.gateway.answering == 0, "the end of the request")
        assert mcp.rpc("get_trace") == []
        # The session continues while the function still runs.
        assert mcp.call(MODERN, "count", _meta=meta, number=2)["structuredContent"] == {"counts": [2]}
    assert mcp.rpc("get_session")["version"] == 1
    wait_until(lambda: sessions(mcp).queues.threads.stuck_threads() == 0, "the end of the thread")


def test_modern_client_that_disconnects_cancels_its_queued_call(mcp):
    with hold_call(mcp, "in front"):
        with client(mcp, "tools/call", MODERN, name="count", arguments={"number": 9}) as behind:
            assert b"text/event-stream" in behind.recv(65536)
        wait_until(lambda: sessions(mcp).load()[0] == 0, "the end of the queue")
    wait_until(mcp.counts, "the end of the call in front")
    assert mcp.counts() == [1]
    assert [record["function"] for record in mcp.rpc("get_trace")] == ["count_and_wait"]


def test_legacy_client_that_disconnects_cancels_nothing(mcp):
    with hold_call(mcp, "legacy") as connection:
        assert b"text/event-stream" in connection.recv(65536)
        connection.close()
        mcp.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        with client(mcp, "tools/call", MODERN, name="count", arguments={"number": 9}) as later:
            assert b"text/event-stream" in later.recv(65536)
        # The modern client leaves after the legacy client, so when the server has noticed it, it has noticed both.
        wait_until(lambda: sessions(mcp).load()[0] == 0, "the end of the queue")
    wait_until(mcp.counts, "the end of the call")
    assert [(record["function"], record["error"]) for record in mcp.rpc("get_trace")] == [("count_and_wait", None)]


def test_client_that_half_closes_gets_its_answer(mcp):
    with hold_call(mcp, "half", MODERN) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65536)
        assert connection.recv(65536)  # Keep-alive comments continue.
        conformance.gates["half"].set()
        assert b'"text":"1"' in read_to_end(connection)
    assert mcp.counts() == [1]


def test_stopping_server_answers_a_stream():
    served = mcp_endpoint.served(sign_seconds=0.05, drain_seconds=0)
    with served as mcp, hold_call(mcp, "stopped", MODERN) as connection:
        assert connection.recv(65536)
        service = mcp.endpoint.app.state.gateway.service
        loop = next(iter(mcp.endpoint._server.server_state.tasks)).get_loop()
        loop.call_soon_threadsafe(service.sessions.queues.stop)
        text = read_to_end(connection)
    assert b'"code":-33006' in text
    assert b"The server is stopping; nothing was changed." in text
