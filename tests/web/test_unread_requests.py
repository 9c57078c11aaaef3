"""Bodies of requests: the server checks the token or the agent's key first, and never reads all of a refused body."""

import concurrent.futures
import json
import re
import socket
import threading

import pytest
from http_endpoint import HEAD, PING, answer, check_refusal, is_ended, read, request, served
from serving import Bench, ledger, wait_until

from toolpack_server.features.protocols.mcp import endpoint as mcp_endpoint

TOKENS = {"tokens": {"ann": "ann-secret", "bob": "bob-secret", "eve": "eve-secret"}}
MEGABYTE = 2**20
NAME = "q" * 100_000
UNKNOWN = "/agents/" + "0" * 32
UNKNOWN_MCP = "/mcp/" + "0" * 32


@pytest.fixture(scope="module", params=["httptools", "h11"])
def endpoint(request):
    with served(request.param, max_body_bytes=32_000) as running:
        yield running


@pytest.fixture(scope="module", params=["httptools", "h11"])
def guarded(request):
    with served(request.param, **TOKENS, max_body_bytes=MEGABYTE) as running:
        yield running


def head(path, *lines):
    return HEAD.replace(b"/rpc", path.encode()) + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def read_all(connection):
    text = b""
    while data := connection.recv(65536):
        text += data
    return text


# An agent's key


def test_an_unknown_key_is_answered_before_the_body_comes(endpoint):
    with endpoint.connect(head(UNKNOWN, b"Content-Length: 2000")) as connection:
        status, reply = answer(connection)
        assert (status, reply["error"]["code"], reply["id"]) == (200, -32001, None)
        assert is_ended(connection)


def test_the_body_of_an_unknown_key_is_not_parsed(endpoint):
    with endpoint.connect(head(UNKNOWN, b"Content-Length: 1"), b"{") as connection:
        assert answer(connection)[1]["error"]["code"] == -32001


@pytest.mark.parametrize("announced", [1, 60_000, 2**20])
def test_an_unknown_key_of_mcp_waits_for_its_body_only_a_moment(endpoint, monkeypatch, announced):
    monkeypatch.setattr(mcp_endpoint, "UNKNOWN_KEY_SECONDS", 0.05)
    with endpoint.connect(head(UNKNOWN_MCP, b"Content-Length: %d" % announced)) as connection:
        status, reply = answer(connection)
        assert (status, reply["error"]["code"], reply["id"]) == (200, -33001, None)
        assert is_ended(connection)
    wait_until(lambda: in_flight(endpoint) == 0, "their release")


def test_an_unknown_mcp_key_is_answered_with_the_id_if_known(endpoint):
    with endpoint.connect(head(UNKNOWN_MCP, b"Content-Length: %d" % len(PING)), PING) as connection:
        assert answer(connection)[1]["id"] == 1


def test_an_agents_body_has_a_limit_of_its_own(endpoint):
    session = endpoint.rpc("create_session", toolpacks=["ledger"])
    for size, status in ((2000, 200), (2001, 413)):
        body = json.dumps(request("run_function", function="total")).encode().ljust(size)
        reply = endpoint.http.post(session["agent_path"], content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == status
    assert "TOOLPACK_MAX_BODY_BYTES" in reply.json()["error"]["message"]


def test_a_key_is_forgotten_with_its_session(endpoint):
    session = endpoint.rpc("create_session", toolpacks=["ledger"])
    assert endpoint.http.post(session["agent_path"], json=request("list_functions")).json()["id"] == 1
    endpoint.rpc("close_session", session_id=session["session_id"])
    with endpoint.connect(head(session["agent_path"], b"Content-Length: 2000")) as connection:
        assert answer(connection)[1]["error"]["code"] == -32001


# The end of a connection


@pytest.mark.parametrize("length", [b"Content-Length: 900000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", path) for path in ("/rpc", UNKNOWN, UNKNOWN_MCP, "/mcp/", "/nothing", "/healthz", "/openrpc.json")]
    + [("GET", path) for path in ("/", "/rpc", "/console/", "/console/app.js", "/console/x", "/metrics", UNKNOWN_MCP)]
    + [("PUT", path) for path in ("/rpc", UNKNOWN, UNKNOWN_MCP, "/console/")]
    + [("OPTIONS", UNKNOWN_MCP), ("NOTHING", "/rpc")],
)
def test_an_answer_before_the_body_closes_the_connection(guarded, monkeypatch, method, path, length):
    monkeypatch.setattr(mcp_endpoint, "UNKNOWN_KEY_SECONDS", 0.05)
    with guarded.connect(head(path, length).replace(b"POST", method.encode(), 1)) as connection:
        text = read_all(connection)
    assert text.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in text.lower()


def test_a_refusal_survives_a_body_still_being_sent(guarded):
    with guarded.connect(head("/rpc", b"Content-Length: 1000000")) as connection:
        connection.sendall(b" " * 500_000)
        check_refusal(answer(connection), 401)
        connection.sendall(b" " * 500_000)
        assert is_ended(connection)


