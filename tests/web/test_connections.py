"""Limits on connections and requests: one client can't keep other clients out.

Each owner and agent has a share of the connections. If all are taken, the oldest silent or idle connection is closed
for a new one.
"""

import contextlib
import json
import threading
from unittest.mock import Mock

import pytest
from http_endpoint import HEAD, PING, answer, check_refusal, is_ended, request, served
from serving import ledger, wait_until

from toolpack_server.base.errors import HttpRefusedError
from toolpack_server.base.settings import Settings
from toolpack_server.rpc.caller import Caller
from toolpack_server.web.connections import STATE, Connections
from toolpack_server.web.transport import ResponseTransport

TOKENS = {"ann": "ann-secret", "bob": "bob-secret", "eve": "eve-secret"}
UNFINISHED = HEAD + b"Content-Length: 50\r\n\r\n{"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(PING) + PING
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(params=["httptools", "h11"])
def http(request):
    return request.param


@contextlib.contextmanager
def opening(http, **settings):
    """Serve, and yield the `Opened` connections. The server's time limits are longer than the test."""
    settings |= {"receive_seconds": 900}
    with served(http, **settings) as endpoint, Opened(endpoint) as opened:
        yield opened


def of(owner, text=WHOLE):
    """Return a request with the token of an owner."""
    return text.replace(b"Host", b"Authorization: Bearer %b-secret\r\nHost" % owner.encode(), 1)


class Opened(contextlib.ExitStack):
    """The connections that a test opens."""

    def __init__(self, endpoint):
        super().__init__()
        self.endpoint = endpoint
        self.places = endpoint.app.state.gateway.connections
        self.held = 0

    def connect(self, *pieces):
        return self.enter_context(self.endpoint.connect(*pieces))

    def silent(self, number):
        before = len(self.places._new)
        connections = [self.connect() for _ in range(number)]
        wait_until(lambda: len(self.places._new) == before + number, "the connections")
        return connections

    def holding(self, number, text):
        """Open connections that are held by requests with incomplete bodies."""
        connections = []
        for _ in range(number):
            connections.append(self.connect(text))
            self.held += 1
            wait_until(lambda: len(self.places._held) == self.held, "the request")
        return connections


def test_the_oldest_silent_connection_makes_room_for_a_new_one(http):
    with opening(http, max_connections=10) as opened:
        idle = opened.connect(WHOLE)
        assert answer(idle)[0] == 200
        first, *others = opened.silent(9)
        newest = opened.connect(WHOLE)
        assert "10 connections already" in check_refusal(answer(first), 503)
        assert is_ended(first)
        assert answer(newest)[0] == 200
        for connection in (idle, *others):  # no other connection was closed
            connection.sendall(WHOLE)
            assert answer(connection)[0] == 200


def test_an_idle_connection_makes_room_if_few_are_silent(http):
    with opening(http, max_connections=10) as opened:
        for _ in range(10):
            assert answer(opened.connect(WHOLE))[0] == 200
        wait_until(lambda: len(opened.places._idle) == 10, "all to be idle")
        newest = opened.connect()
        wait_until(lambda: opened.endpoint.connections() == 10, "the end of one")
        newest.sendall(WHOLE)
        assert answer(newest)[0] == 200


def test_one_owner_holds_at_most_half_of_the_connections(http):
    with opening(http, tokens=TOKENS, max_connections=10) as opened:
        connections = opened.holding(5, of("ann", UNFINISHED))
        message = check_refusal(answer(opened.connect(of("ann"))), 503)
        assert "5 requests that are being answered" in message
        assert "TOOLPACK_MAX_CONNECTIONS (an owner can use half of them)" in message
        opened.silent(4)  # these connections don't keep other owners out, either
        assert answer(opened.connect(of("bob")))[0] == 200
        connections[0].close()
        wait_until(lambda: len(opened.places._held) == 4, "the end of one")
        assert answer(opened.connect(of("ann")))[0] == 200


def test_http_503_says_when_to_send_the_request_again(http):
    with opening(http, tokens=TOKENS, max_connections=10) as opened:
        opened.holding(5, of("ann", UNFINISHED))
        with opened.connect(of("ann")) as connection:
            head = connection.recv(1000)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head


