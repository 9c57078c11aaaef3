"""Fuzz test of floods: a client repeats a protocol's cheapest unit, such as a ping, while a neighbour calls.

The test measures the memory of the process, and the longest time that the event loop computes between two turns, in
processor time of its thread. A flood may be refused or read slowly, but it mustn't delay the neighbour.
"""

import contextlib
import functools
import json
import re
import socket
import struct
import threading
from pathlib import Path
from unittest import mock

from http_endpoint import HEAD, PING, answer, request, served
from raw_websocket import CLOSE, PONG, RawWebSocket, frame
from raw_websocket import PING as PING_FRAME
from serving import PACKS, wait_until

from toolpack_server.packs.loading import load_catalog
from toolpack_server.web import event_stream
from tools.fuzz.bodies import StallMeter
from tools.fuzz.oracle import BrokenError, require

STALL_SECONDS = 0.15
MAX_MEMORY = 160  # MiB, in addition to the sent bytes, because values need much more memory than their text
MAX_STREAMS = 20  # the server must refuse an event stream before
ANSWER_BYTES = 6_000_000  # more than the kernel buffers for a client that reads nothing
MIN_CALLS, MAX_CALLS = 10, 60  # calls of the neighbour during a flood
TOKEN, OTHER_TOKEN = "token-of-ann", "token-of-ben"
NEIGHBOUR = HEAD.replace(b"Host", b"Authorization: Bearer %b\r\nHost" % TOKEN.encode())
NEIGHBOUR += b"Content-Length: %d\r\n\r\n" % len(PING) + PING

_POST = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_CHUNKED = HEAD.replace(b"Host", b"Authorization: Bearer %b\r\nHost" % TOKEN.encode())
_CHUNKED += b"Transfer-Encoding: chunked\r\n\r\n"