def test_a_refused_complete_request_keeps_the_connection(guarded):
    ping = head("/rpc", b"Content-Length: %d" % len(PING)) + PING
    with guarded.connect(ping) as connection:
        check_refusal(answer(connection), 401)
        connection.sendall(ping.replace(b"Host", b"Authorization: Bearer ann-secret\r\nHost"))
        assert answer(connection) == (200, {"jsonrpc": "2.0", "result": [], "id": 1})


# Framing of a body


@pytest.mark.parametrize("path", ["/rpc", UNKNOWN])
def test_more_framing_than_content_is_refused(endpoint, path):
    with endpoint.connect(head(path, b"Transfer-Encoding: chunked")) as connection:
        if path == "/rpc":
            connection.sendall(b"1\r\n \r\n" * 50_000)
            assert "larger chunks" in check_refusal(answer(connection), 400)
        else:
            assert answer(connection)[1]["error"]["code"] == -32001
        assert is_ended(connection)


def test_small_chunks_of_a_small_body_are_accepted(endpoint):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in PING) + b"0\r\n\r\n"
    with endpoint.connect(head("/rpc", b"Transfer-Encoding: chunked"), chunks) as connection:
        status, reply = answer(connection)
        assert (status, reply["id"]) == (200, 1)
        assert "result" in reply


def test_a_large_body_in_chunks_is_accepted(guarded):
    piece = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    chunks = piece * 900 + b"%x\r\n%b\r\n0\r\n\r\n" % (len(PING), PING)
    lines = b"Transfer-Encoding: chunked", b"Authorization: Bearer ann-secret"
    with guarded.connect(head("/rpc", *lines), chunks) as connection:
        status, reply = answer(connection)
        assert (status, reply["id"]) == (200, 1)
        assert "result" in reply


@pytest.mark.parametrize("length", [b"9" * 23, b"9" * 5000, b"0" * 5000 + b"5", b"0" * 30, b"5x", b"-5"])
def test_an_invalid_content_length_is_400(endpoint, length):
    with endpoint.connect(head("/rpc", b"Content-Length: " + length)) as connection:
        check_refusal(answer(connection), 400)
        assert is_ended(connection)


@pytest.mark.parametrize("path", ["/rpc", UNKNOWN, "/healthz", "/nothing"])
@pytest.mark.parametrize("swap", [False, True])
def test_two_framings_are_400(endpoint, path, swap):
    lines = [b"Content-Length: 5", b"Transfer-Encoding: chunked"]
    with endpoint.connect(head(path, *(lines[::-1] if swap else lines)), b"5\r\n12345\r\n0\r\n\r\n") as connection:
        check_refusal(answer(connection), 400)


# Contents of an error


def test_errors_show_at_most_200_characters_of_a_name():
    bench = Bench()
    try:
        session = bench.create("ledger")
        run = {"session_id": session, "function": "add"}
        nested = {"$call": {"function": "add", "args": {NAME: 1}}}
        for method, params in [
            (NAME, {}),
            ("get_session", {NAME: 1}),
            ("get_session", {"session_id": NAME}),
            ("create_session", {"toolpacks": [NAME]}),
            ("create_session", {"options": {NAME: {}}}),
            ("create_session", {"environment": {NAME: {}}}),
            ("create_session", {"toolpacks": ["ledger"], "options": {"ledger": {NAME: 1}}}),
            ("create_session", {"labels": {NAME: "x"}}),
            ("create_session", {"labels": {"x" * 250: NAME}}),
            ("list_functions", {"format": NAME}),
            ("get_environment", {"session_id": session, "pointer": "/" + NAME}),
            ("run_function", run | {"function": NAME}),
            ("run_function", run | {"call_id": NAME}),
            ("run_function", run | {"kwargs": {NAME: 1}}),
            ("run_function", run | {"kwargs": {"amount": nested}}),
            ("run_function", run | {"kwargs": {"amount": nested}, "raise_on_error": True}),
        ]:
            text = bench.answer(json.dumps(request(method, **params)))
            assert b"rror" in text, method
            assert max(map(len, re.findall(rb"q+", text)), default=0) <= 200, (method, params.keys())
            assert len(text) < 2500, (method, params.keys())
    finally:
        bench.close()


# Bytes in memory


def held_back(endpoint, size, token=b"ann-secret"):
    """Send all of a request except its last byte."""
    lines = b"Content-Length: %d" % size, b"Authorization: Bearer " + token
    return endpoint.connect(head("/rpc", *lines), b" " * (size - 1))


@pytest.fixture(params=["httptools", "h11"])
def narrow(request):
    with served(request.param, **TOKENS, max_bytes_in_flight=400_000) as running:
        yield running


def in_flight(endpoint):
    return endpoint.app.state.gateway.in_flight.total


