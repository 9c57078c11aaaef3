"""WebSockets: they have the limits of HTTP requests, and lose no answer when they close."""

import asyncio
import contextlib
import json
import os
import signal
import struct
import threading
from unittest.mock import Mock

import pytest
import server_process
from http_endpoint import PROTOCOLS, served
from patience import PATIENCE
from raw_websocket import ACCEPT, BINARY, CLOSE, PING, PONG, RawWebSocket, frame
from serving import PACKS, wait_until

from toolpack_server.packs.loading import load_catalog
from toolpack_server.web import web_socket

CATALOG = load_catalog((PACKS,), ("bank", "chores"))
PATH = "/openenv/bank/ws"
STATE = {"type": "state"}
TOKENS = {"ann": "token-of-ann", "bob": "token-of-bob"}
RESTART = (1012, "The server stops or restarts: connect again in a moment.")


@pytest.fixture(params=list(PROTOCOLS), scope="module")
def endpoint(request):
    with served(request.param, catalog=CATALOG, max_body_bytes=2**20, max_connections=20) as running:
        yield running


@pytest.fixture
def opened(endpoint):
    with RawWebSocket(endpoint.port, PATH) as socket:
        yield socket


def is_answered(socket):
    return socket.ask(STATE)["type"] == "state"


def test_handshake_follows_the_rfc(opened):
    assert (opened.status, opened.headers["sec-websocket-accept"]) == (101, ACCEPT)
    assert opened.headers["x-request-id"]
    assert is_answered(opened)


@pytest.mark.parametrize(
    "wrong",
    [{"sec_websocket_version": "8"}, {"sec_websocket_key": None}, {"sec_websocket_key": "abc"}, {"upgrade": "h2c"}],
    ids=str,
)
def test_invalid_handshake_is_rejected(endpoint, wrong):
    with RawWebSocket(endpoint.port, PATH, **wrong) as socket:
        assert socket.status == 426
        assert json.loads(socket.body)["detail"].startswith("This path is a WebSocket")


OTHERS = ["https://example.org", "http://127.0.0.1", "http://localhost:{port}", "http://127.0.0.1:1", "null", ""]


@pytest.mark.parametrize("origin", OTHERS)
def test_page_of_another_origin_is_rejected(endpoint, origin):
    headers = {"origin": origin.format(port=endpoint.port), "host": f"127.0.0.1:{endpoint.port}"}
    with RawWebSocket(endpoint.port, PATH, **headers) as socket:
        assert socket.status == 403
    # A POST without a body needs no preflight request, so the check also covers HTTP.
    reply = endpoint.http.post("/openenv/bank/reset", headers={**headers, "connection": "close"})
    assert reply.status_code == 403
    assert reply.json()["detail"].startswith("A web page of another origin can't use this server")


def test_page_of_the_same_origin_is_accepted(endpoint):
    headers = {"origin": f"http://127.0.0.1:{endpoint.port}", "host": f"127.0.0.1:{endpoint.port}"}
    with RawWebSocket(endpoint.port, PATH, **headers) as socket:
        assert is_answered(socket)


def test_message_may_be_fragmented_with_pings_between(opened):
    text = json.dumps(STATE).encode()
    opened.write(frame(text[:1], last=False))
    opened.write(b"".join(frame(text[at : at + 1], 0, last=False) for at in range(1, len(text) - 1)))
    opened.write(frame(b"here?", PING))
    assert opened.read() == (PONG, b"here?")
    opened.write(frame(text[-1:], 0))
    assert opened.hear()["type"] == "state"


def test_pipelined_messages_are_answered_in_order(opened):
    opened.write(frame(json.dumps(STATE).encode()) * 50 + frame(b"{}"))
    for _ in range(50):
        assert opened.hear()["type"] == "state"
    assert opened.hear()["data"]["code"] == "UNKNOWN_TYPE"


def test_messages_beyond_the_read_ahead_wait_in_the_kernel(opened):
    large = json.dumps({"type": "x" * 200_000}).encode()
    sending = threading.Thread(target=opened.write, args=(frame(large) * 40,))
    sending.start()
    for _ in range(40):
        assert opened.hear()["data"]["code"] == "UNKNOWN_TYPE"
    sending.join()
    assert is_answered(opened)


