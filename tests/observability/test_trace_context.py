"""W3C trace context: the log lines and records of a request have its traceparent and tracestate."""

import json
import socket

import pytest
import server_process
import serving
from test_call_log import FIELDS, Log, post

from toolpack_server.observability.trace_context import MAX_STATE, read_trace_context, trace_context
from toolpack_server.rpc.caller import Caller

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{'1' * 32}-{'2' * 16}-00"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    with server_process.served(folder) as server:
        yield server, folder


@pytest.fixture
def log(running):
    return Log(*running)


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (PARENT, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),  # flags that only a future version defines
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version begins with the same fields
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_valid_traceparent_is_parsed(header, sampled):
    context = read_trace_context(header)
    assert (context.trace_id, context.span_id, context.sampled, context.state) == (TRACE, SPAN, sampled, "")
    assert context.traceparent == f"00-{TRACE}-{SPAN}-{'01' if sampled else '00'}"


@pytest.mark.parametrize(
    "header",
    [
        *(None, 7, "", "x", PARENT.upper(), f"{PARENT}-more", f"{PARENT}.", f" {PARENT}", f"{PARENT}\n"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01."),
        *(f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-0x", f"00-{TRACE[1:]}-{SPAN}-01"),
        *(f"00-{TRACE}0-{SPAN}-01", f"0-{TRACE}-{SPAN}-01", f"..-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN[1:]}-01"),
    ],
)
def test_invalid_traceparent_is_ignored(header):
    assert read_trace_context(header, "foo=1") is None


@pytest.mark.parametrize(
    ("header", "stored"),
    [
        ("foo=1,bar=2", "foo=1,bar=2"),
        ("foo=1 \t , \t bar=2, ,", "foo=1,bar=2"),
        ("foo@bar=1,t/_-*=a b!", "foo@bar=1,t/_-*=a b!"),
        (f"{'z' * 256}=1", f"{'z' * 256}=1"),
        (",".join(f"m{number}=1" for number in range(32)), ",".join(f"m{number}=1" for number in range(32))),
        (f"foo=1,bar={'x' * 246},far={'y' * 245},near=1", f"foo=1,bar={'x' * 246},far={'y' * 245}"),
        *(("foo=1,foo=2", ""), ("foo", ""), ("foo =1", ""), ("FOO=1", ""), ("foo@=1", ""), ("@foo=1", "")),
        *(
            ("foo@@bar=1", ""),
            ("foo=", ""),
            ("foo=a=b", ""),
            ("foo=\u00e9", ""),
            ("foo=1\n", ""),
            (f"{'z' * 257}=1", ""),
        ),
        *((f"foo={'x' * 257}", ""), (",".join(f"m{number}=1" for number in range(33)), ""), (7, ""), (None, "")),
    ],
)
def test_valid_tracestate_is_kept(header, stored):
    assert read_trace_context(PARENT, header).state == stored
    assert len(stored) <= MAX_STATE


def test_log_lines_have_the_context_of_their_request(log):
    with_state = {"traceparent": PARENT, "tracestate": "foo=1"}
    session_id = post(log.server, "/rpc", "create_session", with_state, toolpacks=["ledger"]).json()["result"][
        "session_id"
    ]
    params = {"session_id": session_id, "function": "total"}
    post(log.server, "/rpc", "run_function", with_state, **params)
    post(log.server, "/rpc", "run_function", {"traceparent": OTHER, "tracestate": "FOO"}, **params)
    post(log.server, "/rpc", "run_function", {"traceparent": PARENT[:-1]}, **params)
    post(log.server, "/rpc", "run_function", [("traceparent", PARENT), ("traceparent", OTHER)], **params)
    split = [("traceparent", PARENT), ("tracestate", "foo=1"), ("tracestate", "bar=2")]
    post(log.server, "/rpc", "run_function", split, **params)
    post(log.server, "/rpc", "run_function", {"tracestate": "foo=1"}, **params)
    (created,) = log.events("create_session")
    assert (created["traceparent"], created["tracestate"]) == (PARENT, "foo=1")
    lines = log.lines()
    assert list(lines[0]) == [*FIELDS, "traceparent", "tracestate"]
    assert [(line.get("traceparent"), line.get("tracestate")) for line in lines] == [
        *((PARENT, "foo=1"), (OTHER, None), (None, None), (None, None), (PARENT, "foo=1,bar=2"), (None, None))
    ]


def test_pipelined_requests_have_their_own_context(log):
    session_id = log.server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    params = {"session_id": session_id, "function": "total"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
    head = f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    two_requests = f"{head}traceparent: {PARENT}\r\n\r\n{body}{head}Connection: close\r\n\r\n{body}"
    answers = b""
    with socket.create_connection(("127.0.0.1", log.server.http.base_url.port), timeout=serving.PATIENCE) as connection:
        connection.sendall(two_requests.encode())
        while piece := connection.recv(65536):
            answers += piece
    assert answers.count(b'"error":null') == 2
    assert [line.get("traceparent") for line in log.lines()] == [PARENT, None]


@pytest.mark.parametrize(
    ("header", "member", "expected"),
    [(OTHER, PARENT, PARENT), (OTHER, "00-x", OTHER), (None, PARENT, PARENT), (OTHER, 7, OTHER)],
)
def test_context_in_an_mcp_message_overrides_the_header(log, header, member, expected):
    session = log.server.rpc("create_session", toolpacks=["ledger"])
    headers = {"traceparent": header} if header else {}
    meta = {"traceparent": member, "tracestate": "foo=1"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "total", "_meta": meta}}
    answer = log.server.http.post(session["mcp_path"], json=message, headers=headers)
    assert answer.json()["result"]["isError"] is False
    (line,) = log.lines()
    assert (line["traceparent"], line.get("tracestate")) == (expected, "foo=1" if expected == PARENT else None)


def test_record_keeps_the_context_private_to_the_server():
    with serving.Bench() as bench:
        session_id = bench.create()

        def private(index):
            (record,) = bench.store.records(session_id, index - 1, 1)
            return json.loads(record.body.split(b"\n")[1])

        async def call_within(context):
            trace_context.set(context)
            params = {"session_id": session_id, "function": "add", "kwargs": {"amount": 1}}
            await bench.service.request(Caller(), "run_function", params)

        bench.result(session_id, "total")
        assert private(0) is None
        bench._run(call_within(read_trace_context(PARENT, "foo=1")))
        assert private(1) == {"traceparent": PARENT, "tracestate": "foo=1"}
        assert PARENT not in json.dumps(bench.rpc("get_trace", session_id=session_id))