def test_bytes_that_one_name_holds_back_are_limited(narrow):
    with held_back(narrow, 150_000) as first:
        wait_until(lambda: in_flight(narrow) == 150_000, "the announced bytes")
        with held_back(narrow, 60_000) as second:
            text = read_all(second)
            assert text.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in text
            assert b"your requests use 150000 bytes" in text
        with held_back(narrow, 60_000, b"bob-secret") as third:
            third.sendall(b" ")
            assert answer(third)[1]["error"]["code"] == -32700
        first.sendall(b" ")
        assert answer(first)[1]["error"]["code"] == -32700
    wait_until(lambda: in_flight(narrow) == 0, "their release")


def test_bytes_that_all_names_hold_back_are_limited(narrow):
    with held_back(narrow, 190_000), held_back(narrow, 190_000, b"bob-secret"):
        wait_until(lambda: in_flight(narrow) == 380_000, "the announced bytes")
        with held_back(narrow, 30_000, b"eve-secret") as connection:
            message = check_refusal(answer(connection), 503)
            assert "all clients together use 380000" in message
    wait_until(lambda: in_flight(narrow) == 0, "their release")


def test_a_body_without_a_length_is_counted_as_it_comes(narrow):
    lines = b"Transfer-Encoding: chunked", b"Authorization: Bearer ann-secret"
    with narrow.connect(head("/rpc", *lines), b"ffff\r\n" + b" " * 65535 + b"\r\n") as connection:
        wait_until(lambda: in_flight(narrow) == 65535, "the bytes")
        connection.sendall((b"ffff\r\n" + b" " * 65535 + b"\r\n") * 3)
        check_refusal(answer(connection), 503)
    wait_until(lambda: in_flight(narrow) == 0, "their release")


def test_a_waiting_call_counts_with_its_values_memory(narrow):
    headers = {"Authorization": "Bearer ann-secret"}

    def post(method, **params):
        return narrow.http.post("/rpc", json=request(method, **params), headers=headers)

    session = post("create_session", toolpacks=["ledger"]).json()["result"]["session_id"]
    gate = ledger.gates["counted"] = threading.Event()
    call = {"session_id": session, "function": "add_and_hold", "kwargs": {"name": "counted"}}
    large = {"session_id": session, "function": "echo", "kwargs": {"value": [0] * 1500}}
    body = json.dumps(request("run_function", **large)).encode()
    lines = b"Content-Length: %d" % len(body), b"Authorization: Bearer ann-secret"
    with concurrent.futures.ThreadPoolExecutor() as threads:
        try:
            call_future = threads.submit(post, "run_function", **call)
            wait_until(lambda: in_flight(narrow) > 0, "the call")
            with narrow.connect(head("/rpc", *lines) + body) as waiting:
                wait_until(lambda: in_flight(narrow) > 150_000, "the call that waits")
                refused = post("run_function", **large)
                assert refused.status_code == 503
                assert "Nothing was changed" in refused.json()["error"]["message"]
                gate.set()
                assert answer(waiting)[1]["result"]["error"] is None
        finally:
            gate.set()
        assert call_future.result().json()["result"]["error"] is None
    assert post("get_session", session_id=session).json()["result"]["version"] == 2
    wait_until(lambda: in_flight(narrow) == 0, "their release")


def test_a_body_at_mcp_counts_until_any_answer(narrow, monkeypatch):
    monkeypatch.setattr(mcp_endpoint, "UNKNOWN_KEY_SECONDS", 300)
    headers = {"Authorization": "Bearer ann-secret"}
    created = narrow.http.post("/rpc", json=request("create_session", toolpacks=["ledger"]), headers=headers)
    path = created.json()["result"]["mcp_path"]
    call = request("tools/call", name="echo", arguments={"value": "x" * 20_000})
    notification = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": "x" * 20_000}}
    for to in (path, UNKNOWN_MCP):
        for body in (json.dumps(call), json.dumps(notification), '{"no message": 1}', "{"):
            text = body.ljust(30_000).encode()
            with narrow.connect(head(to, b"Content-Length: %d" % len(text)), text[:-1]) as connection:
                wait_until(lambda: in_flight(narrow) >= 30_000, "the announced bytes")
                connection.sendall(text[-1:])
                assert read(connection)[1] in {200, 202, 400}
            wait_until(lambda: in_flight(narrow) == 0, "their release")


def test_an_unread_answer_is_counted(narrow):
    headers = {"Authorization": "Bearer ann-secret"}

    def rpc(method, **params):
        return narrow.http.post("/rpc", json=request(method, **params), headers=headers).json()["result"]

    session = rpc("create_session", toolpacks=["ledger"])["session_id"]
    rpc("run_function", session_id=session, function="add_then", kwargs={"how": "grow"})
    body = json.dumps([request("get_environment", session_id=session)] * 5).encode()
    with narrow.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lines = b"Content-Length: %d" % len(body), b"Authorization: Bearer ann-secret"
        connection.sendall(head("/rpc", *lines) + body)
        wait_until(lambda: in_flight(narrow) > 2 * MEGABYTE, "the answer")
        assert narrow.http.post("/rpc", json=request("list_sessions"), headers=headers).status_code == 503
    wait_until(lambda: in_flight(narrow) == 0, "its release")