def unconnected():
    transport = Mock()
    transport.is_closing.return_value = False
    return web_socket.WebSocket(Mock(), transport, PATIENCE), transport


def test_empty_messages_count_for_the_read_ahead():
    async def read():
        socket, transport = unconnected()
        socket.data_received(frame(b"") * 1000)
        assert transport.pause_reading.called
        socket.close(1000)

    asyncio.run(read())


def test_waiting_messages_are_dropped_at_close():
    async def close():
        socket, _ = unconnected()
        socket.data_received(frame(b"{}") * 2)
        assert await socket.arrival()
        socket.close(*RESTART)
        assert not await socket.arrival()

    asyncio.run(close())


def test_frame_headers_count_for_the_size_limit(opened):
    with contextlib.suppress(OSError):
        opened.write(frame(b"x", last=False) + frame(b"x", 0, last=False) * 40_000)
    assert opened.closed()[0] == 1009


WRONG = {
    "binary": (frame(b"{}", BINARY), 1003),
    "unmasked": (frame(b"{}", masked=False), 1002),
    "reserved bits": (frame(b"{}", bits=0x40), 1002),
    "an opcode that there isn't": (frame(b"{}", 5), 1002),
    "a continuation of nothing": (frame(b"{}", 0), 1002),
    "a long ping": (frame(b"x" * 126, PING), 1002),
    "no text": (frame(b"\xff\xfe"), 1007),
    "a close of one byte": (frame(b"\x03", CLOSE), 1002),
    "a close with a wrong code": (frame(struct.pack("!H", 1005), CLOSE), 1002),
}


@pytest.mark.parametrize(("data", "code"), WRONG.values(), ids=WRONG)
def test_invalid_frame_closes_the_websocket(endpoint, opened, data, code):
    assert is_answered(opened)
    opened.write(data)
    assert opened.closed()[0] == code
    wait_until(lambda: not endpoint.app.state.gateway.in_flight.total, "its bytes")


@pytest.mark.parametrize("pieces", [1, 40])
def test_message_that_is_too_large_closes_the_websocket(endpoint, opened, pieces):
    part = b"x" * ((2**20 + 40) // pieces)
    many = [frame(part, 1 if not at else 0, last=at == pieces - 1) for at in range(pieces)]
    with contextlib.suppress(OSError):  # The server may close before all is sent.
        opened.write(b"".join(many))
    code, reason = opened.closed()
    assert (code, reason) == (
        1009,
        "The message is larger than 1048576 bytes: send less, or raise TOOLPACK_MAX_BODY_BYTES.",
    )
    wait_until(lambda: not endpoint.app.state.gateway.in_flight.total, "its bytes")


def test_message_that_arrives_too_slowly_closes_the_websocket(endpoint):
    with endpoint.hurried(receive_seconds=0.2), RawWebSocket(endpoint.port, PATH) as socket:
        endpoint.pass_time(0.5)
        assert is_answered(socket)  # Silence between messages has no time limit.
        socket.write(frame(b'{"type"', last=False))
        assert socket.closed() == (1008, "The message did not come within 0.2 s.")


def test_lost_client_is_detected_by_pings(endpoint, monkeypatch):
    monkeypatch.setattr(web_socket, "PING_SECONDS", 0.2)
    with RawWebSocket(endpoint.port, PATH) as socket, RawWebSocket(endpoint.port, PATH) as silent:
        for _ in range(4):
            opcode, payload = socket.read()
            assert (opcode, payload) == (PING, b"")
            socket.write(frame(payload, PONG))
        assert silent.closed() in {None, (1011, "The client didn't answer a ping.")}
        assert is_answered_between_pings(socket)


def is_answered_between_pings(socket):
    socket.say(STATE)
    while (received := socket.read())[0] == PING:
        socket.write(frame(b"", PONG))
    return json.loads(received[1])["type"] == "state"


def test_close_of_the_client_is_confirmed(endpoint, opened):
    before = endpoint.connections()
    opened.write(frame(json.dumps(STATE).encode()) + frame(struct.pack("!H", 1000) + b"bye", CLOSE))
    code, _ = opened.closed()
    assert code == 1000
    wait_until(lambda: endpoint.connections() < before, "its end")


def test_messages_before_the_close_are_processed(endpoint):
    with RawWebSocket(endpoint.port, PATH) as socket:
        socket.ask({"type": "reset", "data": {"task": "bank/save-300", "episode_id": "left"}})
        call = {"type": "call_tool", "tool_name": "move_to_savings", "arguments": {"amount": "300.00"}}
        socket.write(frame(json.dumps({"type": "step", "data": call}).encode()) + frame(b"", CLOSE))
    with RawWebSocket(endpoint.port, PATH + "?session_id=left") as other:
        wait_until(lambda: other.ask(STATE)["data"]["step_count"] == 1, "the call")


def test_idle_websocket_is_evicted_and_its_client_can_return(endpoint):
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(RawWebSocket(endpoint.port, PATH)) for _ in range(20)]
        many[0].ask({"type": "reset", "data": {"task": "bank/save-300", "episode_id": "displaced"}})
        connections = endpoint.app.state.gateway.connections
        for socket in many[1:]:  # Now the first WebSocket has been idle the longest.
            assert is_answered(socket)
        wait_until(lambda: not connections._held, "all to be idle")
        for _ in range(20):
            stack.enter_context(RawWebSocket(endpoint.port, PATH))
        code, reason = many[0].closed()
        assert code == 1013
        assert reason.startswith("The server has 20 connections already")
        returned = stack.enter_context(RawWebSocket(endpoint.port, PATH))
        gone_on = returned.ask({"type": "reset", "data": {"task": "bank/save-300", "episode_id": "displaced"}})
        assert gone_on["type"] == "observation"