HTTP_FLOODS = {
    "requests to nothing": (b"", b"GET / HTTP/1.1\r\n\r\n"),
    "requests of health": (b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "requests without a token": (b"", _POST % b"/rpc" + b"Content-Length: 1\r\n\r\n1"),
    "requests to an unknown key": (b"", _POST % b"/agents/x" + b"Content-Length: 1\r\n\r\n1"),
    "requests to an unknown key of MCP": (b"", _POST % b"/mcp/x" + b"Content-Length: 1\r\n\r\n1"),
    "requests in chunks": (b"", _POST % b"/rpc" + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "requests that upgrade": (b"", b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
    "handshakes": (b"", b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    "empty lines": (b"", b"\r\n"),
    "headers": (b"GET / HTTP/1.1\r\n", b"a:\r\n"),
    "a path": (b"GET /", b"a"),
    "a query": (b"GET /healthz?", b"a&"),
    "chunks": (_CHUNKED, b"1\r\n \r\n"),
    "an extension of a chunk": (_CHUNKED + b"1;", b"a"),
    "trailers": (_CHUNKED + b"0\r\n", b"a:\r\n"),
    "chunks of empty lines": (_CHUNKED, b"200\r\n" + b"\r\n" * 256 + b"\r\n"),
}
"""The beginning of each flood, and the unit that is repeated. Most floods need no token."""

FRAME_FLOODS = {
    "pings": (b"", frame(b"", PING_FRAME)),
    "pongs": (b"", frame(b"", PONG)),
    "empty messages": (b"", frame(b"")),
    "messages": (b"", frame(b"{}")),
    "empty continuations": (frame(b"", last=False), frame(b"", 0, last=False)),
    "continuations of one byte": (frame(b"x", last=False), frame(b"x", 0, last=False)),
    "closes": (b"", frame(struct.pack("!H", 1000), CLOSE)),
}


def _members(text):
    return b"{%b}" % b",".join(b'"%d":%b' % (number, text) for number in range(120_000))


BODIES = {
    "members": _members(b"0"),
    "a list": b"[%b0]" % (b"0," * 240_000),
    "nested": b"[" * 120 + b"[0]," * 100_000 + b"0" + b"]" * 120,
    "nested without end": b"[" * 2_000_000,
    "a text": b'"%b"' % (b"\\n" * 1_000_000),
    "spaces": b" " * 4_000_000,
}
CALL_TOOL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b}}'
WRAPPERS = {
    "/rpc": [b"%b", b'{"jsonrpc":"2.0","id":1,"method":"run_function","params":%b}'],
    "/agents/{key}": [b"%b", b'{"jsonrpc":"2.0","id":1,"method":"run_function","params":{"function":"x","kwargs":%b}}'],
    "/mcp/{key}": [b"%b", CALL_TOOL],
    "/create": [b"%b", b'{"task_spec":%b}', b'{"task_spec":{"task":"bank/save-300","perturbations":%b}}'],
    "/call": [b"%b", b'{"name":"get_balance","input":%b}'],
    "/openenv/bank/reset": [b"%b", b'{"perturbations":%b}'],
    "/openenv/bank/step": [b"%b", b'{"episode_id":"x","action":{"tool_name":"get_balance","arguments":%b}}'],
    "/openenv/bank/mcp": [b"%b", CALL_TOOL],
    "/seed_session": [b"%b", b'{"task":"bank/save-300","x":%b}'],
    "/verify": [b"%b", b'{"response":{"output":%b}}'],
    "/aggregate_metrics": [b"%b", b'{"verify_responses":%b}'],
}
"""For each path, the messages into which a body is inserted at `%b`."""


def _retry_twice(pour):
    """Repeat a flood that failed, up to twice, because load from other processes may make it fail."""

    @functools.wraps(pour)
    def retried(*arguments):
        for _ in range(2):
            with contextlib.suppress(BrokenError):
                return pour(*arguments)
        return pour(*arguments)

    return retried


class Flood:
    """Sends floods to a server in this process, each on a connection of its own."""

    def __init__(self, endpoint):
        self._endpoint = endpoint

    @_retry_twice
    def http(self, name, size):
        """Send a flood of requests or of parts of a request.

        Returns:
            The longest stall in seconds, and the memory in MiB, as the other methods do.
        """
        begin, unit = HTTP_FLOODS[name]
        with self._endpoint.connect() as connection:
            return self._pour(name, connection, begin + unit * (size // len(unit)))

    @_retry_twice
    def frames(self, name, size, path):
        """Send a flood of frames on a WebSocket."""
        begin, unit = FRAME_FLOODS[name]
        with RawWebSocket(self._endpoint.port, path, TOKEN) as one:
            require(one.status == 101, "no handshake", one.status, one.body)
            return self._pour(name, one.connection, begin + unit * (size // len(unit)))

    @_retry_twice
    def body(self, name, body, path):
        """Send a single request whose body has many values."""
        if "{key}" in path:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            response = self._endpoint.http.post(
                "/rpc", json=request("create_session", toolpacks=["bank"]), headers=headers
            )
            path = path.format(key=response.json()["result"]["agent_path"].rpartition("/")[2])
        head = NEIGHBOUR.partition(b"Content-Length")[0].replace(b"/rpc", path.encode(), 1)
        head += b"Accept: application/json, text/event-stream\r\nX-Session-ID: x\r\nConnection: close\r\n"
        with self._endpoint.connect() as connection:
            return self._pour(name, connection, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def streams(self, size):
        """Open event streams until the server refuses one. Each has an answer of `size` bytes that no client reads.

        Returns:
            The longest stall in seconds, the memory in MiB, and the number of streams.
        """
        headers = {"Authorization": f"Bearer {OTHER_TOKEN}"}
        response = self._endpoint.http.post(
            "/rpc", json=request("create_session", toolpacks=["ledger"]), headers=headers
        )
        call = request("tools/call", name="repeat", arguments={"text": "x" * 1000, "times": size // 1000})
        body = json.dumps(call).encode()
        head = (
            _POST % response.json()["result"]["mcp_path"].encode() + b"Accept: application/json, text/event-stream\r\n"
        )
        in_flight, name = self._endpoint.app.state.gateway.in_flight, "event streams that no client reads"
        wait_until(lambda: in_flight.total == 0, "the release of the request's bytes")
        clear_peak()
        before, meter, opened = peak(), StallMeter(self._endpoint.loop), 0
        with contextlib.ExitStack() as stack:
            while opened < MAX_STREAMS:
                bytes_before = in_flight.total
                connection = stack.enter_context(self._endpoint.connect())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                if connection.recv(12, socket.MSG_PEEK) != b"HTTP/1.1 200":
                    break
                opened += 1
                wait_until(
                    lambda bytes_before=bytes_before: in_flight.total >= bytes_before + size, "the answer's bytes"
                )
            with self._endpoint.connect() as neighbour:
                neighbour.sendall(NEIGHBOUR)
                require(answer(neighbour)[0] == 200, "the neighbour wasn't answered", name)
        stall, memory = meter.stop(), peak() - before
        wait_until(lambda: in_flight.total == 0, "the release of the bytes")
        require(0 < opened < MAX_STREAMS, f"{opened} streams were opened", name)
        require(stall < STALL_SECONDS, f"the event loop was blocked for {stall:.2f} s of the processor", name)
        require(memory < MAX_MEMORY, f"the server took {memory:.0f} MiB", name)
        return stall, memory, opened

    def _pour(self, name, connection, data):
        clear_peak()
        before, meter = peak(), StallMeter(self._endpoint.loop)
        sender = threading.Thread(target=_send, args=(connection, data), daemon=True)
        reader = threading.Thread(target=_drain, args=(connection,), daemon=True)
        sender.start()
        reader.start()
        calls = 0
        with self._endpoint.connect() as neighbour:
            while calls < MIN_CALLS or (calls < MAX_CALLS and reader.is_alive()):
                neighbour.sendall(NEIGHBOUR)
                require(answer(neighbour)[0] == 200, "the neighbour wasn't answered", name)
                calls += 1
        stall, memory = meter.stop(), peak() - before - len(data) / 2**20
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        sender.join()
        reader.join()
        require(stall < STALL_SECONDS, f"the event loop was blocked for {stall:.2f} s of the processor", name)
        require(memory < MAX_MEMORY, f"the server took {memory:.0f} MiB", name)
        return stall, memory


@contextlib.contextmanager
def flood_of_streams(http):
    """Start a server that has memory for only a few answers, and answers each call with an event stream."""
    limits = {"max_result_bytes": 2 * ANSWER_BYTES, "max_bytes_in_flight": 8 * ANSWER_BYTES, "log_calls": "off"}
    catalog, tokens = load_catalog((PACKS,), ("ledger",)), {"ann": TOKEN, "ben": OTHER_TOKEN}
    with (
        mock.patch.object(event_stream, "SIGN_SECONDS", 0.002),
        served(http, catalog=catalog, tokens=tokens, **limits) as endpoint,
    ):
        yield Flood(endpoint)


def fuzz_floods(http, size=2**20):
    """Send every flood in this size, and every body to every path. Return the stall of each.

    Raises:
        AssertionError: A flood has blocked the event loop, or has used too much memory.
    """
    stalls = {}
    catalog = load_catalog((PACKS,), ("bank", "chores"))
    with served(http, catalog=catalog, tokens={"ann": TOKEN}, log_calls="off") as endpoint:
        flood = Flood(endpoint)
        for name in HTTP_FLOODS:
            stalls[name] = flood.http(name, size)[0]
        for name in FRAME_FLOODS:
            stalls[name] = flood.frames(name, size, "/openenv/bank/ws")[0]
        for path, wraps in WRAPPERS.items():
            for wrap in wraps:
                for name, body in BODIES.items():
                    name_of_flood = f"{name} in {wrap.decode()} at {path}"
                    stalls[name_of_flood] = flood.body(name_of_flood, wrap.replace(b"%b", body), path)[0]
    with flood_of_streams(http) as flood:
        stalls["event streams that no client reads"] = flood.streams(ANSWER_BYTES)[0]
    return stalls


def _send(connection, data):
    with contextlib.suppress(OSError):
        connection.sendall(data)


def _drain(connection):
    with contextlib.suppress(OSError):
        while connection.recv(2**16):
            pass


def clear_peak():
    """Reset the measured memory peak of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def peak():
    """Return this process's peak of resident memory since `clear_peak`, in MiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