def test_the_last_connections_are_for_new_owners_and_health(http):
    with opening(http, tokens=TOKENS, max_connections=10) as opened:
        opened.holding(5, of("ann", UNFINISHED))
        opened.holding(4, of("bob", UNFINISHED))
        assert "9 requests are being answered" in check_refusal(answer(opened.connect(of("bob"))), 503)
        with opened.connect(HEALTH) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        opened.holding(1, of("eve", UNFINISHED))
        assert "10 connections already" in check_refusal(answer(opened.connect()), 503)


def test_one_owner_alone_holds_all_but_the_reserve(http):
    with opening(http, max_connections=10) as opened:
        opened.holding(9, UNFINISHED)
        check_refusal(answer(opened.connect(WHOLE)), 503)
        with opened.connect(HEALTH) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_clients_without_a_token_hold_no_resources(http):
    with opening(http, tokens=TOKENS, max_connections=10, max_body_bytes=32_000) as opened:
        for path in (b"/rpc", b"/agents/nobody", b"/mcp/nobody", b"/nothing", b"/readyz"):
            for _ in range(10):
                opened.connect(UNFINISHED.replace(b"/rpc", path, 1))
            assert answer(opened.connect(of("ann")))[0] == 200
            wait_until(lambda: not opened.places._of_owner, "the release")


def test_an_agents_address_has_few_requests_at_once(http):
    with opening(http, max_agent_requests=2) as opened:
        sessions = [opened.endpoint.rpc("create_session", toolpacks=["ledger"]) for _ in range(2)]
        gate = ledger.gates["address"] = threading.Event()
        call = request("run_function", function="add_and_hold", kwargs={"name": "address"})
        tool = request("tools/call", name="add_and_hold", arguments={"name": "address"})

        def request_to(path, body):
            text = json.dumps(body).encode()
            return HEAD.replace(b"/rpc", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(text) + text

        try:
            connections = opened.holding(1, request_to(sessions[0]["agent_path"], call))
            connections += opened.holding(1, request_to(sessions[0]["mcp_path"], tool))
            for path, body in (("agent_path", call), ("mcp_path", tool)):
                message = check_refusal(answer(opened.connect(request_to(sessions[0][path], body))), 503)
                assert "2 requests to this address are being answered" in message
            assert opened.endpoint.rpc("get_session", session_id=sessions[0]["session_id"])["version"] == 0
            assert answer(opened.connect(request_to(sessions[1]["agent_path"], request("list_functions"))))[0] == 200
        finally:
            gate.set()
        assert [answer(connection)[0] for connection in connections] == [200, 200]
        wait_until(lambda: not opened.places._of_address, "the release")
        assert answer(opened.connect(request_to(sessions[0]["agent_path"], request("list_functions"))))[0] == 200


def test_a_client_that_resets_the_connection_causes_no_error():
    underlying = Mock()
    underlying.is_closing.return_value = False
    underlying.write_eof.side_effect = OSError("not connected")
    transport = ResponseTransport(underlying, lambda: True)
    transport.last = True
    transport.close()
    assert underlying.abort.called


class Fake:
    def __init__(self):
        self.reasons = []

    def evict(self, reason):
        self.reasons.append(reason)


def test_held_resources_are_released_at_any_end():
    connections = Connections(Settings(max_connections=2, max_agent_requests=1), several=False)
    connection, caller = Fake(), Caller("ann", "a session")
    scope = {"state": {STATE: connection}}
    for closed in (False, True):
        connections.opened(connection)
        connections.hold(scope, caller)
        with pytest.raises(HttpRefusedError):
            connections.hold(scope, caller)
        if closed:
            connections.closed(connection)
        connections.release(scope, caller)
        assert (connection in connections._idle) is not closed
        assert not connections._held
        assert not connections._of_owner
        assert not connections._of_address
        connections.closed(connection)
    connections.hold({}, caller)  # a request without a connection, as from a test client
    connections.release({}, caller)
    assert not connections._of_owner
    assert connection.reasons == []