def test_tokens_are_required_and_each_owner_has_a_share():
    with served("httptools", catalog=CATALOG, tokens=TOKENS, max_connections=10) as endpoint:
        for token in [None, "token-of-eve"]:
            with RawWebSocket(endpoint.port, PATH, token) as socket:
                assert socket.status == 401
                assert socket.headers["www-authenticate"] == "Bearer"
        with contextlib.ExitStack() as stack:
            many = [stack.enter_context(RawWebSocket(endpoint.port, PATH, "token-of-ann")) for _ in range(6)]
            for socket in many[:5]:
                socket.write(frame(b'{"type"', last=False))
            connections = endpoint.app.state.gateway.connections
            wait_until(lambda: len(connections._held) == 5, "the messages")
            many[5].say(STATE)
            code, reason = many[5].closed()
            assert (code, reason[:44]) == (1013, "You have 5 requests that are being answered;")
            with RawWebSocket(endpoint.port, PATH, "token-of-ann") as socket:
                assert socket.status == 503
            with RawWebSocket(endpoint.port, PATH, "token-of-bob") as socket:
                assert is_answered(socket)
            many[0].write(frame(b': "state"}', 0))
            assert many[0].hear()["type"] == "state"


@pytest.mark.parametrize("http", list(PROTOCOLS))
def test_stopping_server_answers_pending_messages_and_closes(tmp_path, http):
    with server_process.served(tmp_path, "--packs", "chores", **server_process.http_on(http, tmp_path)) as server:
        port = int(server.url.rpartition(":")[2])
        with RawWebSocket(port, "/ws") as idle, RawWebSocket(port, "/ws") as busy:
            assert is_answered(idle)
            busy.ask({"type": "reset", "data": {"task": "chores/dishes", "episode_id": "a"}})
            slow = {"type": "call_tool", "tool_name": "do", "arguments": {"chore": "dishes"}}
            busy.say({"type": "step", "data": slow})
            os.kill(server.process.pid, signal.SIGTERM)
            received = busy.read()
            if received[0] != CLOSE:  # The answer came before the signal.
                assert json.loads(received[1])["data"]["observation"]["error"] is None
                assert busy.closed() == RESTART
            assert idle.closed() == RESTART
        assert server.process.wait() == 0
